/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_recurrent.c - the steps of LSTM and GRU cells. All tensors are plain; a thread takes whole
 * rows, so the number of threads does not change the bits.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

/* The work of a unit, in floats read or written: its exponential functions count as well. */
#define UNIT_COST 40

typedef struct step_work step_work;

/* The tensors of a call, NULL where it has none. */
struct step_work {
    const simd_table *simd;
    const int64_t *lengths;
    int64_t position;
    size_t n; /* units of a row */
    const float *in[6];
    float *out[4];
    void (*run)(const step_work *w, size_t row);  /* a row that has this step */
    void (*skip)(const step_work *w, size_t row); /* another one */
};

static void run_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const step_work *w = arg;

    LS_UNUSED(thread);
    for (size_t row = begin; row < end; row++) {
        if (w->lengths == NULL || w->lengths[row] > w->position)
            w->run(w, row);
        else
            w->skip(w, row);
    }
}

static ls_status check_lengths(const op_call *call, const int64_t *lengths, size_t n)
{
    for (size_t row = 0; lengths != NULL && row < n; row++) {
        if (lengths[row] < 0 || lengths[row] > call->attrs.limit)
            return dn_fail(LS_EINVAL, "length %lld of row %zu is outside [0, %lld]",
                           (long long)lengths[row], row, (long long)call->attrs.limit);
    }
    return LS_OK;
}

/* state, in[i], is (N,H); in[lengths] may be NULL. */
static ls_status run_step(device_state *self, const op_call *call, int state, int lengths,
                          step_work w)
{
    const size_t rows = (size_t)call->in[state]->dims[0];

    w.simd = self->simd;
    w.position = call->attrs.begin;
    w.n = (size_t)call->in[state]->dims[1];
    w.lengths = dn_data(call->in[lengths]);
    LS_TRY(check_lengths(call, w.lengths, rows));
    for (int i = 0; i < call->n_in; i++)
        w.in[i] = i == lengths ? NULL : dn_data(call->in[i]);
    for (int i = 0; i < call->n_out; i++)
        w.out[i] = dn_data(call->out[i]);
    threads_for(self, rows, UNIT_COST * w.n, run_range, &w);
    return LS_OK;
}

/* --- rows --- */

/* Row `row` of a matrix of n columns; NULL stays. */
static const float *in_row(const float *p, size_t row, size_t n)
{
    return p == NULL ? NULL : p + row * n;
}

static float *out_row(float *p, size_t row, size_t n)
{
    return p == NULL ? NULL : p + row * n;
}

static void copy_row(float *to, const float *from, size_t row, size_t n)
{
    if (to != NULL)
        memcpy(to + row * n, from + row * n, n * sizeof(*to));
}

static void zero_row(float *to, size_t row, size_t n)
{
    if (to != NULL)
        memset(to + row * n, 0, n * sizeof(*to));
}

/* The gradient that passes a row without this step. */
static void pass_row(float *to, const float *from, size_t row, size_t n)
{
    if (from != NULL)
        copy_row(to, from, row, n);
    else
        zero_row(to, row, n);
}

/* --- LSTM --- */

static void lstm_row(const step_work *w, size_t row)
{
    const recurrent_row r = {.a = in_row(w->in[0], row, 4 * w->n),
                             .b = in_row(w->in[1], row, 4 * w->n),
                             .state = in_row(w->in[2], row, w->n),
                             .h = out_row(w->out[0], row, w->n),
                             .c = out_row(w->out[1], row, w->n),
                             .gates = out_row(w->out[3], row, 4 * w->n)};

    w->simd->lstm(&r, w->n);
    copy_row(w->out[2], w->out[0], row, w->n);
}

static void lstm_skip(const step_work *w, size_t row)
{
    copy_row(w->out[0], w->in[3], row, w->n);
    copy_row(w->out[1], w->in[2], row, w->n);
    zero_row(w->out[2], row, w->n);
    zero_row(w->out[3], row, 4 * w->n);
}

ls_status dn_lstm(device_state *self, const op_call *call)
{
    return run_step(self, call, 2, 4, (step_work){.run = lstm_row, .skip = lstm_skip});
}

static void lstm_row_back(const step_work *w, size_t row)
{
    const recurrent_slope r = {.gates = in_row(w->in[0], row, 4 * w->n),
                               .state = in_row(w->in[1], row, w->n),
                               .dh = in_row(w->in[3], row, w->n),
                               .dy = in_row(w->in[5], row, w->n),
                               .dc = in_row(w->in[4], row, w->n),
                               .da = out_row(w->out[0], row, 4 * w->n),
                               .dstate = out_row(w->out[1], row, w->n)};

    w->simd->lstm_backward(&r, w->n);
    zero_row(w->out[2], row, w->n);
}

static void lstm_skip_back(const step_work *w, size_t row)
{
    zero_row(w->out[0], row, 4 * w->n);
    pass_row(w->out[1], w->in[4], row, w->n);
    pass_row(w->out[2], w->in[3], row, w->n);
}

ls_status dn_lstm_backward(device_state *self, const op_call *call)
{
    return run_step(self, call, 1, 2, (step_work){.run = lstm_row_back, .skip = lstm_skip_back});
}

/* --- GRU --- */

static void gru_row(const step_work *w, size_t row)
{
    const recurrent_row r = {.a = in_row(w->in[0], row, 3 * w->n),
                             .b = in_row(w->in[1], row, 3 * w->n),
                             .state = in_row(w->in[2], row, w->n),
                             .h = out_row(w->out[0], row, w->n),
                             .gates = out_row(w->out[2], row, 4 * w->n)};

    w->simd->gru(&r, w->n);
    copy_row(w->out[1], w->out[0], row, w->n);
}

static void gru_skip(const step_work *w, size_t row)
{
    copy_row(w->out[0], w->in[2], row, w->n);
    zero_row(w->out[1], row, w->n);
    zero_row(w->out[2], row, 4 * w->n);
}

ls_status dn_gru(device_state *self, const op_call *call)
{
    return run_step(self, call, 2, 3, (step_work){.run = gru_row, .skip = gru_skip});
}

static void gru_row_back(const step_work *w, size_t row)
{
    const recurrent_slope r = {.gates = in_row(w->in[0], row, 4 * w->n),
                               .state = in_row(w->in[1], row, w->n),
                               .dh = in_row(w->in[3], row, w->n),
                               .dy = in_row(w->in[4], row, w->n),
                               .da = out_row(w->out[0], row, 3 * w->n),
                               .db = out_row(w->out[1], row, 3 * w->n),
                               .dstate = out_row(w->out[2], row, w->n)};

    w->simd->gru_backward(&r, w->n);
}

static void gru_skip_back(const step_work *w, size_t row)
{
    zero_row(w->out[0], row, 3 * w->n);
    zero_row(w->out[1], row, 3 * w->n);
    pass_row(w->out[2], w->in[3], row, w->n);
}

ls_status dn_gru_backward(device_state *self, const op_call *call)
{
    return run_step(self, call, 1, 2, (step_work){.run = gru_row_back, .skip = gru_skip_back});
}
