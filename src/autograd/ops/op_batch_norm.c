/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_batch_norm.c - batch normalisation, optionally with a sum and a ReLU behind it in the same
 * pass. x and what is added: (N,C,H,W), (N,C,T) or (N,C), all others: (C). Training normalises with
 * the batch's mean and biased variance.
 */
#include "autograd/tape.h"

enum {
    X,
    WEIGHT,
    BIAS,
    RUNNING_MEAN,
    RUNNING_VAR,
    N_REQUIRED,
    ADDED = N_REQUIRED,
    COUNTER,
    N_INPUTS
};
enum { SAVED_MEAN, SAVED_VARIANCE, SAVED_MASK };
enum { DX, DWEIGHT, DBIAS, DADDED };

/* One kernel computes all gradients but that of `added` without a ReLU, which is dy: dx needs the
 * sums for dweight and dbias. */
static ls_status batch_norm_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *added = n->in[ADDED];
    op_call call = {.op = OP_BATCH_NORM_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 8,
                    .n_out = 4,
                    .in = {n->in[X], dy, n->in[WEIGHT], n->in[BIAS], n->saved[SAVED_MEAN],
                           n->saved[SAVED_VARIANCE], n->saved[SAVED_MASK],
                           node_value(n)->more_grad}};
    ls_status st;

    if (needs_grad(added) && n->attrs.relu)
        LS_TRY(tensor_like(added, &call.out[DADDED]));
    else if (needs_grad(added))
        LS_TRY(grad_give_same(tape, added, dy));
    call.may_reuse_grad = grad_may_be_reused(n); // not where `added` has the same
    st = grad_run_norm(tape, &call, n->in);
    if (st == LS_OK && call.out[DADDED] != NULL)
        return grad_give(tape, added, call.out[DADDED]);
    ls_tensor_destroy(call.out[DADDED]);
    return st;
}

/* Evaluation with the saved statistics as running ones gives the bits of training. */
static ls_status batch_norm_recompute(ls_tape *tape, const node *n)
{
    op_call call = {.op = OP_BATCH_NORM,
                    .attrs = n->attrs,
                    .n_in = N_INPUTS,
                    .n_out = 1,
                    .in = {n->in[X], n->in[WEIGHT], n->in[BIAS], n->saved[SAVED_MEAN],
                           n->saved[SAVED_VARIANCE]},
                    .out = {n->out}};

    call.attrs.training = false;
    return device_run(tape->device, &call);
}

/* Of inputs. The running statistics may change before backward, which reads those of the batch. */
#define BATCH_NORM_WRITTEN    (1U << RUNNING_MEAN | 1U << RUNNING_VAR | 1U << COUNTER)
#define BATCH_NORM_UNUSED     (1U << NODE_OUT | 1U << ADDED | BATCH_NORM_WRITTEN)
#define BATCH_NORM_PARAMETERS (1U << WEIGHT | 1U << BIAS | 1U << RUNNING_MEAN | 1U << RUNNING_VAR)

/* The members of op_class for `n` required inputs, those with types. */
#define BATCH_NORM(n)                                                                              \
    .inputs = {"input",                                                                            \
               "weight",                                                                           \
               "bias",                                                                             \
               "running_mean",                                                                     \
               "running_var",                                                                      \
               "added",                                                                            \
               "num_batches_tracked"},                                                             \
    .n_required = (n), .n_typed = (n), .parameters = BATCH_NORM_PARAMETERS, .n_grad = (n),         \
    .unused_in_backward = BATCH_NORM_UNUSED, .written = BATCH_NORM_WRITTEN,                        \
    .backward = batch_norm_backward

static const op_class batch_norm_class = {
    .name = "batch_norm", BATCH_NORM(N_REQUIRED), .recompute = batch_norm_recompute};
static const op_class bn_relu_class = {
    .name = "bn_relu", BATCH_NORM(N_REQUIRED), .recompute = batch_norm_recompute};

/* A recomputation would need what was added. */
static const op_class bn_add_class = {.name = "bn_add", BATCH_NORM(ADDED + 1)};
static const op_class bn_add_relu_class = {
    .name = "bn_add_relu", BATCH_NORM(ADDED + 1), .adds_gradients = true};

