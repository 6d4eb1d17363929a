/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_slice.c - permute, concat and slice. The backward of permute is a permute, that of concat
 * slices.
 */
#include "autograd/tape.h"

/* --- permute --- */

static ls_status permute_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_PERMUTE, .n_in = 1, .n_out = 1, .in = {dy}};

    for (int i = 0; i < n->in[0]->n_dims; i++)
        call.attrs.order[n->attrs.order[i]] = i;
    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class permute_class = {.name = "permute",
                                       ONE_INPUT,
                                       .unused_in_backward = 1U << NODE_OUT | 1U << 0,
                                       .backward = permute_backward};

ls_tensor *ls_permute(ls_tape *tape, ls_tensor *x, const int *order)
{
    node n = {.class = &permute_class, .n_in = 1, .in = {x}};
    int64_t dims[LS_MAX_DIMS];
    unsigned named = 0;

    if (!node_begin(tape, &n))
        return NULL;
    if (order == NULL)
        return node_reject(tape, &n, ls_fail(LS_EINVAL, "the order is NULL"));
    for (int i = 0; i < x->n_dims; i++) {
        if (order[i] < 0 || order[i] >= x->n_dims || (named >> order[i] & 1) != 0)
            return node_reject(tape, &n,
                               ls_fail(LS_EINVAL,
                                       "order[%d] is %d; order must have each of 0 to %d once", i,
                                       order[i], x->n_dims - 1));
        named |= 1U << order[i];
        n.attrs.order[i] = order[i];
        dims[i] = x->dims[order[i]];
    }
    return node_run(tape, &n, OP_PERMUTE, x->n_dims, dims);
}

/* --- concat --- */

static ls_status concat_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_SLICE, .attrs = n->attrs, .n_in = 1, .n_out = 1, .in = {dy}};

    for (int i = 0; i < n->n_in; i++) {
        if (needs_grad(n->in[i]))
            LS_TRY(grad_run(tape, &call, 0, n->in[i]));
        call.attrs.begin += n->in[i]->dims[n->attrs.axis];
    }
    return LS_OK;
}

static const op_class concat_class = {.name = "concat",
                                      .n_required = 1,
                                      .n_typed = NODE_MAX_IN,
                                      .n_grad = NODE_MAX_IN,
                                      .unused_in_backward = (1U << (NODE_MAX_IN + 1)) - 1,
                                      .backward = concat_backward};

static ls_status check_axis(const ls_tensor *x, int axis)
{
    char text[TENSOR_TEXT_BYTES];

    if (axis >= 0 && axis < x->n_dims)
        return LS_OK;
    return ls_fail(LS_EINVAL, "input %s has no dimension %d",
                   tensor_dims_text(text, sizeof(text), x), axis);
}

/* The shape of the whole. */
static ls_status join_dims(const node *n, int axis, int64_t *dims)
{
    char first[TENSOR_TEXT_BYTES];
    char other[TENSOR_TEXT_BYTES];
    const ls_tensor *x = n->in[0];

    LS_TRY(check_axis(x, axis));
    for (int d = 0; d < x->n_dims; d++)
        dims[d] = d == axis ? 0 : x->dims[d];
    for (int i = 0; i < n->n_in; i++) {
        bool fits = n->in[i] != NULL && n->in[i]->n_dims == x->n_dims;

        for (int d = 0; fits && d < x->n_dims; d++)
            fits = d == axis || n->in[i]->dims[d] == dims[d];
        if (!fits)
            return ls_fail(LS_EINVAL, "%s does not fit %s along dimension %d",
                           n->in[i] == NULL ? "NULL"
                                            : tensor_dims_text(other, sizeof(other), n->in[i]),
                           tensor_dims_text(first, sizeof(first), x), axis);
        if (__builtin_add_overflow(dims[axis], n->in[i]->dims[axis], &dims[axis]))
            return ls_fail(LS_EINVAL, "dimension %d becomes too large", axis);
    }
    return LS_OK;
}

/* At most NODE_MAX_IN tensors. */
static ls_tensor *concat_few(ls_tape *tape, node *n, int axis)
{
    int64_t dims[LS_MAX_DIMS];
    ls_status st;

    if (!node_begin(tape, n))
        return NULL;
    n->attrs.axis = axis;
    st = join_dims(n, axis, dims);
    if (st != LS_OK)
        return node_reject(tape, n, st);
    return node_run(tape, n, OP_CONCAT, n->in[0]->n_dims, dims);
}

ls_tensor *ls_concat(ls_tape *tape, ls_tensor *const *x, int n, int axis)
{
    ls_tensor *whole = x == NULL || n < 1 ? NULL : x[0];
    int done = 1;

    do {
        node part = {.class = &concat_class, .n_in = 1, .in = {whole}};

        while (whole != NULL && done < n && part.n_in < NODE_MAX_IN)
            part.in[part.n_in++] = x[done++];
        whole = concat_few(tape, &part, axis);
    } while (whole != NULL && done < n);
    return whole;
}

/* --- slice --- */

static ls_status slice_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_SLICE_BACKWARD, dy, NULL);
}

static const op_class slice_class = {.name = "slice",
                                     ONE_INPUT,
                                     .unused_in_backward = 1U << NODE_OUT | 1U << 0,
                                     .backward = slice_backward};

ls_tensor *ls_slice(ls_tape *tape, ls_tensor *x, int axis, int64_t begin, int64_t length)
{
    node n = {.class = &slice_class, .n_in = 1, .in = {x}, .attrs = {.axis = axis, .begin = begin}};
    int64_t dims[LS_MAX_DIMS];
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_axis(x, axis);
    if (st == LS_OK && (begin < 0 || length < 1 || begin > x->dims[axis] - length))
        st = ls_fail(LS_EINVAL, "%lld positions from %lld on, but dimension %d has %lld",
                     (long long)length, (long long)begin, axis, (long long)x->dims[axis]);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    for (int d = 0; d < x->n_dims; d++)
        dims[d] = d == axis ? length : x->dims[d];
    return node_run(tape, &n, OP_SLICE, x->n_dims, dims);
}
