/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_broadcast.c - a + b, a * b and b alone, with b broadcast to the shape of a or to a given one.
 * The gradient of an element of b is the sum over the positions it was broadcast to.
 */
#include "autograd/tape.h"

#include <string.h>

enum { B, A };

/* db = sum of dy, or of dy * a. */
static ls_status give_sums(ls_tape *tape, const node *n, ls_tensor *dy, ls_tensor *a)
{
    op_call call = {
        .op = OP_BROADCAST_BACKWARD, .attrs = n->attrs, .n_in = 2, .n_out = 1, .in = {dy, a}};

    return needs_grad(n->in[B]) ? grad_run(tape, &call, 0, n->in[B]) : LS_OK;
}

static ls_status add_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *da;

    LS_TRY(give_sums(tape, n, dy, NULL));
    if (!needs_grad(n->in[A]))
        return LS_OK;
    LS_TRY(grad_shape(tape, n->in[A], &da));
    tensor_share(da, dy);
    return grad_give(tape, n->in[A], da);
}

static ls_status mul_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {
        .op = OP_BROADCAST, .attrs = n->attrs, .n_in = 2, .n_out = 1, .in = {n->in[B], dy}};

    LS_TRY(give_sums(tape, n, dy, n->in[A]));
    return needs_grad(n->in[A]) ? grad_run(tape, &call, 0, n->in[A]) : LS_OK;
}

static ls_status expand_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return give_sums(tape, n, dy, NULL);
}

static const op_class add_class = {.name = "add",
                                   .inputs = {"b", "a"},
                                   .n_required = 2,
                                   .n_typed = 2,
                                   .n_grad = 2,
                                   .unused_in_backward = 1U << NODE_OUT | 1U << B | 1U << A,
                                   .backward = add_backward};
static const op_class mul_class = {.name = "mul",
                                   .inputs = {"b", "a"},
                                   .n_required = 2,
                                   .n_typed = 2,
                                   .n_grad = 2,
                                   .unused_in_backward = 1U << NODE_OUT,
                                   .backward = mul_backward};
static const op_class expand_class = {.name = "expand",
                                      ONE_INPUT,
                                      .unused_in_backward = 1U << NODE_OUT | 1U << B,
                                      .backward = expand_backward};

static bool is_repeated(const ls_tensor *b, int n_dims, const int64_t *dims)
{
    const int lacks = n_dims - b->n_dims;

    for (int i = 0; lacks >= 0 && i < b->n_dims; i++) {
        if (b->dims[i] != 1 && b->dims[i] != dims[lacks + i])
            return false;
    }
    return lacks >= 0;
}

static ls_tensor *repeat(ls_tape *tape, node *n, int n_dims, const int64_t *dims)
{
    char from[TENSOR_TEXT_BYTES];
    char to[TENSOR_TEXT_BYTES];
    ls_tensor asked = {.n_dims = n_dims};

    if (is_repeated(n->in[B], n_dims, dims))
        return node_run(tape, n, OP_BROADCAST, n_dims, dims);
    memcpy(asked.dims, dims, (size_t)n_dims * sizeof(*dims));
    return node_reject(tape, n,
                       ls_fail(LS_EINVAL, "%s cannot be broadcast to %s",
                               tensor_dims_text(from, sizeof(from), n->in[B]),
                               tensor_dims_text(to, sizeof(to), &asked)));
}

ls_tensor *broadcast_add(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    node n = {.class = &add_class, .n_in = 2, .in = {b, a}};

    return node_begin(tape, &n) ? repeat(tape, &n, a->n_dims, a->dims) : NULL;
}

ls_tensor *ls_mul(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    node n = {.class = &mul_class, .n_in = 2, .in = {b, a}, .attrs.multiplies = true};

    return node_begin(tape, &n) ? repeat(tape, &n, a->n_dims, a->dims) : NULL;
}

ls_tensor *ls_expand(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims)
{
    node n = {.class = &expand_class, .n_in = 1, .in = {x}};

    if (!node_begin(tape, &n))
        return NULL;
    if (n_dims < 0 || n_dims > LS_MAX_DIMS || (n_dims > 0 && dims == NULL))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "%d dimensions at %s; 0 to %d are supported", n_dims,
                                   dims == NULL ? "NULL" : "dims", LS_MAX_DIMS));
    return repeat(tape, &n, n_dims, dims);
}
