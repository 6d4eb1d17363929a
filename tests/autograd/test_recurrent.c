/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recurrent.c - LSTM and GRU cells: their formulas in single operators, their gradients
 * against differences, steps that some rows do not have, mixed precision, and errors.
 */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

enum { N = 3, IN = 2, H = 3, STEPS = 3, MAX_INPUTS = 7 };

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *in[MAX_INPUTS]; /* x, h, c, w_ih, w_hh, b_ih, b_hh; without c for the GRU */
    int n;
} bench;

/* `gates` is 4 for the LSTM, 3 for the GRU. */
static bench setup(int64_t rows, int64_t gates)
{
    bench s = {.device = open_reference()};
    const int64_t dims[MAX_INPUTS][2] = {{rows, IN},     {rows, H},   {rows, H},  {gates * H, IN},
                                         {gates * H, H}, {gates * H}, {gates * H}};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    for (int i = 0; i < MAX_INPUTS; i++) {
        if (gates == 3 && i == 2)
            continue;
        s.in[s.n++] = random_tensor(s.device, LS_F64, i < 5 ? 2 : 1, dims[i], (uint64_t)i + 1);
    }
    return s;
}

static void teardown(bench *s)
{
    destroy_all(s->in, s->n);
    ls_tape_destroy(s->tape);
    ls_device_close(s->device);
}

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

static void assert_same(const ls_tensor *got, const ls_tensor *want, double tolerance)
{
    double *values;

    assert_non_null(got);
    assert_non_null(want);
    values = elements_of(want);
    assert_elements(got, values, tolerance);
    ls_free(values);
}

/* --- formulas --- */

/* Columns of gate i. */
static ls_tensor *gate(ls_tape *tape, ls_tensor *sums, int i)
{
    return ls_slice(tape, sums, 1, (int64_t)i * H, H);
}

static void lstm_cell_is_its_formulas(void **state)
{
    static const int64_t rows[] = {0, 1, N};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        bench s = setup(rows[i], 4);
        ls_tensor *sums = ls_add(s.tape, ls_linear(s.tape, s.in[0], s.in[3], s.in[5]),
                                 ls_linear(s.tape, s.in[1], s.in[4], s.in[6]));
        ls_tensor *f = ls_sigmoid(s.tape, gate(s.tape, sums, 1));
        ls_tensor *new = ls_mul(s.tape, ls_sigmoid(s.tape, gate(s.tape, sums, 0)),
                                ls_tanh(s.tape, gate(s.tape, sums, 2)));
        ls_tensor *c = ls_add(s.tape, ls_mul(s.tape, f, s.in[2]), new);
        ls_tensor *h =
            ls_mul(s.tape, ls_sigmoid(s.tape, gate(s.tape, sums, 3)), ls_tanh(s.tape, c));
        ls_tensor *h_out;
        ls_tensor *c_out;

        ls_lstm_cell(s.tape, s.in[0], s.in[1], s.in[2], s.in[3], s.in[4], s.in[5], s.in[6], &h_out,
                     &c_out);
        assert_same(h_out, h, 1e-15);
        assert_same(c_out, c, 1e-15);
        teardown(&s);
    }
}

static void gru_cell_is_its_formulas(void **state)
{
    static const int64_t rows[] = {0, 1, N};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        bench s = setup(rows[i], 3);
        ls_tensor *a = ls_linear(s.tape, s.in[0], s.in[2], s.in[4]);
        ls_tensor *b = ls_linear(s.tape, s.in[1], s.in[3], s.in[5]);
        ls_tensor *sums = ls_add(s.tape, a, b);
        ls_tensor *r = ls_sigmoid(s.tape, gate(s.tape, sums, 0));
        ls_tensor *z = ls_sigmoid(s.tape, gate(s.tape, sums, 1));
        ls_tensor *n = ls_tanh(
            s.tape, ls_add(s.tape, gate(s.tape, a, 2), ls_mul(s.tape, r, gate(s.tape, b, 2))));
        ls_tensor *h = ls_add(s.tape, ls_mul(s.tape, ls_scale(s.tape, z, -1, 1), n),
                              ls_mul(s.tape, z, s.in[1]));

        assert_same(ls_gru_cell(s.tape, s.in[0], s.in[1], s.in[2], s.in[3], s.in[4], s.in[5]), h,
                    1e-15);
        teardown(&s);
    }
}

