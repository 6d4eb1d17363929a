/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_activate.c - ls_activate(): functions of single elements. ReLU, whose backward reads the
 * result, is in op_pointwise.c.
 */
#include "autograd/tape.h"

static ls_status activate_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_ACTIVATE_BACKWARD, n->in[0], dy);
}

static const op_class activate_class = {.name = "activate",
                                        ONE_INPUT,
                                        .unused_in_backward = 1U << NODE_OUT,
                                        .backward = activate_backward};

ls_tensor *ls_activate(ls_tape *tape, ls_tensor *x, ls_activation function)
{
    node n = {.class = &activate_class, .n_in = 1, .in = {x}, .attrs.activation = function};

    if (!node_begin(tape, &n))
        return NULL;
    if (function < LS_ACT_RELU6 || function > LS_ACT_GELU)
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "%d is not an ls_activation", (int)function));
    return node_run(tape, &n, OP_ACTIVATE, x->n_dims, x->dims);
}
