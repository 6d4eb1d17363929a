/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recurrent_layers.c - LSTM and GRU layers: names, sequences with lengths against cells row by
 * row, states, weight gradients as one product, dropout between layers, and errors.
 */
#include "tensor/testing.h"

#include <lockstep/nn.h>

#include "base/alloc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 3, T = 4, IN = 3, H = 5, LAYERS = 2, PARTS = 2 * LAYERS };

static const int64_t some_lengths[N] = {2, 4, 1};

/* The device's operators, whose products of weight gradients are counted. */
static const device_ops *real_ops;
static int n_products;

static kernel_fn counting_find_kernel(device_state *self, const op_call *call)
{
    n_products += call->op == OP_LINEAR_BACKWARD_WEIGHTS;
    return real_ops->find_kernel(self, call);
}

typedef struct bench {
    device_ops ops;
    ls_device *device;
    ls_tape *tape;
    ls_model *model;
    ls_tensor *x; /* (N,T,IN), a leaf */
    ls_rnn_state first;
    ls_tensor *lengths;
} bench;

static void setup(bench *s)
{
    const int64_t n = N;

    s->device = open_reference();
    real_ops = s->device->ops;
    s->ops = *real_ops;
    s->ops.find_kernel = counting_find_kernel;
    s->device->ops = &s->ops;
    assert_status(LS_OK, ls_tape_create(s->device, &s->tape));
    assert_status(LS_OK, ls_model_create(s->device, 7, &s->model));
    s->x = random_tensor(s->device, LS_F32, 3, (int64_t[]){N, T, IN}, 1);
    s->first.h = random_tensor(s->device, LS_F32, 3, (int64_t[]){PARTS, N, H}, 2);
    s->first.c = random_tensor(s->device, LS_F32, 3, (int64_t[]){PARTS, N, H}, 3);
    assert_status(LS_OK, ls_tensor_create(s->device, LS_I64, 1, &n, &s->lengths));
    assert_status(LS_OK, ls_tensor_write(s->lengths, some_lengths, N));
    assert_status(LS_OK, ls_require_grad(s->x));
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    ls_model_destroy(s->model);
    destroy_all((ls_tensor *[]){s->x, s->first.h, s->first.c, s->lengths}, 4);
    s->device->ops = real_ops;
    assert_status(LS_OK, ls_device_close(s->device));
}

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

static ls_layer *sequence_of(bench *s, bool is_lstm, const ls_nn_rnn_options *opt)
{
    ls_layer *layer =
        is_lstm ? ls_nn_lstm(s->model, "rnn", IN, H, opt) : ls_nn_gru(s->model, "rnn", IN, H, opt);

    assert_status(LS_OK, ls_model_status(s->model));
    return layer;
}

static const ls_nn_rnn_options deep = {.layers = LAYERS, .bidirectional = 1};

/* --- names and initial values --- */

static void names_are_those_of_torch(void **state)
{
    static const char *const want[] = {"rnn.weight_ih_l0",
                                       "rnn.weight_hh_l0",
                                       "rnn.bias_ih_l0",
                                       "rnn.bias_hh_l0",
                                       "rnn.weight_ih_l0_reverse",
                                       "rnn.weight_hh_l0_reverse",
                                       "rnn.bias_ih_l0_reverse",
                                       "rnn.bias_hh_l0_reverse",
                                       "rnn.weight_ih_l1",
                                       "rnn.weight_hh_l1",
                                       "rnn.bias_ih_l1",
                                       "rnn.bias_hh_l1",
                                       "rnn.weight_ih_l1_reverse",
                                       "rnn.weight_hh_l1_reverse",
                                       "rnn.bias_ih_l1_reverse",
                                       "rnn.bias_hh_l1_reverse",
                                       "cell.weight_ih",
                                       "cell.weight_hh",
                                       "cell.bias_ih",
                                       "cell.bias_hh",
                                       "bare.weight_ih",
                                       "bare.weight_hh"};
    bench s;
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    setup(&s);
    assert_non_null(ls_layer_tensor(sequence_of(&s, true, &deep), "weight_hh_l1_reverse"));
    assert_non_null(ls_nn_lstm_cell(s.model, "cell", IN, H, 0));
    assert_non_null(ls_nn_gru_cell(s.model, "bare", IN, H, 1));
    items = ls_model_parameters(s.model, &n);
    assert_int_equal(n, LS_COUNT_OF(want));
    for (int i = 0; i < n; i++)
        assert_string_equal(items[i].name, want[i]);
    assert_int_equal(ls_tensor_dims(items[0].tensor)[0], 4 * H);
    assert_int_equal(ls_tensor_dims(items[0].tensor)[1], IN);
    assert_int_equal(ls_tensor_dims(items[12].tensor)[1], 2 * H);
    assert_int_equal(ls_tensor_dims(items[20].tensor)[0], 3 * H);
    teardown(&s);
}