static void an_absent_state_is_zeros(void **state)
{
    bench s = setup(N, 4);
    bench g = setup(N, 3);
    ls_tensor *zeros = ls_full(s.tape, LS_F64, 2, (int64_t[]){N, H}, 0);
    ls_tensor *h[2];
    ls_tensor *c[2];
    ls_tensor *other = ls_full(g.tape, LS_F64, 2, (int64_t[]){N, H}, 0);

    LS_UNUSED(state);
    ls_lstm_cell(s.tape, s.in[0], NULL, NULL, s.in[3], s.in[4], NULL, s.in[6], &h[0], &c[0]);
    ls_lstm_cell(s.tape, s.in[0], zeros, zeros, s.in[3], s.in[4], NULL, s.in[6], &h[1], &c[1]);
    assert_same(h[0], h[1], 0);
    assert_same(c[0], c[1], 0);
    assert_same(ls_gru_cell(g.tape, g.in[0], NULL, g.in[2], g.in[3], NULL, g.in[5]),
                ls_gru_cell(g.tape, g.in[0], other, g.in[2], g.in[3], NULL, g.in[5]), 0);
    teardown(&s);
    teardown(&g);
}

/* --- gradients --- */

/* What the loss depends on, as bits. */
enum { USES_H = 1, USES_C = 2 };

static ls_tensor *sum_of_squares(ls_tape *tape, ls_tensor *x)
{
    return ls_sum(tape, ls_square(tape, x), NULL, 0, 0);
}

static ls_tensor *lstm_loss(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    const int uses = *(const int *)arg;
    ls_tensor *h = in[1];
    ls_tensor *c = in[2];
    ls_tensor *loss = NULL;

    for (int t = 0; t < STEPS; t++)
        ls_lstm_cell(tape, in[0], h, c, in[3], in[4], in[5], in[6], &h, &c);
    if ((uses & USES_H) != 0)
        loss = sum_of_squares(tape, h);
    if ((uses & USES_C) != 0)
        loss = loss == NULL ? sum_of_squares(tape, c)
                            : ls_add(tape, loss, ls_sum(tape, c, NULL, 0, 0));
    return loss;
}

static ls_tensor *gru_loss(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    ls_tensor *h = in[1];

    LS_UNUSED(arg);
    for (int t = 0; t < STEPS; t++)
        h = ls_gru_cell(tape, in[0], h, in[2], in[3], in[4], in[5]);
    return sum_of_squares(tape, h);
}

/* With respect to the inputs that `leaves` has bits of. */
static void check_gradients(ls_grad_check_fn loss, void *arg, int64_t rows, int64_t gates,
                            unsigned leaves)
{
    bench s = setup(rows, gates);

    for (int i = 0; i < s.n; i++) {
        if ((leaves >> i & 1) != 0)
            assert_status(LS_OK, ls_require_grad(s.in[i]));
    }
    assert_status(LS_OK, ls_grad_check(loss, arg, s.in, s.n, 1e-6, NULL));
    teardown(&s);
}

static void lstm_cell_has_the_right_gradients(void **state)
{
    static const unsigned leaves[] = {0x7F, 1U << 2, 1U << 1, 1U << 4, 0x29};
    static const int uses[] = {USES_H | USES_C, USES_H, USES_C};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(leaves) * LS_COUNT_OF(uses); i++) {
        int which = uses[i % LS_COUNT_OF(uses)];

        check_gradients(lstm_loss, &which, N, 4, leaves[i / LS_COUNT_OF(uses)]);
        check_gradients(lstm_loss, &which, 0, 4, leaves[i / LS_COUNT_OF(uses)]);
    }
}

