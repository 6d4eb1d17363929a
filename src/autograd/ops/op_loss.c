/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_loss.c - cross-entropy, whole or as log-softmax and negative log-likelihood, and mean squared
 * error. Losses are means: over the rows, over the elements. With mixed precision cross-entropy
 * reads 16-bit logits as they are and computes in float32; the others get casts to float32.
 */
#include "autograd/tape.h"

/* dlogits = (softmax(logits) - the smoothed target) dloss / N */
static ls_status cross_entropy_backward(ls_tape *tape, const node *n, ls_tensor *dloss)
{
    op_call call = {.op = OP_CROSS_ENTROPY_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 3,
                    .n_out = 1,
                    .in = {n->saved[0], n->in[1], dloss}};

    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class cross_entropy_class = {.name = "cross_entropy",
                                             .inputs = {"logits", "targets"},
                                             .n_required = 2,
                                             .n_typed = 1,
                                             .n_grad = 1,
                                             .unused_in_backward = 1U << NODE_OUT | 1U << 0,
                                             .backward = cross_entropy_backward};

static ls_status check_targets(const char *what, const ls_tensor *logits, const ls_tensor *targets)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (logits->n_dims == 2 && logits->dims[1] > 0 && targets->n_dims == 1 &&
        targets->dims[0] == logits->dims[0] && targets->dtype == LS_I64)
        return LS_OK;
    return ls_fail(LS_EINVAL, "targets %s do not fit %s %s; they must be (N) int64 for (N, K)",
                   tensor_text(second, sizeof(second), targets), what,
                   tensor_dims_text(first, sizeof(first), logits));
}

/* (...,K) and targets (...) as (N,K) and (N); false: the tape has been marked, or they do not fit,
 * and stay as they are. */
static bool flatten_rows(ls_tape *tape, ls_tensor **logits, ls_tensor **targets)
{
    const int last = (*logits)->n_dims - 1;
    int64_t dims[2] = {1, last < 0 ? 0 : (*logits)->dims[last]};
    bool fits = last >= 0 && (*targets)->n_dims == last;

    for (int d = 0; fits && d < last; d++) {
        fits = (*logits)->dims[d] == (*targets)->dims[d];
        dims[0] *= (*logits)->dims[d];
    }
    if (!fits)
        return false;
    *logits = ls_reshape(tape, *logits, 2, dims);
    *targets = ls_reshape(tape, *targets, 1, dims);
    return true;
}

static ls_status resolve(const ls_cross_entropy_params *params, op_attrs *a)
{
    a->label_smoothing = params == NULL ? 0 : params->label_smoothing;
    if (a->label_smoothing >= 0 && a->label_smoothing <= 1)
        return LS_OK;
    return ls_fail(LS_EINVAL, "label_smoothing is %g; it must be 0 to 1", a->label_smoothing);
}

// NOLINTNEXTLINE(misc-no-recursion): once
ls_tensor *ls_cross_entropy_with(ls_tape *tape, ls_tensor *logits, ls_tensor *targets,
                                 const ls_cross_entropy_params *params)
{
    node n = {.class = &cross_entropy_class, .n_in = 2, .in = {logits, targets}};
    ls_dtype type;
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    if (logits->n_dims != 2 && flatten_rows(tape, &logits, &targets))
        return ls_cross_entropy_with(tape, logits, targets, params);
    type = tensor_is_half(n.in[0]) ? LS_F32 : n.in[0]->dtype;
    st = check_targets("logits", logits, targets);
    if (st == LS_OK)
        st = resolve(params, &n.attrs);
    if (st == LS_OK)
        st = node_save(tape, &n, 0, type, 2, logits->dims);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run_as(tape, &n, OP_CROSS_ENTROPY, type, 0, NULL);
}

ls_tensor *ls_cross_entropy(ls_tape *tape, ls_tensor *logits, ls_tensor *targets)
{
    return ls_cross_entropy_with(tape, logits, targets, NULL);
}

/* dx = dy - softmax(x) sum(dy), row by row */
static ls_status log_softmax_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_LOG_SOFTMAX_BACKWARD, n->out, dy);
}

static const op_class log_softmax_class = {.name = "log_softmax",
                                           ONE_INPUT,
                                           .precision = PRECISION_WIDE,
                                           .unused_in_backward = 1U << 0,
                                           .backward = log_softmax_backward};

ls_tensor *ls_log_softmax(ls_tape *tape, ls_tensor *x)
{
    node n = {.class = &log_softmax_class, .n_in = 1, .in = {x}};
    char text[TENSOR_TEXT_BYTES];

    if (!node_begin(tape, &n))
        return NULL;
    if (x->n_dims != 2 || x->dims[1] < 1)
        return node_reject(
            tape, &n,
            ls_fail(LS_EINVAL, "input %s is not (N, K)", tensor_dims_text(text, sizeof(text), x)));
    return node_run(tape, &n, OP_LOG_SOFTMAX, 2, x->dims);
}

/* -dloss / N at each row's target, 0 elsewhere */
static ls_status nll_backward(ls_tape *tape, const node *n, ls_tensor *dloss)
{
    op_call call = {
        .op = OP_NLL_BACKWARD, .n_in = 3, .n_out = 1, .in = {n->in[0], n->in[1], dloss}};

    return grad_run(tape, &call, 0, n->in[0]);
}

static const op_class nll_class = {.name = "nll_loss",
                                   .inputs = {"log_probabilities", "targets"},
                                   .n_required = 2,
                                   .n_typed = 1,
                                   .precision = PRECISION_WIDE,
                                   .n_grad = 1,
                                   .unused_in_backward = 1U << NODE_OUT,
                                   .backward = nll_backward};

ls_tensor *ls_nll_loss(ls_tape *tape, ls_tensor *log_probabilities, ls_tensor *targets)
{
    node n = {.class = &nll_class, .n_in = 2, .in = {log_probabilities, targets}};
    ls_status st;

    if (!node_begin(tape, &n))
        return NULL;
    st = check_targets("log probabilities", log_probabilities, targets);
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run(tape, &n, OP_NLL, 0, NULL);
}

/* dprediction = 2 (prediction - target) dloss / count, dtarget its opposite */
static ls_status mse_backward(ls_tape *tape, const node *n, ls_tensor *dloss)
{
    op_call call = {
        .op = OP_MSE_BACKWARD, .n_in = 3, .n_out = 2, .in = {n->in[0], n->in[1], dloss}};

    for (int i = 0; i < 2; i++) {
        call.out[1 - i] = NULL;
        if (needs_grad(n->in[i]))
            LS_TRY(grad_run(tape, &call, i, n->in[i]));
    }
    return LS_OK;
}

static const op_class mse_class = {.name = "mse_loss",
                                   .inputs = {"prediction", "target"},
                                   .n_required = 2,
                                   .n_typed = 2,
                                   .precision = PRECISION_WIDE,
                                   .n_grad = 2,
                                   .unused_in_backward = 1U << NODE_OUT,
                                   .backward = mse_backward};

ls_tensor *ls_mse_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target)
{
    node n = {.class = &mse_class, .n_in = 2, .in = {prediction, target}};
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (!node_begin(tape, &n))
        return NULL;
    if (!tensor_same_shape(prediction, target))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL,
                                   "prediction %s and target %s must have the same shape",
                                   tensor_dims_text(first, sizeof(first), prediction),
                                   tensor_dims_text(second, sizeof(second), target)));
    return node_run(tape, &n, OP_MSE, 0, NULL);
}
