/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_pool2d.c - the largest value, or the mean, of each window. x: (N,C,H,W), y: (N,C,H',W') with
 * H' = (H + 2 padding - kernel) / stride + 1, rounded down; or with the H' that was asked for
 * (adaptive). With ceil_mode H' is rounded up, less the last window if that would begin behind the
 * image.
 */
#include "autograd/tape.h"

/* --- shapes --- */

static ls_status resolve(const ls_pool2d_params *p, op_attrs *a)
{
    for (int i = 0; i < 2; i++) {
        if (p->kernel[i] < 1 || p->stride[i] < 0 || p->padding[i] < 0 ||
            p->padding[i] > p->kernel[i] / 2)
            return ls_fail(
                LS_EINVAL,
                "kernel (%d, %d), stride (%d, %d), padding (%d, %d): the kernel must be at "
                "least 1, the padding at most half of it",
                p->kernel[0], p->kernel[1], p->stride[0], p->stride[1], p->padding[0],
                p->padding[1]);
        a->kernel[i] = p->kernel[i];
        a->stride[i] = p->stride[i] == 0 ? p->kernel[i] : p->stride[i];
        a->padding[i] = p->padding[i];
        a->dilation[i] = 1;
    }
    a->groups = 1;
    return LS_OK;
}

static ls_status check_input(const ls_tensor *x)
{
    char text[TENSOR_TEXT_BYTES];

    if (x->n_dims == 4 && x->dims[2] >= 1 && x->dims[3] >= 1 &&
        x->dims[2] <= INT32_MAX / x->dims[3])
        return LS_OK;
    return ls_fail(LS_EINVAL, "input %s is not (N, C, H, W)",
                   tensor_dims_text(text, sizeof(text), x));
}

/* How many windows fit along an axis of `size` positions, which has `surplus` beyond the
 * first one. */
static int64_t window_count(const op_attrs *a, int axis, int64_t size, int64_t surplus,
                            bool ceil_mode)
{
    const int64_t stride = a->stride[axis];
    const int64_t last = (surplus + stride - 1) / stride; // of ceil_mode

    if (!ceil_mode)
        return surplus / stride + 1;
    return last * stride >= size + a->padding[axis] ? last : last + 1;
}

static ls_status check_shapes(node *n, const ls_pool2d_params *params, int64_t *dims)
{
    char text[TENSOR_TEXT_BYTES];
    const ls_tensor *x = n->in[0];
    op_attrs *a = &n->attrs;

    if (params == NULL)
        return ls_fail(LS_EINVAL, "the parameters are NULL");
    LS_TRY(resolve(params, a));
    LS_TRY(check_input(x));
    for (int i = 0; i < 2; i++) {
        const int64_t surplus = x->dims[2 + i] + 2 * (int64_t)a->padding[i] - a->kernel[i];

        if (surplus < 0)
            return ls_fail(LS_EINVAL,
                           "input %s with padding (%d, %d) is smaller than kernel (%d, %d)",
                           tensor_dims_text(text, sizeof(text), x), a->padding[0], a->padding[1],
                           a->kernel[0], a->kernel[1]);
        dims[i] = x->dims[i];
        dims[2 + i] = window_count(a, i, x->dims[2 + i], surplus, params->ceil_mode != 0);
    }
    return LS_OK;
}

/* --- max --- */

/* dy goes to the position of each window's maximum. */
static ls_status max_pool2d_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_MAX_POOL2D_BACKWARD, dy, n->saved[0]);
}

static const op_class max_pool2d_class = {
    .name = "max_pool2d", ONE_INPUT, READS_NOTHING, .backward = max_pool2d_backward};

ls_tensor *ls_max_pool2d(ls_tape *tape, ls_tensor *x, const ls_pool2d_params *params)
{
    node n = {.class = &max_pool2d_class, .n_in = 1, .in = {x}};
    int64_t dims[4];
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_shapes(&n, params, dims);
    if (st == LS_OK)
        st = node_save(tape, &n, 0, LS_I32, 4, dims);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run(tape, &n, OP_MAX_POOL2D, 4, dims);
}

/* --- mean --- */

/* Each position gets its windows' shares. */
static ls_status avg_pool2d_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_AVG_POOL2D_BACKWARD, dy, NULL);
}

static const op_class avg_pool2d_class = {
    .name = "avg_pool2d", ONE_INPUT, READS_NOTHING, .backward = avg_pool2d_backward};
static const op_class adaptive_avg_pool2d_class = {
    .name = "adaptive_avg_pool2d", ONE_INPUT, READS_NOTHING, .backward = avg_pool2d_backward};

ls_tensor *ls_avg_pool2d(ls_tape *tape, ls_tensor *x, const ls_pool2d_params *params)
{
    node n = {.class = &avg_pool2d_class, .n_in = 1, .in = {x}};
    int64_t dims[4];
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_shapes(&n, params, dims);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run(tape, &n, OP_AVG_POOL2D, 4, dims);
}

ls_tensor *ls_adaptive_avg_pool2d(ls_tape *tape, ls_tensor *x, int height, int width)
{
    node n = {.class = &adaptive_avg_pool2d_class, .n_in = 1, .in = {x}, .attrs.adaptive = true};
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_input(x);
    if (st == LS_OK && (height < 1 || width < 1))
        st = ls_fail(LS_EINVAL, "the output is %d x %d; both must be at least 1", height, width);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run(tape, &n, OP_AVG_POOL2D, 4, (int64_t[]){x->dims[0], x->dims[1], height, width});
}
