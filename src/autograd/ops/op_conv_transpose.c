/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_conv_transpose.c - transposed convolution of images and sequences, as torch.nn.functional's
 * conv_transpose. x: (N,C,H,W), weight: (C,O/groups,KH,KW), bias: (O), y: (N,O,H',W') with H' =
 * (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1.
 *
 * It is the gradient of a convolution with the same weight from y to x, and its own gradients are
 * that convolution and its weights' gradient: the kernels are those of convolutions.
 */
#include "autograd/ops/conv.h"

enum { X, WEIGHT, BIAS };

/* --- the bias --- */

/* A bias that is added to y (N,O,...), or the sums of y that are its gradient: (O,1,...). */
static ls_status shape_like_bias(ls_tape *tape, const ls_tensor *y, ls_dtype type, ls_tensor **out)
{
    const int64_t dims[3] = {y->dims[1], 1, 1};

    return tensor_shape(tape->device, type, y->n_dims - 1, dims, out);
}

/* `x` in another type, or itself where it has that. The caller destroys *temporary. */
static ls_status cast(ls_tape *tape, ls_tensor *x, ls_dtype type, ls_tensor **temporary,
                      ls_tensor **out)
{
    op_call call = {.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {x}};

    *out = x;
    if (x->dtype == type)
        return LS_OK;
    LS_TRY(tensor_shape(tape->device, type, x->n_dims, x->dims, temporary));
    call.out[0] = *temporary;
    *out = *temporary;
    return device_run(tape->device, &call);
}

/* *sum = y + bias. */
static ls_status add_bias(ls_tape *tape, ls_tensor *y, ls_tensor *bias, ls_tensor **sum)
{
    op_call call = {.op = OP_BINARY, .attrs.binary = BINARY_ADD, .n_in = 2, .n_out = 1, .in = {y}};
    ls_tensor *temporary = NULL;
    ls_tensor *view = NULL;
    ls_tensor *same;
    ls_status st = cast(tape, bias, y->dtype, &temporary, &same);

    if (st == LS_OK)
        st = shape_like_bias(tape, y, y->dtype, &view);
    if (st == LS_OK)
        st = tensor_like(y, sum);
    if (st == LS_OK) {
        tensor_share(view, same);
        call.in[1] = view;
        call.out[0] = *sum;
        st = device_run(tape->device, &call);
    }
    ls_tensor_destroy(view);
    ls_tensor_destroy(temporary);
    return st;
}

/* The sums of dy over all but the channels, in the type of the bias. */
static ls_status run_bias_backward(ls_tape *tape, ls_tensor *dy, ls_tensor *bias)
{
    op_call call = {
        .op = OP_REDUCE, .attrs = {.binary = BINARY_ADD, .scale = 1}, .n_in = 1, .n_out = 1};
    ls_tensor *temporary = NULL;
    ls_tensor *sums = NULL;
    ls_tensor *dbias = NULL;
    ls_status st = cast(tape, dy, bias->dtype, &temporary, &call.in[0]);

    if (st == LS_OK)
        st = shape_like_bias(tape, dy, bias->dtype, &sums);
    call.out[0] = sums;
    if (st == LS_OK)
        st = device_run(tape->device, &call);
    if (st == LS_OK)
        st = tensor_share_as(tape, sums, 1, bias->dims, &dbias);
    ls_tensor_destroy(sums);
    ls_tensor_destroy(temporary);
    return st == LS_OK ? grad_give(tape, bias, dbias) : st;
}

/* --- backward --- */

/* The parameters' gradients first, as in op_conv.c. */
static ls_status conv_transpose_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *x = n->in[X];
    ls_tensor *weight = n->in[WEIGHT];
    op_call weights = {
        .op = OP_CONV2D_BACKWARD_WEIGHTS, .attrs = n->attrs, .n_in = 2, .n_out = 2, .in = {dy, x}};
    op_call data = {
        .op = OP_CONV2D, .attrs = n->attrs, .n_in = 3, .n_out = 1, .in = {dy, weight, NULL}};

    if (needs_grad(n->in[BIAS]))
        LS_TRY(run_bias_backward(tape, dy, n->in[BIAS]));
    if (needs_grad(weight))
        LS_TRY(grad_run_weights(tape, &weights, 0, weight, NULL));
    return needs_grad(x) ? grad_run(tape, &data, 0, x) : LS_OK;
}

