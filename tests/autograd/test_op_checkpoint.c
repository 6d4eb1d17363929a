/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_op_checkpoint.c - ls_tape_checkpoint(): the same bits of losses, gradients and running
 * statistics as without it, in the same order of completion, with less memory.
 */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "tensor/pool.h"
#include "tensor/tensor.h"

#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

enum { WEIGHT, BIAS, SCALE, SHIFT, FIRST, SHARED, N_LEAVES };
enum { MEAN = N_LEAVES, VARIANCE, N_TENSORS };

#define ROWS  6
#define WIDTH 5
#define PARTS 4

/* How the parts of the network are run. */
typedef enum mode { PLAIN, EACH_PART, NESTED, N_MODES } mode;

typedef struct net {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *t[N_TENSORS];
    ls_tensor *x;
    ls_tensor *goal;
    mode mode;
    int n_ready;
    const ls_tensor *ready[N_LEAVES]; /* in the order of completion */
} net;

static ls_status note(void *arg, ls_tensor *leaf)
{
    net *n = arg;

    assert_true(n->n_ready < N_LEAVES);
    n->ready[n->n_ready++] = leaf;
    return LS_OK;
}

static void open_net(net *n, mode m, ls_dtype compute)
{
    *n = (net){.device = open_reference(), .mode = m};
    assert_status(LS_OK, ls_tape_create(n->device, &n->tape));
    assert_status(LS_OK, ls_tape_set_compute(n->tape, compute));
    ls_tape_set_random(n->tape, 11, 7);
    ls_tape_on_grad_ready(n->tape, note, n);
    for (int i = 0; i < N_TENSORS; i++) {
        const bool is_matrix = i == WEIGHT || i == FIRST || i == SHARED;
        const int64_t dims[] = {WIDTH, WIDTH};

        n->t[i] = random_tensor(n->device, LS_F32, is_matrix ? 2 : 1, dims, (uint64_t)i + 1);
        if (i < N_LEAVES)
            assert_status(LS_OK, ls_require_grad(n->t[i]));
    }
    n->x = random_tensor(n->device, LS_F32, 2, (int64_t[]){ROWS, WIDTH}, 77);
    n->goal = random_tensor(n->device, LS_F32, 2, (int64_t[]){ROWS, WIDTH}, 78);
}

static void close_net(net *n)
{
    ls_tape_destroy(n->tape);
    destroy_all(n->t, N_TENSORS);
    destroy_all((ls_tensor *[]){n->x, n->goal}, 2);
    assert_status(LS_OK, ls_device_close(n->device));
}

/* What a part gets besides its inputs; `outside` is a value of the tape. */
typedef struct part_arg {
    net *n;
    ls_tensor *outside;
} part_arg;

/* Dropout, batch norm, a weight that all parts share, and a value that is no input of the part. */
static void half_part(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    const part_arg *a = arg;
    ls_tensor *const *t = a->n->t;
    ls_tensor *y = ls_linear(tape, in[0], t[WEIGHT], t[BIAS]);

    y = ls_batch_norm(tape, y, t[SCALE], t[SHIFT], t[MEAN], t[VARIANCE], NULL);
    y = ls_dropout(tape, ls_relu(tape, y), 0.3);
    out[0] = ls_add(tape, ls_linear(tape, y, t[SHARED], NULL), a->outside);
}

static void part(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    const part_arg *a = arg;
    ls_tensor *half;

    if (a->n->mode == NESTED) {
        ls_tape_checkpoint(tape, half_part, arg, sizeof(*a), in, 1, &half, 1);
        ls_tape_checkpoint(tape, half_part, arg, 0, &half, 1, out, 1);
        out[1] = ls_mul(tape, out[0], half);
        return;
    }
    half_part(tape, in, &half, arg);
    half_part(tape, &half, out, arg);
    out[1] = ls_mul(tape, out[0], half);
}

