/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_recurrent.c - LSTM and GRU cells: two linear operators and one operator for the rest of a
 * step. nn/recurrent.c makes layers for sequences of the latter.
 *
 * The weight gradients of the steps are those of ls_linear(), whose products weights.c collects.
 */
#include "autograd/tape.h"

#include <string.h>

/* --- what both have --- */

static ls_status check_matrix(const node *n, int i, int64_t rows, int64_t columns)
{
    char text[TENSOR_TEXT_BYTES];
    const ls_tensor *t = n->in[i];

    if (t == NULL || (t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == columns))
        return LS_OK;
    return ls_fail(LS_EINVAL, "%s %s must be (%lld, %lld)", node_tensor_name(n, i),
                   tensor_dims_text(text, sizeof(text), t), (long long)rows, (long long)columns);
}

/* Inputs 0 and 1 are (N, gates H), inputs from 2 to `lengths` - 1 are (N,H). */
static ls_status check_step(const node *n, int gates, int lengths, int64_t n_steps)
{
    char text[TENSOR_TEXT_BYTES];
    const ls_tensor *a = n->in[0];
    const ls_tensor *per_row = n->in[lengths];

    if (a->n_dims != 2 || a->dims[1] < gates || a->dims[1] % gates != 0 ||
        a->dims[1] > INT64_MAX / 2)
        return ls_fail(LS_EINVAL, "%s %s must be (N, %d H), with H at least 1",
                       node_tensor_name(n, 0), tensor_dims_text(text, sizeof(text), a), gates);
    LS_TRY(check_matrix(n, 1, a->dims[0], a->dims[1]));
    for (int i = 2; i < lengths; i++)
        LS_TRY(check_matrix(n, i, a->dims[0], a->dims[1] / gates));
    if (per_row == NULL ||
        (per_row->dtype == LS_I64 && per_row->n_dims == 1 && per_row->dims[0] == a->dims[0]))
        return LS_OK;
    return ls_fail(LS_EINVAL, "lengths %s must be (%lld) int64, from 0 to %lld",
                   tensor_text(text, sizeof(text), per_row), (long long)a->dims[0],
                   (long long)n_steps);
}

/* Whether the step can run; otherwise the tape has the error. */
static bool begin_step(ls_tape *tape, node *n, int gates, int lengths, int64_t n_steps)
{
    ls_status st;

    if (!node_begin(tape, n))
        return false;
    st = check_step(n, gates, lengths, n_steps);
    if (st != LS_OK)
        (void)node_reject(tape, n, st);
    return st == LS_OK;
}

/* Runs the call; in a checkpointed function backward may take the results of forward instead. */
static ls_status compute(ls_tape *tape, const node *n, op_call *call)
{
    const bool takes = n->records && takes_retained(tape);
    const bool adds = n->records && adds_retained(tape);

    if (!takes)
        LS_TRY(device_run(tape->device, call));
    for (int i = 0; i < call->n_out; i++) {
        if (takes && call->out[i] != NULL)
            LS_TRY(retained_take(tape, call->out[i]));
        if (adds && call->out[i] != NULL)
            LS_TRY(retained_add(tape, call->out[i]));
    }
    return LS_OK;
}

/* Runs call->op on the node's inputs and records the node. Its outputs are call->out[0..n_out): the
 * states, of the types of types[], and with lengths y, of a's type; the kernel writes the saved
 * gates behind y's place, `n_most` - 1. False: the tape has been marked. */
static bool run_step(ls_tape *tape, node *n, op_call *call, const ls_dtype *types, int n_most)
{
    const ls_tensor *state = n->in[2];
    const int n_out = n->in[n->n_in - 1] == NULL ? n_most - 1 : n_most;
    ls_status st;

    st = node_save(tape, n, 0, n->in[0]->dtype, 2, (int64_t[]){state->dims[0], 4 * state->dims[1]});
    for (int i = 0; i < n_out && st == LS_OK; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): node_begin() has checked it
        st = tensor_shape(tape->device, types[i], 2, state->dims, &call->out[i]);
    call->attrs = n->attrs;
    call->n_in = n->n_in;
    call->n_out = n_most + 1;
    memcpy(call->in, n->in, sizeof(n->in));
    call->out[n_most] = n->saved[0];
    if (st == LS_OK)
        st = compute(tape, n, call);
    return st == LS_OK ? node_finish_all(tape, n, call->out, n_out)
                       : node_reject_all(tape, n, call->out, n_out, st);
}