#define CONV_TRANSPOSE_CLASS                                                                       \
    .inputs = {"input", "weight", "bias"}, .n_required = 2, .n_typed = 3,                          \
    .parameters = 1U << WEIGHT | 1U << BIAS, .precision = PRECISION_COMPUTE, .n_grad = 3,          \
    .unused_in_backward = 1U << NODE_OUT | 1U << BIAS, .backward = conv_transpose_backward

static const op_class conv_transpose1d_class = {.name = "conv_transpose1d", CONV_TRANSPOSE_CLASS};
static const op_class conv_transpose2d_class = {.name = "conv_transpose2d", CONV_TRANSPOSE_CLASS};

/* --- forward --- */

/* As in PyTorch: smaller than the stride, or than the dilation. */
static ls_status check_output_padding(const conv_settings *s, const op_attrs *a)
{
    char added[CONV_TEXT_BYTES];
    char stride[CONV_TEXT_BYTES];
    char dilation[CONV_TEXT_BYTES];

    for (int i = 0; i < 2; i++) {
        const int most = a->stride[i] > a->dilation[i] ? a->stride[i] : a->dilation[i];

        if (s->output_padding[i] < 0 || s->output_padding[i] >= most)
            return ls_fail(LS_EINVAL,
                           "output_padding %s must not be negative, and be smaller than stride %s "
                           "or dilation %s",
                           conv_pair_text(added, s, s->output_padding),
                           conv_pair_text(stride, s, a->stride),
                           conv_pair_text(dilation, s, a->dilation));
    }
    return LS_OK;
}

static ls_status check_weight(const ls_tensor *x, const ls_tensor *weight, int groups)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (x->dims[1] == weight->dims[0] && x->dims[1] % groups == 0)
        return LS_OK;
    return ls_fail(LS_EINVAL, "input %s does not fit weight %s in %d group%s",
                   tensor_dims_text(first, sizeof(first), x),
                   tensor_dims_text(second, sizeof(second), weight), groups,
                   groups == 1 ? "" : "s");
}

/* Height (axis 0) or width (axis 1) of y. */
static ls_status output_size(const conv_settings *s, const node *n, int axis, int64_t *out)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    char padding[CONV_TEXT_BYTES];
    const op_attrs *a = &n->attrs;
    const double size = ((double)n->in[X]->dims[axis + s->n_axes] - 1) * a->stride[axis] -
                        2.0 * a->padding[axis] + (double)a->dilation[axis] * (a->kernel[axis] - 1) +
                        s->output_padding[axis] + 1;

    if (size < 1 || size > INT32_MAX)
        return ls_fail(LS_EINVAL, "input %s and weight %s with padding %s give a size of %.0f",
                       tensor_dims_text(first, sizeof(first), n->in[X]),
                       tensor_dims_text(second, sizeof(second), n->in[WEIGHT]),
                       conv_pair_text(padding, s, a->padding), size);
    *out = (int64_t)size;
    return LS_OK;
}

static ls_status check_shapes(node *n, const conv_settings *s, int64_t *dims)
{
    const ls_tensor *x = n->in[X];
    const ls_tensor *weight = n->in[WEIGHT];

    LS_TRY(conv_resolve(s, x, weight, &n->attrs));
    LS_TRY(check_output_padding(s, &n->attrs));
    LS_TRY(check_weight(x, weight, n->attrs.groups));
    dims[0] = x->dims[0];
    dims[1] = weight->dims[1] * n->attrs.groups;
    LS_TRY(conv_check_bias(n->in[BIAS], weight, dims[1]));
    for (int axis = 2 - s->n_axes; axis < 2; axis++)
        LS_TRY(output_size(s, n, axis, &dims[axis + s->n_axes]));
    return LS_OK;
}

