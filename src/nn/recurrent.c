/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recurrent.c - LSTM and GRU: cells, and layers for sequences, whose steps are operators on the
 * tape.
 *
 * A sequence is computed time first: x W_ih^T + b_ih of all steps is one product, whose rows are
 * split into steps. Initial values are those of torch.nn: uniform in +-1 / sqrt(hidden).
 */
#include "nn/model.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { W_IH, W_HH, B_IH, B_HH };

#define MOST_LAYERS 1000

/* --- making layers --- */

typedef struct slot_name {
    char text[40];
} slot_name;

/* A part is one direction of one layer; its tensors follow those of the part before. */
static int parts_of(const recurrent_shape *s)
{
    return s->layers * s->directions;
}

static int tensors_of_part(const recurrent_shape *s)
{
    return s->no_bias ? 2 : 4;
}

static int gates_of(const recurrent_shape *s)
{
    return s->is_lstm ? 4 : 3;
}

static void fill_slot(const recurrent_shape *s, int i, slot_name *name, layer_slot *slot)
{
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    const int part = i / tensors_of_part(s);
    const int which = i % tensors_of_part(s);
    const int64_t rows = (int64_t)gates_of(s) * s->hidden;
    const int64_t below = part < s->directions ? s->in : (int64_t)s->directions * s->hidden;

    if (s->is_cell)
        (void)text_format(name->text, sizeof(name->text), "%s", names[which]);
    else
        (void)text_format(name->text, sizeof(name->text), "%s_l%d%s", names[which],
                          part / s->directions, part % s->directions == 1 ? "_reverse" : "");
    *slot = (layer_slot){.suffix = name->text,
                         .type = LS_F32,
                         .n_dims = which < B_IH ? 2 : 1,
                         .dims = {rows, which == W_IH ? below : s->hidden}};
}

static ls_status check_shape(const char *name, const recurrent_shape *s)
{
    if (s->in < 1 || s->hidden < 1)
        return ls_fail(LS_EINVAL, "layer %s: %d to %d features; both must be at least 1", name,
                       s->in, s->hidden);
    if (s->layers < 1 || s->layers > MOST_LAYERS)
        return ls_fail(LS_EINVAL, "layer %s: %d layers; 1 to %d are supported", name, s->layers,
                       MOST_LAYERS);
    if (!(s->dropout >= 0 && s->dropout <= 1))
        return ls_fail(LS_EINVAL, "layer %s: dropout is %g; it must be 0 to 1", name, s->dropout);
    return LS_OK;
}

/* A layer with n_slots tensors; NULL: the model has been marked. */
static ls_layer *add_with_slots(ls_model *model, const char *name, const recurrent_shape *s,
                                int n_slots)
{
    slot_name *names = ls_calloc((size_t)n_slots, sizeof(*names));
    layer_slot *slots = ls_calloc((size_t)n_slots, sizeof(*slots));
    ls_layer *layer;

    if (names == NULL || slots == NULL) {
        layer = model_fail(model, ls_fail(LS_ENOMEM, "no memory for the tensors of a layer"));
    } else {
        for (int i = 0; i < n_slots; i++)
            fill_slot(s, i, &names[i], &slots[i]);
        layer = model_add(model, name, slots, n_slots);
    }
    ls_free(names);
    ls_free(slots);
    return layer;
}

static ls_layer *add(ls_model *model, const char *name, recurrent_shape s,
                     ls_tensor *(*forward)(ls_tape *, ls_layer *, ls_tensor *))
{
    const int n_slots = parts_of(&s) * tensors_of_part(&s);
    ls_layer *layer;
    ls_status st;

    if (!model_can_add(model))
        return NULL;
    st = check_shape(name == NULL ? "NULL" : name, &s);
    if (st != LS_OK)
        return model_fail(model, st);
    layer = add_with_slots(model, name, &s, n_slots);
    if (layer == NULL)
        return NULL;
    layer->forward = forward;
    layer->recurrent = s;
    for (int i = 0; i < n_slots; i++)
        model_fill_uniform(model, layer->tensors[i], 1 / sqrt((double)s.hidden));
    return layer;
}

/* --- steps --- */

/* The parameters of a part; NULL for biases that it does not have. */
static ls_tensor *tensor_at(const ls_layer *layer, int part, int which)
{
    const int n = tensors_of_part(&layer->recurrent);

    return which < n ? layer->tensors[part * n + which] : NULL;
}