static ls_status drop_all(op_call *call, ls_status status)
{
    for (int i = 0; i < call->n_out; i++)
        ls_tensor_destroy(call->out[i]);
    return status;
}

/* Gives call->out[i] to the inputs in[i], which may be NULL or need no gradient; takes them. */
static ls_status give_all(ls_tape *tape, op_call *call, ls_tensor *const *in)
{
    ls_status st = LS_OK;

    for (int i = 0; i < call->n_out; i++) {
        ls_tensor *g = call->out[i];

        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): there is an input for each output
        if (g != NULL && st == LS_OK && needs_grad(in[i]))
            st = grad_give(tape, in[i], g);
        else
            ls_tensor_destroy(g);
    }
    return st;
}

/* Runs the backward, whose outputs have the shapes of in[]: gradients that are not needed are
 * skipped, but for the first `n_always`. */
static ls_status run_backward(ls_tape *tape, op_call *call, ls_tensor *const *in, int n_always)
{
    ls_status st = LS_OK;

    for (int i = 0; i < call->n_out && st == LS_OK; i++) {
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): there is an input for each output
        if (i < n_always || needs_grad(in[i]))
            st = tensor_like(in[i], &call->out[i]);
    }
    if (st == LS_OK)
        st = device_run(tape->device, call);
    return st == LS_OK ? LS_OK : drop_all(call, st);
}

/* --- LSTM --- */

enum { A, B, C, LSTM_H, LSTM_LENGTHS, LSTM_INPUTS };

static ls_status lstm_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *const in[] = {n->in[A], n->in[C], n->in[LSTM_H]};
    op_call call = {.op = OP_LSTM_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 6,
                    .n_out = 3,
                    .in = {n->saved[0], n->in[C], n->in[LSTM_LENGTHS], node_grad(tape, n, 0),
                           node_grad(tape, n, 1), n->n_out > 2 ? node_grad(tape, n, 2) : NULL}};
    ls_tensor *db = NULL;
    ls_status st;

    LS_UNUSED(dy);
    LS_TRY(run_backward(tape, &call, in, 1));
    if (!needs_grad(n->in[B]))
        return give_all(tape, &call, in);
    st = tensor_like(n->in[B], &db);
    if (st == LS_OK) {
        tensor_share(db, call.out[0]);
        st = grad_give(tape, n->in[B], db);
    }
    return st == LS_OK ? give_all(tape, &call, in) : drop_all(&call, st);
}

static const op_class lstm_class = {
    .name = "lstm_step",
    .inputs = {"input's gates", "state's gates", "cell state", "state", "lengths"},
    .n_required = 3,
    .n_typed = LSTM_LENGTHS,
    .parameters = 1U << C,
    .precision = PRECISION_COMPUTE,
    .n_grad = LSTM_LENGTHS,
    .unused_in_backward = 1U << NODE_OUT | 1U << A | 1U << B | 1U << LSTM_H,
    .backward = lstm_backward};

void autograd_lstm_step(ls_tape *tape, ls_tensor *x_gates, ls_tensor *h_gates,
                        const recurrent_step *step, ls_tensor **h, ls_tensor **c, ls_tensor **y)
{
    node n = {.class = &lstm_class,
              .n_in = LSTM_INPUTS,
              .in = {x_gates, h_gates, *c, step->lengths == NULL ? NULL : *h, step->lengths},
              .attrs = {.begin = step->position, .limit = step->n_steps}};
    op_call call = {.op = OP_LSTM};

    *h = *c = *y = NULL;
    if (!begin_step(tape, &n, 4, LSTM_LENGTHS, step->n_steps) ||
        !run_step(tape, &n, &call, (ls_dtype[]){n.in[A]->dtype, n.in[C]->dtype, n.in[A]->dtype}, 3))
        return;
    *h = call.out[0];
    *c = call.out[1];
    *y = step->lengths == NULL ? *h : call.out[2];
}

/* --- GRU --- */

enum { GRU_H = 2, GRU_LENGTHS, GRU_INPUTS };

static ls_status gru_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    ls_tensor *const in[] = {n->in[A], n->in[B], n->in[GRU_H]};
    op_call call = {.op = OP_GRU_BACKWARD,
                    .attrs = n->attrs,
                    .n_in = 5,
                    .n_out = 3,
                    .in = {n->saved[0], n->in[GRU_H], n->in[GRU_LENGTHS], node_grad(tape, n, 0),
                           n->n_out > 1 ? node_grad(tape, n, 1) : NULL}};

    LS_UNUSED(dy);
    LS_TRY(run_backward(tape, &call, in, 2));
    return give_all(tape, &call, in);
}