static void initial_values_are_within_the_root_of_the_width(void **state)
{
    bench s;
    const double bound = 1 / sqrt((double)H);
    const ls_named *items;
    double largest = 0;
    int n;

    LS_UNUSED(state);
    setup(&s);
    (void)sequence_of(&s, false, &deep);
    items = ls_model_parameters(s.model, &n);
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < ls_tensor_count(items[i].tensor); k++)
            largest = fmax(largest, fabs(element_of(items[i].tensor, k)));
    }
    assert_true(largest <= bound && largest > 0.95 * bound);
    teardown(&s);
}

/* --- against cells --- */

/* One row of the states (PARTS, N, H): (1,H). */
static ls_tensor *row_of_state(bench *s, ls_tensor *t, int part, int64_t row)
{
    ls_tensor *piece = ls_slice(s->tape, ls_slice(s->tape, t, 0, part, 1), 1, row, 1);

    return ls_reshape(s->tape, piece, 2, (int64_t[]){1, H});
}

static ls_tensor *parameter_of(const ls_layer *layer, const char *name, int l, int d)
{
    char text[40];

    (void)snprintf(text, sizeof(text), "%s_l%d%s", name, l, d == 1 ? "_reverse" : "");
    return ls_layer_tensor(layer, text);
}

/* A step of part (l, d) by the operator of the cell. */
static void step_of(bench *s, const ls_layer *layer, bool is_lstm, int l, int d, ls_tensor *x,
                    ls_rnn_state *state)
{
    ls_tensor *w_ih = parameter_of(layer, "weight_ih", l, d);
    ls_tensor *w_hh = parameter_of(layer, "weight_hh", l, d);
    ls_tensor *b_ih = parameter_of(layer, "bias_ih", l, d);
    ls_tensor *b_hh = parameter_of(layer, "bias_hh", l, d);

    if (is_lstm)
        ls_lstm_cell(s->tape, x, state->h, state->c, w_ih, w_hh, b_ih, b_hh, &state->h, &state->c);
    else
        state->h = ls_gru_cell(s->tape, x, state->h, w_ih, w_hh, b_ih, b_hh);
}

/* A row of its own length through all layers; the steps' results (1, 2 H) and the last states. */
static void row_by_cells(bench *s, const ls_layer *layer, bool is_lstm, int64_t row, int length,
                         ls_tensor **y, ls_rnn_state *last)
{
    ls_tensor *sides[T][2];

    for (int t = 0; t < length; t++)
        y[t] = ls_reshape(s->tape, ls_slice(s->tape, ls_slice(s->tape, s->x, 0, row, 1), 1, t, 1),
                          2, (int64_t[]){1, IN});
    for (int l = 0; l < LAYERS; l++) {
        for (int d = 0; d < 2; d++) {
            ls_rnn_state *state = &last[2 * l + d];

            state->h = row_of_state(s, s->first.h, 2 * l + d, row);
            state->c = is_lstm ? row_of_state(s, s->first.c, 2 * l + d, row) : NULL;
            for (int i = 0; i < length; i++) {
                const int t = d == 1 ? length - 1 - i : i;

                step_of(s, layer, is_lstm, l, d, y[t], state);
                sides[t][d] = state->h;
            }
        }
        for (int t = 0; t < length; t++)
            y[t] = ls_concat(s->tape, sides[t], 2, 1);
    }
}

