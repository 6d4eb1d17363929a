/* SPDX-License-Identifier: Apache-2.0 */
/* ref_max_pool.c - the largest value of each window; backward its position gets the gradient. */
#include "tensor/devices/cpu_ref/ref.h"

#include <math.h>
#include <string.h>

typedef struct pool_sizes {
    int64_t h;
    int64_t w;
    int64_t out_h;
    int64_t out_w;
    op_attrs a;
} pool_sizes;

/* The index of the window's first maximum within the plane at x, or of its last NaN. Padding is
 * not read. */
REF_INLINE int64_t winner(const pool_sizes *s, const void *x, size_t plane, int64_t oh, int64_t ow,
                          bool wide)
{
    const int64_t top = oh * s->a.stride[0] - s->a.padding[0];
    const int64_t left = ow * s->a.stride[1] - s->a.padding[1];
    double best = 0;
    int64_t best_at = -1;

    for (int64_t h = top < 0 ? 0 : top; h < top + s->a.kernel[0] && h < s->h; h++) {
        for (int64_t w = left < 0 ? 0 : left; w < left + s->a.kernel[1] && w < s->w; w++) {
            const double v = ref_get(x, plane + (size_t)(h * s->w + w), wide);

            if (best_at < 0 || v > best || isnan(v)) {
                best = v;
                best_at = h * s->w + w;
            }
        }
    }
    return best_at;
}

REF_INLINE void max_pool(const op_call *call, const pool_sizes *s, bool wide)
{
    const ls_tensor *in = call->in[0];
    const size_t n_planes = (size_t)(in->dims[0] * in->dims[1]);
    const void *x = tensor_elements(in);
    void *y = tensor_elements(call->out[0]);
    int32_t *indices = call->out[1] == NULL ? NULL : tensor_elements(call->out[1]);
    size_t at = 0;

    for (size_t p = 0; p < n_planes; p++) {
        const size_t plane = p * (size_t)(s->h * s->w);

        for (int64_t oh = 0; oh < s->out_h; oh++) {
            for (int64_t ow = 0; ow < s->out_w; ow++, at++) {
                const int64_t best_at = winner(s, x, plane, oh, ow, wide);

                ref_put(y, at, ref_get(x, plane + (size_t)best_at, wide), wide);
                if (indices != NULL)
                    indices[at] = (int32_t)best_at;
            }
        }
    }
}

ls_status ref_max_pool2d(const op_call *call)
{
    const pool_sizes s = {.h = call->in[0]->dims[2],
                          .w = call->in[0]->dims[3],
                          .out_h = call->out[0]->dims[2],
                          .out_w = call->out[0]->dims[3],
                          .a = call->attrs};

    REF_RUN(call->in[0], max_pool, call, &s);
    return LS_OK;
}

/* Windows may overlap, so that one element of dx may get several gradients. */
REF_INLINE void backward(const op_call *call, bool wide)
{
    const ls_tensor *dy = call->in[0];
    ls_tensor *dx = call->out[0];
    const int32_t *indices = tensor_elements(call->in[1]);
    const size_t n_planes = (size_t)(dx->dims[0] * dx->dims[1]);
    const size_t plane = (size_t)(dx->dims[2] * dx->dims[3]);
    const size_t out_plane = (size_t)(dy->dims[2] * dy->dims[3]);

    for (size_t p = 0; p < n_planes; p++) {
        for (size_t i = p * out_plane; i < (p + 1) * out_plane; i++)
            ref_give(tensor_elements(dx), p * plane + (size_t)indices[i],
                     ref_get(tensor_elements(dy), i, wide), true, wide);
    }
}

ls_status ref_max_pool2d_backward(const op_call *call)
{
    if (tensor_bytes(call->out[0]) > 0)
        memset(tensor_elements(call->out[0]), 0, tensor_bytes(call->out[0]));
    REF_RUN(call->in[0], backward, call);
    return LS_OK;
}
