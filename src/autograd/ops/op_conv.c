/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_conv.c - convolution of images and sequences. x: (N,C,H,W), weight: (O,C/groups,KH,KW), bias:
 * (O), y: (N,O,H',W') with H' = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1, rounded down.
 * A sequence (N,C,T) is an image of height 1 for the kernels (tensor/sequence.h).
 */
#include "autograd/ops/conv.h"

#include "base/text.h"

/* dweight and dbias first: ddp can reduce them while dx is computed. */
static ls_status conv_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *x = n->in[0];
    ls_tensor *weight = n->in[1];
    ls_tensor *bias = n->in[2];
    op_call weights = {
        .op = OP_CONV2D_BACKWARD_WEIGHTS, .attrs = n->attrs, .n_in = 2, .n_out = 2, .in = {x, dy}};
    op_call data = {.op = OP_CONV2D_BACKWARD_DATA,
                    .attrs = n->attrs,
                    .n_in = 2,
                    .n_out = 1,
                    .in = {dy, weight}};

    if (needs_grad(weight) || needs_grad(bias))
        LS_TRY(grad_run_weights(tape, &weights, 0, weight, needs_grad(bias) ? bias : NULL));
    return needs_grad(x) ? grad_run(tape, &data, 0, x) : LS_OK;
}

#define CONV_CLASS                                                                                 \
    .inputs = {"input", "weight", "bias"}, .n_required = 2, .n_typed = 3,                          \
    .parameters = 1U << 1 | 1U << 2, .precision = PRECISION_COMPUTE, .n_grad = 3,                  \
    .unused_in_backward = 1U << NODE_OUT | 1U << 2, .backward = conv_backward

static const op_class conv1d_class = {.name = "conv1d", CONV_CLASS};
static const op_class conv2d_class = {.name = "conv2d", CONV_CLASS};

/* --- what transposed convolutions need as well --- */

const char *conv_pair_text(char *buf, const conv_settings *s, const int *values)
{
    return s->n_axes == 1 ? text_format(buf, CONV_TEXT_BYTES, "%d", values[1])
                          : text_format(buf, CONV_TEXT_BYTES, "(%d, %d)", values[0], values[1]);
}

static ls_status check_settings(const conv_settings *s)
{
    char stride[CONV_TEXT_BYTES];
    char padding[CONV_TEXT_BYTES];
    char dilation[CONV_TEXT_BYTES];

    if (s->groups < 0)
        return ls_fail(LS_EINVAL, "groups is %d; it must be at least 1", s->groups);
    for (int i = 0; i < 2; i++) {
        if (s->stride[i] < 0 || s->padding[i] < 0 || s->dilation[i] < 0)
            return ls_fail(LS_EINVAL, "stride %s, padding %s, dilation %s: none may be negative",
                           conv_pair_text(stride, s, s->stride),
                           conv_pair_text(padding, s, s->padding),
                           conv_pair_text(dilation, s, s->dilation));
    }
    return LS_OK;
}

/* Images and kernels of at least one element, small enough for the attributes' type. */
static ls_status check_ranks(const conv_settings *s, const ls_tensor *x, const ls_tensor *weight)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    const int n_dims = 2 + s->n_axes;
    bool fits = x->n_dims == n_dims && weight->n_dims == n_dims;

    for (int i = 1; fits && i < n_dims; i++)
        fits = x->dims[i] > 0 && weight->dims[i] > 0 && weight->dims[i] <= INT32_MAX;
    if (fits && weight->dims[0] > 0)
        return LS_OK;
    return ls_fail(LS_EINVAL, "input %s and weight %s are not %s",
                   tensor_dims_text(first, sizeof(first), x),
                   tensor_dims_text(second, sizeof(second), weight), s->shapes);
}

ls_status conv_resolve(const conv_settings *s, const ls_tensor *x, const ls_tensor *weight,
                       op_attrs *a)
{
    LS_TRY(check_ranks(s, x, weight));
    LS_TRY(check_settings(s));
    a->groups = s->groups == 0 ? 1 : s->groups;
    for (int i = 0; i < 2; i++) {
        const int dim = i + s->n_axes; // of the axis: the width's is the last

        a->stride[i] = s->stride[i] == 0 ? 1 : s->stride[i];
        a->dilation[i] = s->dilation[i] == 0 ? 1 : s->dilation[i];
        a->padding[i] = s->padding[i];
        a->kernel[i] = dim < 2 ? 1 : (int)weight->dims[dim];
    }
    return LS_OK;
}