static ls_tensor *forward(net *n)
{
    ls_tensor *const outside = ls_linear(n->tape, n->x, n->t[FIRST], NULL);
    ls_tensor *y[2] = {outside, NULL};

    for (int i = 0; i < PARTS; i++) {
        part_arg a = {.n = n, .outside = outside};
        ls_tensor *const in = y[0];
        ls_tensor *first;

        if (n->mode == PLAIN)
            part(n->tape, &in, y, &a);
        else
            ls_tape_checkpoint(n->tape, part, &a, sizeof(a), &in, 1, y, 2);
        a.n = NULL; // the copy counts
        first = ls_add(n->tape, y[0], y[1]);
        y[0] = ls_linear(n->tape, first, n->t[SHARED], NULL);
    }
    return ls_mse_loss(n->tape, ls_cast(n->tape, y[0], LS_F32), n->goal);
}

/* All bits of one step, in one array: the loss, the running statistics, the gradients. */
#define N_BITS (1 + 3 * WIDTH * WIDTH + 5 * WIDTH)

static void step(mode m, ls_dtype compute, double *bits, int *order)
{
    net n;
    ls_tensor *loss;
    int count = 1;

    open_net(&n, m, compute);
    loss = forward(&n);
    assert_status(LS_OK, ls_tape_status(n.tape));
    bits[0] = element_of(loss, 0);
    assert_status(LS_OK, ls_backward(n.tape, loss, 3));
    for (int i = 0; i < N_TENSORS; i++) {
        const ls_tensor *from = i < N_LEAVES ? ls_grad(n.t[i]) : n.t[i];

        for (size_t k = 0; k < ls_tensor_count(from); k++)
            bits[count++] = element_of(from, k);
    }
    assert_int_equal(count, N_BITS);
    assert_int_equal(n.n_ready, N_LEAVES);
    for (int i = 0; i < N_LEAVES; i++) {
        for (int k = 0; k < N_LEAVES; k++)
            order[i] = n.ready[i] == n.t[k] ? k : order[i];
    }
    close_net(&n);
}

static void every_way_gives_the_same_bits_in_the_same_order(void **state)
{
    const ls_dtype types[] = {LS_F32, LS_BF16};

    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(types); t++) {
        double want[N_BITS];
        int want_order[N_LEAVES];

        step(PLAIN, types[t], want, want_order);
        for (int m = EACH_PART; m < N_MODES; m++) {
            double got[N_BITS];
            int order[N_LEAVES];

            step((mode)m, types[t], got, order);
            assert_memory_equal(got, want, sizeof(want));
            assert_memory_equal(order, want_order, sizeof(order));
        }
    }
}

/* --- single properties --- */

/* y = relu(x w^T) twice; what lies between is kept for the test to look at. */
typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x;    /* (2,2): 1 2, 3 4 */
    ls_tensor *w;    /* (2,2): 1 0, 0 1, a leaf */
    ls_tensor *ones; /* (1,4) */
    ls_tensor *between;
    int n_calls;
    int changes_at; /* the call that does something else */
    bool resets;
    bool runs_backward;
    bool leaves_null;
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.x = tensor_of(s.device, LS_F32, 2, (int64_t[]){2, 2}, (double[]){1, 2, 3, 4});
    s.w = tensor_of(s.device, LS_F32, 2, (int64_t[]){2, 2}, (double[]){1, 0, 0, 1});
    s.ones = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 4}, (double[]){1, 1, 1, 1});
    assert_status(LS_OK, ls_require_grad(s.w));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all((ls_tensor *[]){s->x, s->w, s->ones}, 3);
    assert_status(LS_OK, ls_device_close(s->device));
}

static ls_tensor *sum(bench *s, ls_tensor *y)
{
    return ls_linear(s->tape, ls_reshape(s->tape, y, 2, (int64_t[]){1, 4}), s->ones, NULL);
}

