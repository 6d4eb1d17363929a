/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_conv2d.c - convolution and its two gradients; each element is the sum that defines it.
 *
 * With stride s, padding p, dilation d, output (oh, ow) and kernel (kh, kw) read input (oh s - p +
 * kh d, ow s - p + kw d); this relation, solved for each of the three, gives the three kernels.
 */
#include "tensor/devices/cpu_ref/ref.h"

typedef struct conv_sizes {
    int64_t n;
    int64_t c;
    int64_t h;
    int64_t w;
    int64_t o;
    int64_t out_h;
    int64_t out_w;
    int64_t group_c; /* input channels of a group */
    int64_t group_o; /* output channels of a group */
    int64_t kh;
    int64_t kw;
    op_attrs a;
} conv_sizes;

/* x or dx: (N,C,H,W), weight or dweight: (O,C/groups,KH,KW), y or dy: (N,O,H',W'). */
static conv_sizes sizes_of(const ls_tensor *x, const ls_tensor *weight, const ls_tensor *y,
                           const op_attrs *attrs)
{
    return (conv_sizes){.n = x->dims[0],
                        .c = x->dims[1],
                        .h = x->dims[2],
                        .w = x->dims[3],
                        .o = y->dims[1],
                        .out_h = y->dims[2],
                        .out_w = y->dims[3],
                        .group_c = weight->dims[1],
                        .group_o = weight->dims[0] / attrs->groups,
                        .kh = weight->dims[2],
                        .kw = weight->dims[3],
                        .a = *attrs};
}

REF_INLINE size_t x_at(const conv_sizes *s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (size_t)(((n * s->c + c) * s->h + h) * s->w + w);
}

REF_INLINE size_t y_at(const conv_sizes *s, int64_t n, int64_t o, int64_t oh, int64_t ow)
{
    return (size_t)(((n * s->o + o) * s->out_h + oh) * s->out_w + ow);
}

REF_INLINE size_t w_at(const conv_sizes *s, int64_t o, int64_t c, int64_t kh, int64_t kw)
{
    return (size_t)(((o * s->group_c + c) * s->kh + kh) * s->kw + kw);
}

/* --- y --- */

REF_INLINE double output_at(const conv_sizes *s, const void *x, const void *weight, int64_t n,
                            int64_t o, int64_t oh, int64_t ow, bool wide)
{
    const int64_t first_c = o / s->group_o * s->group_c;
    double sum = 0;

    for (int64_t c = 0; c < s->group_c; c++) {
        for (int64_t kh = 0; kh < s->kh; kh++) {
            const int64_t h = oh * s->a.stride[0] - s->a.padding[0] + kh * s->a.dilation[0];

            if (h < 0 || h >= s->h)
                continue;
            for (int64_t kw = 0; kw < s->kw; kw++) {
                const int64_t w = ow * s->a.stride[1] - s->a.padding[1] + kw * s->a.dilation[1];

                if (w >= 0 && w < s->w)
                    sum += ref_get(x, x_at(s, n, first_c + c, h, w), wide) *
                           ref_get(weight, w_at(s, o, c, kh, kw), wide);
            }
        }
    }
    return sum;
}

REF_INLINE void conv2d(const conv_sizes *s, const void *x, const void *weight, const void *bias,
                       void *y, bool wide)
{
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t o = 0; o < s->o; o++) {
            const double start = bias == NULL ? 0 : ref_get(bias, (size_t)o, wide);

            for (int64_t oh = 0; oh < s->out_h; oh++) {
                for (int64_t ow = 0; ow < s->out_w; ow++)
                    ref_put(y, y_at(s, n, o, oh, ow),
                            start + output_at(s, x, weight, n, o, oh, ow, wide), wide);
            }
        }
    }
}

ls_status ref_conv2d(const op_call *call)
{
    const conv_sizes s = sizes_of(call->in[0], call->in[1], call->out[0], &call->attrs);
    const void *x = tensor_elements(call->in[0]);
    const void *weight = tensor_elements(call->in[1]);
    const void *bias = call->in[2] == NULL ? NULL : tensor_elements(call->in[2]);

    REF_RUN(call->in[0], conv2d, &s, x, weight, bias, tensor_elements(call->out[0]));
    return LS_OK;
}

/* --- dx --- */

/* The output position that reads input position `at` with kernel position k; -1: none. */
REF_INLINE int64_t output_over(int64_t at, int64_t k, int64_t n_out, const op_attrs *a, int axis)
{
    const int64_t scaled = at + a->padding[axis] - k * a->dilation[axis];

    if (scaled < 0 || scaled % a->stride[axis] != 0 || scaled / a->stride[axis] >= n_out)
        return -1;
    return scaled / a->stride[axis];
}