/* One step from x_gates; replaces the states, and gives y. c is used by the LSTM alone. */
static ls_tensor *run_step(ls_tape *tape, const ls_layer *layer, int part, ls_tensor *x_gates,
                           const recurrent_step *step, ls_tensor **h, ls_tensor **c)
{
    ls_tensor *h_gates =
        autograd_gates(tape, *h, tensor_at(layer, part, W_HH), tensor_at(layer, part, B_HH));
    ls_tensor *y;

    if (layer->recurrent.is_lstm)
        autograd_lstm_step(tape, x_gates, h_gates, step, h, c, &y);
    else
        autograd_gru_step(tape, x_gates, h_gates, step, h, &y);
    ls_tape_done(tape, x_gates);
    ls_tape_done(tape, h_gates);
    return y;
}

/* --- sequences --- */

/* A sequence on its way through the layers. */
typedef struct sequence {
    ls_tape *tape;
    const ls_layer *layer;
    ls_tensor *lengths;
    int64_t rows;      /* N */
    int steps;         /* T */
    int64_t *sizes;    /* N, as often as there are steps and parts */
    ls_tensor **gates; /* of each step */
    ls_tensor **y;     /* of each step */
    ls_tensor **h;     /* the states of each part: before, then behind its steps */
    ls_tensor **c;
} sequence;

/* rows: (T N, ...), time first. Gives (T N, H). */
static ls_tensor *run_part(const sequence *s, int part, ls_tensor *rows)
{
    const bool is_reverse = part % s->layer->recurrent.directions == 1;
    recurrent_step step = {.lengths = s->lengths, .n_steps = s->steps};
    ls_tensor *all =
        ls_linear(s->tape, rows, tensor_at(s->layer, part, W_IH), tensor_at(s->layer, part, B_IH));

    ls_split(s->tape, all, 0, s->sizes, s->steps, s->gates);
    ls_tape_done(s->tape, all);
    for (int i = 0; i < s->steps; i++) {
        const int t = is_reverse ? s->steps - 1 - i : i;

        step.position = t;
        s->y[t] = run_step(s->tape, s->layer, part, s->gates[t], &step, &s->h[part], &s->c[part]);
    }
    all = ls_concat(s->tape, s->y, s->steps, 0);
    for (int t = 0; t < s->steps && s->lengths != NULL; t++)
        ls_tape_done(s->tape, s->y[t]);
    return all;
}

/* All directions of layer l; gives (T N, directions H). */
static ls_tensor *run_layer(const sequence *s, int l, ls_tensor *rows)
{
    const int directions = s->layer->recurrent.directions;
    ls_tensor *y[2];
    ls_tensor *both;

    for (int d = 0; d < directions; d++)
        y[d] = run_part(s, l * directions + d, rows);
    if (directions == 1)
        return y[0];
    both = ls_concat(s->tape, y, 2, 1);
    ls_tape_done(s->tape, y[0]);
    ls_tape_done(s->tape, y[1]);
    return both;
}

/* x: (N,T,I); gives (N,T,directions H). */
static ls_tensor *run_layers(const sequence *s, ls_tensor *x)
{
    const recurrent_shape *shape = &s->layer->recurrent;
    const int64_t width = (int64_t)shape->directions * shape->hidden;
    ls_tensor *rows = ls_reshape(s->tape, ls_transpose(s->tape, x, 0, 1), 2,
                                 (int64_t[]){s->steps * s->rows, shape->in});

    for (int l = 0; l < shape->layers; l++) {
        if (l > 0 && shape->dropout > 0)
            rows = ls_dropout(s->tape, rows, shape->dropout);
        rows = run_layer(s, l, rows);
    }
    rows = ls_reshape(s->tape, rows, 3, (int64_t[]){s->steps, s->rows, width});
    return ls_transpose(s->tape, rows, 0, 1);
}

/* --- states --- */

