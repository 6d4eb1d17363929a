/* SPDX-License-Identifier: Apache-2.0 */
/* op_pointwise.c - relu, and max(0, a + b) of equal shapes in one pass. */
#include "autograd/tape.h"

static op_call backward_call(const node *n, ls_tensor *dy)
{
    return (op_call){.op = OP_RELU_BACKWARD,
                     .may_reuse_grad = grad_may_be_reused(n),
                     .n_in = 3,
                     .n_out = 1,
                     .in = {n->out, dy, node_value(n)->more_grad}};
}

/* y = max(0, x): dx = dy where y > 0. */
static ls_status relu_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = backward_call(n, dy);

    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class relu_class = {.name = "relu",
                                    ONE_INPUT,
                                    .unused_in_backward = 1U << 0,
                                    .backward = relu_backward,
                                    .adds_gradients = true};

ls_tensor *ls_relu(ls_tape *tape, ls_tensor *x)
{
    node n = {.class = &relu_class, .n_in = 1, .in = {x}};

    if (!node_begin(tape, &n))
        return NULL;
    return node_run_like(tape, &n, OP_RELU);
}

/* Both inputs of a sum get the same gradient. */
static ls_status give_both(ls_tape *tape, const node *n, ls_tensor *gradient)
{
    for (int i = 0; i < 2; i++) {
        if (needs_grad(n->in[i]))
            LS_TRY(grad_give_same(tape, n->in[i], gradient));
    }
    return LS_OK;
}

/* y = max(0, a + b): dy where y > 0 */
static ls_status add_relu_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = backward_call(n, dy);
    ls_status st;

    LS_TRY(tensor_like(n->out, &call.out[0]));
    st = device_run(tape->device, &call);
    if (st == LS_OK)
        st = give_both(tape, n, call.out[0]);
    ls_tensor_destroy(call.out[0]);
    return st;
}

static const op_class add_relu_class = {.name = "add_relu",
                                        .inputs = {"a", "b"},
                                        .n_required = 2,
                                        .n_typed = 2,
                                        .n_grad = 2,
                                        .unused_in_backward = 1U << 0 | 1U << 1,
                                        .backward = add_relu_backward,
                                        .adds_gradients = true};

ls_tensor *ls_add_relu(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    node n = {.class = &add_relu_class, .n_in = 2, .in = {a, b}};
    char left[TENSOR_TEXT_BYTES];
    char right[TENSOR_TEXT_BYTES];

    if (!node_begin(tape, &n))
        return NULL;
    if (!tensor_same_shape(a, b))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "a %s and b %s must have the same shape",
                                   tensor_dims_text(left, sizeof(left), a),
                                   tensor_dims_text(right, sizeof(right), b)));
    return node_run_like(tape, &n, OP_ADD_RELU);
}
