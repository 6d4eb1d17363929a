/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_group_norm.c - group normalisation (Wu and He 2018) as layer norm of the rows of groups, and a
 * product and a sum with one number for each channel.
 */
#include "autograd/tape.h"

enum { X, WEIGHT, BIAS };

/* Only for the checks: it is never recorded. */
static const op_class group_norm_class = {.name = "group_norm",
                                          .inputs = {"input", "weight", "bias"},
                                          .n_required = 1,
                                          .n_typed = 3,
                                          .parameters = 1U << WEIGHT | 1U << BIAS};

/* The rows that layer norm sees: one for each sample and group. */
static ls_status shape_rows(const ls_tensor *x, int groups, int64_t *rows)
{
    char text[TENSOR_TEXT_BYTES];
    bool fits = !__builtin_mul_overflow(x->dims[0], groups, &rows[0]);

    rows[1] = x->dims[1] / groups;
    for (int i = 2; i < x->n_dims; i++)
        fits = fits && !__builtin_mul_overflow(rows[1], x->dims[i], &rows[1]);
    if (fits && rows[1] > 0)
        return LS_OK;
    return ls_fail(LS_EINVAL, "input %s has %s elements in a group",
                   tensor_dims_text(text, sizeof(text), x), fits ? "no" : "too many");
}

static ls_status check_shapes(const node *n, int groups, double eps)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    const ls_tensor *x = n->in[X];

    if (x->n_dims < 2 || groups < 1 || x->dims[1] < 1 || x->dims[1] % groups != 0)
        return ls_fail(LS_EINVAL, "input %s cannot be split into %d groups of channels",
                       tensor_dims_text(first, sizeof(first), x), groups);
    for (int i = WEIGHT; i <= BIAS; i++) {
        if (n->in[i] != NULL && (n->in[i]->n_dims != 1 || n->in[i]->dims[0] != x->dims[1]))
            return ls_fail(LS_EINVAL, "%s %s does not fit input %s", node_tensor_name(n, i),
                           tensor_dims_text(second, sizeof(second), n->in[i]),
                           tensor_dims_text(first, sizeof(first), x));
    }
    return eps >= 0 ? LS_OK : ls_fail(LS_EINVAL, "eps is %g; it must be over 0", eps);
}

/* A parameter of the channels, in the type of `y` and a shape that is repeated to y's. */
static ls_tensor *of_channels(ls_tape *tape, ls_tensor *parameter, const ls_tensor *y)
{
    int64_t dims[LS_MAX_DIMS] = {y->dims[1]};
    ls_tensor *p = tensor_is_half(y) ? ls_cast(tape, parameter, y->dtype) : parameter;

    for (int i = 1; i < y->n_dims - 1; i++)
        dims[i] = 1;
    return ls_reshape(tape, p, y->n_dims - 1, dims);
}

ls_tensor *ls_group_norm(ls_tape *tape, ls_tensor *x, int groups, ls_tensor *weight,
                         ls_tensor *bias, double eps)
{
    node n = {.class = &group_norm_class, .n_in = 3, .in = {x, weight, bias}};
    int64_t rows[2];
    ls_tensor *y;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    x = n.in[X];
    st = check_shapes(&n, groups, eps);
    if (st == LS_OK)
        st = shape_rows(x, groups, rows);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    y = ls_layer_norm(tape, ls_reshape(tape, x, 2, rows), NULL, NULL, eps);
    y = ls_reshape(tape, y, x->n_dims, x->dims);
    if (y != NULL && weight != NULL)
        y = ls_mul(tape, y, of_channels(tape, n.in[WEIGHT], y));
    if (y != NULL && bias != NULL)
        y = ls_add(tape, y, of_channels(tape, n.in[BIAS], y));
    return y;
}
