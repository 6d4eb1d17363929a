/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_binary.c - functions of two tensors of which each is broadcast to a common shape, as in
 * PyTorch, losses that consist of them, and one tensor repeated to a given shape. The gradient of
 * an element is the sum over the positions that it was repeated to.
 */
#include "autograd/tape.h"

#include <math.h>
#include <string.h>

/* A kernel computes the gradient of input `i`. `is_like_forward`: by the function itself, of dy and
 * the other input. */
static ls_status give_computed(ls_tape *tape, const node *n, ls_tensor *dy, int i,
                               bool is_like_forward)
{
    const bool reads = n->attrs.binary != BINARY_ADD && n->attrs.binary != BINARY_SUB;
    op_call call = {
        .op = OP_BINARY, .attrs = n->attrs, .n_in = 2, .n_out = 1, .in = {dy, n->in[1 - i]}};

    if (!is_like_forward) {
        call.op = OP_REDUCE;
        call.attrs.operand = i;
        call.attrs.scale = 1;
        call.n_in = reads ? 3 : 1;
        call.in[1] = reads ? n->in[0] : NULL;
        call.in[2] = reads ? n->in[1] : NULL;
    }
    return grad_run(tape, &call, 0, n->in[i]);
}

/* The gradient of input `i`. Without a sum that of a product or dividend is itself a product or
 * quotient. */
static ls_status give_operand(ls_tape *tape, const node *n, ls_tensor *dy, int i)
{
    const op_binary f = n->attrs.binary;
    const bool is_first_term = f == BINARY_ADD || (f == BINARY_SUB && i == 0);
    const bool is_factor = f == BINARY_MUL || (f == BINARY_DIV && i == 0);
    bool is_whole;

    if (!needs_grad(n->in[i]))
        return LS_OK;
    is_whole = tensor_same_shape(n->in[i], dy);
    if (is_whole && is_first_term)
        return grad_give_same(tape, n->in[i], dy);
    return give_computed(tape, n, dy, i, is_whole && is_factor);
}

static ls_status binary_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    for (int i = 0; i < n->n_in; i++)
        LS_TRY(give_operand(tape, n, dy, i));
    return LS_OK;
}

#define TWO_INPUTS                                                                                 \
    .inputs = {"a", "b"}, .n_required = 2, .n_typed = 2, .n_grad = 2, .backward = binary_backward
#define READS_INPUTS .unused_in_backward = 1U << NODE_OUT

#define TWO_TERMS                                                                                  \
    .inputs = {"prediction", "target"}, .n_required = 2, .n_typed = 2, .n_grad = 2,                \
    .precision = PRECISION_WIDE, .backward = binary_backward, READS_INPUTS

static const op_class classes[] = {
    [BINARY_ADD] = {.name = "add", TWO_INPUTS, READS_NOTHING},
    [BINARY_SUB] = {.name = "sub", TWO_INPUTS, READS_NOTHING},
    [BINARY_MUL] = {.name = "mul", TWO_INPUTS, READS_INPUTS},
    [BINARY_DIV] = {.name = "div", TWO_INPUTS, READS_INPUTS},
    [BINARY_MAXIMUM] = {.name = "maximum", TWO_INPUTS, READS_INPUTS},
    [BINARY_MINIMUM] = {.name = "minimum", TWO_INPUTS, READS_INPUTS},
    [BINARY_DISTANCE] = {.name = "l1_loss", TWO_TERMS},
    [BINARY_SQUARE] = {.name = "mse_loss", TWO_TERMS},
    [BINARY_SMOOTH] = {.name = "smooth_l1_loss", TWO_TERMS},
};

/* The size along dimension d, from the end, of the shape that both are broadcast to; -1: none. */
static int64_t common_size(const ls_tensor *a, const ls_tensor *b, int d)
{
    const int64_t of_a = d < a->n_dims ? a->dims[a->n_dims - 1 - d] : 1;
    const int64_t of_b = d < b->n_dims ? b->dims[b->n_dims - 1 - d] : 1;

    if (of_a == of_b || of_b == 1)
        return of_a;
    return of_a == 1 ? of_b : -1;
}