static void twice(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    bench *s = arg;

    s->n_calls++;
    s->between = ls_relu(tape, ls_linear(tape, in[0], s->w, NULL));
    if (s->resets)
        ls_tape_reset(tape);
    if (s->runs_backward)
        (void)autograd_fail(tape, ls_backward(tape, sum(s, s->between), 1));
    if (s->n_calls == s->changes_at)
        out[0] = ls_reshape(tape, s->between, 1, (int64_t[]){4});
    else if (!s->leaves_null)
        out[0] = ls_relu(tape, ls_linear(tape, s->between, s->w, NULL));
}

static ls_tensor *checkpoint(bench *s, ls_tensor *x)
{
    ls_tensor *y = x;

    ls_tape_checkpoint(s->tape, twice, s, 0, &x, 1, &y, 1);
    return y;
}

static void values_inside_are_released(void **state)
{
    bench s = setup();
    ls_tensor *y = checkpoint(&s, s.x);

    LS_UNUSED(state);
    assert_null(s.between->storage);
    assert_elements(y, (double[]){1, 2, 3, 4}, 0);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, y), 1));
    assert_int_equal(s.n_calls, 2);
    assert_null(s.between->storage);
    assert_elements(ls_grad(s.w), (double[]){8, 12, 8, 12}, 0);
    ls_tape_reset(s.tape);

    ls_tape_set_training(s.tape, 0);
    y = checkpoint(&s, s.x);
    assert_null(s.between->storage);
    assert_elements(y, (double[]){1, 2, 3, 4}, 0);
    assert_int_equal(s.n_calls, 3);
    teardown(&s);
}

/* What the device allocates for a network of 30 parts. */
static const device_ops *real_ops;
static size_t allocated;

static void *counting_alloc(device_state *self, size_t bytes)
{
    allocated += bytes;
    return real_ops->alloc(self, bytes);
}

static size_t memory_of(bool is_checkpointed)
{
    bench s = setup();
    device_ops ops = *s.device->ops;
    ls_tensor *rows = random_tensor(s.device, LS_F32, 2, (int64_t[]){600, 2}, 5);
    ls_tensor *y = rows;

    real_ops = s.device->ops;
    ops.alloc = counting_alloc;
    s.device->ops = &ops;
    allocated = 0;
    for (int i = 0; i < 30; i++) {
        if (is_checkpointed)
            y = checkpoint(&s, y);
        else
            twice(s.tape, &y, &y, &s);
    }
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, rows), 1));
    s.device->ops = real_ops;
    ls_tensor_destroy(rows);
    teardown(&s);
    return allocated;
}

/* 120 values without; 30 outputs and the values and gradients of a part with. */
static void memory_is_that_of_outputs_and_one_part(void **state)
{
    LS_UNUSED(state);
    assert_true(memory_of(true) * 2 < memory_of(false));
}

/* Without any leaf inside the outputs are constants, and the function does not run again. */
static void a_part_without_leaves_is_a_constant(void **state)
{
    bench s = setup();
    ls_tensor *constant = s.w;
    ls_tensor *y;

    LS_UNUSED(state);
    s.w = s.x;
    y = checkpoint(&s, s.x);
    s.w = constant;
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, ls_linear(s.tape, y, s.w, NULL)), 1));
    assert_int_equal(s.n_calls, 1);
    teardown(&s);
}

static void identity(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    LS_UNUSED(tape);
    LS_UNUSED(arg);
    out[0] = in[0];
    out[1] = in[1];
}

static void outputs_may_be_inputs_and_leaves(void **state)
{
    bench s = setup();
    ls_tensor *in[2] = {ls_linear(s.tape, s.x, s.w, NULL), s.w};
    ls_tensor *out[2];

    LS_UNUSED(state);
    ls_tape_checkpoint(s.tape, identity, NULL, 0, in, 2, out, 2);
    assert_elements(out[1], (double[]){1, 0, 0, 1}, 0);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, ls_add(s.tape, out[0], out[1])), 1));
    assert_elements(ls_grad(s.w), (double[]){5, 7, 5, 7}, 0);
    teardown(&s);
}

