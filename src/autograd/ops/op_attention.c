/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_attention.c - the operators of transformers: layer normalisation and softmax of the last
 * dimension, and scaled dot-product attention.
 */
#include "autograd/tape.h"

#include <math.h>
#include <string.h>

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
                                          .n_required = 1,
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
        if (n->in[i] != NULL &&
            (n->in[i]->n_dims != 1 || n->in[i]->dims[0] != x->dims[x->n_dims - 1]))
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
    ls_dtype type;
    int64_t rows = 1;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    x = n.in[X];
    type = tensor_is_half(x) ? LS_F32 : x->dtype;
    st = check_layer_norm(&n);
    for (int i = 0; i < x->n_dims - 1; i++)
        rows *= x->dims[i];
    if (st == LS_OK)
        st = node_save(tape, &n, SAVED_MEAN, type, 1, &rows);
    if (st == LS_OK)
        st = node_save(tape, &n, SAVED_INVERSE, type, 1, &rows);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run_like(tape, &n, OP_LAYER_NORM);
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
    return node_run_like(tape, &n, OP_SOFTMAX);
}

/* --- attention --- */

enum { Q, K, V, MASK };
enum { NORMS };

static int64_t from_end(const ls_tensor *t, int d)
{
    return t->dims[t->n_dims - d];
}

static ls_status attention_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_ATTENTION_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 7,
                    .n_out = 3,
                    .in = {n->in[Q], dy, n->in[K], n->in[V], n->in[MASK], n->out, n->saved[NORMS]}};
    ls_status st = LS_OK;

    for (int i = Q; i <= V && st == LS_OK; i++) {
        if (needs_grad(n->in[i]))
            st = tensor_like(n->in[i], &call.out[i]);
    }
    if (st == LS_OK)
        st = device_run(tape->device, &call);
    for (int i = Q; i <= V; i++) {
        if (call.out[i] == NULL)
            continue;
        if (st == LS_OK)
            st = grad_give(tape, n->in[i], call.out[i]);
        else
            ls_tensor_destroy(call.out[i]);
    }
    return st;
}

static const op_class attention_class = {.name = "attention",
                                         .inputs = {"q", "k", "v", "mask"},
                                         .n_required = 3,
                                         .n_typed = 3,
                                         .precision = PRECISION_COMPUTE,
                                         .n_grad = 3,
                                         .backward = attention_backward};

/* The shape of the scores (...,T,S), to which the leading dimensions of q, k and v are broadcast
 * and the mask. */
static ls_status score_shape(const node *n, int64_t *dims, int *n_dims)
{
    const ls_tensor *mask = n->in[MASK];
    char text[4][TENSOR_TEXT_BYTES];
    int64_t whole[LS_MAX_DIMS];
    bool fits = true;
    int n_whole;

    *n_dims = 0;
    for (int i = Q; i <= V && fits; i++)
        fits = n->in[i]->n_dims >= 2 &&
               shape_broadcast(dims, n_dims, n->in[i]->dims, n->in[i]->n_dims - 2);
    for (int i = Q; i <= V; i++)
        (void)tensor_dims_text(text[i], sizeof(text[i]), n->in[i]);
    fits = fits && from_end(n->in[Q], 1) == from_end(n->in[K], 1) &&
           from_end(n->in[K], 2) == from_end(n->in[V], 2) && from_end(n->in[Q], 1) >= 1;
    if (!fits)
        return ls_fail(LS_EINVAL,
                       "q %s, k %s and v %s are not (..., T, D), (..., S, D) and (..., S, E)",
                       text[Q], text[K], text[V]);
    dims[(*n_dims)++] = from_end(n->in[Q], 2);
    dims[(*n_dims)++] = from_end(n->in[K], 2);
    if (mask == NULL)
        return LS_OK;
    n_whole = *n_dims;
    memcpy(whole, dims, sizeof(whole));
    fits = shape_broadcast(whole, &n_whole, mask->dims, mask->n_dims) && n_whole == *n_dims;
    for (int i = 0; i < n_whole && fits; i++)
        fits = whole[i] == dims[i];
    return fits ? LS_OK
                : ls_fail(LS_EINVAL, "mask %s cannot be broadcast to the scores of q %s and k %s",
                          tensor_dims_text(text[MASK], sizeof(text[MASK]), mask), text[Q], text[K]);
}

/* A mask of numbers in the type of parameters. */
static ls_status check_mask(ls_tape *tape, node *n)
{
    const ls_dtype type = n->in[Q]->dtype == LS_F64 ? LS_F64 : LS_F32;
    ls_tensor *mask = n->in[MASK];

    if (mask == NULL || mask->dtype == LS_U8)
        return LS_OK;
    if (needs_grad(mask))
        return ls_fail(LS_EINVAL, "mask gets no gradient: use ls_matmul() and ls_softmax_over()");
    if (tensor_is_half(mask) && type == LS_F32)
        mask = ls_cast(tape, mask, LS_F32);
    if (mask == NULL)
        return tape->failure;
    n->in[MASK] = mask;
    return mask->dtype == type ? LS_OK
                               : ls_fail(LS_EINVAL, "mask is %s; it must be uint8 or %s",
                                         ls_dtype_name(mask->dtype), ls_dtype_name(type));
}

/* Leading dimensions of q, k and v that are not those of the scores: repeated. */
static bool repeat_leading(ls_tape *tape, node *n, int n_dims, const int64_t *dims)
{
    for (int i = Q; i <= V; i++) {
        n->in[i] = leading_expand(tape, n->in[i], n_dims, dims);
        if (n->in[i] == NULL)
            return false;
    }
    return true;
}

static ls_status set_attributes(ls_tape *tape, node *n, const ls_attention_params *p)
{
    const double width = (double)from_end(n->in[Q], 1);

    n->attrs.causal = p->causal != 0;
    n->attrs.scale = p->scale == 0 ? 1 / sqrt(width) : p->scale;
    return node_draw(tape, n, p->dropout, false);
}

/* The backward recomputes the weights of keys from NORMS, block by block: Dao, Fu, Ermon, Rudra
 * and Re, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", 2022; Rabe
 * and Staats, "Self-attention Does Not Need O(n^2) Memory", 2021. */
ls_tensor *ls_attention(ls_tape *tape, ls_tensor *q, ls_tensor *k, ls_tensor *v,
                        const ls_attention_params *params)
{
    const ls_attention_params given = params == NULL ? (ls_attention_params){0} : *params;
    node n = {.class = &attention_class, .n_in = 4, .in = {q, k, v, given.mask}};
    int64_t dims[LS_MAX_DIMS];
    int n_dims;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = score_shape(&n, dims, &n_dims);
    if (st == LS_OK)
        st = check_mask(tape, &n);
    if (st == LS_OK)
        st = set_attributes(tape, &n, &given);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    if (!repeat_leading(tape, &n, n_dims, dims))
        return NULL;
    dims[n_dims - 1] = 2;
    st = node_save(tape, &n, NORMS, n.in[Q]->dtype == LS_F64 ? LS_F64 : LS_F32, n_dims, dims);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    dims[n_dims - 1] = from_end(n.in[V], 1);
    return node_run(tape, &n, OP_ATTENTION, n_dims, dims);
}
