/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_slice.c - permute, concat, stack, slice and split. The backward of permute is a permute, that
 * of concat slices, and that of split one concat.
 */
#include "autograd/tape.h"

#include "base/alloc.h"

#include <string.h>

/* --- permute --- */

static ls_status permute_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_PERMUTE, .n_in = 1, .n_out = 1, .in = {dy}};

    for (int i = 0; i < n->in[0]->n_dims; i++)
        call.attrs.order[n->attrs.order[i]] = i;
    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class permute_class = {
    .name = "permute", ONE_INPUT, READS_NOTHING, .backward = permute_backward};

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
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all are set
        const int from = order[i] < 0 ? order[i] + x->n_dims : order[i];

        if (from < 0 || from >= x->n_dims || (named >> from & 1) != 0)
            return node_reject(tape, &n,
                               ls_fail(LS_EINVAL,
                                       "order[%d] is %d; order must have each of 0 to %d once", i,
                                       order[i], x->n_dims - 1));
        named |= 1U << from;
        n.attrs.order[i] = from;
        dims[i] = x->dims[from];
    }
    return node_run(tape, &n, OP_PERMUTE, x->n_dims, dims);
}

ls_tensor *ls_transpose(ls_tape *tape, ls_tensor *x, int axis, int other)
{
    node n = {.class = &permute_class, .n_in = 1, .in = {x}};
    int order[LS_MAX_DIMS];
    char text[TENSOR_TEXT_BYTES];
    int a;
    int b;

    if (!node_begin(tape, &n))
        return NULL;
    a = axis < 0 ? axis + x->n_dims : axis;
    b = other < 0 ? other + x->n_dims : other;
    if (a < 0 || a >= x->n_dims || b < 0 || b >= x->n_dims)
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "input %s has no dimensions %d and %d",
                                   tensor_dims_text(text, sizeof(text), x), axis, other));
    for (int i = 0; i < x->n_dims; i++)
        order[i] = i == a ? b : i == b ? a : i;
    return ls_permute(tape, x, order);
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
                                      READS_NOTHING,
                                      .backward = concat_backward};

/* Makes a negative dimension, counted from the end, a number of x's dimensions. */
static ls_status resolve_axis(const ls_tensor *x, int *axis)
{
    char text[TENSOR_TEXT_BYTES];
    const int resolved = *axis < 0 ? *axis + x->n_dims : *axis;

    if (resolved < 0 || resolved >= x->n_dims)
        return ls_fail(LS_EINVAL, "input %s has no dimension %d",
                       tensor_dims_text(text, sizeof(text), x), *axis);
    *axis = resolved;
    return LS_OK;
}

/* The shape of the whole. */
static ls_status join_dims(node *n, int axis, int64_t *dims)
{
    char first[TENSOR_TEXT_BYTES];
    char other[TENSOR_TEXT_BYTES];
    const ls_tensor *x = n->in[0];

    LS_TRY(resolve_axis(x, &axis));
    n->attrs.axis = axis;
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
    st = join_dims(n, axis, dims);
    if (st != LS_OK)
        return node_reject(tape, n, st);
    return node_run(tape, n, OP_CONCAT, n->in[0]->n_dims, dims);
}

/* More: in NODE_MAX_IN parts of nearly equal length, so that an element is copied
 * log(n) / log(NODE_MAX_IN) times. */
// NOLINTNEXTLINE(misc-no-recursion): as deep as that
ls_tensor *ls_concat(ls_tape *tape, ls_tensor *const *x, int n, int axis)
{
    node whole = {.class = &concat_class, .n_in = n < NODE_MAX_IN ? n : NODE_MAX_IN};

    if (x == NULL || n < 1) {
        whole.n_in = 1;
        return concat_few(tape, &whole, axis);
    }
    for (int i = 0; i < whole.n_in; i++) {
        const int first = (int)((int64_t)i * n / whole.n_in);
        const int next = (int)((int64_t)(i + 1) * n / whole.n_in);

        whole.in[i] = next - first == 1 ? x[first] : ls_concat(tape, x + first, next - first, axis);
    }
    return concat_few(tape, &whole, axis);
}

/* x with a dimension of 1 at `axis`, counted in the result. */
static ls_tensor *with_dimension(ls_tape *tape, ls_tensor *x, int axis)
{
    int64_t dims[LS_MAX_DIMS + 1];
    const int n = x == NULL ? 0 : x->n_dims;

    axis = axis < 0 ? axis + n + 1 : axis;
    for (int d = 0; d <= n && x != NULL; d++)
        dims[d] = d == axis ? 1 : x->dims[d < axis ? d : d - 1];
    return ls_reshape(tape, x, n + 1, dims);
}

static const op_class stack_class = {.name = "stack", .n_required = 1, READS_NOTHING};

