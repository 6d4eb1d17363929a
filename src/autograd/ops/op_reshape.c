/* SPDX-License-Identifier: Apache-2.0 */
/* op_reshape.c - the same elements in another shape, without a copy if they are in plain layout. */
#include "autograd/tape.h"

ls_status tensor_share_as(ls_tape *tape, ls_tensor *t, int n_dims, const int64_t *dims,
                          ls_tensor **out)
{
    void *data;

    LS_TRY(tensor_plain(t, &data));
    LS_TRY(tensor_shape(tape->device, t->dtype, n_dims, dims, out));
    tensor_share(*out, t);
    return LS_OK;
}

static ls_status reshape_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *dx;

    LS_TRY(tensor_share_as(tape, dy, n->in[0]->n_dims, n->in[0]->dims, &dx));
    return grad_give(tape, n->in[0], dx);
}

/* Inputs have any type; only floating ones have a gradient. */
static const op_class reshape_class = {.name = "reshape",
                                       .inputs = {"input"},
                                       .n_required = 1,
                                       .n_grad = 1,
                                       .unused_in_backward = 1U << NODE_OUT | 1U << 0,
                                       .backward = reshape_backward};
static const op_class flatten_class = {.name = "flatten",
                                       .inputs = {"input"},
                                       .n_required = 1,
                                       .n_grad = 1,
                                       .unused_in_backward = 1U << NODE_OUT | 1U << 0,
                                       .backward = reshape_backward};

static ls_tensor *reshape_to(ls_tape *tape, node *n, int n_dims, const int64_t *dims)
{
    ls_tensor *out;
    const ls_status st = tensor_share_as(tape, n->in[0], n_dims, dims, &out);

    return st == LS_OK ? node_finish(tape, n, out) : node_reject(tape, n, st);
}

static ls_status misfit(const ls_tensor *x, int n_dims, const int64_t *dims)
{
    char is[TENSOR_TEXT_BYTES];
    char wanted[TENSOR_TEXT_BYTES];
    ls_tensor asked = {.n_dims = n_dims};

    for (int i = 0; i < n_dims; i++)
        asked.dims[i] = dims[i];
    return ls_fail(LS_EINVAL, "%s cannot be reshaped to %s", tensor_dims_text(is, sizeof(is), x),
                   tensor_dims_text(wanted, sizeof(wanted), &asked));
}

/* Fills in a -1 and checks that the number of elements stays. */
static ls_status resolve(const ls_tensor *x, int n_dims, const int64_t *asked, int64_t *dims)
{
    const int64_t count = (int64_t)ls_tensor_count(x);
    int64_t known = 1;
    int open = -1;

    if (n_dims < 0 || n_dims > LS_MAX_DIMS)
        return ls_fail(LS_EINVAL, "%d dimensions; 0 to %d are supported", n_dims, LS_MAX_DIMS);
    if (n_dims > 0 && asked == NULL)
        return ls_fail(LS_EINVAL, "dims is NULL, but n_dims is %d", n_dims);
    for (int i = 0; i < n_dims; i++) {
        dims[i] = asked[i];
        if (asked[i] == -1 && open < 0)
            open = i;
        else if (asked[i] < 0 || __builtin_mul_overflow(known, asked[i], &known))
            return misfit(x, n_dims, asked);
    }
    if (open >= 0 && known > 0)
        dims[open] = count / known;
    if (open >= 0 ? known == 0 || count % known != 0 : known != count)
        return misfit(x, n_dims, asked);
    return LS_OK;
}

ls_tensor *ls_reshape(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims)
{
    node n = {.class = &reshape_class, .n_in = 1, .in = {x}};
    int64_t resolved[LS_MAX_DIMS];
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = resolve(x, n_dims, dims, resolved);
    return st == LS_OK ? reshape_to(tape, &n, n_dims, resolved) : node_reject(tape, &n, st);
}

ls_tensor *ls_flatten(ls_tape *tape, ls_tensor *x)
{
    node n = {.class = &flatten_class, .n_in = 1, .in = {x}};
    int64_t dims[2];

    if (!node_begin(tape, &n))
        return NULL;
    if (x->n_dims == 0)
        return node_reject(tape, &n, ls_fail(LS_EINVAL, "input () has no rows"));
    dims[0] = x->dims[0];
    dims[1] = 1;
    for (int i = 1; i < x->n_dims; i++)
        dims[1] *= x->dims[i];
    return reshape_to(tape, &n, 2, dims);
}