static void gru_cell_has_the_right_gradients(void **state)
{
    static const unsigned leaves[] = {0x3F, 1U << 1, 1U << 3, 0x15};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(leaves); i++) {
        check_gradients(gru_loss, NULL, N, 3, leaves[i]);
        check_gradients(gru_loss, NULL, 0, 3, leaves[i]);
    }
}

/* --- lengths --- */

static ls_tensor *lengths_of(ls_device *device, const int64_t *values)
{
    const int64_t n = N;
    ls_tensor *t = NULL;

    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, &n, &t));
    assert_status(LS_OK, ls_tensor_write(t, values, N));
    return t;
}

/* What all steps give, and the states behind them. */
typedef struct trace {
    ls_tensor *y[STEPS];
    ls_tensor *h;
    ls_tensor *c;
} trace;

static trace run_steps(ls_tape *tape, ls_tensor *const *in, bool is_lstm, ls_tensor *lengths)
{
    const int w = is_lstm ? 3 : 2;
    recurrent_step step = {.lengths = lengths, .n_steps = STEPS};
    trace r = {.h = in[1], .c = in[2]};

    for (int t = 0; t < STEPS; t++) {
        ls_tensor *a = ls_linear(tape, in[0], in[w], in[w + 2]);
        ls_tensor *b = ls_linear(tape, r.h, in[w + 1], in[w + 3]);

        step.position = t;
        if (is_lstm)
            autograd_lstm_step(tape, a, b, &step, &r.h, &r.c, &r.y[t]);
        else
            autograd_gru_step(tape, a, b, &step, &r.h, &r.y[t]);
    }
    return r;
}

/* Row by row: as long as a row has steps it is what it is without lengths, then its state stays. */
static void rows_keep_their_states_behind_their_lengths(void **state)
{
    const int64_t lengths[N] = {2, 0, 3};

    LS_UNUSED(state);
    for (int64_t gates = 3; gates <= 4; gates++) {
        bench s = setup(N, gates);
        ls_tensor *given = lengths_of(s.device, lengths);
        const trace whole = run_steps(s.tape, s.in, gates == 4, NULL);
        const trace some = run_steps(s.tape, s.in, gates == 4, given);

        for (size_t i = 0; i < (size_t)N * H; i++) {
            const int64_t length = lengths[i / H];

            for (int t = 0; t < STEPS; t++)
                assert_true(element_of(some.y[t], i) ==
                            (t < length ? element_of(whole.y[t], i) : 0));
            assert_true(element_of(some.h, i) ==
                        element_of(length == 0 ? s.in[1] : whole.y[length - 1], i));
            if (gates == 4 && length == 0)
                assert_true(element_of(some.c, i) == element_of(s.in[2], i));
            if (gates == 4 && length == STEPS)
                assert_true(element_of(some.c, i) == element_of(whole.c, i));
        }
        ls_tensor_destroy(given);
        teardown(&s);
    }
}

typedef struct length_case {
    bool is_lstm;
    ls_tensor *lengths;
} length_case;

static ls_tensor *steps_loss(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    const length_case *c = arg;
    const trace r = run_steps(tape, in, c->is_lstm, c->lengths);
    ls_tensor *loss = sum_of_squares(tape, r.h);

    for (int t = 0; t < STEPS; t++)
        loss = ls_add(tape, loss, ls_scale(tape, sum_of_squares(tape, r.y[t]), 1 + t, 0));
    return c->is_lstm ? ls_add(tape, loss, ls_sum(tape, r.c, NULL, 0, 0)) : loss;
}

