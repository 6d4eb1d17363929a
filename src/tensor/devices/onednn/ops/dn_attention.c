/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_attention.c - batched matrix products by oneDNN; our own layer norm and softmax, row by row.
 * All tensors are plain. Sums over rows add each column in the order of the rows, so the number of
 * threads does not change the bits.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/axis.h"

#include <math.h>
#include <string.h>

static ls_status all_plain(ls_tensor *const *tensors, int n)
{
    void *data;

    for (int i = 0; i < n; i++) {
        if (tensors[i] != NULL)
            LS_TRY(dn_host->tensor_plain(tensors[i], &data));
    }
    return LS_OK;
}

/* --- matmul --- */

ls_status dn_matmul(device_state *self, const op_call *call)
{
    const ls_tensor *a = call->in[0];
    const ls_tensor *y = call->out[0];
    const bool *transposed = call->attrs.transposed;
    const matmul_shape shape = {.type = a->dtype,
                                .out = a->dtype,
                                .batch = (int64_t)axis_split(y, y->n_dims - 2).outer,
                                .m = y->dims[y->n_dims - 2],
                                .n = y->dims[y->n_dims - 1],
                                .k = a->dims[a->n_dims - (transposed[0] ? 2 : 1)],
                                .a_swapped = transposed[0],
                                .b_swapped = transposed[1]};
    primitive *p;

    LS_TRY(matmul_for(self, &shape, &p));
    return primitive_run(self, p, (void *const[]){dn_data(a), dn_data(call->in[1]), dn_data(y)});
}

/* --- layer norm --- */

typedef struct norm_work {
    const simd_table *simd;
    size_t rows;
    size_t n; /* of a row */
    double eps;
    const float *x;
    const float *dy;
    const float *weight;
    const float *bias;
    float *mean; /* NULL: not saved */
    float *inverse;
    float *out;   /* y, dx */
    float *xhat;  /* a row for each thread */
    double *sums; /* of dweight, then of dbias */
} norm_work;

static void norm_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const norm_work *w = arg;
    const size_t n = w->n;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        const float *x = w->x + i * n;
        norm_row r = {.mean = (float)(w->simd->sum(x, n) / (double)n)};

        r.inverse = (float)(1 / sqrt(w->simd->spread(x, r.mean, n) / (double)n + w->eps));
        w->simd->norm_apply(&r, x, w->weight, w->bias, w->out + i * n, n);
        if (w->mean != NULL) {
            w->mean[i] = r.mean;
            w->inverse[i] = r.inverse;
        }
    }
}

/* The elements of a parameter; without one a row of `value` in *memory, which the caller
 * destroys. */
static ls_status norm_parameter(const op_call *call, ls_tensor *t, size_t n, float value,
                                ls_tensor **memory, const float **out)
{
    float *floats;

    if (t != NULL) {
        *out = dn_data(t);
        return LS_OK;
    }
    LS_TRY(dn_floats(call->in[0]->device, n, memory, &floats));
    for (size_t i = 0; i < n; i++)
        floats[i] = value;
    *out = floats;
    return LS_OK;
}

ls_status dn_layer_norm(device_state *self, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    norm_work w = {.simd = self->simd,
                   .rows = p.outer,
                   .n = p.n,
                   .eps = call->attrs.eps,
                   .x = dn_data(call->in[0]),
                   .out = dn_data(call->out[0]),
                   .mean = dn_data(call->out[1]),
                   .inverse = dn_data(call->out[2])};
    ls_tensor *memory[2] = {NULL, NULL};
    ls_status st;

    st = norm_parameter(call, call->in[1], w.n, 1, &memory[0], &w.weight);
    if (st == LS_OK)
        st = norm_parameter(call, call->in[2], w.n, 0, &memory[1], &w.bias);
    if (st == LS_OK)
        threads_for(self, w.rows, w.n, norm_rows, &w);
    dn_host->tensor_destroy(memory[0]);
    dn_host->tensor_destroy(memory[1]);
    return st;
}

static void norm_rows_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const norm_work *w = arg;
    const size_t n = w->n;
    float *xhat = w->xhat + thread * n;

    for (size_t i = begin; i < end; i++) {
        norm_row r = {.mean = w->mean[i], .inverse = w->inverse[i]};
        float *g = w->out + i * n; // until dx is computed from it

        w->simd->norm_slopes(&r, w->x + i * n, w->dy + i * n, w->weight, xhat, g, n);
        r.mean_g = (float)(w->simd->sum(g, n) / (double)n);
        r.mean_g_xhat = (float)(w->simd->dot(g, xhat, n) / (double)n);
        w->simd->norm_dx(&r, xhat, g, g, n);
    }
}