/* Computed as ls_reshape and ls_concat. */
ls_tensor *ls_stack(ls_tape *tape, ls_tensor *const *x, int n, int axis)
{
    node first = {.class = &stack_class, .n_in = 1, .in = {x == NULL || n < 1 ? NULL : x[0]}};
    char text[TENSOR_TEXT_BYTES];
    ls_tensor **parts;
    ls_tensor *y;

    if (!node_begin(tape, &first))
        return NULL;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): node_begin() has checked it
    if (axis < -x[0]->n_dims - 1 || axis > x[0]->n_dims || x[0]->n_dims == LS_MAX_DIMS)
        return node_reject(tape, &first,
                           ls_fail(LS_EINVAL, "input %s cannot get a dimension %d",
                                   tensor_dims_text(text, sizeof(text), x[0]), axis));
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    parts = ls_calloc((size_t)n, sizeof(*parts));
    if (parts == NULL)
        return node_reject(tape, &first, ls_fail(LS_ENOMEM, "no memory for %d inputs", n));
    for (int i = 0; i < n; i++)
        parts[i] = with_dimension(tape, x[i], axis);
    y = ls_concat(tape, parts, n, axis);
    ls_free(parts);
    return y;
}

/* --- slice --- */

static ls_status slice_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_SLICE_BACKWARD, dy, NULL);
}

static const op_class slice_class = {
    .name = "slice", ONE_INPUT, READS_NOTHING, .backward = slice_backward};

ls_tensor *ls_slice(ls_tape *tape, ls_tensor *x, int axis, int64_t begin, int64_t length)
{
    node n = {.class = &slice_class, .n_in = 1, .in = {x}, .attrs.begin = begin};
    int64_t dims[LS_MAX_DIMS];
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = resolve_axis(x, &axis);
    n.attrs.axis = axis;
    if (st == LS_OK && (begin < 0 || length < 1 || begin > x->dims[axis] - length))
        st = ls_fail(LS_EINVAL, "%lld positions from %lld on, but dimension %d has %lld",
                     (long long)length, (long long)begin, axis, (long long)x->dims[axis]);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    for (int d = 0; d < x->n_dims; d++)
        dims[d] = d == axis ? length : x->dims[d];
    return node_run(tape, &n, OP_SLICE, x->n_dims, dims);
}

/* --- split --- */

static ls_status join_grads(ls_tape *tape, const node *n, int first, int count, ls_tensor **out);

/* Runs OP_CONCAT on the gradients of outputs first to first + count - 1, in call->n_in parts, which
 * the caller destroys. */
// NOLINTNEXTLINE(misc-no-recursion): see join_grads()
static ls_status join_parts(ls_tape *tape, const node *n, int first, int count, op_call *call)
{
    int64_t dims[LS_MAX_DIMS];
    const int axis = n->attrs.axis;

    memcpy(dims, n->in[0]->dims, sizeof(dims));
    dims[axis] = 0;
    for (int i = 0; i < call->n_in; i++) {
        const int begin = (int)((int64_t)i * count / call->n_in);
        const int end = (int)((int64_t)(i + 1) * count / call->n_in);

        LS_TRY(join_grads(tape, n, first + begin, end - begin, &call->in[i]));
        dims[axis] += call->in[i]->dims[axis];
    }
    LS_TRY(tensor_shape(tape->device, n->in[0]->dtype, n->in[0]->n_dims, dims, &call->out[0]));
    return device_run(tape->device, call);
}

/* The gradient of the positions of x that these outputs have: a tensor of the caller. As many parts
 * as a call may have, so that an element is copied log(n) / log(OP_MAX_TENSORS) times. */
// NOLINTNEXTLINE(misc-no-recursion): as deep as that
static ls_status join_grads(ls_tape *tape, const node *n, int first, int count, ls_tensor **out)
{
    op_call call = {.op = OP_CONCAT,
                    .attrs = n->attrs,
                    .n_in = count < OP_MAX_TENSORS ? count : OP_MAX_TENSORS,
                    .n_out = 1};
    ls_tensor *dy;
    ls_status st;

    if (count == 1) {
        LS_TRY(node_grad_or_zeros(tape, n, first, &dy));
        LS_TRY(tensor_like(dy, out));
        tensor_share(*out, dy);
        return LS_OK;
    }
    st = join_parts(tape, n, first, count, &call);
    for (int i = 0; i < call.n_in; i++)
        ls_tensor_destroy(call.in[i]);
    if (st != LS_OK)
        ls_tensor_destroy(call.out[0]);
    *out = st == LS_OK ? call.out[0] : NULL;
    return st;
}

static ls_status split_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *dx;

    LS_UNUSED(dy);
    LS_TRY(join_grads(tape, n, 0, n->n_out, &dx));
    return grad_give(tape, n->in[0], dx);
}

static const op_class split_class = {
    .name = "split", ONE_INPUT, READS_NOTHING, .backward = split_backward};