/* `number`: op_attrs.value. */
static ls_tensor *binary_with(ls_tape *tape, op_binary f, ls_tensor *a, ls_tensor *b, double number)
{
    node n = {
        .class = &classes[f], .n_in = 2, .in = {a, b}, .attrs = {.binary = f, .value = number}};
    char left[TENSOR_TEXT_BYTES];
    char right[TENSOR_TEXT_BYTES];
    int64_t dims[LS_MAX_DIMS];
    int n_dims;

    if (!node_begin(tape, &n))
        return NULL;
    if (tensor_same_shape(a, b))
        return node_run_like(tape, &n, OP_BINARY);
    n_dims = a->n_dims > b->n_dims ? a->n_dims : b->n_dims;
    for (int d = 0; d < n_dims; d++) {
        dims[n_dims - 1 - d] = common_size(a, b, d);
        if (dims[n_dims - 1 - d] < 0)
            return node_reject(tape, &n,
                               ls_fail(LS_EINVAL, "a %s and b %s cannot be broadcast to one shape",
                                       tensor_dims_text(left, sizeof(left), a),
                                       tensor_dims_text(right, sizeof(right), b)));
    }
    return node_run(tape, &n, OP_BINARY, n_dims, dims);
}

static ls_tensor *binary(ls_tape *tape, op_binary f, ls_tensor *a, ls_tensor *b)
{
    return binary_with(tape, f, a, b, 0);
}

ls_tensor *ls_add(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    return binary(tape, BINARY_ADD, a, b);
}

ls_tensor *ls_sub(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    return binary(tape, BINARY_SUB, a, b);
}

ls_tensor *ls_mul(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    return binary(tape, BINARY_MUL, a, b);
}

ls_tensor *ls_div(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    return binary(tape, BINARY_DIV, a, b);
}

ls_tensor *ls_maximum(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    return binary(tape, BINARY_MAXIMUM, a, b);
}

ls_tensor *ls_minimum(ls_tape *tape, ls_tensor *a, ls_tensor *b)
{
    return binary(tape, BINARY_MINIMUM, a, b);
}

/* --- losses of elements --- */

/* Whether all are there and the two have one shape; else the tape is marked. */
static bool fit(ls_tape *tape, const op_class *class, ls_tensor *prediction, ls_tensor *target)
{
    node n = {.class = class, .n_in = 2, .in = {prediction, target}};
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (!node_begin(tape, &n))
        return false;
    if (tensor_same_shape(prediction, target))
        return true;
    (void)node_reject(tape, &n,
                      ls_fail(LS_EINVAL, "%s %s and target %s must have the same shape",
                              class->inputs[0], tensor_dims_text(first, sizeof(first), prediction),
                              tensor_dims_text(second, sizeof(second), target)));
    return false;
}

/* The sum or mean of the elements' losses. */
static ls_tensor *total(ls_tape *tape, ls_tensor *losses, const ls_loss_params *p)
{
    ls_tensor *weights;

    if (losses == NULL || p == NULL || p->weight == NULL)
        return p != NULL && p->sum ? ls_sum(tape, losses, NULL, 0, 0)
                                   : ls_mean(tape, losses, NULL, 0, 0);
    weights = ls_expand(tape, p->weight, losses->n_dims, losses->dims);
    losses = ls_mul(tape, losses, weights);
    if (!p->sum && !p->masked_mean)
        return ls_mean(tape, losses, NULL, 0, 0);
    losses = ls_sum(tape, losses, NULL, 0, 0);
    if (p->sum)
        return losses;
    weights = ls_clamp(tape, ls_sum(tape, weights, NULL, 0, 0), 1e-30, (double)INFINITY);
    return ls_div(tape, losses, weights);
}

