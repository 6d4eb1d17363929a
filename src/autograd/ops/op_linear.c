/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_linear.c - y = x W^T + b; x: (N,I), W: (O,I), b: (O), y: (N,O). Leading dimensions of x beyond
 * the first are rows as well.
 */
#include "autograd/tape.h"

/* dW = dy^T x and db first: ddp can reduce them while dx = dy W is computed. */
static ls_status linear_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *x = n->in[0];
    ls_tensor *weight = n->in[1];
    ls_tensor *bias = n->in[2];
    op_call data = {.op = OP_LINEAR_BACKWARD_DATA, .n_in = 2, .n_out = 1, .in = {dy, weight}};

    if (needs_grad(weight) || needs_grad(bias))
        LS_TRY(grad_run_linear(tape, x, dy, weight, needs_grad(bias) ? bias : NULL));
    return needs_grad(x) ? grad_run(tape, &data, 0, x) : LS_OK;
}

static const op_class linear_class = {.name = "linear",
                                      .inputs = {"input", "weight", "bias"},
                                      .n_required = 2,
                                      .n_typed = 3,
                                      .parameters = 1U << 1 | 1U << 2,
                                      .precision = PRECISION_COMPUTE,
                                      .n_grad = 3,
                                      .unused_in_backward = 1U << NODE_OUT | 1U << 2,
                                      .backward = linear_backward};

static ls_status misfit(const char *name, const ls_tensor *t, const ls_tensor *weight)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    return ls_fail(LS_EINVAL, "%s %s does not fit weight %s", name,
                   tensor_dims_text(first, sizeof(first), t),
                   tensor_dims_text(second, sizeof(second), weight));
}

static ls_status check_shapes(const ls_tensor *x, const ls_tensor *weight, const ls_tensor *bias)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): node_begin() has checked it
    if (x->n_dims != 2 || weight->n_dims != 2 || x->dims[1] != weight->dims[1])
        return misfit("input", x, weight);
    if (bias != NULL && (bias->n_dims != 1 || bias->dims[0] != weight->dims[0]))
        return misfit("bias", bias, weight);
    return LS_OK;
}

/* Records the node with an output of undefined elements. */
static ls_tensor *finish_unused(ls_tape *tape, node *n, const int64_t *dims)
{
    ls_tensor *y = NULL;
    ls_status st = tensor_shape(tape->device, n->in[0]->dtype, 2, dims, &y);

    if (st == LS_OK)
        st = tensor_place(y, NULL, 0);
    if (st == LS_OK)
        return node_finish(tape, n, y);
    ls_tensor_destroy(y);
    return node_reject(tape, n, st);
}

static ls_tensor *linear_of_rows(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                 bool is_read)
{
    node n = {.class = &linear_class, .n_in = 3, .in = {x, weight, bias}};
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_shapes(x, weight, bias);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    if (!is_read && n.records)
        return finish_unused(tape, &n, (int64_t[]){x->dims[0], weight->dims[0]});
    return node_run(tape, &n, OP_LINEAR, 2, (int64_t[]){x->dims[0], weight->dims[0]});
}

ls_tensor *autograd_gates(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias)
{
    const bool is_read = tape == NULL || tape->checks_nan || !takes_retained(tape);

    return linear_of_rows(tape, x, weight, bias, is_read);
}

/* More dimensions: reshaped to rows, and back. */
ls_tensor *ls_linear(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias)
{
    const int last = x == NULL ? 0 : x->n_dims - 1;
    int64_t dims[LS_MAX_DIMS];
    int64_t rows = 1;
    ls_tensor *y;

    if (last <= 1)
        return linear_of_rows(tape, x, weight, bias, true);
    for (int i = 0; i < last; i++) {
        dims[i] = x->dims[i];
        rows *= dims[i];
    }
    y = ls_reshape(tape, x, 2, (int64_t[]){rows, x->dims[last]});
    y = linear_of_rows(tape, y, weight, bias, true);
    if (y == NULL)
        return NULL;
    dims[last] = y->dims[1];
    return ls_reshape(tape, y, x->n_dims, dims);
}