static ls_tensor *squares(bench *s, ls_tensor *x)
{
    return ls_sum(s->tape, ls_square(s->tape, x), NULL, 0, 0);
}

static ls_tensor *add_squares(bench *s, ls_tensor *loss, ls_tensor *x)
{
    return loss == NULL ? squares(s, x) : ls_add(s->tape, loss, squares(s, x));
}

/* Gradients of x and of all parameters. */
typedef struct gradients {
    double *values[1 + 4 * PARTS];
    int n;
} gradients;

static gradients take_gradients(bench *s)
{
    gradients g = {.n = 1};
    const ls_named *items;
    int n;

    items = ls_model_parameters(s->model, &n);
    g.values[0] = elements_of(ls_grad(s->x));
    for (int i = 0; i < n; i++)
        g.values[g.n++] = elements_of(ls_grad(items[i].tensor));
    ls_zero_grad(s->x);
    ls_model_zero_grad(s->model);
    return g;
}

static void assert_gradients(bench *s, const gradients *want)
{
    const ls_named *items;
    int n;

    items = ls_model_parameters(s->model, &n);
    for (int i = 0; i < want->n; i++) {
        assert_elements(i == 0 ? ls_grad(s->x) : ls_grad(items[i - 1].tensor), want->values[i],
                        2e-5);
        ls_free(want->values[i]);
    }
}

/* The loss of all rows by cells; *y: (N,T,2H) as doubles, *last: (PARTS,N,H) twice. */
static ls_tensor *all_by_cells(bench *s, const ls_layer *layer, bool is_lstm, double *y, double *h,
                               double *c)
{
    ls_tensor *loss = NULL;

    for (int64_t row = 0; row < N; row++) {
        const int length = (int)some_lengths[row];
        ls_tensor *steps[T];
        ls_rnn_state last[PARTS];

        row_by_cells(s, layer, is_lstm, row, length, steps, last);
        for (int t = 0; t < length; t++) {
            loss = add_squares(s, loss, steps[t]);
            for (size_t k = 0; k < (size_t)2 * H; k++)
                y[((size_t)row * T + (size_t)t) * 2 * H + k] = element_of(steps[t], k);
        }
        for (int part = 0; part < PARTS; part++) {
            loss = add_squares(s, loss, last[part].h);
            if (is_lstm)
                loss = add_squares(s, loss, last[part].c);
            for (size_t k = 0; k < H; k++) {
                const size_t at = ((size_t)part * N + (size_t)row) * H + k;

                h[at] = element_of(last[part].h, k);
                c[at] = is_lstm ? element_of(last[part].c, k) : 0;
            }
        }
    }
    return loss;
}

/* Two layers, two directions, states and lengths: results and all gradients. */
static void sequences_are_their_cells_row_by_row(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        const bool is_lstm = i == 0;
        double y[N * T * 2 * H] = {0};
        double h[PARTS * N * H];
        double c[PARTS * N * H];
        bench s;
        ls_layer *layer;
        gradients want;
        ls_rnn_state last;
        ls_tensor *out;
        ls_tensor *loss;

        setup(&s);
        layer = sequence_of(&s, is_lstm, &deep);
        assert_status(LS_OK, ls_backward(s.tape, all_by_cells(&s, layer, is_lstm, y, h, c), 1));
        want = take_gradients(&s);
        ls_tape_reset(s.tape);
        out = ls_forward_sequence(s.tape, layer, s.x, s.lengths, &s.first, &last);
        assert_status(LS_OK, ls_tape_status(s.tape));
        assert_elements(out, y, 1e-6);
        assert_elements(last.h, h, 1e-6);
        loss = add_squares(&s, squares(&s, out), last.h);
        if (is_lstm) {
            assert_elements(last.c, c, 1e-6);
            loss = add_squares(&s, loss, last.c);
        } else {
            assert_null(last.c);
        }
        assert_status(LS_OK, ls_backward(s.tape, loss, 1));
        assert_gradients(&s, &want);
        teardown(&s);
    }
}

