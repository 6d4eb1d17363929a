/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_keep_steps.c - ls_tape_keep_steps(): steps of LSTM and GRU cells in checkpointed functions
 * have the same gradients, and their kernels run once; failures.
 */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "base/alloc.h"

#include <string.h>

enum { ROWS = 3, WIDTH = 2, STEPS = 3 };

/* Inputs and leaves: x, the states of both cells, their weights and biases. */
enum { X, H, C, G, N_INPUTS, LSTM_X = N_INPUTS, LSTM_H, LSTM_B, GRU_X, GRU_H, GRU_B, N_LEAVES };
enum { N_OUT = 3 };

#define N_BITS (4 * ROWS * WIDTH + 14 * WIDTH * WIDTH + 7 * WIDTH)

/* How many kernels have run. */
typedef struct kernel_counts {
    int lstm;
    int gru;
    int linear;
} kernel_counts;

static const device_ops *real_ops;
static kernel_counts counts;

static kernel_fn counting_find_kernel(device_state *self, const op_call *call)
{
    const kernel_fn kernel = real_ops->find_kernel(self, call);

    if (kernel == NULL)
        return NULL; // it is asked again for the same call with wider types
    counts.lstm += call->op == OP_LSTM;
    counts.gru += call->op == OP_GRU;
    counts.linear += call->op == OP_LINEAR;
    return kernel;
}

typedef enum way { PLAIN, CHECKPOINTED, NESTED } way;

typedef struct scene {
    ls_device *device;
    device_ops ops;
    ls_tape *tape;
    ls_tensor *t[N_LEAVES];
    way way;
    bool outer_keeps;
    int keeps_from[2]; /* a step, in forward and in backward; STEPS: never */
    bool is_again;
} scene;

static void set_up(scene *s, ls_dtype compute)
{
    *s = (scene){.device = open_reference(), .keeps_from = {STEPS, STEPS}};
    real_ops = s->device->ops;
    s->ops = *real_ops;
    s->ops.find_kernel = counting_find_kernel;
    s->device->ops = &s->ops;
    assert_status(LS_OK, ls_tape_create(s->device, &s->tape));
    assert_status(LS_OK, ls_tape_set_compute(s->tape, compute));
    for (int i = 0; i < N_LEAVES; i++) {
        const int64_t rows = i < N_INPUTS ? ROWS : i < GRU_X ? 4 * WIDTH : 3 * WIDTH;
        const int n_dims = i == LSTM_B || i == GRU_B ? 1 : 2;

        s->t[i] =
            random_tensor(s->device, LS_F32, n_dims, (int64_t[]){rows, WIDTH}, (uint64_t)i + 1);
        assert_status(LS_OK, ls_require_grad(s->t[i]));
    }
}

static void clean_up(scene *s)
{
    ls_tape_destroy(s->tape);
    destroy_all(s->t, N_LEAVES);
    s->device->ops = real_ops;
    assert_status(LS_OK, ls_device_close(s->device));
}

static void run_steps(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    scene *s = arg;
    ls_tensor *const *t = s->t;
    ls_tensor *h = in[H];
    ls_tensor *c = in[C];
    ls_tensor *g = in[G];

    for (int i = 0; i < STEPS; i++) {
        if (i == s->keeps_from[s->is_again])
            ls_tape_keep_steps(tape, 1);
        ls_lstm_cell(tape, in[X], h, c, t[LSTM_X], t[LSTM_H], t[LSTM_B], NULL, &h, &c);
        g = ls_gru_cell(tape, h, g, t[GRU_X], t[GRU_H], NULL, t[GRU_B]);
    }
    out[0] = h;
    out[1] = c;
    out[2] = g;
}

static void run_nested(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    const scene *s = arg;

    if (s->outer_keeps)
        ls_tape_keep_steps(tape, 1);
    ls_tape_checkpoint(tape, run_steps, arg, 0, in, N_INPUTS, out, N_OUT);
}

/* The sum of what backward starts from. */
static ls_tensor *forward(scene *s, ls_tensor **out)
{
    ls_tensor *sum;

    s->is_again = false;
    counts = (kernel_counts){.lstm = 0};
    if (s->way == PLAIN)
        run_steps(s->tape, s->t, out, s);
    else
        ls_tape_checkpoint(s->tape, s->way == NESTED ? run_nested : run_steps, s, 0, s->t, N_INPUTS,
                           out, N_OUT);
    sum = ls_add(s->tape, ls_mul(s->tape, out[0], out[2]), ls_cast(s->tape, out[1], LS_F32));
    s->is_again = true;
    return ls_sum(s->tape, ls_cast(s->tape, sum, LS_F32), NULL, 0, 0);
}

static ls_status step(scene *s)
{
    ls_tensor *out[N_OUT];

    return ls_backward(s->tape, forward(s, out), 1);
}

/* All gradients. */
static void read_bits(const scene *s, double *bits)
{
    int n = 0;

    for (int i = 0; i < N_LEAVES; i++) {
        for (size_t k = 0; k < ls_tensor_count(s->t[i]); k++)
            bits[n++] = element_of(ls_grad(s->t[i]), k);
    }
    assert_int_equal(n, N_BITS);
}