static ls_status run(ls_tape *tape, const node *n, int n_dims, const int64_t *dims, ls_tensor **out)
{
    op_call call = {.op = OP_CONV2D_BACKWARD_DATA,
                    .attrs = n->attrs,
                    .n_in = 2,
                    .n_out = 1,
                    .in = {n->in[X], n->in[WEIGHT]}};
    ls_tensor *y;
    ls_status st;

    LS_TRY(tensor_shape(tape->device, n->in[X]->dtype, n_dims, dims, &y));
    call.out[0] = y;
    *out = y;
    st = device_run(tape->device, &call);
    if (st != LS_OK || n->in[BIAS] == NULL)
        return st;
    *out = NULL;
    st = add_bias(tape, y, n->in[BIAS], out);
    ls_tensor_destroy(y);
    return st;
}

static ls_tensor *convolve(ls_tape *tape, node *n, const conv_settings *s)
{
    ls_tensor *out = NULL;
    int64_t dims[4];
    ls_status st;

    if (!node_begin(tape, n))
        return NULL;
    st = check_shapes(n, s, dims);
    if (st == LS_OK)
        st = run(tape, n, 2 + s->n_axes, dims, &out);
    if (st == LS_OK)
        return node_finish(tape, n, out);
    ls_tensor_destroy(out);
    return node_reject(tape, n, st);
}

/* The kernels' convolution from y to x has output paddings below the stride. Larger ones, which a
 * dilation allows, are `stride` for each position of zeros behind x. */
static ls_tensor *extend(ls_tape *tape, ls_tensor *x, conv_settings *s)
{
    int64_t behind[4] = {0};
    bool extends = false;

    if (x == NULL || x->n_dims != 2 + s->n_axes)
        return x;
    for (int axis = 2 - s->n_axes; axis < 2; axis++) {
        const int stride = s->stride[axis] == 0 ? 1 : s->stride[axis];

        if (stride < 1 || s->output_padding[axis] < stride ||
            s->output_padding[axis] >= s->dilation[axis])
            continue;
        behind[2 * (1 - axis) + 1] = s->output_padding[axis] / stride;
        s->output_padding[axis] %= stride;
        extends = true;
    }
    return extends ? ls_pad(tape, x, behind, 2 * s->n_axes, 0) : x;
}

ls_tensor *ls_conv_transpose1d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                               const ls_conv_transpose1d_params *params)
{
    const ls_conv_transpose1d_params p =
        params == NULL ? (ls_conv_transpose1d_params){.groups = 1} : *params;
    conv_settings s = {.n_axes = 1,
                       .shapes = "(N, C, T) and (C, O / groups, K)",
                       .stride = {0, p.stride},
                       .padding = {0, p.padding},
                       .output_padding = {0, p.output_padding},
                       .dilation = {0, p.dilation},
                       .groups = p.groups};
    node n = {
        .class = &conv_transpose1d_class, .n_in = 3, .in = {extend(tape, x, &s), weight, bias}};

    return convolve(tape, &n, &s);
}

ls_tensor *ls_conv_transpose2d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                               const ls_conv_transpose2d_params *params)
{
    const ls_conv_transpose2d_params p =
        params == NULL ? (ls_conv_transpose2d_params){.groups = 1} : *params;
    conv_settings s = {.n_axes = 2,
                       .shapes = "(N, C, H, W) and (C, O / groups, KH, KW)",
                       .stride = {p.stride[0], p.stride[1]},
                       .padding = {p.padding[0], p.padding[1]},
                       .output_padding = {p.output_padding[0], p.output_padding[1]},
                       .dilation = {p.dilation[0], p.dilation[1]},
                       .groups = p.groups};
    node n = {
        .class = &conv_transpose2d_class, .n_in = 3, .in = {extend(tape, x, &s), weight, bias}};

    return convolve(tape, &n, &s);
}