/* Rows may have no step, sequences one, batches no row. */
static void short_sequences_and_empty_batches_work(void **state)
{
    static const int64_t none[N] = {0, 0, 0};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        bench s;
        ls_layer *layer;
        ls_rnn_state last;
        ls_tensor *y;
        ls_tensor *empty;
        double *want;
        int n;
        const ls_named *items;

        setup(&s);
        layer = sequence_of(&s, i == 0, &deep);
        assert_status(LS_OK, ls_tensor_write(s.lengths, none, N));
        y = ls_forward_sequence(s.tape, layer, s.x, s.lengths, &s.first, &last);
        for (size_t k = 0; k < (size_t)N * T * 2 * H; k++)
            assert_true(element_of(y, k) == 0);
        want = elements_of(s.first.h);
        assert_elements(last.h, want, 0);
        ls_free(want);

        y = ls_forward(s.tape, layer, ls_slice(s.tape, s.x, 1, 0, 1));
        assert_non_null(y);
        assert_int_equal(ls_tensor_dims(y)[1], 1);

        empty = random_tensor(s.device, LS_F32, 3, (int64_t[]){0, T, IN}, 1);
        ls_tape_reset(s.tape);
        y = ls_forward_sequence(s.tape, layer, empty, NULL, NULL, &last);
        assert_non_null(y);
        assert_int_equal(ls_tensor_dims(y)[0], 0);
        assert_int_equal(ls_tensor_dims(last.h)[1], 0);
        assert_status(LS_OK, ls_backward(s.tape, squares(&s, y), 1));
        items = ls_model_parameters(s.model, &n);
        for (int k = 0; k < n; k++)
            assert_true(element_of(ls_grad(items[k].tensor), 0) == 0);
        ls_tape_reset(s.tape);
        ls_tensor_destroy(empty);
        teardown(&s);
    }
}

static void a_layer_is_its_cell_and_goes_on_from_its_state(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        const bool is_lstm = i == 0;
        bench s;
        ls_layer *layer;
        ls_layer *cell;
        ls_rnn_state at;
        ls_rnn_state last;
        ls_tensor *whole;
        double *want;

        setup(&s);
        layer = sequence_of(&s, is_lstm, NULL);
        cell = is_lstm ? ls_nn_lstm_cell(s.model, "cell", IN, H, 0)
                       : ls_nn_gru_cell(s.model, "cell", IN, H, 0);
        for (int k = 0; k < 4; k++) {
            const ls_named *items;
            int n;

            items = ls_model_parameters(s.model, &n);
            assert_status(LS_OK, ls_tensor_copy(items[4 + k].tensor, items[k].tensor));
        }
        whole = ls_forward_sequence(s.tape, layer, s.x, NULL, NULL, &last);
        at = (ls_rnn_state){.h = NULL};
        for (int t = 0; t < T; t++) {
            ls_tensor *x = ls_slice(s.tape, s.x, 1, t, 1);

            ls_forward_cell(s.tape, cell, ls_reshape(s.tape, x, 2, (int64_t[]){N, IN}), &at, &at);
        }
        want = elements_of(at.h);
        assert_elements(last.h, want, 1e-6);
        ls_free(want);
        // the second half, from the state behind the first one
        (void)ls_forward_sequence(s.tape, layer, ls_slice(s.tape, s.x, 1, 0, 2), NULL, NULL, &at);
        (void)ls_forward_sequence(s.tape, layer, ls_slice(s.tape, s.x, 1, 2, 2), NULL, &at, &at);
        want = elements_of(at.h);
        assert_elements(last.h, want, 1e-6);
        ls_free(want);
        assert_non_null(whole);
        teardown(&s);
    }
}