static ls_tensor *distance_loss(ls_tape *tape, op_binary f, ls_tensor *prediction,
                                ls_tensor *target, const ls_loss_params *p)
{
    const double beta = p == NULL || p->beta == 0 ? 1 : p->beta;

    if (!fit(tape, &classes[f], prediction, target))
        return NULL;
    if (beta < 0)
        return autograd_fail(
            tape, ls_fail(LS_EINVAL, "%s: beta is %g; it must be over 0", classes[f].name, beta));
    return total(tape, binary_with(tape, f, prediction, target, beta), p);
}

ls_tensor *ls_l1_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                      const ls_loss_params *params)
{
    return distance_loss(tape, BINARY_DISTANCE, prediction, target, params);
}

ls_tensor *ls_smooth_l1_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                             const ls_loss_params *params)
{
    return distance_loss(tape, BINARY_SMOOTH, prediction, target, params);
}

ls_tensor *ls_mse_loss_with(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                            const ls_loss_params *params)
{
    return params == NULL ? ls_mse_loss(tape, prediction, target)
                          : distance_loss(tape, BINARY_SQUARE, prediction, target, params);
}

static const op_class bce_class = {.name = "bce_with_logits",
                                   .inputs = {"logits", "target"},
                                   .n_required = 2,
                                   .n_typed = 2,
                                   .precision = PRECISION_WIDE};

/* (1 - t) x + (1 + (w - 1) t) log(1 + exp(-x)), w being pos_weight */
ls_tensor *ls_bce_with_logits(ls_tape *tape, ls_tensor *logits, ls_tensor *target,
                              const ls_loss_params *params)
{
    ls_tensor *w = params == NULL ? NULL : params->pos_weight;
    ls_tensor *log_term;

    if (!fit(tape, &bce_class, logits, target))
        return NULL;
    log_term = ls_softplus(tape, ls_scale(tape, logits, -1, 0), 1, (double)INFINITY);
    if (w != NULL) {
        w = ls_scale(tape, ls_mul(tape, ls_scale(tape, w, 1, -1), target), 1, 1);
        log_term = ls_mul(tape, w, log_term);
    }
    return total(tape, ls_add(tape, ls_mul(tape, ls_scale(tape, target, -1, 1), logits), log_term),
                 params);
}

/* --- expand --- */

static ls_status expand_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_REDUCE,
                    .attrs = {.binary = BINARY_ADD, .scale = 1},
                    .n_in = 1,
                    .n_out = 1,
                    .in = {dy}};

    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class expand_class = {
    .name = "expand", ONE_INPUT, READS_NOTHING, .backward = expand_backward};

static bool is_repeated(const ls_tensor *x, int n_dims, const int64_t *dims)
{
    const int lacks = n_dims - x->n_dims;

    for (int i = 0; lacks >= 0 && i < x->n_dims; i++) {
        if (x->dims[i] != 1 && x->dims[i] != dims[lacks + i])
            return false;
    }
    return lacks >= 0;
}

ls_tensor *ls_expand(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims)
{
    node n = {.class = &expand_class, .n_in = 1, .in = {x}};
    char from[TENSOR_TEXT_BYTES];
    char to[TENSOR_TEXT_BYTES];
    ls_tensor asked = {.n_dims = n_dims};

    if (!node_begin(tape, &n))
        return NULL;
    if (n_dims < 0 || n_dims > LS_MAX_DIMS || (n_dims > 0 && dims == NULL))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "%d dimensions at %s; 0 to %d are supported", n_dims,
                                   dims == NULL ? "NULL" : "dims", LS_MAX_DIMS));
    if (is_repeated(x, n_dims, dims))
        return node_run(tape, &n, OP_EXPAND, n_dims, dims);
    memcpy(asked.dims, dims, (size_t)n_dims * sizeof(*dims));
    return node_reject(tape, &n,
                       ls_fail(LS_EINVAL, "%s cannot be broadcast to %s",
                               tensor_dims_text(from, sizeof(from), x),
                               tensor_dims_text(to, sizeof(to), &asked)));
}
