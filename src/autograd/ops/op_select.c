/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_select.c - choices between two tensors, or a tensor and a number, by a mask of bytes; softmax
 * and log-softmax over any dimension with a mask; and embeddings, which choose rows.
 */
#include "autograd/tape.h"

#include <math.h>

enum { X, OTHER, MASK };

/* The gradient of x is dy where it was chosen, that of `other` dy where that was, and 0 elsewhere;
 * summed over the positions that an element was repeated to. */
static ls_status give_chosen(ls_tape *tape, const node *n, ls_tensor *dy, int i)
{
    op_call choose = {.op = OP_SELECT,
                      .attrs = {.reverse = i == OTHER},
                      .n_in = 3,
                      .n_out = 1,
                      .in = {dy, NULL, n->in[MASK]}};
    op_call sum = {
        .op = OP_REDUCE, .attrs = {.binary = BINARY_ADD, .scale = 1}, .n_in = 1, .n_out = 1};
    ls_status st;

    if (!needs_grad(n->in[i]))
        return LS_OK;
    if (tensor_same_shape(n->in[i], dy))
        return grad_run(tape, &choose, 0, n->in[i]);
    LS_TRY(tensor_like(dy, &choose.out[0]));
    st = device_run(tape->device, &choose);
    sum.in[0] = choose.out[0];
    if (st == LS_OK)
        st = grad_run(tape, &sum, 0, n->in[i]);
    ls_tensor_destroy(choose.out[0]);
    return st;
}

static ls_status select_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    LS_TRY(give_chosen(tape, n, dy, X));
    return give_chosen(tape, n, dy, OTHER);
}

static const op_class fill_class = {.name = "masked_fill",
                                    .inputs = {"input", "other", "mask"},
                                    .n_required = 1,
                                    .n_typed = 2,
                                    .n_grad = 2,
                                    .unused_in_backward = 1U << NODE_OUT | 1U << X | 1U << OTHER,
                                    .backward = select_backward};
static const op_class where_class = {.name = "where",
                                     .inputs = {"b", "a", "mask"},
                                     .n_required = 2,
                                     .n_typed = 2,
                                     .n_grad = 2,
                                     .unused_in_backward = 1U << NODE_OUT | 1U << X | 1U << OTHER,
                                     .backward = select_backward};

static ls_tensor *choose(ls_tape *tape, node *n)
{
    const ls_tensor *mask = n->in[MASK];
    char text[3][TENSOR_TEXT_BYTES] = {"", "", ""};
    int64_t dims[LS_MAX_DIMS];
    int n_dims = 0;
    bool fits = true;

    if (!node_begin(tape, n))
        return NULL;
    if (mask == NULL || mask->dtype != LS_U8)
        return node_reject(
            tape, n,
            ls_fail(LS_EINVAL, "mask %s must be uint8",
                    mask == NULL ? "NULL" : tensor_text(text[0], sizeof(text[0]), mask)));
    for (int i = 0; i < n->n_in; i++)
        fits = fits && (n->in[i] == NULL ||
                        shape_broadcast(dims, &n_dims, n->in[i]->dims, n->in[i]->n_dims));
    for (int i = 0; i < n->n_in && !fits; i++)
        (void)tensor_dims_text(text[i], sizeof(text[i]), n->in[i]);
    if (!fits)
        return node_reject(tape, n,
                           ls_fail(LS_EINVAL, "%s, %s and mask %s cannot be broadcast to one shape",
                                   text[X], n->in[OTHER] == NULL ? "a number" : text[OTHER],
                                   text[MASK]));
    return node_run(tape, n, OP_SELECT, n_dims, dims);
}

ls_tensor *ls_masked_fill(ls_tape *tape, ls_tensor *x, ls_tensor *mask, double number)
{
    node n = {.class = &fill_class, .n_in = 3, .in = {x, NULL, mask}, .attrs.value = number};

    return choose(tape, &n);
}

ls_tensor *ls_where(ls_tape *tape, ls_tensor *mask, ls_tensor *a, ls_tensor *b)
{
    node n = {.class = &where_class, .n_in = 3, .in = {b, a, mask}};

    return choose(tape, &n);
}

/* --- softmax with a mask --- */

/* x with the mask, and the dimension last. */
static ls_tensor *masked(ls_tape *tape, ls_tensor *x, int axis, ls_tensor *mask)
{
    if (mask != NULL && mask->dtype == LS_U8)
        x = ls_masked_fill(tape, x, mask, -(double)INFINITY);
    else if (mask != NULL)
        x = ls_add(tape, x, mask);
    return axis == -1 ? x : ls_transpose(tape, x, axis, -1);
}

ls_tensor *ls_softmax_over(ls_tape *tape, ls_tensor *x, int axis, ls_tensor *mask)
{
    ls_tensor *y = ls_softmax(tape, masked(tape, x, axis, mask), 1);

    return axis == -1 || y == NULL ? y : ls_transpose(tape, y, axis, -1);
}

ls_tensor *ls_log_softmax_over(ls_tape *tape, ls_tensor *x, int axis, ls_tensor *mask)
{
    ls_tensor *y = masked(tape, x, axis, mask);
    int64_t dims[LS_MAX_DIMS];
    int n_dims;

    if (y == NULL)
        return NULL;
    n_dims = y->n_dims;
    for (int d = 0; d < n_dims; d++)
        dims[d] = y->dims[d];
    if (n_dims > 0)
        y = ls_reshape(tape, y, 2, (int64_t[]){dims[n_dims - 1] == 0 ? 0 : -1, dims[n_dims - 1]});
    y = ls_reshape(tape, ls_log_softmax(tape, y), n_dims, dims);
    return axis == -1 || y == NULL ? y : ls_transpose(tape, y, axis, -1);
}

/* --- embedding --- */

static ls_status embedding_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_EMBEDDING_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 2,
                    .n_out = 1,
                    .in = {dy, n->in[1]}};

    return grad_run_weights(tape, &call, 0, n->in[0], NULL);
}

static const op_class embedding_class = {.name = "embedding",
                                         .inputs = {"weight", "indices"},
                                         .n_required = 2,
                                         .n_typed = 1,
                                         .parameters = 1U << 0,
                                         .n_grad = 1,
                                         .unused_in_backward = 1U << NODE_OUT | 1U << 0,
                                         .backward = embedding_backward};

ls_tensor *ls_embedding(ls_tape *tape, ls_tensor *weight, ls_tensor *indices, int64_t padding_index)
{
    node n = {.class = &embedding_class,
              .n_in = 2,
              .in = {weight, indices},
              .attrs.begin = padding_index};
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    int64_t dims[LS_MAX_DIMS];

    if (!node_begin(tape, &n))
        return NULL;
    if (weight->n_dims != 2 || indices->dtype != LS_I64 || indices->n_dims >= LS_MAX_DIMS)
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL,
                                   "indices %s must be int64 of at most %d dimensions, weight %s "
                                   "(V, D)",
                                   tensor_text(first, sizeof(first), indices), LS_MAX_DIMS - 1,
                                   tensor_dims_text(second, sizeof(second), weight)));
    for (int d = 0; d < indices->n_dims; d++)
        dims[d] = indices->dims[d];
    dims[indices->n_dims] = weight->dims[1];
    return node_run(tape, &n, OP_EMBEDDING, indices->n_dims + 1, dims);
}