/* --- the steps' products --- */

static void weight_gradients_of_all_steps_are_one_product(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        bench s;
        ls_layer *layer;
        ls_tensor *y;

        setup(&s);
        layer = sequence_of(&s, i == 0, &deep);
        y = ls_forward_sequence(s.tape, layer, s.x, s.lengths, NULL, NULL);
        n_products = 0;
        assert_status(LS_OK, ls_backward(s.tape, squares(&s, y), 1));
        assert_int_equal(n_products, 2 * PARTS);
        teardown(&s);
    }
}

/* --- checkpoints, types, dropout --- */

static void run_lstm_layer(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    ls_rnn_state last;

    out[0] = ls_forward_sequence(tape, arg, in[0], in[1], NULL, &last);
    out[1] = last.c;
}

static void a_checkpointed_layer_has_the_same_gradients(void **state)
{
    const ls_nn_rnn_options opt = {.layers = LAYERS, .bidirectional = 1, .dropout = 0.5};
    bench s;
    ls_layer *layer;
    ls_tensor *out[2];
    gradients want = {.n = 0};

    LS_UNUSED(state);
    setup(&s);
    layer = sequence_of(&s, true, &opt);
    for (int pass = 0; pass < 2; pass++) {
        ls_tensor *const in[] = {s.x, s.lengths};

        ls_tape_reset(s.tape);
        ls_tape_set_random(s.tape, 5, 1);
        if (pass == 0)
            run_lstm_layer(s.tape, in, out, layer);
        else
            ls_tape_checkpoint(s.tape, run_lstm_layer, layer, 0, in, 2, out, 2);
        assert_status(LS_OK, ls_backward(s.tape, add_squares(&s, squares(&s, out[0]), out[1]), 1));
        if (pass == 0)
            want = take_gradients(&s);
    }
    for (int i = 0; i < want.n; i++) {
        const ls_named *items;
        int n;

        items = ls_model_parameters(s.model, &n);
        assert_elements(i == 0 ? ls_grad(s.x) : ls_grad(items[i - 1].tensor), want.values[i], 0);
        ls_free(want.values[i]);
    }
    teardown(&s);
}

static void mixed_precision_keeps_cell_states_in_float32(void **state)
{
    bench s;
    ls_layer *layer;
    ls_rnn_state last;
    ls_tensor *y;
    double *want;

    LS_UNUSED(state);
    setup(&s);
    layer = sequence_of(&s, true, &deep);
    y = ls_forward_sequence(s.tape, layer, s.x, s.lengths, &s.first, NULL);
    want = elements_of(y);
    assert_status(LS_OK, ls_tape_set_compute(s.tape, LS_BF16));
    y = ls_forward_sequence(s.tape, layer, s.x, s.lengths, &s.first, &last);
    assert_int_equal(ls_tensor_dtype(y), LS_BF16);
    assert_int_equal(ls_tensor_dtype(last.h), LS_BF16);
    assert_int_equal(ls_tensor_dtype(last.c), LS_F32);
    assert_elements(y, want, 3e-2);
    assert_status(LS_OK, ls_backward(s.tape, squares(&s, y), 1));
    ls_free(want);
    teardown(&s);
}

