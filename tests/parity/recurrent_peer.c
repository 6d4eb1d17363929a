/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recurrent_peer.c CASE RESULTS KIND INPUTS HIDDEN LAYERS BIDIRECTIONAL NO_BIAS - runs one
 * recurrent layer or cell on the default device, for recurrent_parity.py.
 *
 * CASE has the parameters "rnn.weight_ih_l0", ..., "x", maybe "h0", "c0" and "lengths", and
 * "goal_NAME" for each result NAME. The loss is the sum of the results times their goals. RESULTS
 * gets "y", "h" and "c", and "grad_NAME" of x, states and parameters.
 */
#include <lockstep/checkpoint.h>
#include <lockstep/nn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { X, H0, C0, LENGTHS, GOAL_Y, GOAL_H, GOAL_C, N_INPUTS };

static const char *const input_names[N_INPUTS] = {"x",      "h0",     "c0",    "lengths",
                                                  "goal_y", "goal_h", "goal_c"};

enum { MAX_RESULTS = 64, NAME_BYTES = 64 };

typedef struct work {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_layer *layer;
    ls_tensor *in[N_INPUTS]; /* NULL: the case has none */
    ls_named results[MAX_RESULTS];
    char names[MAX_RESULTS][NAME_BYTES];
    int n_results;
} work;

static ls_layer *make_layer(ls_model *model, char **options)
{
    const char *const kind = options[0];
    const int in = atoi(options[1]);
    const int hidden = atoi(options[2]);
    const int no_bias = atoi(options[5]);
    const ls_nn_rnn_options opt = {
        .layers = atoi(options[3]), .bidirectional = atoi(options[4]), .no_bias = no_bias};

    if (strcmp(kind, "lstm") == 0)
        return ls_nn_lstm(model, "rnn", in, hidden, &opt);
    if (strcmp(kind, "gru") == 0)
        return ls_nn_gru(model, "rnn", in, hidden, &opt);
    if (strcmp(kind, "lstm_cell") == 0)
        return ls_nn_lstm_cell(model, "rnn", in, hidden, no_bias);
    return ls_nn_gru_cell(model, "rnn", in, hidden, no_bias);
}

static ls_status load_input(work *w, ls_checkpoint *file, const ls_checkpoint_entry *e)
{
    ls_status st = LS_OK;

    for (int i = 0; i < N_INPUTS && st == LS_OK; i++) {
        if (strcmp(e->name, input_names[i]) != 0)
            continue;
        st = ls_tensor_create(w->device, e->type, e->n_dims, e->dims, &w->in[i]);
        if (st == LS_OK)
            st = ls_checkpoint_load(file, &(ls_named){.name = e->name, .tensor = w->in[i]}, 1,
                                    LS_LOAD_SUBSET);
        if (st == LS_OK && i <= C0)
            st = ls_require_grad(w->in[i]);
    }
    return st;
}

static ls_status load(work *w, const char *path)
{
    ls_checkpoint *file = NULL;
    ls_status st = ls_checkpoint_open(path, &file);
    int n = 0;
    const ls_named *state = ls_model_state(w->model, &n);

    if (st == LS_OK)
        st = ls_checkpoint_load(file, state, n, LS_LOAD_SUBSET);
    for (int i = 0; st == LS_OK && i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry e;

        st = ls_checkpoint_entry_at(file, i, &e);
        if (st == LS_OK)
            st = load_input(w, file, &e);
    }
    ls_checkpoint_close(file);
    return st;
}

static void add_result(work *w, const char *prefix, const char *name, ls_tensor *t)
{
    if (t == NULL || w->n_results == MAX_RESULTS)
        return;
    ls_tape_keep(w->tape, t);
    (void)snprintf(w->names[w->n_results], NAME_BYTES, "%s%s", prefix, name);
    w->results[w->n_results] = (ls_named){.name = w->names[w->n_results], .tensor = t};
    w->n_results++;
}

/* loss + the sum of t * goal; NULL for loss or t stands for 0. */
static ls_tensor *add_term(work *w, ls_tensor *loss, ls_tensor *t, ls_tensor *goal)
{
    ls_tensor *term;

    if (t == NULL)
        return loss;
    term = ls_sum(w->tape, ls_mul(w->tape, t, goal), NULL, 0, 0);
    return loss == NULL ? term : ls_add(w->tape, loss, term);
}

static ls_status run(work *w, int is_cell)
{
    const ls_rnn_state first = {.h = w->in[H0], .c = w->in[C0]};
    ls_rnn_state last;
    ls_tensor *loss;
    ls_tensor *y = NULL;
    ls_status st;
    int n = 0;
    const ls_named *parameters = ls_model_parameters(w->model, &n);

    if (is_cell)
        ls_forward_cell(w->tape, w->layer, w->in[X], &first, &last);
    else
        y = ls_forward_sequence(w->tape, w->layer, w->in[X], w->in[LENGTHS], &first, &last);
    add_result(w, "", "y", y);
    add_result(w, "", "h", last.h);
    add_result(w, "", "c", last.c);
    loss = add_term(w, NULL, y, w->in[GOAL_Y]);
    loss = add_term(w, loss, last.h, w->in[GOAL_H]);
    loss = add_term(w, loss, last.c, w->in[GOAL_C]);
    st = ls_backward(w->tape, loss, 1);
    for (int i = X; i <= C0 && st == LS_OK; i++)
        add_result(w, "grad_", input_names[i], ls_grad(w->in[i]));
    for (int i = 0; i < n && st == LS_OK; i++)
        add_result(w, "grad_", parameters[i].name, ls_grad(parameters[i].tensor));
    return st;
}

int main(int argc, char **argv)
{
    static work w;
    ls_status st;

    if (argc != 9)
        return 2;
    st = ls_device_open(NULL, &w.device);
    if (st == LS_OK)
        st = ls_model_create(w.device, 1, &w.model);
    if (st == LS_OK)
        st = ls_tape_create(w.device, &w.tape);
    w.layer = make_layer(w.model, argv + 3);
    if (st == LS_OK)
        st = ls_model_status(w.model);
    if (st == LS_OK)
        st = load(&w, argv[1]);
    if (st == LS_OK)
        st = run(&w, strstr(argv[3], "cell") != NULL);
    if (st == LS_OK)
        st = ls_checkpoint_save(argv[2], w.results, w.n_results, NULL, 0);
    if (st != LS_OK)
        fprintf(stderr, "recurrent_peer: %s\n", ls_last_error());
    ls_tape_destroy(w.tape);
    for (int i = 0; i < N_INPUTS; i++)
        ls_tensor_destroy(w.in[i]);
    ls_model_destroy(w.model);
    (void)ls_device_close(w.device);
    return st == LS_OK ? 0 : 1;
}