/* Zeros for each part, or the parts of `t` (parts, N, H). */
static void split_state(const sequence *s, ls_tensor *t, ls_tensor **pieces)
{
    const int parts = parts_of(&s->layer->recurrent);
    const int64_t dims[3] = {parts, s->rows, s->layer->recurrent.hidden};

    if (t == NULL) {
        pieces[0] = ls_full(s->tape, LS_F32, 2, dims + 1, 0);
        for (int i = 1; i < parts; i++)
            pieces[i] = pieces[0];
        return;
    }
    if (ls_tensor_n_dims(t) != 3 || memcmp(ls_tensor_dims(t), dims, sizeof(dims)) != 0)
        (void)autograd_fail(s->tape, ls_fail(LS_EINVAL,
                                             "the first state must be (%d, %lld, %lld): layers "
                                             "and directions, N, hidden",
                                             parts, (long long)dims[1], (long long)dims[2]));
    t = ls_reshape(s->tape, t, 2, (int64_t[]){parts * dims[1], dims[2]});
    ls_split(s->tape, t, 0, s->sizes, parts, pieces);
}

/* (parts, N, H) */
static ls_tensor *join_state(const sequence *s, ls_tensor *const *pieces)
{
    const int parts = parts_of(&s->layer->recurrent);

    return ls_reshape(s->tape, parts == 1 ? pieces[0] : ls_concat(s->tape, pieces, parts, 0), 3,
                      (int64_t[]){parts, s->rows, s->layer->recurrent.hidden});
}

static ls_tensor *run_sequence(const sequence *s, ls_tensor *x, const ls_rnn_state *first,
                               ls_rnn_state *last)
{
    const bool is_lstm = s->layer->recurrent.is_lstm;
    ls_tensor *y;

    split_state(s, first->h, s->h);
    if (is_lstm)
        split_state(s, first->c, s->c);
    y = run_layers(s, x);
    if (last != NULL && y != NULL)
        *last = (ls_rnn_state){.h = join_state(s, s->h), .c = is_lstm ? join_state(s, s->c) : NULL};
    return autograd_has_failed(s->tape) ? NULL : y;
}

static ls_status check_input(const recurrent_shape *shape, const ls_tensor *x)
{
    const int64_t *dims = ls_tensor_dims(x);

    if (x == NULL)
        return ls_fail(LS_EINVAL, "the input is NULL");
    if (ls_tensor_n_dims(x) != 3 || dims[2] != shape->in)
        return ls_fail(LS_EINVAL, "the input must be (N, T, %d)", shape->in);
    if (dims[1] < 1 || dims[1] > INT_MAX)
        return ls_fail(LS_EINVAL, "the sequences have %lld steps; they must have 1 to %d",
                       (long long)dims[1], INT_MAX);
    return LS_OK;
}

/* Memory for the pointers and sizes of the sequence. */
static ls_status allocate(sequence *s)
{
    const size_t steps = (size_t)s->steps;
    const size_t parts = (size_t)parts_of(&s->layer->recurrent);
    const size_t n_sizes = steps > parts ? steps : parts;

    s->sizes = ls_calloc(n_sizes, sizeof(*s->sizes));
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    s->gates = ls_calloc(2 * (steps + parts), sizeof(*s->gates));
    if (s->sizes == NULL || s->gates == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d steps", s->steps);
    s->y = s->gates + steps;
    s->h = s->y + steps;
    s->c = s->h + parts;
    for (size_t i = 0; i < n_sizes; i++)
        s->sizes[i] = s->rows;
    return LS_OK;
}

static ls_tensor *forward(ls_tape *tape, const ls_layer *layer, ls_tensor *x, ls_tensor *lengths,
                          const ls_rnn_state *first, ls_rnn_state *last)
{
    sequence s = {.tape = tape, .layer = layer, .lengths = lengths};
    ls_tensor *y = NULL;
    ls_status st = check_input(&layer->recurrent, x);

    if (st == LS_OK) {
        s.rows = ls_tensor_dims(x)[0];
        s.steps = (int)ls_tensor_dims(x)[1];
        st = allocate(&s);
    }
    if (st == LS_OK)
        y = run_sequence(&s, x, first, last);
    else
        (void)autograd_fail(tape, st);
    ls_free(s.sizes);
    ls_free(s.gates);
    return y;
}

static ls_tensor *sequence_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    const ls_rnn_state zeros = {.h = NULL};

    return forward(tape, layer, x, NULL, &zeros, NULL);
}