static void an_output_off_the_loss_has_gradient_0(void **state)
{
    bench s = setup();
    ls_tensor *in[2] = {ls_linear(s.tape, s.x, s.w, NULL), s.w};
    ls_tensor *out[2];

    LS_UNUSED(state);
    ls_tape_checkpoint(s.tape, identity, NULL, 0, in, 2, out, 2);
    ls_tape_keep(s.tape, out[1]);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, out[0]), 1));
    assert_elements(ls_grad(s.w), (double[]){4, 6, 4, 6}, 0);
    assert_elements(ls_grad(out[1]), (double[]){0, 0, 0, 0}, 0);
    teardown(&s);
}

static void what_backward_needs_again_must_not_change(void **state)
{
    bench s = setup();
    ls_tensor *y = checkpoint(&s, s.x);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_write(s.x, (float[]){0, 0, 0, 0}, 4));
    assert_status(LS_EINVAL, ls_backward(s.tape, sum(&s, y), 1));
    assert_error("checkpoint backward: a tensor that the function reads, (2, 2) float32 was");
    ls_tape_reset(s.tape);
    y = checkpoint(&s, s.x);
    assert_status(LS_OK, ls_tensor_write(s.w, (float[]){1, 0, 0, 1}, 4));
    assert_status(LS_EINVAL, ls_backward(s.tape, sum(&s, y), 1));
    assert_error("overwritten");
    teardown(&s);
}

static void done_spares_the_inputs_of_the_function(void **state)
{
    bench s = setup();
    ls_tensor *x = ls_add(s.tape, s.x, s.x);
    ls_tensor *y = checkpoint(&s, x);

    LS_UNUSED(state);
    ls_tape_done(s.tape, x);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, y), 1));
    assert_elements(ls_grad(s.w), (double[]){16, 24, 16, 24}, 0);
    teardown(&s);
}

/* 2x; with `arg` in a function within this one. */
static void doubled(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    if (arg != NULL)
        ls_tape_checkpoint(tape, doubled, NULL, 0, in, 1, out, 1);
    else
        out[0] = ls_add(tape, in[0], in[0]);
    ls_tape_done(tape, in[0]);
}

static void done_in_the_function_spares_values_of_outside(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    for (int training = 1; training >= 0; training--) {
        for (int nested = 0; nested < 2; nested++) {
            ls_tensor *x;
            ls_tensor *y;

            ls_tape_reset(s.tape);
            ls_zero_grad(s.w);
            ls_tape_set_training(s.tape, training);
            x = ls_add(s.tape, s.w, s.w);
            ls_tape_checkpoint(s.tape, doubled, nested == 0 ? NULL : &s, 0, &x, 1, &y, 1);
            assert_elements(y, (double[]){4, 0, 0, 4}, 0);
            if (!training)
                continue;
            assert_status(LS_OK, ls_backward(s.tape, sum(&s, y), 1));
            assert_elements(ls_grad(s.w), (double[]){4, 4, 4, 4}, 0);
        }
    }
    teardown(&s);
}

static void without_input(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    const bench *s = arg;

    LS_UNUSED(in);
    out[0] = ls_relu(tape, s->w);
}

static void an_input_that_was_released_is_refused(void **state)
{
    bench s = setup();
    ls_tensor *x = ls_add(s.tape, s.x, s.x);
    ls_tensor *y;

    LS_UNUSED(state);
    ls_tape_done(s.tape, x);
    ls_tape_checkpoint(s.tape, without_input, &s, 0, &x, 1, &y, 1);
    assert_null(y);
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("checkpoint: input 0 (2, 2) float32 was released");
    teardown(&s);
}

