/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_reduce.c - sums, means, extremes and variances over dimensions, and cumulative sums. Sums run
 * over any dimensions; extremes and cumulative sums over the last one, to which others are
 * permuted.
 */
#include "autograd/tape.h"

/* What the dimensions named by `axes` of x become. */
typedef struct reduction {
    unsigned axes;             /* bits */
    int64_t count;             /* positions of x for each element of the result */
    int64_t kept[LS_MAX_DIMS]; /* x's dimensions with 1 for those */
    int64_t dims[LS_MAX_DIMS]; /* of the result */
    int n_dims;
} reduction;

/* Negative axes count from the end; none at all means all. */
static ls_status name_axes(const ls_tensor *x, const int *axes, int n_axes, unsigned *out)
{
    char text[TENSOR_TEXT_BYTES];

    *out = n_axes == 0 ? (1U << x->n_dims) - 1 : 0;
    if (n_axes < 0 || (n_axes > 0 && axes == NULL))
        return ls_fail(LS_EINVAL, "%d dimensions at %s", n_axes, axes == NULL ? "NULL" : "axes");
    for (int i = 0; i < n_axes; i++) {
        const int axis = axes[i] < 0 ? axes[i] + x->n_dims : axes[i];

        if (axis < 0 || axis >= x->n_dims)
            return ls_fail(LS_EINVAL, "input %s has no dimension %d",
                           tensor_dims_text(text, sizeof(text), x), axes[i]);
        if ((*out >> axis & 1) != 0)
            return ls_fail(LS_EINVAL, "dimension %d of input %s is named twice", axes[i],
                           tensor_dims_text(text, sizeof(text), x));
        *out |= 1U << axis;
    }
    return LS_OK;
}

static reduction reduction_of(const ls_tensor *x, unsigned axes, bool keepdim)
{
    reduction r = {.axes = axes, .count = 1};

    for (int d = 0; d < x->n_dims; d++) {
        const bool is_reduced = (axes >> d & 1) != 0;

        r.count *= is_reduced ? x->dims[d] : 1;
        r.kept[d] = is_reduced ? 1 : x->dims[d];
        if (!is_reduced || keepdim)
            r.dims[r.n_dims++] = r.kept[d];
    }
    return r;
}

/* --- sums and means --- */

/* dx = dy, times the factor of the mean, repeated over the dimensions. */
static ls_status sum_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    const reduction r = reduction_of(n->in[0], n->attrs.axes, true);
    op_call scale = {.op = OP_ACTIVATE,
                     .attrs = {.activation = LS_ACT_LINEAR, .param = {n->attrs.scale, 0}},
                     .n_in = 1,
                     .n_out = 1};
    op_call repeat = {.op = OP_EXPAND, .n_in = 1, .n_out = 1};
    ls_status st;

    LS_TRY(tensor_share_as(tape, dy, r.n_dims, r.dims, &scale.in[0]));
    st = tensor_like(scale.in[0], &scale.out[0]);
    if (st == LS_OK && n->attrs.scale != 1)
        st = device_run(tape->device, &scale);
    repeat.in[0] = n->attrs.scale == 1 ? scale.in[0] : scale.out[0];
    if (st == LS_OK)
        st = grad_run(tape, &repeat, 0, n->in[0]);
    ls_tensor_destroy(scale.in[0]);
    ls_tensor_destroy(scale.out[0]);
    return st;
}

#define SUM_CLASS(NAME)                                                                            \
    {                                                                                              \
        .name = (NAME), ONE_INPUT, .precision = PRECISION_WIDE, READS_NOTHING,                     \
        .backward = sum_backward                                                                   \
    }
static const op_class sum_class = SUM_CLASS("sum");
static const op_class mean_class = SUM_CLASS("mean");

static ls_tensor *sum(ls_tape *tape, node *n, const int *axes, int n_axes, bool keepdim)
{
    const bool is_mean = n->class == &mean_class;
    op_call call = {.op = OP_REDUCE, .n_in = 1, .n_out = 1};
    ls_tensor *out = NULL;
    reduction r;
    ls_status st;

    if (!node_begin(tape, n))
        return NULL;
    st = name_axes(n->in[0], axes, n_axes, &n->attrs.axes);
    if (st != LS_OK)
        return node_reject(tape, n, st);
    r = reduction_of(n->in[0], n->attrs.axes, keepdim);
    n->attrs.scale = is_mean && r.count > 0 ? 1 / (double)r.count : 1;
    call.attrs = n->attrs;
    call.in[0] = n->in[0];
    st = tensor_shape(tape->device, n->in[0]->dtype, n->in[0]->n_dims, r.kept, &call.out[0]);
    if (st == LS_OK)
        st = device_run(tape->device, &call);
    if (st == LS_OK)
        st = tensor_shape(tape->device, n->in[0]->dtype, r.n_dims, r.dims, &out);
    if (st == LS_OK)
        tensor_share(out, call.out[0]);
    ls_tensor_destroy(call.out[0]);
    return st == LS_OK ? node_finish(tape, n, out) : node_reject(tape, n, st);
}

