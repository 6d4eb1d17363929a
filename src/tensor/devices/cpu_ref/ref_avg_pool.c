/* SPDX-License-Identifier: Apache-2.0 */
/* ref_avg_pool.c - the mean of each window; backward each position of the window gets its share. */
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/formulas/window.h"

#include <string.h>

/* A window of plane `plane` of the tensor with x's shape. */
typedef struct avg_window {
    window_span h;
    window_span w;
    size_t plane;
    int64_t row;
} avg_window;

REF_INLINE double sum_of(const avg_window *k, const void *x, bool wide)
{
    double sum = 0;

    for (int64_t h = k->h.begin; h < k->h.end; h++) {
        for (int64_t w = k->w.begin; w < k->w.end; w++)
            sum += ref_get(x, k->plane + (size_t)(h * k->row + w), wide);
    }
    return sum;
}

REF_INLINE void spread(const avg_window *k, void *dx, double share, bool wide)
{
    for (int64_t h = k->h.begin; h < k->h.end; h++) {
        for (int64_t w = k->w.begin; w < k->w.end; w++)
            ref_give(dx, k->plane + (size_t)(h * k->row + w), share, true, wide);
    }
}

/* Visits all windows: writes y from x, or with `back` adds to dx from dy. */
REF_INLINE void walk(const op_attrs *a, const ls_tensor *in, const ls_tensor *out, bool back,
                     bool wide)
{
    const size_t n_planes = (size_t)(in->dims[0] * in->dims[1]);
    size_t at = 0;

    for (size_t p = 0; p < n_planes; p++) {
        avg_window k = {.plane = p * (size_t)(in->dims[2] * in->dims[3]), .row = in->dims[3]};

        for (int64_t oh = 0; oh < out->dims[2]; oh++) {
            k.h = window_average(a, 0, in->dims[2], out->dims[2], oh);
            for (int64_t ow = 0; ow < out->dims[3]; ow++, at++) {
                double size;

                k.w = window_average(a, 1, in->dims[3], out->dims[3], ow);
                size = (double)(k.h.size * k.w.size);
                if (back)
                    spread(&k, tensor_elements(in), ref_get(tensor_elements(out), at, wide) / size,
                           wide);
                else
                    ref_put(tensor_elements(out), at, sum_of(&k, tensor_elements(in), wide) / size,
                            wide);
            }
        }
    }
}

ls_status ref_avg_pool2d(const op_call *call)
{
    REF_RUN(call->in[0], walk, &call->attrs, call->in[0], call->out[0], false);
    return LS_OK;
}

ls_status ref_avg_pool2d_backward(const op_call *call)
{
    ls_tensor *dx = call->out[0];

    if (tensor_bytes(dx) > 0)
        memset(tensor_elements(dx), 0, tensor_bytes(dx));
    REF_RUN(dx, walk, &call->attrs, dx, call->in[0], true);
    return LS_OK;
}