/* With p = 1 the second layer gets zeros: its result does not depend on x. */
static void dropout_is_between_layers_in_training(void **state)
{
    const ls_nn_rnn_options opt = {.layers = 2, .dropout = 1};
    bench s;
    ls_layer *layer;
    double *dropped;
    ls_tensor *y;

    LS_UNUSED(state);
    setup(&s);
    layer = sequence_of(&s, false, &opt);
    ls_tape_set_random(s.tape, 5, 1);
    y = ls_forward(s.tape, layer, s.x);
    dropped = elements_of(y);
    for (size_t k = 0; k < (size_t)T * H; k++) // every row is the same
        assert_true(dropped[k] == dropped[(size_t)T * H + k] && dropped[k] != 0);
    ls_free(dropped);
    ls_tape_set_training(s.tape, 0);
    y = ls_forward(s.tape, layer, s.x);
    assert_true(element_of(y, 0) != element_of(y, (size_t)T * H));
    teardown(&s);
}

/* --- errors --- */

static void wrong_options_are_errors(void **state)
{
    static const struct {
        int in;
        int hidden;
        ls_nn_rnn_options opt;
        const char *error;
    } cases[] = {
        {0, H, {.layers = 1}, "layer rnn: 0 to 5 features; both must be at least 1"},
        {IN, -1, {.layers = 1}, "layer rnn: 3 to -1 features"},
        {IN, H, {.layers = -1}, "layer rnn: -1 layers; 1 to 1000 are supported"},
        {IN, H, {.dropout = 1.5}, "layer rnn: dropout is 1.5; it must be 0 to 1"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        bench s;

        setup(&s);
        assert_null(ls_nn_lstm(s.model, "rnn", cases[i].in, cases[i].hidden, &cases[i].opt));
        assert_status(LS_EINVAL, ls_model_status(s.model));
        assert_error(cases[i].error);
        teardown(&s);
    }
}

static void wrong_inputs_are_errors(void **state)
{
    bench s;
    ls_layer *layer;
    ls_layer *cell;
    ls_rnn_state after;

    LS_UNUSED(state);
    setup(&s);
    layer = sequence_of(&s, true, NULL);
    cell = ls_nn_lstm_cell(s.model, "cell", IN, H, 0);
    assert_null(ls_forward(s.tape, layer, s.first.h));
    assert_error("rnn: the input must be (N, T, 3)");
    ls_tape_reset(s.tape);
    assert_null(ls_forward(s.tape, cell, s.x));
    assert_error("cell: the layer is a cell, which ls_forward_cell() runs");
    ls_tape_reset(s.tape);
    assert_null(ls_forward_sequence(s.tape, cell, s.x, NULL, NULL, NULL));
    assert_error("cell: the layer is not an LSTM or GRU");
    ls_tape_reset(s.tape);
    assert_null(ls_forward_sequence(s.tape, layer, s.x, NULL, &s.first, &after));
    assert_null(after.h);
    assert_error("rnn: the first state must be (1, 3, 5)");
    ls_tape_reset(s.tape);
    assert_null(ls_forward_sequence(s.tape, layer, s.x, s.x, NULL, NULL));
    assert_error("rnn: lstm_step: lengths (3, 4, 3) float32 must be (3) int64, from 0 to 4");
    ls_tape_reset(s.tape);
    ls_forward_cell(s.tape, layer, s.x, NULL, &after);
    assert_error("rnn: the layer is not a cell");
    ls_tape_reset(s.tape);
    ls_forward_cell(s.tape, cell, s.x, NULL, &after);
    assert_null(after.h);
    assert_error("cell: lstm_cell: ");
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_those_of_torch),
        cmocka_unit_test(initial_values_are_within_the_root_of_the_width),
        cmocka_unit_test(sequences_are_their_cells_row_by_row),
        cmocka_unit_test(short_sequences_and_empty_batches_work),
        cmocka_unit_test(a_layer_is_its_cell_and_goes_on_from_its_state),
        cmocka_unit_test(weight_gradients_of_all_steps_are_one_product),
        cmocka_unit_test(a_checkpointed_layer_has_the_same_gradients),
        cmocka_unit_test(mixed_precision_keeps_cell_states_in_float32),
        cmocka_unit_test(dropout_is_between_layers_in_training),
        cmocka_unit_test(wrong_options_are_errors),
        cmocka_unit_test(wrong_inputs_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