ls_status conv_check_bias(const ls_tensor *bias, const ls_tensor *weight, int64_t channels)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (bias == NULL || (bias->n_dims == 1 && bias->dims[0] == channels))
        return LS_OK;
    return ls_fail(LS_EINVAL, "bias %s does not fit weight %s",
                   tensor_dims_text(first, sizeof(first), bias),
                   tensor_dims_text(second, sizeof(second), weight));
}

/* --- forward --- */

static ls_status check_weight(const ls_tensor *x, const ls_tensor *weight, int groups)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (x->dims[1] == weight->dims[1] * groups && weight->dims[0] % groups == 0)
        return LS_OK;
    return ls_fail(LS_EINVAL, "input %s does not fit weight %s in %d group%s",
                   tensor_dims_text(first, sizeof(first), x),
                   tensor_dims_text(second, sizeof(second), weight), groups,
                   groups == 1 ? "" : "s");
}

/* Height (axis 0) or width (axis 1) of y. */
static ls_status output_size(const conv_settings *s, const ls_tensor *x, const op_attrs *a,
                             int axis, int64_t *out)
{
    char text[TENSOR_TEXT_BYTES];
    char padding[CONV_TEXT_BYTES];
    char kernel[CONV_TEXT_BYTES];
    char dilation[CONV_TEXT_BYTES];
    const int64_t reach = (int64_t)a->dilation[axis] * (a->kernel[axis] - 1) + 1;
    const int64_t surplus = x->dims[axis + s->n_axes] + 2 * (int64_t)a->padding[axis] - reach;

    if (surplus < 0)
        return ls_fail(
            LS_EINVAL, "input %s with padding %s is smaller than kernel %s with dilation %s",
            tensor_dims_text(text, sizeof(text), x), conv_pair_text(padding, s, a->padding),
            conv_pair_text(kernel, s, a->kernel), conv_pair_text(dilation, s, a->dilation));
    *out = surplus / a->stride[axis] + 1;
    return LS_OK;
}

static ls_status check_shapes(node *n, const conv_settings *s, int64_t *dims)
{
    const ls_tensor *x = n->in[0];
    const ls_tensor *weight = n->in[1];

    LS_TRY(conv_resolve(s, x, weight, &n->attrs));
    LS_TRY(check_weight(x, weight, n->attrs.groups));
    LS_TRY(conv_check_bias(n->in[2], weight, weight->dims[0]));
    dims[0] = x->dims[0];
    dims[1] = weight->dims[0];
    for (int axis = 2 - s->n_axes; axis < 2; axis++)
        LS_TRY(output_size(s, x, &n->attrs, axis, &dims[axis + s->n_axes]));
    return LS_OK;
}

static ls_tensor *convolve(ls_tape *tape, node *n, const conv_settings *s)
{
    int64_t dims[4];
    ls_status st;

    if (!node_begin(tape, n))
        return NULL;
    st = check_shapes(n, s, dims);
    return st == LS_OK ? node_run(tape, n, OP_CONV2D, 2 + s->n_axes, dims)
                       : node_reject(tape, n, st);
}

ls_tensor *ls_conv1d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                     const ls_conv1d_params *params)
{
    const ls_conv1d_params p = params == NULL ? (ls_conv1d_params){.groups = 1} : *params;
    const conv_settings s = {.n_axes = 1,
                             .shapes = "(N, C, T) and (O, C / groups, K)",
                             .stride = {0, p.stride},
                             .padding = {0, p.padding},
                             .dilation = {0, p.dilation},
                             .groups = p.groups};
    node n = {.class = &conv1d_class, .n_in = 3, .in = {x, weight, bias}};

    return convolve(tape, &n, &s);
}

ls_tensor *ls_conv2d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                     const ls_conv2d_params *params)
{
    const ls_conv2d_params p = params == NULL ? (ls_conv2d_params){.groups = 1} : *params;
    const conv_settings s = {.n_axes = 2,
                             .shapes = "(N, C, H, W) and (O, C / groups, KH, KW)",
                             .stride = {p.stride[0], p.stride[1]},
                             .padding = {p.padding[0], p.padding[1]},
                             .dilation = {p.dilation[0], p.dilation[1]},
                             .groups = p.groups};
    node n = {.class = &conv2d_class, .n_in = 3, .in = {x, weight, bias}};

    return convolve(tape, &n, &s);
}