REF_INLINE double dx_at(const conv_sizes *s, const void *dy, const void *weight, int64_t n,
                        int64_t c, int64_t h, int64_t w, bool wide)
{
    const int64_t group = c / s->group_c;
    double sum = 0;

    for (int64_t o = group * s->group_o; o < (group + 1) * s->group_o; o++) {
        for (int64_t kh = 0; kh < s->kh; kh++) {
            const int64_t oh = output_over(h, kh, s->out_h, &s->a, 0);

            if (oh < 0)
                continue;
            for (int64_t kw = 0; kw < s->kw; kw++) {
                const int64_t ow = output_over(w, kw, s->out_w, &s->a, 1);

                if (ow >= 0)
                    sum += ref_get(dy, y_at(s, n, o, oh, ow), wide) *
                           ref_get(weight, w_at(s, o, c - group * s->group_c, kh, kw), wide);
            }
        }
    }
    return sum;
}

REF_INLINE void backward_data(const conv_sizes *s, const void *dy, const void *weight, void *dx,
                              bool wide)
{
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t c = 0; c < s->c; c++) {
            for (int64_t h = 0; h < s->h; h++) {
                for (int64_t w = 0; w < s->w; w++)
                    ref_put(dx, x_at(s, n, c, h, w), dx_at(s, dy, weight, n, c, h, w, wide), wide);
            }
        }
    }
}

ls_status ref_conv2d_backward_data(const op_call *call)
{
    const conv_sizes s = sizes_of(call->out[0], call->in[1], call->in[0], &call->attrs);
    const void *dy = tensor_elements(call->in[0]);
    const void *weight = tensor_elements(call->in[1]);

    REF_RUN(call->in[0], backward_data, &s, dy, weight, tensor_elements(call->out[0]));
    return LS_OK;
}

/* --- dweight, dbias --- */

REF_INLINE double dweight_at(const conv_sizes *s, const void *x, const void *dy, int64_t o,
                             int64_t c, int64_t kh, int64_t kw, bool wide)
{
    double sum = 0;

    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t oh = 0; oh < s->out_h; oh++) {
            const int64_t h = oh * s->a.stride[0] - s->a.padding[0] + kh * s->a.dilation[0];

            if (h < 0 || h >= s->h)
                continue;
            for (int64_t ow = 0; ow < s->out_w; ow++) {
                const int64_t w = ow * s->a.stride[1] - s->a.padding[1] + kw * s->a.dilation[1];

                if (w >= 0 && w < s->w)
                    sum += ref_get(x, x_at(s, n, c, h, w), wide) *
                           ref_get(dy, y_at(s, n, o, oh, ow), wide);
            }
        }
    }
    return sum;
}

REF_INLINE void backward_weights(const conv_sizes *s, const void *x, const void *dy, void *dweight,
                                 bool accumulate, bool wide)
{
    for (int64_t o = 0; o < s->o; o++) {
        const int64_t first_c = o / s->group_o * s->group_c;

        for (int64_t c = 0; c < s->group_c; c++) {
            for (int64_t kh = 0; kh < s->kh; kh++) {
                for (int64_t kw = 0; kw < s->kw; kw++)
                    ref_give(dweight, w_at(s, o, c, kh, kw),
                             dweight_at(s, x, dy, o, first_c + c, kh, kw, wide), accumulate, wide);
            }
        }
    }
}

REF_INLINE void backward_bias(const conv_sizes *s, const void *dy, void *dbias, bool accumulate,
                              bool wide)
{
    for (int64_t o = 0; o < s->o; o++) {
        double sum = 0;

        for (int64_t n = 0; n < s->n; n++) {
            for (int64_t i = 0; i < s->out_h * s->out_w; i++)
                sum += ref_get(dy, y_at(s, n, o, 0, 0) + (size_t)i, wide);
        }
        ref_give(dbias, (size_t)o, sum, accumulate, wide);
    }
}

REF_INLINE void backward_both(const conv_sizes *s, const op_call *call, bool wide)
{
    const void *x = tensor_elements(call->in[0]);
    const void *dy = tensor_elements(call->in[1]);

    backward_weights(s, x, dy, tensor_elements(call->out[0]), call->accumulate, wide);
    if (call->out[1] != NULL)
        backward_bias(s, dy, tensor_elements(call->out[1]), call->accumulate, wide);
}

ls_status ref_conv2d_backward_weights(const op_call *call)
{
    const conv_sizes s = sizes_of(call->in[0], call->out[0], call->in[1], &call->attrs);

    REF_RUN(call->in[0], backward_both, &s, call);
    return LS_OK;
}