static void norm_columns(void *arg, size_t begin, size_t end, size_t thread)
{
    const norm_work *w = arg;

    LS_UNUSED(thread);
    for (size_t i = 0; i < w->rows; i++) {
        const norm_row r = {.mean = w->mean[i], .inverse = w->inverse[i]};
        const size_t at = i * w->n + begin;

        w->simd->norm_sums(&r, w->x + at, w->dy + at, w->sums + begin, w->sums + w->n + begin,
                           end - begin);
    }
}

static void give_sums(const op_call *call, const norm_work *w)
{
    for (int k = 0; k < 2; k++) {
        float *out = dn_data(call->out[1 + k]);

        for (size_t i = 0; out != NULL && i < w->n; i++)
            out[i] =
                (float)(w->sums[(size_t)k * w->n + i] + (call->accumulate ? (double)out[i] : 0));
    }
}

/* dweight and dbias first: dx may be placed in the memory of dy. */
ls_status dn_layer_norm_backward(device_state *self, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    norm_work w = {.simd = self->simd, .rows = p.outer, .n = p.n};
    const size_t n_sums = 2 * (2 * p.n); // two doubles for each column
    ls_tensor *memory = NULL;
    ls_tensor *ones = NULL;
    float *floats;
    ls_status st;

    LS_TRY(all_plain(call->in, 5));
    if (call->out[0] != NULL)
        LS_TRY(layout_place_over(self, call, call->out[0], layout_of(self, call->in[0])));
    LS_TRY(dn_floats(call->in[0]->device, n_sums + (size_t)self->threads * p.n, &memory, &floats));
    memset(floats, 0, n_sums * sizeof(*floats));
    w.sums = (double *)(void *)floats;
    w.xhat = floats + n_sums;
    w.x = dn_data(call->in[0]);
    w.dy = dn_data(call->in[1]);
    w.mean = dn_data(call->in[3]);
    w.inverse = dn_data(call->in[4]);
    if (call->out[1] != NULL || call->out[2] != NULL) {
        threads_for(self, w.n, w.rows, norm_columns, &w);
        give_sums(call, &w);
    }
    st = norm_parameter(call, call->in[2], w.n, 1, &ones, &w.weight);
    if (st == LS_OK && call->out[0] != NULL) {
        w.out = dn_data(call->out[0]);
        threads_for(self, w.rows, w.n, norm_rows_back, &w);
    }
    dn_host->tensor_destroy(ones);
    dn_host->tensor_destroy(memory);
    return st;
}

/* --- softmax --- */

typedef struct softmax_work {
    const simd_table *simd;
    size_t n;
    float scale;
    const float *in; /* x; backward: y */
    const float *dy;
    float *out;
} softmax_work;

static void softmax_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const softmax_work *w = arg;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        float *y = w->out + i * w->n;
        float top;
        double sum;

        w->simd->shift_scale(w->in + i * w->n, 0, w->scale, y, w->n);
        top = w->simd->largest(y, w->n);
        w->simd->exp_below(y, top == -INFINITY ? 0 : top, y, w->n);
        sum = w->simd->sum(y, w->n);
        w->simd->shift_scale(y, 0, (float)(1 / (sum == 0 ? 1 : sum)), y, w->n);
    }
}

static void softmax_rows_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const softmax_work *w = arg;

    LS_UNUSED(thread);
    for (size_t i = begin * w->n; i < end * w->n; i += w->n) {
        const float sum = (float)w->simd->dot(w->in + i, w->dy + i, w->n);

        w->simd->softmax_dx(w->in + i, w->dy + i, sum, w->scale, w->out + i, w->n);
    }
}

ls_status dn_softmax(device_state *self, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    softmax_work w = {.simd = self->simd,
                      .n = p.n,
                      .scale = (float)call->attrs.scale,
                      .in = dn_data(call->in[0]),
                      .out = dn_data(call->out[0])};

    threads_for(self, p.outer, p.n, softmax_rows, &w);
    return LS_OK;
}

/* dx = scale y (dy - sum(dy y)) */
ls_status dn_softmax_backward(device_state *self, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    softmax_work w = {.simd = self->simd, .n = p.n, .scale = (float)call->attrs.scale};

    LS_TRY(all_plain(call->in, 2));
    LS_TRY(layout_place_over(self, call, call->out[0], layout_of(self, call->in[0])));
    w.in = dn_data(call->in[0]);
    w.dy = dn_data(call->in[1]);
    w.out = dn_data(call->out[0]);
    threads_for(self, p.outer, p.n, softmax_rows_back, &w);
    return LS_OK;
}
