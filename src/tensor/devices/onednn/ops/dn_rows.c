/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_rows.c - extremes and cumulative sums of rows, and embeddings. All tensors are plain; a thread
 * takes whole rows or columns, so the number of threads does not change the bits.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/axis.h"

#include <string.h>

enum { PARTS = 64 }; /* of a row, whose extremes are found side by side */

typedef struct row_work {
    const simd_table *simd;
    size_t n; /* of a row */
    op_binary f;
    bool reverse;
    const float *x;
    const float *extremes; /* backward */
    const float *dy;
    float *out;
} row_work;

/* Runs `fn` on the rows of in[0]. */
static ls_status run_rows(device_state *self, const op_call *call, range_fn fn)
{
    const axis_parts p = axis_rows(call->in[0]);
    row_work w = {.simd = self->simd,
                  .n = p.n,
                  .f = call->attrs.binary,
                  .reverse = call->attrs.reverse,
                  .x = dn_data(call->in[0]),
                  .extremes = dn_data(call->in[1]),
                  .dy = dn_data(call->in[2]),
                  .out = dn_data(call->out[0])};

    threads_for(self, p.outer, p.n, fn, &w);
    return LS_OK;
}

static void extreme_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const row_work *w = arg;
    const size_t width = w->n < PARTS ? w->n : PARTS;
    float parts[PARTS];

    LS_UNUSED(thread);
    for (size_t row = begin; row < end; row++) {
        const float *x = w->x + row * w->n;

        memcpy(parts, x, width * sizeof(*parts));
        for (size_t at = width; at < w->n; at += width)
            w->simd->binary(w->f, 0, parts, x + at, parts, w->n - at < width ? w->n - at : width);
        for (size_t i = 1; i < width; i++)
            w->simd->binary(w->f, 0, parts, parts + i, parts, 1);
        w->out[row] = parts[0];
    }
}

ls_status dn_extreme(device_state *self, const op_call *call)
{
    return run_rows(self, call, extreme_rows);
}

static void extreme_rows_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const row_work *w = arg;

    LS_UNUSED(thread);
    for (size_t row = begin; row < end; row++) {
        const float *x = w->x + row * w->n;
        const float y = w->extremes[row];
        size_t n_equal = 0;
        float share;

        for (size_t i = 0; i < w->n; i++)
            n_equal += x[i] == y;
        share = w->dy[row] / (float)n_equal;
        for (size_t i = 0; i < w->n; i++)
            w->out[row * w->n + i] = x[i] == y ? share : 0;
    }
}

ls_status dn_extreme_backward(device_state *self, const op_call *call)
{
    return run_rows(self, call, extreme_rows_back);
}

static void cumsum_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const row_work *w = arg;

    LS_UNUSED(thread);
    for (size_t row = begin; row < end; row++) {
        const float *x = w->x + row * w->n;
        float *y = w->out + row * w->n;
        double sum = 0;

        for (size_t k = 0; k < w->n; k++) {
            const size_t i = w->reverse ? w->n - 1 - k : k;

            sum += (double)x[i];
            y[i] = (float)sum;
        }
    }
}

ls_status dn_cumsum(device_state *self, const op_call *call)
{
    return run_rows(self, call, cumsum_rows);
}

/* --- embedding --- */

typedef struct embedding_work {
    const simd_table *simd;
    const int64_t *indices;
    size_t n;       /* indices */
    size_t columns; /* of the weight */
    int64_t ignored;
    const float *in; /* the weight; backward: dy */
    float *out;      /* y; backward: dw */
} embedding_work;

static void embedding_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const embedding_work *w = arg;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++)
        memcpy(w->out + i * w->columns, w->in + (size_t)w->indices[i] * w->columns,
               w->columns * sizeof(*w->out));
}

/* All positions in order, for some of the columns. */
static void embedding_columns(void *arg, size_t begin, size_t end, size_t thread)
{
    const embedding_work *w = arg;

    LS_UNUSED(thread);
    for (size_t i = 0; i < w->n && end > begin; i++) {
        float *sums = w->out + (size_t)w->indices[i] * w->columns + begin;

        if (w->indices[i] != w->ignored)
            w->simd->add(sums, w->in + i * w->columns + begin, sums, end - begin);
    }
}

static ls_status open_embedding(device_state *self, const op_call *call, const ls_tensor *weight,
                                embedding_work *w)
{
    *w = (embedding_work){.simd = self->simd,
                          .indices = dn_data(call->in[1]),
                          .n = call->in[1]->count,
                          .columns = (size_t)weight->dims[1],
                          .ignored = call->attrs.begin,
                          .in = dn_data(call->in[0]),
                          .out = dn_data(call->out[0])};
    for (size_t i = 0; i < w->n; i++) {
        if (w->indices[i] < 0 || w->indices[i] >= weight->dims[0])
            return dn_fail(LS_EINVAL, "index %lld at position %zu is outside [0, %lld)",
                           (long long)w->indices[i], i, (long long)weight->dims[0]);
    }
    return LS_OK;
}

ls_status dn_embedding(device_state *self, const op_call *call)
{
    embedding_work w;

    LS_TRY(open_embedding(self, call, call->in[0], &w));
    threads_for(self, w.n, w.columns, embedding_rows, &w);
    return LS_OK;
}

ls_status dn_embedding_backward(device_state *self, const op_call *call)
{
    const ls_tensor *dw = call->out[0];
    embedding_work w;

    LS_TRY(open_embedding(self, call, dw, &w));
    if (!call->accumulate)
        memset(w.out, 0, (size_t)dw->dims[0] * w.columns * sizeof(*w.out));
    threads_for(self, w.columns, w.n, embedding_columns, &w);
    return LS_OK;
}