/* alone: the batch is not shared with other ranks. */
static ls_status check_shapes(const node *n, bool alone)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];
    const ls_tensor *x = n->in[X];

    if (x->n_dims < 2 || x->n_dims > 4 || x->dims[1] < 1)
        return ls_fail(LS_EINVAL, "input %s is none of (N, C), (N, C, T) and (N, C, H, W)",
                       tensor_dims_text(first, sizeof(first), x));
    for (int i = WEIGHT; i < N_REQUIRED; i++) {
        if (n->in[i]->n_dims != 1 || n->in[i]->dims[0] != x->dims[1])
            return ls_fail(LS_EINVAL, "%s %s does not fit input %s", node_tensor_name(n, i),
                           tensor_dims_text(second, sizeof(second), n->in[i]),
                           tensor_dims_text(first, sizeof(first), x));
    }
    if (n->in[ADDED] != NULL && !tensor_same_shape(n->in[ADDED], x))
        return ls_fail(LS_EINVAL, "added %s and input %s must have the same shape",
                       tensor_dims_text(second, sizeof(second), n->in[ADDED]),
                       tensor_dims_text(first, sizeof(first), x));
    if (n->in[COUNTER] != NULL && (n->in[COUNTER]->dtype != LS_I64 || n->in[COUNTER]->n_dims != 0))
        return ls_fail(LS_EINVAL, "num_batches_tracked %s is not an int64 scalar",
                       tensor_text(second, sizeof(second), n->in[COUNTER]));
    if (alone && ls_tensor_count(x) == (size_t)x->dims[1])
        return ls_fail(
            LS_EINVAL,
            "training needs more than one value per channel, not input %s: leave out a last "
            "batch of one row (--drop-last)",
            tensor_dims_text(first, sizeof(first), x));
    return LS_OK;
}

static ls_status resolve(const ls_batch_norm_params *params, op_attrs *a)
{
    const ls_batch_norm_params p = params == NULL ? (ls_batch_norm_params){.relu = 0} : *params;

    a->momentum = p.momentum == 0 ? 0.1 : p.momentum;
    a->eps = p.eps == 0 ? 1e-5 : p.eps;
    a->relu = p.relu != 0;
    a->sync = (op_sync){.sum = p.sync.sum, .arg = p.sync.arg};
    if (!(a->momentum >= 0 && a->momentum <= 1) || !(a->eps > 0))
        return ls_fail(LS_EINVAL, "momentum is %g, eps is %g; momentum must be 0 to 1, eps over 0",
                       a->momentum, a->eps);
    return LS_OK;
}

static ls_status save_all(ls_tape *tape, node *n)
{
    const ls_tensor *x = n->in[X];
    const ls_dtype type = n->in[WEIGHT]->dtype;

    LS_TRY(node_save(tape, n, SAVED_MEAN, type, 1, &x->dims[1]));
    LS_TRY(node_save(tape, n, SAVED_VARIANCE, type, 1, &x->dims[1]));
    return n->attrs.relu ? node_save(tape, n, SAVED_MASK, LS_I32, x->n_dims, x->dims) : LS_OK;
}

/* The kernel writes the running statistics in place, in plain layout. */
static ls_status make_running_plain(const node *n)
{
    void *data;

    for (int i = RUNNING_MEAN; i < N_INPUTS; i++) {
        if (n->in[i] != NULL && i != ADDED)
            LS_TRY(tensor_plain(n->in[i], &data));
    }
    return LS_OK;
}

static ls_tensor *batch_norm(ls_tape *tape, node *n, const ls_batch_norm_params *params)
{
    ls_status st;

    if (!node_begin(tape, n))
        return NULL;
    n->attrs.training = tape->is_training;
    st = resolve(params, &n->attrs);
    if (st == LS_OK)
        st = check_shapes(n, tape->is_training && n->attrs.sync.sum == NULL);
    if (st == LS_OK)
        st = make_running_plain(n);
    if (st == LS_OK)
        st = save_all(tape, n);
    // While a function is recomputed, the running statistics have this batch.
    if (tape->n_recomputing > 0 || tape->keeps_statistics) {
        n->attrs.momentum = 0;
        n->in[COUNTER] = NULL;
    }
    if (st != LS_OK)
        return node_reject(tape, n, st);
    return node_run(tape, n, OP_BATCH_NORM, n->in[X]->n_dims, n->in[X]->dims);
}

ls_tensor *ls_batch_norm(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         ls_tensor *running_mean, ls_tensor *running_var,
                         const ls_batch_norm_params *params)
{
    node n = {.class = &batch_norm_class,
              .n_in = N_INPUTS,
              .in = {x, weight, bias, running_mean, running_var, NULL,
                     params == NULL ? NULL : params->num_batches_tracked}};

    return batch_norm(tape, &n, params);
}

ls_tensor *ls_bn_relu(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                      ls_tensor *running_mean, ls_tensor *running_var,
                      const ls_batch_norm_params *params)
{
    ls_batch_norm_params p = params == NULL ? (ls_batch_norm_params){.relu = 1} : *params;
    node n = {.class = &bn_relu_class,
              .n_in = N_INPUTS,
              .in = {x, weight, bias, running_mean, running_var, NULL,
                     params == NULL ? NULL : params->num_batches_tracked}};

    p.relu = 1;
    return batch_norm(tape, &n, &p);
}

ls_tensor *ls_bn_add(ls_tape *tape, ls_tensor *x, ls_tensor *added, ls_tensor *weight,
                     ls_tensor *bias, ls_tensor *running_mean, ls_tensor *running_var,
                     const ls_batch_norm_params *params)
{
    const bool relu = params != NULL && params->relu != 0;
    node n = {.class = relu ? &bn_add_relu_class : &bn_add_class,
              .n_in = N_INPUTS,
              .in = {x, weight, bias, running_mean, running_var, added,
                     params == NULL ? NULL : params->num_batches_tracked}};

    return batch_norm(tape, &n, params);
}
