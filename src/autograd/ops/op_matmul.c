/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_matmul.c - products of matrices, one for each of the leading dimensions, which are broadcast
 * as in torch.matmul.
 */
#include "autograd/tape.h"

/* y = a b: da = dy b^T, db = a^T dy. y = a b^T: da = dy b, db = dy^T a. */
static ls_status matmul_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *a = n->in[0];
    ls_tensor *b = n->in[1];
    const bool is_transposed = n->attrs.transposed[1];
    op_call da = {.op = OP_MATMUL,
                  .attrs.transposed = {false, !is_transposed},
                  .n_in = 2,
                  .n_out = 1,
                  .in = {dy, b}};
    op_call db = {.op = OP_MATMUL,
                  .attrs.transposed = {true, false},
                  .n_in = 2,
                  .n_out = 1,
                  .in = {is_transposed ? dy : a, is_transposed ? a : dy}};

    if (needs_grad(b))
        LS_TRY(grad_run(tape, &db, 0, b));
    return needs_grad(a) ? grad_run(tape, &da, 0, a) : LS_OK;
}

static const op_class matmul_class = {.name = "matmul",
                                      .inputs = {"a", "b"},
                                      .n_required = 2,
                                      .n_typed = 2,
                                      .precision = PRECISION_COMPUTE,
                                      .n_grad = 2,
                                      .unused_in_backward = 1U << NODE_OUT,
                                      .backward = matmul_backward};

/* Of equal leading dimensions. */
static ls_tensor *multiply(ls_tape *tape, ls_tensor *a, ls_tensor *b, bool transpose_b)
{
    node n = {
        .class = &matmul_class, .n_in = 2, .in = {a, b}, .attrs.transposed = {false, transpose_b}};
    int64_t dims[LS_MAX_DIMS];
    int last;

    if (!node_begin(tape, &n))
        return NULL;
    last = n.in[0]->n_dims - 1;
    for (int i = 0; i < last; i++)
        dims[i] = n.in[0]->dims[i];
    dims[last] = n.in[1]->dims[transpose_b ? last - 1 : last];
    return node_run(tape, &n, OP_MATMUL, last + 1, dims);
}

/* One matrix b for all of a: the rows of all matrices of `a` are those of one. */
static ls_tensor *multiply_rows(ls_tape *tape, ls_tensor *a, ls_tensor *b, bool transpose_b)
{
    const int64_t depth = a->dims[a->n_dims - 1];
    int64_t rows = 1;

    for (int i = 0; i < a->n_dims - 1; i++)
        rows *= a->dims[i];
    a = ls_reshape(tape, a, 2, (int64_t[]){rows, depth});
    b = ls_reshape(tape, b, 2, b->dims + b->n_dims - 2);
    return multiply(tape, a, b, transpose_b);
}

ls_tensor *leading_expand(ls_tape *tape, ls_tensor *t, int n_dims, const int64_t *dims)
{
    int64_t whole[LS_MAX_DIMS];
    bool is_whole = t->n_dims == n_dims;

    for (int i = 0; i < n_dims; i++) {
        whole[i] = i < n_dims - 2 ? dims[i] : t->dims[t->n_dims - n_dims + i];
        is_whole = is_whole && t->dims[i] == whole[i];
    }
    return is_whole ? t : ls_expand(tape, t, n_dims, whole);
}

/* The shape of the product; false if there is none. */
static bool product_shape(const ls_tensor *a, const ls_tensor *b, bool transpose_b, int64_t *dims,
                          int *n_dims)
{
    int n = a->n_dims - 2;

    if (n < 0 || b->n_dims < 2 || a->dims[n + 1] < 1 ||
        a->dims[n + 1] != b->dims[b->n_dims - (transpose_b ? 1 : 2)])
        return false;
    for (int i = 0; i < n; i++)
        dims[i] = a->dims[i];
    if (!shape_broadcast(dims, &n, b->dims, b->n_dims - 2))
        return false;
    dims[n] = a->dims[a->n_dims - 2];
    dims[n + 1] = b->dims[b->n_dims - (transpose_b ? 2 : 1)];
    *n_dims = n + 2;
    return true;
}

ls_tensor *ls_matmul(ls_tape *tape, ls_tensor *a, ls_tensor *b, int transpose_b)
{
    node n = {.class = &matmul_class, .n_in = 2, .in = {a, b}};
    const bool is_transposed = transpose_b != 0;
    char text[2][TENSOR_TEXT_BYTES];
    int64_t dims[LS_MAX_DIMS];
    bool is_one = true;
    int n_dims;

    if (!node_begin(tape, &n))
        return NULL;
    a = n.in[0]; // of the type of the operator
    b = n.in[1];
    if (!product_shape(a, b, is_transposed, dims, &n_dims))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "a %s cannot be multiplied with b %s%s",
                                   tensor_dims_text(text[0], sizeof(text[0]), a),
                                   tensor_dims_text(text[1], sizeof(text[1]), b),
                                   is_transposed ? " transposed" : ""));
    for (int i = 0; i < b->n_dims - 2; i++)
        is_one = is_one && b->dims[i] == 1;
    if (is_one && n_dims > 2)
        return ls_reshape(tape, multiply_rows(tape, a, b, is_transposed), n_dims, dims);
    a = leading_expand(tape, a, n_dims, dims);
    b = a == NULL ? NULL : leading_expand(tape, b, n_dims, dims);
    return multiply(tape, a, b, is_transposed);
}