static void steps_with_lengths_have_the_right_gradients(void **state)
{
    LS_UNUSED(state);
    for (int64_t gates = 3; gates <= 4; gates++) {
        bench s = setup(N, gates);
        length_case c = {.is_lstm = gates == 4,
                         .lengths = lengths_of(s.device, (int64_t[]){2, 0, 3})};

        for (int i = 0; i < s.n; i++)
            assert_status(LS_OK, ls_require_grad(s.in[i]));
        assert_status(LS_OK, ls_grad_check(steps_loss, &c, s.in, s.n, 1e-6, NULL));
        ls_tensor_destroy(c.lengths);
        teardown(&s);
    }
}

static void lengths_outside_of_the_sequence_are_errors(void **state)
{
    static const int64_t wrong[][N] = {{1, STEPS + 1, 2}, {1, -1, 2}};

    LS_UNUSED(state);
    for (size_t i = 0; i < 2 * LS_COUNT_OF(wrong); i++) {
        const bool is_lstm = i % 2 == 0;
        bench s = setup(N, is_lstm ? 4 : 3);
        ls_tensor *lengths = lengths_of(s.device, wrong[i / 2]);
        char text[96];
        ls_status st;

        (void)run_steps(s.tape, s.in, is_lstm, lengths);
        st = ls_tape_status(s.tape);
        if (st == LS_OK) // a stream device reports it at the next wait
            st = device_synchronize(s.device, "the steps");
        assert_status(LS_EINVAL, st);
        (void)snprintf(text, sizeof(text), "length %d of row 1 is outside [0, 3]",
                       (int)wrong[i / 2][1]);
        assert_error(text);
        ls_tensor_destroy(lengths);
        teardown(&s);
    }
}

/* --- types, checkpoints, errors --- */

static ls_tensor *narrow_of(ls_device *device, const ls_tensor *t)
{
    double *values = elements_of(t);
    ls_tensor *narrow = tensor_of(device, LS_F32, ls_tensor_n_dims(t), ls_tensor_dims(t), values);

    ls_free(values);
    return narrow;
}

static void the_cell_state_stays_float32_in_mixed_precision(void **state)
{
    static const ls_dtype types[] = {LS_BF16, LS_F16};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        bench s = setup(N, 4);
        ls_tensor *in[MAX_INPUTS];
        ls_tensor *h[2];
        ls_tensor *c[2];

        ls_lstm_cell(s.tape, s.in[0], s.in[1], s.in[2], s.in[3], s.in[4], s.in[5], s.in[6], &h[0],
                     &c[0]);
        for (int k = 0; k < s.n; k++)
            in[k] = narrow_of(s.device, s.in[k]);
        for (int k = 0; k < s.n; k++)
            assert_status(LS_OK, ls_require_grad(in[k]));
        {
            double *want_h = elements_of(h[0]);
            double *want_c = elements_of(c[0]);

            assert_status(LS_OK, ls_tape_set_compute(s.tape, types[i]));
            ls_lstm_cell(s.tape, in[0], in[1], in[2], in[3], in[4], in[5], in[6], &h[1], &c[1]);
            assert_int_equal(ls_tensor_dtype(h[1]), types[i]);
            assert_int_equal(ls_tensor_dtype(c[1]), LS_F32);
            assert_elements(h[1], want_h, 2e-2);
            assert_elements(c[1], want_c, 2e-2);
            ls_free(want_h);
            ls_free(want_c);
        }
        assert_status(LS_OK, ls_backward(s.tape,
                                         ls_add(s.tape, ls_sum(s.tape, h[1], NULL, 0, 0),
                                                ls_sum(s.tape, c[1], NULL, 0, 0)),
                                         1));
        for (int k = 0; k < s.n; k++)
            assert_int_equal(ls_tensor_dtype(ls_grad(in[k])), LS_F32);
        destroy_all(in, s.n);
        teardown(&s);
    }
}

static void two_steps(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    if (arg != NULL)
        ls_tape_keep_steps(tape, 1);
    ls_lstm_cell(tape, in[0], in[1], in[2], in[3], in[4], in[5], in[6], &out[0], &out[1]);
    ls_lstm_cell(tape, in[0], out[0], out[1], in[3], in[4], in[5], in[6], &out[0], &out[1]);
}

