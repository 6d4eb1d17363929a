/* SPDX-License-Identifier: Apache-2.0 */
/* ref_recurrent.c - the steps of LSTM and GRU cells, by definition. */
#include "tensor/devices/cpu_ref/ref.h"

#include <math.h>

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

#define REAL                 double
#define RECURRENT_FN         static
#define RECURRENT_NAME(name) name
#define RECURRENT_SIGMOID    sigmoid
#define RECURRENT_TANH       tanh
#include "tensor/formulas/recurrent.inc"

enum { MAX_GATES = 4 };

/* --- elements --- */

/* NULL reads as 0. */
static double get(const ls_tensor *t, size_t i)
{
    return t == NULL ? 0 : ref_get(tensor_elements(t), i, ref_wide(t));
}

static void put(const ls_tensor *t, size_t i, double value)
{
    if (t != NULL)
        ref_put(tensor_elements(t), i, value, ref_wide(t));
}

/* Columns k, H + k, 2 H + k, ... of a row of t (N, n H). */
static void get_gates(const ls_tensor *t, size_t row, size_t k, size_t width, int n, double *gates)
{
    for (int i = 0; i < n; i++)
        gates[i] = get(t, (row * (size_t)n + (size_t)i) * width + k);
}

static void put_gates(const ls_tensor *t, size_t row, size_t k, size_t width, int n,
                      const double *gates)
{
    for (int i = 0; i < n; i++)
        put(t, (row * (size_t)n + (size_t)i) * width + k, gates[i]);
}

/* --- rows --- */

static ls_status check_lengths(const op_call *call, const ls_tensor *lengths)
{
    const int64_t *values = lengths == NULL ? NULL : tensor_elements(lengths);

    for (size_t row = 0; lengths != NULL && row < (size_t)lengths->dims[0]; row++) {
        if (values[row] < 0 || values[row] > call->attrs.limit)
            return ls_fail(LS_EINVAL, "length %lld of row %zu is outside [0, %lld]",
                           (long long)values[row], row, (long long)call->attrs.limit);
    }
    return LS_OK;
}

/* Whether the row has this step. */
static bool is_active(const op_call *call, const ls_tensor *lengths, size_t row)
{
    return lengths == NULL || ((const int64_t *)tensor_elements(lengths))[row] > call->attrs.begin;
}

/* Unit k of row `row`. */
typedef void (*unit_fn)(const op_call *call, size_t row, size_t k, size_t width, bool active);

/* Over the rows and columns of `state` (N,H). */
static ls_status run_units(const op_call *call, const ls_tensor *state, const ls_tensor *lengths,
                           unit_fn fn)
{
    const size_t width = (size_t)state->dims[1];

    LS_TRY(check_lengths(call, lengths));
    for (size_t row = 0; row < (size_t)state->dims[0]; row++) {
        for (size_t k = 0; k < width; k++)
            fn(call, row, k, width, is_active(call, lengths, row));
    }
    return LS_OK;
}

/* --- LSTM --- */

static void lstm_unit_at(const op_call *call, size_t row, size_t k, size_t width, bool active)
{
    const size_t at = row * width + k;
    const double c = get(call->in[2], at);
    double a[MAX_GATES];
    double b[MAX_GATES];
    lstm_unit u = {.c = c, .h = get(call->in[3], at)};

    get_gates(call->in[0], row, k, width, 4, a);
    get_gates(call->in[1], row, k, width, 4, b);
    if (active)
        u = lstm_step(a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], c);
    put(call->out[0], at, u.h);
    put(call->out[1], at, u.c);
    put(call->out[2], at, active ? u.h : 0);
    put_gates(call->out[3], row, k, width, 4, (double[]){u.i, u.f, u.g, u.o});
}

ls_status ref_lstm(const op_call *call)
{
    return run_units(call, call->in[2], call->in[4], lstm_unit_at);
}

static void lstm_slope_at(const op_call *call, size_t row, size_t k, size_t width, bool active)
{
    const size_t at = row * width + k;
    const double dh = get(call->in[3], at);
    const double dc = get(call->in[4], at);
    double g[MAX_GATES];
    lstm_unit u = {.c = dc};

    get_gates(call->in[0], row, k, width, 4, g);
    if (active)
        u = lstm_slope(g[0], g[1], g[2], g[3], get(call->in[1], at), dh + get(call->in[5], at), dc);
    put_gates(call->out[0], row, k, width, 4, (double[]){u.i, u.f, u.g, u.o});
    put(call->out[1], at, u.c);
    put(call->out[2], at, active ? 0 : dh);
}

ls_status ref_lstm_backward(const op_call *call)
{
    return run_units(call, call->in[1], call->in[2], lstm_slope_at);
}

/* --- GRU --- */

static void gru_unit_at(const op_call *call, size_t row, size_t k, size_t width, bool active)
{
    const size_t at = row * width + k;
    const double h = get(call->in[2], at);
    double a[MAX_GATES];
    double b[MAX_GATES];
    gru_unit u = {.h = h};

    get_gates(call->in[0], row, k, width, 3, a);
    get_gates(call->in[1], row, k, width, 3, b);
    if (active)
        u = gru_step(a[0] + b[0], a[1] + b[1], a[2], b[2], h);
    put(call->out[0], at, u.h);
    put(call->out[1], at, active ? u.h : 0);
    put_gates(call->out[2], row, k, width, 4, (double[]){u.r, u.z, u.n, u.m});
}

ls_status ref_gru(const op_call *call)
{
    return run_units(call, call->in[2], call->in[3], gru_unit_at);
}

static void gru_slope_at(const op_call *call, size_t row, size_t k, size_t width, bool active)
{
    const size_t at = row * width + k;
    const double dh = get(call->in[3], at);
    double g[MAX_GATES];
    gru_unit u = {.h = dh};

    get_gates(call->in[0], row, k, width, 4, g);
    if (active)
        u = gru_slope(g[0], g[1], g[2], g[3], get(call->in[1], at), dh + get(call->in[4], at));
    put_gates(call->out[0], row, k, width, 3, (double[]){u.r, u.z, u.n});
    put_gates(call->out[1], row, k, width, 3, (double[]){u.r, u.z, u.m});
    put(call->out[2], at, u.h);
}

ls_status ref_gru_backward(const op_call *call)
{
    return run_units(call, call->in[1], call->in[2], gru_slope_at);
}