static const op_class gru_class = {.name = "gru_step",
                                   .inputs = {"input's gates", "state's gates", "state", "lengths"},
                                   .n_required = 3,
                                   .n_typed = GRU_LENGTHS,
                                   .precision = PRECISION_COMPUTE,
                                   .n_grad = GRU_LENGTHS,
                                   .unused_in_backward = 1U << NODE_OUT | 1U << A | 1U << B,
                                   .backward = gru_backward};

void autograd_gru_step(ls_tape *tape, ls_tensor *x_gates, ls_tensor *h_gates,
                       const recurrent_step *step, ls_tensor **h, ls_tensor **y)
{
    node n = {.class = &gru_class,
              .n_in = GRU_INPUTS,
              .in = {x_gates, h_gates, *h, step->lengths},
              .attrs = {.begin = step->position, .limit = step->n_steps}};
    op_call call = {.op = OP_GRU};

    *h = *y = NULL;
    if (!begin_step(tape, &n, 3, GRU_LENGTHS, step->n_steps) ||
        !run_step(tape, &n, &call, (ls_dtype[]){n.in[A]->dtype, n.in[A]->dtype}, 2))
        return;
    *h = call.out[0];
    *y = step->lengths == NULL ? *h : call.out[1];
}

/* --- cells --- */

/* Zeros (N,H) for x (N,I) and w_hh (., H), in the place of an absent state. */
static ls_tensor *first_state(ls_tape *tape, const ls_tensor *x, const ls_tensor *w_hh)
{
    if (tape == NULL || x == NULL || w_hh == NULL || x->n_dims != 2 || w_hh->n_dims != 2)
        return NULL; // autograd_gates() names what is wrong
    return ls_full(tape, x->dtype == LS_F64 ? LS_F64 : LS_F32, 2,
                   (int64_t[]){x->dims[0], w_hh->dims[1]}, 0);
}

static void name_failure(ls_tape *tape, bool had_failed, const char *cell)
{
    if (tape != NULL && !had_failed)
        autograd_context(tape, cell);
}

// NOLINTNEXTLINE(readability-function-size): the tensors of torch.nn.LSTMCell
void ls_lstm_cell(ls_tape *tape, ls_tensor *x, ls_tensor *h, ls_tensor *c, ls_tensor *w_ih,
                  ls_tensor *w_hh, ls_tensor *b_ih, ls_tensor *b_hh, ls_tensor **h_out,
                  ls_tensor **c_out)
{
    const bool had_failed = tape != NULL && autograd_has_failed(tape);
    const recurrent_step step = {.lengths = NULL};
    ls_tensor *x_gates = autograd_gates(tape, x, w_ih, b_ih);
    ls_tensor *h_gates;
    ls_tensor *y;

    h = h == NULL ? first_state(tape, x, w_hh) : h;
    c = c == NULL ? first_state(tape, x, w_hh) : c;
    h_gates = autograd_gates(tape, h, w_hh, b_hh);
    autograd_lstm_step(tape, x_gates, h_gates, &step, &h, &c, &y);
    ls_tape_done(tape, x_gates);
    ls_tape_done(tape, h_gates);
    if (h_out == NULL || c_out == NULL)
        h = autograd_fail(tape,
                          ls_fail(LS_EINVAL, "%s is NULL", h_out == NULL ? "h_out" : "c_out"));
    if (h_out != NULL)
        *h_out = h;
    if (c_out != NULL)
        *c_out = h == NULL ? NULL : c;
    name_failure(tape, had_failed, "lstm_cell");
}

ls_tensor *ls_gru_cell(ls_tape *tape, ls_tensor *x, ls_tensor *h, ls_tensor *w_ih, ls_tensor *w_hh,
                       ls_tensor *b_ih, ls_tensor *b_hh)
{
    const bool had_failed = tape != NULL && autograd_has_failed(tape);
    const recurrent_step step = {.lengths = NULL};
    ls_tensor *x_gates = autograd_gates(tape, x, w_ih, b_ih);
    ls_tensor *h_gates;
    ls_tensor *y;

    h = h == NULL ? first_state(tape, x, w_hh) : h;
    h_gates = autograd_gates(tape, h, w_hh, b_hh);
    autograd_gru_step(tape, x_gates, h_gates, &step, &h, &y);
    ls_tape_done(tape, x_gates);
    ls_tape_done(tape, h_gates);
    name_failure(tape, had_failed, "gru_cell");
    return h;
}