/* The gradients of all inputs behind each other. */
static void gradients_of_two_steps(bool is_checkpointed, bool keeps_steps, double *out)
{
    bench s = setup(N, 4);
    ls_tensor *state[2];
    size_t at = 0;

    for (int i = 0; i < s.n; i++)
        assert_status(LS_OK, ls_require_grad(s.in[i]));
    if (is_checkpointed)
        ls_tape_checkpoint(s.tape, two_steps, keeps_steps ? &s : NULL, 0, s.in, s.n, state, 2);
    else
        two_steps(s.tape, s.in, state, NULL);
    assert_status(LS_OK, ls_backward(s.tape, sum_of_squares(s.tape, state[0]), 1));
    for (int i = 0; i < s.n; i++) {
        for (size_t k = 0; k < ls_tensor_count(s.in[i]); k++)
            out[at++] = element_of(ls_grad(s.in[i]), k);
    }
    teardown(&s);
}

static void checkpointed_steps_have_the_same_gradients(void **state)
{
    enum { COUNT = N * (IN + 2 * H) + 4 * H * (IN + H + 2) };
    double plain[COUNT];
    double checkpointed[COUNT];

    LS_UNUSED(state);
    gradients_of_two_steps(false, false, plain);
    gradients_of_two_steps(true, false, checkpointed);
    assert_memory_equal(plain, checkpointed, sizeof(plain));
    gradients_of_two_steps(true, true, checkpointed);
    assert_memory_equal(plain, checkpointed, sizeof(plain));
}

static void wrong_shapes_are_errors(void **state)
{
    bench s = setup(N, 4);
    bench g = setup(N, 3);
    ls_tensor *h = s.in[0];
    ls_tensor *c;

    LS_UNUSED(state);
    ls_lstm_cell(s.tape, s.in[0], s.in[1], s.in[0], s.in[3], s.in[4], NULL, NULL, &h, &c);
    assert_null(h);
    assert_null(c);
    assert_error("lstm_cell: lstm_step: cell state (3, 2) must be (3, 3)");
    ls_tape_reset(s.tape);
    ls_lstm_cell(s.tape, s.in[0], s.in[0], s.in[2], s.in[3], s.in[4], NULL, NULL, &h, &c);
    assert_error("lstm_cell: linear: input (3, 2) does not fit weight (12, 3)");
    ls_tape_reset(s.tape);
    ls_lstm_cell(s.tape, s.in[0], s.in[1], s.in[2], s.in[3], s.in[4], NULL, NULL, &h, NULL);
    assert_null(h);
    assert_error("lstm_cell: c_out is NULL");
    assert_null(ls_gru_cell(g.tape, g.in[0], g.in[1], g.in[2], g.in[2], NULL, NULL));
    assert_error("gru_cell: linear: input (3, 3) does not fit weight (9, 2)");
    ls_tape_reset(g.tape);
    assert_null(ls_gru_cell(g.tape, g.in[0], g.in[1], NULL, g.in[3], NULL, NULL));
    assert_error("gru_cell: linear: weight is NULL");
    assert_null(ls_gru_cell(g.tape, NULL, NULL, g.in[2], g.in[3], NULL, NULL));
    teardown(&s);
    teardown(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lstm_cell_is_its_formulas),
        cmocka_unit_test(gru_cell_is_its_formulas),
        cmocka_unit_test(an_absent_state_is_zeros),
        cmocka_unit_test(lstm_cell_has_the_right_gradients),
        cmocka_unit_test(gru_cell_has_the_right_gradients),
        cmocka_unit_test(rows_keep_their_states_behind_their_lengths),
        cmocka_unit_test(steps_with_lengths_have_the_right_gradients),
        cmocka_unit_test(lengths_outside_of_the_sequence_are_errors),
        cmocka_unit_test(the_cell_state_stays_float32_in_mixed_precision),
        cmocka_unit_test(checkpointed_steps_have_the_same_gradients),
        cmocka_unit_test(wrong_shapes_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
