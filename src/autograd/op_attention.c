/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_attention.c - the operators of transformers: batched matrix products, and layer normalisation
 * and softmax of the last dimension.
 */
#include "autograd/tape.h"

/* --- matmul --- */

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

ls_tensor *ls_matmul(ls_tape *tape, ls_tensor *a, ls_tensor *b, int transpose_b)
{
    node n = {.class = &matmul_class,
              .n_in = 2,
              .in = {a, b},
              .attrs.transposed = {false, transpose_b != 0}};
    char left[TENSOR_TEXT_BYTES];
    char right[TENSOR_TEXT_BYTES];
    int64_t dims[LS_MAX_DIMS];
    int last;
    bool fits;

    if (!node_begin(tape, &n))
        return NULL;
    last = a->n_dims - 1;
    fits = last >= 1 && b->n_dims == a->n_dims && a->dims[last] >= 1 &&
           a->dims[last] == b->dims[transpose_b ? last : last - 1];
    for (int i = 0; fits && i < last; i++) {
        fits = i == last - 1 || a->dims[i] == b->dims[i];
        dims[i] = a->dims[i];
    }
    if (!fits)
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "a %s cannot be multiplied with b %s%s",
                                   tensor_dims_text(left, sizeof(left), a),
                                   tensor_dims_text(right, sizeof(right), b),
                                   transpose_b ? " transposed" : ""));
    dims[last] = b->dims[transpose_b ? last - 1 : last];
    return node_run(tape, &n, OP_MATMUL, a->n_dims, dims);
}

/* --- layer norm --- */

enum { X, WEIGHT, BIAS };
enum { SAVED_MEAN, SAVED_INVERSE };

static ls_status layer_norm_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {
        .op = OP_LAYER_NORM_BACKWARD,
        .attrs = n->attrs,
        .may_reuse_grad = grad_may_be_reused(n),
        .n_in = 5,
        .n_out = 3,
        .in = {n->in[X], dy, n->in[WEIGHT], n->saved[SAVED_MEAN], n->saved[SAVED_INVERSE]}};

    return grad_run_norm(tape, &call, n->in);
}

static const op_class layer_norm_class = {.name = "layer_norm",
                                          .inputs = {"input", "weight", "bias"},
                                          .n_required = 3,
                                          .n_typed = 3,
                                          .parameters = 1U << WEIGHT | 1U << BIAS,
                                          .n_grad = 3,
                                          .unused_in_backward = 1U << NODE_OUT | 1U << BIAS,
                                          .backward = layer_norm_backward};

static ls_status check_layer_norm(const node *n)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    const ls_tensor *x = n->in[X];

    if (x->n_dims < 1 || x->dims[x->n_dims - 1] < 1)
        return ls_fail(LS_EINVAL, "input %s has no elements in its last dimension",
                       tensor_dims_text(first, sizeof(first), x));
    for (int i = WEIGHT; i <= BIAS; i++) {
        if (n->in[i]->n_dims != 1 || n->in[i]->dims[0] != x->dims[x->n_dims - 1])
            return ls_fail(LS_EINVAL, "%s %s does not fit input %s", node_tensor_name(n, i),
                           tensor_dims_text(second, sizeof(second), n->in[i]),
                           tensor_dims_text(first, sizeof(first), x));
    }
    return n->attrs.eps > 0 ? LS_OK
                            : ls_fail(LS_EINVAL, "eps is %g; it must be over 0", n->attrs.eps);
}

ls_tensor *ls_layer_norm(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         double eps)
{
    node n = {.class = &layer_norm_class,
              .n_in = 3,
              .in = {x, weight, bias},
              .attrs.eps = eps == 0 ? 1e-5 : eps};
    int64_t rows = 1;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_layer_norm(&n);
    for (int i = 0; i < x->n_dims - 1; i++)
        rows *= x->dims[i];
    if (st == LS_OK)
        st = node_save(tape, &n, SAVED_MEAN, n.in[WEIGHT]->dtype, 1, &rows);
    if (st == LS_OK)
        st = node_save(tape, &n, SAVED_INVERSE, n.in[WEIGHT]->dtype, 1, &rows);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run(tape, &n, OP_LAYER_NORM, x->n_dims, x->dims);
}

/* --- softmax --- */

static ls_status softmax_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_SOFTMAX_BACKWARD, n->out, dy);
}

static const op_class softmax_class = {.name = "softmax",
                                       ONE_INPUT,
                                       .precision = PRECISION_WIDE,
                                       .unused_in_backward = 1U << 0,
                                       .backward = softmax_backward};

ls_tensor *ls_softmax(ls_tape *tape, ls_tensor *x, double scale)
{
    node n = {.class = &softmax_class, .n_in = 1, .in = {x}, .attrs.scale = scale};

    if (!node_begin(tape, &n))
        return NULL;
    if (x->n_dims < 1)
        return node_reject(tape, &n, ls_fail(LS_EINVAL, "input () has no rows"));
    return node_run(tape, &n, OP_SOFTMAX, x->n_dims, x->dims);
}