ls_tensor *ls_sum(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim)
{
    node n = {.class = &sum_class, .n_in = 1, .in = {x}};

    return sum(tape, &n, axes, n_axes, keepdim != 0);
}

ls_tensor *ls_mean(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim)
{
    node n = {.class = &mean_class, .n_in = 1, .in = {x}};

    return sum(tape, &n, axes, n_axes, keepdim != 0);
}

ls_tensor *ls_var(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim,
                  int correction)
{
    ls_tensor *mean = ls_mean(tape, x, axes, n_axes, 1);
    ls_tensor *squares = ls_square(tape, ls_sub(tape, x, mean));
    ls_tensor *y = ls_sum(tape, squares, axes, n_axes, keepdim);
    double count;

    if (y == NULL)
        return NULL;
    count = (double)ls_tensor_count(x) / (double)ls_tensor_count(mean) - correction;
    return ls_scale(tape, y, 1 / (count > 0 ? count : 0), 0);
}

/* --- extremes and cumulative sums, over the last dimension --- */

/* dx = dy shared by the elements that equal the extreme */
static ls_status extreme_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_EXTREME_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 3,
                    .n_out = 1,
                    .in = {n->in[0], n->out, dy}};

    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class max_class = {.name = "max", ONE_INPUT, .backward = extreme_backward};
static const op_class min_class = {.name = "min", ONE_INPUT, .backward = extreme_backward};

/* Dimensions of `axes` behind the others; x itself if they are there. */
static ls_tensor *axes_last(ls_tape *tape, ls_tensor *x, unsigned axes)
{
    int order[LS_MAX_DIMS];
    bool is_moved = false;
    int n = 0;

    for (unsigned last = 0; last < 2; last++) {
        for (int d = 0; d < x->n_dims; d++) {
            if ((axes >> d & 1) != last)
                continue;
            is_moved = is_moved || d != n;
            order[n++] = d;
        }
    }
    return is_moved ? ls_permute(tape, x, order) : x;
}

static ls_tensor *extreme(ls_tape *tape, ls_tensor *x, op_binary f, const int *axes, int n_axes,
                          bool keepdim)
{
    node n = {.class = f == BINARY_MAXIMUM ? &max_class : &min_class,
              .n_in = 1,
              .in = {x},
              .attrs.binary = f};
    char text[TENSOR_TEXT_BYTES];
    int64_t rows = 1;
    reduction r;
    unsigned named;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = name_axes(x, axes, n_axes, &named);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    r = reduction_of(x, named, keepdim);
    for (int i = 0; i < r.n_dims; i++)
        rows *= r.dims[i];
    if (r.count == 0 && rows > 0)
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "input %s has no elements along these dimensions",
                                   tensor_dims_text(text, sizeof(text), x)));
    x = ls_reshape(tape, axes_last(tape, x, named), 2, (int64_t[]){rows, r.count});
    n.in[0] = x;
    if (x == NULL || !node_begin(tape, &n))
        return NULL;
    return ls_reshape(tape, node_run(tape, &n, OP_EXTREME, 1, &rows), r.n_dims, r.dims);
}

ls_tensor *ls_max(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim)
{
    return extreme(tape, x, BINARY_MAXIMUM, axes, n_axes, keepdim != 0);
}

ls_tensor *ls_min(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim)
{
    return extreme(tape, x, BINARY_MINIMUM, axes, n_axes, keepdim != 0);
}

/* The sums from the other end. */
static ls_status cumsum_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    op_call call = {.op = OP_CUMSUM, .attrs = {.reverse = true}, .n_in = 1, .n_out = 1, .in = {dy}};

    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class cumsum_class = {.name = "cumsum",
                                      ONE_INPUT,
                                      .precision = PRECISION_WIDE,
                                      READS_NOTHING,
                                      .backward = cumsum_backward};

// NOLINTNEXTLINE(misc-no-recursion): once
ls_tensor *ls_cumsum(ls_tape *tape, ls_tensor *x, int axis)
{
    node n = {.class = &cumsum_class, .n_in = 1, .in = {x}};
    unsigned named;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = name_axes(x, &axis, 1, &named);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    if (named != 1U << (x->n_dims - 1))
        return ls_transpose(tape, ls_cumsum(tape, ls_transpose(tape, x, axis, -1), -1), axis, -1);
    return node_run_like(tape, &n, OP_CUMSUM);
}