ls_tensor *ls_forward_sequence(ls_tape *tape, ls_layer *layer, ls_tensor *x, ls_tensor *lengths,
                               const ls_rnn_state *first, ls_rnn_state *last)
{
    const ls_rnn_state before = first == NULL ? (ls_rnn_state){.h = NULL} : *first;
    const char *outer;
    ls_tensor *y = NULL;

    if (last != NULL)
        *last = (ls_rnn_state){.h = NULL};
    if (!layer_enter(tape, layer, &outer))
        return NULL;
    if (layer->forward == sequence_forward)
        y = forward(tape, layer, x, lengths, &before, last);
    else
        (void)autograd_fail(tape, ls_fail(LS_EINVAL, "the layer is not an LSTM or GRU"));
    layer_leave(tape, layer, outer, y);
    return y;
}

static ls_layer *add_sequence(ls_model *model, const char *name, int in, int hidden, bool is_lstm,
                              const ls_nn_rnn_options *opt)
{
    const ls_nn_rnn_options o = opt == NULL ? (ls_nn_rnn_options){.layers = 1} : *opt;

    return add(model, name,
               (recurrent_shape){.is_lstm = is_lstm,
                                 .in = in,
                                 .hidden = hidden,
                                 .layers = o.layers == 0 ? 1 : o.layers,
                                 .directions = o.bidirectional ? 2 : 1,
                                 .no_bias = o.no_bias != 0,
                                 .dropout = o.dropout},
               sequence_forward);
}

ls_layer *ls_nn_lstm(ls_model *model, const char *name, int in, int hidden,
                     const ls_nn_rnn_options *opt)
{
    return add_sequence(model, name, in, hidden, true, opt);
}

ls_layer *ls_nn_gru(ls_model *model, const char *name, int in, int hidden,
                    const ls_nn_rnn_options *opt)
{
    return add_sequence(model, name, in, hidden, false, opt);
}

/* --- cells --- */

static ls_tensor *cell_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    LS_UNUSED(layer);
    LS_UNUSED(x);
    return autograd_fail(tape,
                         ls_fail(LS_EINVAL, "the layer is a cell, which ls_forward_cell() runs"));
}

static void run_cell(ls_tape *tape, const ls_layer *layer, ls_tensor *x, ls_rnn_state *state)
{
    ls_tensor *const *t = layer->tensors;
    ls_tensor *const b_ih = tensor_at(layer, 0, B_IH);
    ls_tensor *const b_hh = tensor_at(layer, 0, B_HH);

    if (layer->recurrent.is_lstm)
        ls_lstm_cell(tape, x, state->h, state->c, t[W_IH], t[W_HH], b_ih, b_hh, &state->h,
                     &state->c);
    else
        *state = (ls_rnn_state){.h = ls_gru_cell(tape, x, state->h, t[W_IH], t[W_HH], b_ih, b_hh)};
}

void ls_forward_cell(ls_tape *tape, ls_layer *layer, ls_tensor *x, const ls_rnn_state *before,
                     ls_rnn_state *after)
{
    ls_rnn_state state = before == NULL ? (ls_rnn_state){.h = NULL} : *before;
    const char *outer;

    if (after != NULL)
        *after = (ls_rnn_state){.h = NULL};
    if (!layer_enter(tape, layer, &outer))
        return;
    if (layer->forward != cell_forward || after == NULL)
        (void)autograd_fail(tape, after == NULL ? ls_fail(LS_EINVAL, "the state after is NULL")
                                                : ls_fail(LS_EINVAL, "the layer is not a cell"));
    else
        run_cell(tape, layer, x, &state);
    layer_leave(tape, layer, outer, autograd_has_failed(tape) ? NULL : state.h);
    if (after != NULL && !autograd_has_failed(tape))
        *after = state;
}

static ls_layer *add_cell(ls_model *model, const char *name, int in, int hidden, int no_bias,
                          bool is_lstm)
{
    return add(model, name,
               (recurrent_shape){.is_lstm = is_lstm,
                                 .is_cell = true,
                                 .in = in,
                                 .hidden = hidden,
                                 .layers = 1,
                                 .directions = 1,
                                 .no_bias = no_bias != 0},
               cell_forward);
}

ls_layer *ls_nn_lstm_cell(ls_model *model, const char *name, int in, int hidden, int no_bias)
{
    return add_cell(model, name, in, hidden, no_bias, true);
}

ls_layer *ls_nn_gru_cell(ls_model *model, const char *name, int in, int hidden, int no_bias)
{
    return add_cell(model, name, in, hidden, no_bias, false);
}
