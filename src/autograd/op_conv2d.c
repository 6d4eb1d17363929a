/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_conv2d.c - convolution of images. x: (N,C,H,W), weight: (O,C/groups,KH,KW), bias: (O), y:
 * (N,O,H',W') with H' = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1, rounded down.
 */
#include "autograd/tape.h"

/* dweight and dbias first: ddp can reduce them while dx is computed. */
static ls_status conv2d_backward(ls_tape *tape, const node *n, ls_tensor *dy)
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
        LS_TRY(grad_run_weights(tape, &weights, 0, weight, bias));
    return needs_grad(x) ? grad_run(tape, &data, 0, x) : LS_OK;
}

static const op_class conv2d_class = {.name = "conv2d",
                                      .inputs = {"input", "weight", "bias"},
                                      .n_required = 2,
                                      .n_typed = 3,
                                      .parameters = 1U << 1 | 1U << 2,
                                      .precision = PRECISION_COMPUTE,
                                      .n_grad = 3,
                                      .unused_in_backward = 1U << NODE_OUT | 1U << 2,
                                      .backward = conv2d_backward};

static ls_status resolve(const ls_conv2d_params *params, const ls_tensor *weight, op_attrs *a)
{
    const ls_conv2d_params p = params == NULL ? (ls_conv2d_params){.groups = 1} : *params;

    a->groups = p.groups == 0 ? 1 : p.groups;
    if (a->groups < 0)
        return ls_fail(LS_EINVAL, "groups is %d; it must be at least 1", p.groups);
    for (int i = 0; i < 2; i++) {
        if (p.stride[i] < 0 || p.padding[i] < 0 || p.dilation[i] < 0)
            return ls_fail(LS_EINVAL,
                           "stride (%d, %d), padding (%d, %d), dilation (%d, %d): none may be "
                           "negative",
                           p.stride[0], p.stride[1], p.padding[0], p.padding[1], p.dilation[0],
                           p.dilation[1]);
        a->stride[i] = p.stride[i] == 0 ? 1 : p.stride[i];
        a->dilation[i] = p.dilation[i] == 0 ? 1 : p.dilation[i];
        a->padding[i] = p.padding[i];
        a->kernel[i] = (int)weight->dims[2 + i];
    }
    return LS_OK;
}

static ls_status check_weight(const ls_tensor *x, const ls_tensor *weight, const ls_tensor *bias,
                              int groups)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (x->dims[1] != weight->dims[1] * groups || weight->dims[0] % groups != 0)
        return ls_fail(LS_EINVAL, "input %s does not fit weight %s in %d group%s",
                       tensor_dims_text(first, sizeof(first), x),
                       tensor_dims_text(second, sizeof(second), weight), groups,
                       groups == 1 ? "" : "s");
    if (bias != NULL && (bias->n_dims != 1 || bias->dims[0] != weight->dims[0]))
        return ls_fail(LS_EINVAL, "bias %s does not fit weight %s",
                       tensor_dims_text(first, sizeof(first), bias),
                       tensor_dims_text(second, sizeof(second), weight));
    return LS_OK;
}

/* Images and kernels of at least one element, small enough for the attributes' type. */
static ls_status check_ranks(const ls_tensor *x, const ls_tensor *weight)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    bool fits = x->n_dims == 4 && weight->n_dims == 4;

    for (int i = 1; fits && i < 4; i++)
        fits = x->dims[i] > 0 && weight->dims[i] > 0 && weight->dims[i] <= INT32_MAX;
    if (fits && weight->dims[0] > 0)
        return LS_OK;
    return ls_fail(LS_EINVAL,
                   "input %s and weight %s are not (N, C, H, W) and (O, C / groups, KH, KW)",
                   tensor_dims_text(first, sizeof(first), x),
                   tensor_dims_text(second, sizeof(second), weight));
}

/* Height (axis 0) or width (axis 1) of y. */
static ls_status output_size(const ls_tensor *x, const op_attrs *a, int axis, int64_t *out)
{
    char text[TENSOR_TEXT_BYTES];
    const int64_t reach = (int64_t)a->dilation[axis] * (a->kernel[axis] - 1) + 1;
    const int64_t surplus = x->dims[2 + axis] + 2 * (int64_t)a->padding[axis] - reach;

    if (surplus < 0)
        return ls_fail(LS_EINVAL,
                       "input %s with padding (%d, %d) is smaller than kernel (%d, %d) with "
                       "dilation (%d, %d)",
                       tensor_dims_text(text, sizeof(text), x), a->padding[0], a->padding[1],
                       a->kernel[0], a->kernel[1], a->dilation[0], a->dilation[1]);
    *out = surplus / a->stride[axis] + 1;
    return LS_OK;
}

static ls_status check_shapes(node *n, const ls_conv2d_params *params, int64_t *dims)
{
    LS_TRY(check_ranks(n->in[0], n->in[1]));
    LS_TRY(resolve(params, n->in[1], &n->attrs));
    LS_TRY(check_weight(n->in[0], n->in[1], n->in[2], n->attrs.groups));
    dims[0] = n->in[0]->dims[0];
    dims[1] = n->in[1]->dims[0];
    LS_TRY(output_size(n->in[0], &n->attrs, 0, &dims[2]));
    return output_size(n->in[0], &n->attrs, 1, &dims[3]);
}

ls_tensor *ls_conv2d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                     const ls_conv2d_params *params)
{
    node n = {.class = &conv2d_class, .n_in = 3, .in = {x, weight, bias}};
    int64_t dims[4];
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_shapes(&n, params, dims);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run(tape, &n, OP_CONV2D, 4, dims);
}