static ls_status check_sizes(const ls_tensor *x, int axis, const int64_t *sizes, int n)
{
    char text[TENSOR_TEXT_BYTES];
    int64_t sum = 0;

    if (sizes == NULL)
        return ls_fail(LS_EINVAL, "the sizes are NULL");
    for (int i = 0; i < n; i++) {
        if (sizes[i] < 0 || __builtin_add_overflow(sum, sizes[i], &sum))
            return ls_fail(LS_EINVAL, "sizes[%d] is %lld; it must be 0 to %lld", i,
                           (long long)sizes[i], (long long)x->dims[axis]);
    }
    if (sum == x->dims[axis])
        return LS_OK;
    return ls_fail(
        LS_EINVAL, "the sizes add up to %lld, but dimension %d of input %s has %lld positions",
        (long long)sum, axis, tensor_dims_text(text, sizeof(text), x), (long long)x->dims[axis]);
}

/* Slices x; on failure the outputs that exist are destroyed, and all are NULL. */
static ls_status cut(ls_tape *tape, ls_tensor *x, int axis, const int64_t *sizes, int n,
                     ls_tensor **out)
{
    op_call call = {.op = OP_SLICE, .attrs.axis = axis, .n_in = 1, .n_out = 1, .in = {x}};
    int64_t dims[LS_MAX_DIMS];
    ls_status st = LS_OK;

    memcpy(dims, x->dims, sizeof(dims));
    for (int i = 0; i < n && st == LS_OK; i++) {
        dims[axis] = sizes[i];
        st = tensor_shape(tape->device, x->dtype, x->n_dims, dims, &out[i]);
        call.out[0] = out[i];
        if (st == LS_OK)
            st = device_run(tape->device, &call);
        call.attrs.begin += sizes[i];
    }
    for (int i = 0; i < n && st != LS_OK; i++) {
        ls_tensor_destroy(out[i]);
        out[i] = NULL;
    }
    return st;
}

void ls_split(ls_tape *tape, ls_tensor *x, int axis, const int64_t *sizes, int n, ls_tensor **out)
{
    node part = {.class = &split_class, .n_in = 1, .in = {x}};
    ls_status st;

    for (int i = 0; out != NULL && i < n; i++)
        out[i] = NULL;
    if (!node_begin(tape, &part))
        return;
    st = n >= 1 && out != NULL ? resolve_axis(x, &axis)
                               : ls_fail(LS_EINVAL, "%d outputs at %s; at least 1 is needed", n,
                                         out == NULL ? "NULL" : "out");
    part.attrs.axis = axis;
    if (st == LS_OK)
        st = check_sizes(x, axis, sizes, n);
    if (st == LS_OK)
        st = cut(tape, x, axis, sizes, n, out);
    if (st == LS_OK)
        (void)node_finish_all(tape, &part, out, n);
    else
        (void)node_reject(tape, &part, st);
}

/* --- pad --- */

static ls_status pad_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_SLICE, dy, NULL);
}

static const op_class pad_class = {
    .name = "pad", ONE_INPUT, READS_NOTHING, .backward = pad_backward};

static ls_tensor *pad_axis(ls_tape *tape, ls_tensor *x, int axis, const int64_t *padding,
                           double number)
{
    node n = {.class = &pad_class,
              .n_in = 1,
              .in = {x},
              .attrs = {.axis = axis, .begin = padding[0], .value = number}};
    int64_t dims[LS_MAX_DIMS];

    if (!node_begin(tape, &n))
        return NULL;
    memcpy(dims, x->dims, sizeof(dims));
    if (padding[0] < 0 || padding[1] < 0 ||
        __builtin_add_overflow(dims[axis], padding[0], &dims[axis]) ||
        __builtin_add_overflow(dims[axis], padding[1], &dims[axis]))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "%lld and %lld positions around dimension %d",
                                   (long long)padding[0], (long long)padding[1], axis));
    return node_run(tape, &n, OP_SLICE_BACKWARD, x->n_dims, dims);
}

ls_tensor *ls_pad(ls_tape *tape, ls_tensor *x, const int64_t *padding, int n, double number)
{
    node first = {.class = &pad_class, .n_in = 1, .in = {x}};
    char text[TENSOR_TEXT_BYTES];

    if (!node_begin(tape, &first))
        return NULL;
    if (padding == NULL || n < 0 || n % 2 != 0 || n / 2 > x->n_dims)
        return node_reject(tape, &first,
                           ls_fail(LS_EINVAL,
                                   "%d numbers at %s do not fit input %s: two for each "
                                   "dimension, from the last on",
                                   n, padding == NULL ? "NULL" : "padding",
                                   tensor_dims_text(text, sizeof(text), x)));
    for (int i = 0; i < n / 2 && x != NULL; i++) {
        const int64_t *pair = padding + (size_t)2 * (size_t)i;

        if (pair[0] != 0 || pair[1] != 0)
            x = pad_axis(tape, x, x->n_dims - 1 - i, pair, number);
    }
    return x;
}
