/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_case_recurrent.c - the steps of LSTM and GRU cells: forward, backward of all results and of
 * one. A case with attrs.limit has lengths up to that.
 */
#include "tensor/op_case_run.h"

/* Inputs and results of an LSTM and a GRU have most in common. */
typedef struct cell_run {
    case_run *r;
    bool is_lstm;
    bool has_lengths;
    int64_t wide[2]; /* (N,4H), (N,3H) */
    int64_t saved[2];
    ls_tensor *lengths;
} cell_run;

static cell_run cell_of(case_run *r, bool is_lstm)
{
    const op_case *c = r->c;
    cell_run cell = {.r = r,
                     .is_lstm = is_lstm,
                     .has_lengths = c->attrs.limit > 0,
                     .wide = {c->x[0], (is_lstm ? 4 : 3) * c->x[1]},
                     .saved = {c->x[0], 4 * c->x[1]}};

    if (cell.has_lengths)
        cell.lengths = targets(r, c->x[0], c->attrs.limit + 1);
    return cell;
}

static ls_tensor *state_of(const cell_run *cell, bool is_cell)
{
    const op_case *c = cell->r->c;

    return is_cell ? parameter(cell->r, 2, c->x, 1, 0) : noise(cell->r, 2, c->x, 1, 0);
}

static ls_tensor *state_result(const cell_run *cell, bool is_cell)
{
    case_run *r = cell->r;

    return unplaced(r, is_cell ? r->parameters : r->type, 2, r->c->x);
}

/* Each element is made by some functions of sums of two numbers; k as in result(). */
static void all_results(case_run *r, const char *const *names, const op_call *call, double k)
{
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] != NULL)
            result(r, names[i], call->out[i], k);
    }
}

/* The backward for the gradients of all results, and for that of h' alone. */
static void run_backward(const cell_run *cell, op_call call, const char *const *names,
                         const char *const *names_alone)
{
    case_run *r = cell->r;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < call.n_out; i++) {
            const bool is_matrix = i == 0 || (i == 1 && !cell->is_lstm);
            const bool is_cell = i == 1 && cell->is_lstm;

            call.out[i] =
                is_matrix ? unplaced(r, r->type, 2, cell->wide) : state_result(cell, is_cell);
        }
        if (cell->is_lstm && !cell->has_lengths)
            call.out[2] = NULL;
        if (pass == 1)
            call.out[call.n_out - 1] = call.in[4] = call.in[5] = NULL;
        run_op(r, call);
        // Gates near 1 have few places of 1 - gate.
        all_results(r, pass == 0 ? names : names_alone, &call, 16);
    }
}

void run_lstm(case_run *r)
{
    static const char *const names[] = {"h'", "c'", "y", "gates"};
    static const char *const slopes[] = {"da", "dc", "dh"};
    static const char *const slopes_alone[] = {"da of h'", "dc of h'", "dh of h'"};
    const cell_run cell = cell_of(r, true);
    op_call call = {.op = OP_LSTM, .n_in = 5, .n_out = 4};
    op_call back = {.op = OP_LSTM_BACKWARD, .n_in = 6, .n_out = 3};

    call.in[0] = noise(r, 2, cell.wide, 3, 0);
    call.in[1] = noise(r, 2, cell.wide, 3, 0);
    call.in[2] = state_of(&cell, true);
    call.in[3] = cell.has_lengths ? state_of(&cell, false) : NULL;
    call.in[4] = cell.lengths;
    for (int i = 0; i < 2; i++)
        call.out[i] = state_result(&cell, i == 1);
    run_op(r, call); // as in evaluation
    result(r, "h' in evaluation", call.out[0], 4);
    for (int i = 0; i < 3; i++)
        call.out[i] = i < 2 || cell.has_lengths ? state_result(&cell, i == 1) : NULL;
    call.out[3] = unplaced(r, r->type, 2, cell.saved);
    run_op(r, call);
    all_results(r, names, &call, 4);
    back.in[0] = call.out[3];
    back.in[1] = call.in[2];
    back.in[2] = cell.lengths;
    back.in[3] = state_of(&cell, false);
    back.in[4] = state_of(&cell, true);
    back.in[5] = cell.has_lengths ? state_of(&cell, false) : NULL;
    run_backward(&cell, back, slopes, slopes_alone);
}

void run_gru(case_run *r)
{
    static const char *const names[] = {"h'", "y", "gates"};
    static const char *const slopes[] = {"da", "db", "dh"};
    static const char *const slopes_alone[] = {"da of h'", "db of h'", "dh of h'"};
    const cell_run cell = cell_of(r, false);
    op_call call = {.op = OP_GRU, .n_in = 4, .n_out = 3};
    op_call back = {.op = OP_GRU_BACKWARD, .n_in = 5, .n_out = 3};

    call.in[0] = noise(r, 2, cell.wide, 3, 0);
    call.in[1] = noise(r, 2, cell.wide, 3, 0);
    call.in[2] = state_of(&cell, false);
    call.in[3] = cell.lengths;
    call.out[0] = state_result(&cell, false);
    run_op(r, call);
    result(r, "h' in evaluation", call.out[0], 4);
    call.out[0] = state_result(&cell, false);
    call.out[1] = cell.has_lengths ? state_result(&cell, false) : NULL;
    call.out[2] = unplaced(r, r->type, 2, cell.saved);
    run_op(r, call);
    all_results(r, names, &call, 4);
    back.in[0] = call.out[2];
    back.in[1] = call.in[2];
    back.in[2] = cell.lengths;
    back.in[3] = state_of(&cell, false);
    back.in[4] = cell.has_lengths ? state_of(&cell, false) : NULL;
    run_backward(&cell, back, slopes, slopes_alone);
}