typedef struct keep_case {
    way way;
    bool outer_keeps;
    int keeps_from;
    int computed; /* steps of each cell, in forward and backward */
} keep_case;

static void check_case(ls_dtype compute, const keep_case *k, const double *want)
{
    double got[N_BITS];
    scene s;

    set_up(&s, compute);
    s.way = k->way;
    s.outer_keeps = k->outer_keeps;
    s.keeps_from[0] = s.keeps_from[1] = k->keeps_from;
    assert_status(LS_OK, step(&s));
    assert_int_equal(counts.lstm, k->computed);
    assert_int_equal(counts.gru, k->computed);
    assert_int_equal(counts.linear, 4 * k->computed);
    read_bits(&s, got);
    assert_memory_equal(got, want, sizeof(got));
    clean_up(&s);
}

static void retained_steps_have_the_same_gradients_and_are_computed_once(void **state)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    static const keep_case cases[] = {
        {PLAIN, false, 0, STEPS}, // outside of a function it does nothing
        {CHECKPOINTED, false, STEPS, 2 * STEPS},
        {CHECKPOINTED, false, 0, STEPS},
        {CHECKPOINTED, false, 1, STEPS + 1},
        {NESTED, false, STEPS, 3 * STEPS},
        {NESTED, true, STEPS, 3 * STEPS}, // the inner function does not keep them
        {NESTED, false, 0, 2 * STEPS},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        double want[N_BITS];
        scene s;

        set_up(&s, types[i]);
        assert_status(LS_OK, step(&s));
        read_bits(&s, want);
        clean_up(&s);
        for (size_t k = 0; k < LS_COUNT_OF(cases); k++)
            check_case(types[i], &cases[k], want);
    }
}

static void assert_fails(scene *s, ls_tensor *loss, const char *text)
{
    assert_status(LS_EINVAL, ls_backward(s->tape, loss, 1));
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
    clean_up(s);
}

static void steps_retained_elsewhere_in_backward_are_an_error(void **state)
{
    static const struct {
        int from[2];
        const char *text;
    } cases[] = {
        {{0, 1}, "the function retained 15 results of its steps in forward, but took 10 now"},
        {{0, STEPS}, "the function retained 15 results of its steps in forward, but took 0 now"},
        {{1, 0}, "the function did not retain this step in forward"},
        {{STEPS, 0}, "the function did not retain this step in forward"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        ls_tensor *out[N_OUT];
        scene s;

        set_up(&s, LS_F32);
        s.way = CHECKPOINTED;
        memcpy(s.keeps_from, cases[i].from, sizeof(s.keeps_from));
        assert_fails(&s, forward(&s, out), cases[i].text);
    }
}

static void a_retained_result_must_not_be_overwritten(void **state)
{
    const float zeros[ROWS * WIDTH] = {0};
    ls_tensor *out[N_OUT];
    ls_tensor *loss;
    scene s;

    LS_UNUSED(state);
    set_up(&s, LS_F32);
    s.way = CHECKPOINTED;
    s.keeps_from[0] = s.keeps_from[1] = 0;
    loss = forward(&s, out);
    assert_status(LS_OK, ls_tensor_write(out[1], zeros, LS_COUNT_OF(zeros)));
    assert_fails(&s, loss, "a result that ls_tape_keep_steps() retained was overwritten");
}

/* Each allocation of a step fails once; nothing leaks, and the next step is right. */
static void failed_allocations_are_reported(void **state)
{
    enum { MOST = 1000 };
    double want[N_BITS];
    double got[N_BITS];
    int n_failed = 0;
    scene s;

    LS_UNUSED(state);
    set_up(&s, LS_F32);
    assert_status(LS_OK, step(&s));
    read_bits(&s, want);
    clean_up(&s);
    for (int at = 1; at < MOST && n_failed == at - 1; at++) {
        ls_status st;

        set_up(&s, LS_F32);
        s.way = CHECKPOINTED;
        s.keeps_from[0] = s.keeps_from[1] = 0;
        ls_alloc_fail_at((unsigned long)at);
        st = step(&s);
        ls_alloc_fail_at(0);
        n_failed += st != LS_OK;
        assert_true(st == LS_OK || st == LS_ENOMEM);
        ls_tape_reset(s.tape);
        for (int i = 0; i < N_LEAVES; i++)
            ls_zero_grad(s.t[i]);
        assert_status(LS_OK, step(&s));
        read_bits(&s, got);
        assert_memory_equal(got, want, sizeof(got));
        clean_up(&s);
    }
    assert_true(n_failed > 10 && n_failed < MOST - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retained_steps_have_the_same_gradients_and_are_computed_once),
        cmocka_unit_test(steps_retained_elsewhere_in_backward_are_an_error),
        cmocka_unit_test(a_retained_result_must_not_be_overwritten),
        cmocka_unit_test(failed_allocations_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