static void a_function_that_does_something_else_is_named(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    s.changes_at = 2;
    assert_status(LS_EINVAL, ls_backward(s.tape, sum(&s, checkpoint(&s, s.x)), 1));
    assert_error("made output 0 (2, 2) float32 in forward, but (4) float32 now");
    ls_tape_reset(s.tape);
    s.changes_at = 0;
    s.leaves_null = true;
    assert_null(checkpoint(&s, s.x));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("checkpoint: the function left output 0 NULL");
    ls_tape_reset(s.tape);
    s.leaves_null = false;
    s.resets = true;
    assert_null(checkpoint(&s, s.x));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("a checkpointed function reset its tape");
    ls_tape_reset(s.tape);
    s.resets = false;
    s.runs_backward = true;
    assert_null(checkpoint(&s, s.x));
    assert_error("backward: called by a checkpointed function");
    ls_tape_reset(s.tape);
    s.runs_backward = false;
    assert_null(checkpoint(&s, s.ones));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("linear: input (1, 4) does not fit weight (2, 2)");
    ls_tape_reset(s.tape);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, checkpoint(&s, s.x)), 1));
    teardown(&s);
}

static void the_leaf_that_is_not_used_again_is_named(void **state)
{
    bench s = setup();
    ls_tensor *other = tensor_of(s.device, LS_F32, 2, (int64_t[]){2, 2}, (double[]){1, 2, 3, 4});
    ls_tensor *y = checkpoint(&s, s.x);
    ls_tensor *was = s.w;

    LS_UNUSED(state);
    s.w = other;
    assert_status(LS_EINVAL, ls_backward(s.tape, sum(&s, y), 1));
    assert_error("the function used the leaf (2, 2) float32 in forward, but not now");
    s.w = was;
    ls_tensor_destroy(other);
    teardown(&s);
}

static void bad_arguments_are_refused(void **state)
{
    bench s = setup();
    ls_tensor *y;

    LS_UNUSED(state);
    ls_tape_checkpoint(s.tape, NULL, NULL, 0, &s.x, 1, &y, 1);
    assert_null(y);
    assert_error("checkpoint: the function is NULL");
    ls_tape_reset(s.tape);
    ls_tape_checkpoint(s.tape, identity, NULL, 8, &s.x, 1, &y, 1);
    assert_error("checkpoint: 1 inputs at inputs, 1 outputs at outputs, 8 bytes at NULL");
    ls_tape_checkpoint(NULL, identity, NULL, 0, &s.x, 1, &y, 1);
    assert_error("checkpoint: the tape is NULL");
    teardown(&s);
}

/* Each allocation of a step fails once; nothing leaks, and the next step is right. */
static void failed_allocations_are_reported(void **state)
{
    int n_failed = 0;

    LS_UNUSED(state);
    for (int at = 1; at < 200; at++) {
        bench s = setup();
        ls_status st;

        ls_alloc_fail_at((unsigned long)at);
        st = ls_backward(s.tape, sum(&s, checkpoint(&s, s.x)), 1);
        ls_alloc_fail_at(0);
        n_failed += st != LS_OK;
        assert_true(st == LS_OK || st == LS_ENOMEM);
        ls_tape_reset(s.tape);
        ls_zero_grad(s.w);
        assert_status(LS_OK, ls_backward(s.tape, sum(&s, checkpoint(&s, s.x)), 1));
        assert_elements(ls_grad(s.w), (double[]){8, 12, 8, 12}, 0);
        teardown(&s);
    }
    assert_true(n_failed > 10 && n_failed < 190);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_same_bits_in_the_same_order),
        cmocka_unit_test(values_inside_are_released),
        cmocka_unit_test(memory_is_that_of_outputs_and_one_part),
        cmocka_unit_test(a_part_without_leaves_is_a_constant),
        cmocka_unit_test(outputs_may_be_inputs_and_leaves),
        cmocka_unit_test(an_output_off_the_loss_has_gradient_0),
        cmocka_unit_test(what_backward_needs_again_must_not_change),
        cmocka_unit_test(done_spares_the_inputs_of_the_function),
        cmocka_unit_test(done_in_the_function_spares_values_of_outside),
        cmocka_unit_test(an_input_that_was_released_is_refused),
        cmocka_unit_test(a_function_that_does_something_else_is_named),
        cmocka_unit_test(the_leaf_that_is_not_used_again_is_named),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(failed_allocations_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
