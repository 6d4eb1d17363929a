/* SPDX-License-Identifier: Apache-2.0 */
/* test_tape.c - the contract of a tape: lifetimes of values, sums of gradients, hooks, failures. */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "base/alloc.h"

#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

/* A device, a tape, and y = w x + b of one row. */
typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x;    /* (1,2): 2 3 */
    ls_tensor *w;    /* (1,2): 5 7, a leaf */
    ls_tensor *b;    /* (1): 1, a leaf */
    ls_tensor *zero; /* (1,1) */
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.x = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){2, 3});
    s.w = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){5, 7});
    s.b = tensor_of(s.device, LS_F32, 1, (int64_t[]){1}, (double[]){1});
    s.zero = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 1}, (double[]){0});
    assert_status(LS_OK, ls_require_grad(s.w));
    assert_status(LS_OK, ls_require_grad(s.b));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all((ls_tensor *[]){s->x, s->w, s->b, s->zero}, 4);
    ls_device_close(s->device);
}

/* y = w x + b = 32 as a loss of one element: d/dw = x, d/db = 1. */
static ls_tensor *line(bench *s)
{
    return ls_linear(s->tape, s->x, s->w, s->b);
}

static void backward_gives_seed_times_the_derivatives(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    assert_null(ls_grad(s.w));
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 10));
    assert_elements(ls_grad(s.w), (double[]){20, 30}, 0);
    assert_elements(ls_grad(s.b), (double[]){10}, 0);
    assert_null(ls_grad(s.x));
    teardown(&s);
}

static void a_gradient_of_a_loss_that_was_written_is_not_the_next_seed(void **state)
{
    static const double seeds[] = {2, 2, 3, 3};
    bench s = setup();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(seeds); i++) {
        ls_tensor *loss = line(&s);

        ls_zero_grad(s.w);
        assert_status(LS_OK, ls_backward(s.tape, loss, seeds[i]));
        assert_elements(ls_grad(loss), &seeds[i], 0);
        assert_elements(ls_grad(s.w), (double[]){2 * seeds[i], 3 * seeds[i]}, 0);
        assert_status(LS_OK, ls_tensor_write(ls_grad(loss), (float[]){7}, 1));
        ls_tape_reset(s.tape);
    }
    teardown(&s);
}

static void two_losses_have_gradients_of_their_own(void **state)
{
    bench s = setup();
    ls_tensor *first = line(&s);
    ls_tensor *second;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_backward(s.tape, first, 2));
    second = line(&s);
    assert_status(LS_OK, ls_backward(s.tape, second, 2));
    assert_status(LS_OK, ls_tensor_write(ls_grad(first), (float[]){7}, 1));
    assert_elements(ls_grad(second), (double[]){2}, 0);
    teardown(&s);
}

static void gradients_add_up_until_they_are_forgotten(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    for (int i = 1; i <= 3; i++) {
        ls_tape_reset(s.tape);
        assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
        assert_elements(ls_grad(s.w), (double[]){2 * i, 3 * i}, 0);
    }
    ls_zero_grad(s.w);
    assert_null(ls_grad(s.w));
    assert_non_null(ls_grad(s.b));
    ls_tape_reset(s.tape);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_elements(ls_grad(s.w), (double[]){2, 3}, 0);
    assert_elements(ls_grad(s.b), (double[]){4}, 0);
    teardown(&s);
}

static void two_backwards_fit_on_one_tape_without_a_reset(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_elements(ls_grad(s.w), (double[]){4, 6}, 0);
    teardown(&s);
}

static void a_loss_cannot_be_passed_twice(void **state)
{
    bench s = setup();
    ls_tensor *loss = line(&s);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    assert_status(LS_EINVAL, ls_backward(s.tape, loss, 1));
    assert_error("already passed");
    assert_elements(ls_grad(s.w), (double[]){2, 3}, 0);
    teardown(&s);
}

static void backward_releases_values_that_are_not_retained(void **state)
{
    bench s = setup();
    ls_tensor *line_value = line(&s);
    ls_tensor *passing = ls_relu(s.tape, line_value);
    ls_tensor *kept = ls_relu(s.tape, passing);
    ls_tensor *loss = ls_mse_loss(s.tape, kept, s.zero);
    float got = 0;

    LS_UNUSED(state);
    ls_tape_keep(s.tape, kept);
    ls_tape_keep(s.tape, NULL);
    ls_tape_keep(s.tape, s.x);
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    assert_status(LS_OK, ls_tensor_read(loss, &got, 1));
    assert_true(got == 32 * 32);
    assert_elements(kept, (double[]){32}, 0);
    assert_elements(ls_grad(kept), (double[]){64}, 0);
    assert_null(ls_grad(passing));
    assert_status(LS_EINVAL, ls_tensor_read(passing, &got, 1));
    assert_error("ls_tape_keep");
    assert_null(ls_tensor_data(passing));
    assert_null(ls_relu(s.tape, line_value));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("relu: input (1, 1) float32 was released by backward");
    teardown(&s);
}

static void a_retained_value_is_a_constant_after_its_backward(void **state)
{
    bench s = setup();
    ls_tensor *y = line(&s);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_backward(s.tape, y, 1));
    assert_status(LS_OK, ls_backward(s.tape, ls_add(s.tape, y, line(&s)), 1));
    assert_elements(ls_grad(s.w), (double[]){4, 6}, 0);
    assert_status(LS_EINVAL, ls_backward(s.tape, ls_relu(s.tape, y), 1));
    assert_error("depends on no tensor that requires a gradient");
    teardown(&s);
}

static void evaluation_records_nothing(void **state)
{
    bench s = setup();
    ls_tensor *y;

    LS_UNUSED(state);
    assert_true(ls_tape_training(s.tape));
    ls_tape_set_training(s.tape, 0);
    assert_false(ls_tape_training(s.tape));
    y = line(&s);
    assert_elements(y, (double[]){32}, 0);
    assert_status(LS_EINVAL, ls_backward(s.tape, y, 1));
    assert_error("evaluation mode");
    ls_tape_set_training(s.tape, 1);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    teardown(&s);
}

static void bad_losses_are_refused(void **state)
{
    bench s = setup();
    ls_tape *other = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tape_create(s.device, &other));
    assert_status(LS_EINVAL, ls_backward(NULL, NULL, 1));
    assert_status(LS_EINVAL, ls_backward(s.tape, NULL, 1));
    assert_error("the loss is NULL");
    assert_status(LS_EINVAL, ls_backward(s.tape, s.b, 1));
    assert_error("not made on this tape");
    assert_status(LS_EINVAL, ls_backward(other, line(&s), 1));
    assert_error("not made on this tape");
    assert_status(LS_EINVAL, ls_backward(s.tape, ls_add(s.tape, s.w, s.w), 1));
    assert_error("(1, 2) float32 must have exactly one element");
    assert_status(LS_EINVAL, ls_backward(s.tape, ls_relu(s.tape, s.zero), 1));
    assert_error("requires a gradient");
    assert_null(ls_relu(other, line(&s)));
    assert_status(LS_EINVAL, ls_tape_status(other));
    assert_error("belongs to another tape");
    ls_tape_destroy(other);
    teardown(&s);
}

static void the_first_failure_stays(void **state)
{
    bench s = setup();
    ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tape_status(s.tape));
    y = ls_linear(s.tape, s.zero, s.w, s.b);
    assert_null(y);
    y = ls_relu(s.tape, y);
    assert_null(y);
    assert_null(ls_add(s.tape, s.w, s.b));
    assert_status(LS_EINVAL, ls_backward(s.tape, y, 1));
    assert_string_equal(ls_last_error(), "linear: input (1, 1) does not fit weight (1, 2)");
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    ls_tape_reset(s.tape);
    assert_status(LS_OK, ls_tape_status(s.tape));
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    teardown(&s);
}

static void null_inputs_are_named(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    assert_null(ls_relu(NULL, s.x));
    assert_error("relu: the tape is NULL");
    assert_null(ls_linear(s.tape, s.x, NULL, s.b));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("linear: weight is NULL");
    teardown(&s);
}

static void a_tapes_value_survives_an_attempt_to_destroy_it(void **state)
{
    bench s = setup();
    ls_tensor *y = line(&s);

    LS_UNUSED(state);
    ls_tensor_destroy(y);
    assert_status(LS_OK, ls_backward(s.tape, y, 1));
    assert_status(LS_EINVAL, ls_require_grad(y));
    teardown(&s);
}

static void only_floats_can_be_leaves(void **state)
{
    bench s = setup();
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_I64, 1, (int64_t[]){2}, &t));
    assert_status(LS_EINVAL, ls_require_grad(t));
    assert_error("(2) int64 must be float32 or float64");
    assert_status(LS_EINVAL, ls_require_grad(NULL));
    assert_status(LS_OK, ls_require_grad(s.w));
    ls_zero_grad(t);
    ls_tensor_destroy(t);
    teardown(&s);
}

/* --- hooks --- */

typedef struct hook_log {
    int n;
    ls_tensor *leaves[8];
    double first[8]; /* the gradient's first element when the hook fired */
    int fail_at;     /* the n-th call fails */
} hook_log;

static ls_status note(void *arg, ls_tensor *leaf)
{
    hook_log *log = arg;

    assert_true(log->n < 8);
    log->leaves[log->n] = leaf;
    log->first[log->n] = element_of(ls_grad(leaf), 0);
    log->n++;
    return log->n == log->fail_at ? ls_fail(LS_EPEER, "rank 3 died") : LS_OK;
}

static void hooks_fire_once_in_the_order_of_completion(void **state)
{
    bench s = setup();
    hook_log log = {0};
    ls_tensor *second = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 1}, (double[]){3});
    ls_tensor *unused = tensor_of(s.device, LS_F32, 1, (int64_t[]){1}, (double[]){0});

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(second));
    assert_status(LS_OK, ls_require_grad(unused));
    ls_tape_on_grad_ready(s.tape, note, &log);
    // The bias serves twice: first beside the last weight, so that it is complete only with the
    // first.
    assert_status(LS_OK, ls_backward(s.tape, ls_linear(s.tape, line(&s), second, s.b), 1));
    assert_int_equal(log.n, 3);
    assert_ptr_equal(log.leaves[0], second);
    assert_ptr_equal(log.leaves[1], s.w);
    assert_ptr_equal(log.leaves[2], s.b);
    assert_true(log.first[0] == 32);
    assert_true(log.first[1] == 6);
    assert_true(log.first[2] == 4);
    assert_null(ls_grad(unused));

    ls_tape_reset(s.tape);
    log.n = 0;
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_int_equal(log.n, 2);
    ls_tape_on_grad_ready(s.tape, NULL, NULL);
    ls_tape_reset(s.tape);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_int_equal(log.n, 2);
    destroy_all((ls_tensor *[]){second, unused}, 2);
    teardown(&s);
}

static void branches_off_the_loss_do_not_count(void **state)
{
    bench s = setup();
    hook_log log = {0};
    ls_tensor *early = ls_relu(s.tape, s.w);
    ls_tensor *loss = line(&s);
    ls_tensor *late = ls_add(s.tape, s.b, s.b);

    LS_UNUSED(state);
    ls_tape_on_grad_ready(s.tape, note, &log);
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    assert_int_equal(log.n, 2);
    assert_elements(ls_grad(s.w), (double[]){2, 3}, 0);
    assert_null(ls_tensor_data(early));
    assert_null(ls_tensor_data(late));
    teardown(&s);
}

static void a_failing_hook_ends_the_backward(void **state)
{
    bench s = setup();
    hook_log log = {.fail_at = 1};

    LS_UNUSED(state);
    ls_tape_on_grad_ready(s.tape, note, &log);
    assert_status(LS_EPEER, ls_backward(s.tape, line(&s), 1));
    assert_int_equal(log.n, 1);
    assert_string_equal(ls_last_error(), "rank 3 died"); // no fault of the operator's
    assert_status(LS_EPEER, ls_tape_status(s.tape));
    assert_null(line(&s));
    ls_tape_reset(s.tape);
    log.n = 0;
    log.fail_at = 0;
    ls_zero_grad(s.w);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_int_equal(log.n, 2);
    assert_elements(ls_grad(s.w), (double[]){2, 3}, 0);
    teardown(&s);
}

/* --- gradients in memory of the caller --- */

static void a_target_gets_the_gradient_and_gives_it_back(void **state)
{
    bench s = setup();
    ls_tensor *bucket = tensor_of(s.device, LS_F32, 1, (int64_t[]){3}, (double[]){-1, -1, -1});
    ls_tensor *target = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_wrap(s.device, LS_F32, 2, (int64_t[]){1, 2},
                                        tensor_elements(bucket), &target));
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_status(LS_OK, autograd_set_grad_target(s.w, target));
    assert_ptr_equal(ls_grad(s.w), target);
    assert_elements(bucket, (double[]){2, 3, -1}, 0);
    ls_tape_reset(s.tape);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_elements(bucket, (double[]){4, 6, -1}, 0);
    ls_zero_grad(s.w);
    assert_null(ls_grad(s.w));
    assert_ptr_equal(autograd_grad_memory(s.w), target);
    autograd_set_has_grad(s.w, true);
    assert_elements(ls_grad(s.w), (double[]){4, 6}, 0);
    assert_status(LS_OK, autograd_set_grad_target(s.w, NULL));
    assert_ptr_not_equal(ls_grad(s.w), target);
    assert_elements(ls_grad(s.w), (double[]){4, 6}, 0);
    destroy_all((ls_tensor *[]){target, bucket}, 2);
    teardown(&s);
}

static void a_target_that_does_not_fit_is_refused(void **state)
{
    bench s = setup();
    ls_tensor *wide = tensor_of(s.device, LS_F64, 2, (int64_t[]){1, 2}, (double[]){0, 0});

    LS_UNUSED(state);
    assert_status(LS_EINVAL, autograd_set_grad_target(s.w, s.b));
    assert_error("(1) float32 does not match the leaf (1, 2) float32");
    assert_status(LS_EINVAL, autograd_set_grad_target(s.w, wide));
    assert_status(LS_EINVAL, autograd_set_grad_target(s.x, s.w));
    assert_status(LS_OK, autograd_set_grad_target(s.x, NULL));
    autograd_set_has_grad(s.w, true);
    assert_null(ls_grad(s.w));
    ls_tensor_destroy(wide);
    teardown(&s);
}

static void a_target_lost_for_want_of_memory_is_forgotten(void **state)
{
    bench s = setup();
    ls_tensor *bucket = tensor_of(s.device, LS_F32, 1, (int64_t[]){2}, (double[]){0, 0});
    ls_tensor *target = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_wrap(s.device, LS_F32, 2, (int64_t[]){1, 2},
                                        tensor_elements(bucket), &target));
    assert_status(LS_OK, autograd_set_grad_target(s.w, target));
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    ls_alloc_fail_at(1);
    assert_status(LS_OK, autograd_set_grad_target(s.w, NULL));
    ls_alloc_fail_at(0);
    assert_null(ls_grad(s.w));
    destroy_all((ls_tensor *[]){target, bucket}, 2);
    teardown(&s);
}

static void no_rows_write_zeros(void **state)
{
    bench s = setup();
    ls_tensor *none = NULL;
    ls_tensor *nothing = NULL;
    ls_tensor *loss;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 2, (int64_t[]){0, 2}, &none));
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 2, (int64_t[]){0, 1}, &nothing));
    loss = ls_mse_loss(s.tape, ls_linear(s.tape, none, s.w, s.b), nothing);
    assert_status(LS_OK, ls_backward(s.tape, loss, 0));
    assert_elements(loss, (double[]){0}, 0);
    assert_elements(ls_grad(s.w), (double[]){0, 0}, 0);
    assert_elements(ls_grad(s.b), (double[]){0}, 0);
    destroy_all((ls_tensor *[]){none, nothing}, 2);
    teardown(&s);
}

/* --- several outputs --- */

/* The first element of x. */
static ls_tensor *first_of(bench *s, ls_tensor *x)
{
    return ls_slice(s->tape, ls_reshape(s->tape, x, 1, (int64_t[]){-1}), 0, 0, 1);
}

static void outputs_are_released_and_retained_one_by_one(void **state)
{
    bench s = setup();
    ls_tensor *out[2];
    ls_tensor *loss;

    LS_UNUSED(state);
    ls_split(s.tape, ls_add(s.tape, s.w, s.w), 1, (int64_t[]){1, 1}, 2, out);
    ls_tape_keep(s.tape, out[1]);
    loss = ls_mul(s.tape, out[0], out[1]);
    ls_tape_done(s.tape, out[0]);
    ls_tape_done(s.tape, out[1]);
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    assert_elements(ls_grad(s.w), (double[]){2 * 14, 2 * 10}, 0); // of 2 w1 2 w2
    assert_elements(out[1], (double[]){14}, 0);
    assert_elements(ls_grad(out[1]), (double[]){10}, 0);
    assert_null(ls_grad(out[0]));
    assert_null(out[0]->storage);
    teardown(&s);
}

static void an_output_is_released_when_only_the_others_are_read(void **state)
{
    bench s = setup();
    ls_tensor *out[2];
    ls_tensor *loss;

    LS_UNUSED(state);
    ls_split(s.tape, s.w, 1, (int64_t[]){1, 1}, 2, out);
    loss = ls_mul(s.tape, ls_add(s.tape, out[0], out[0]), out[1]);
    ls_tape_done(s.tape, out[0]); // no backward reads the inputs of a sum
    ls_tape_done(s.tape, out[1]);
    assert_null(out[0]->storage);
    assert_non_null(out[1]->storage);
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    assert_elements(ls_grad(s.w), (double[]){14, 10}, 0);
    teardown(&s);
}

static void an_output_that_the_loss_does_not_need_gets_no_gradient(void **state)
{
    bench s = setup();
    ls_tensor *out[2];
    hook_log log = {0};

    LS_UNUSED(state);
    ls_tape_on_grad_ready(s.tape, note, &log);
    ls_split(s.tape, s.w, 1, (int64_t[]){1, 1}, 2, out);
    ls_tape_keep(s.tape, out[0]);
    assert_status(LS_OK, ls_backward(s.tape, first_of(&s, out[1]), 3));
    assert_elements(ls_grad(s.w), (double[]){0, 3}, 0);
    assert_elements(ls_grad(out[0]), (double[]){0}, 0);
    assert_int_equal(log.n, 1);

    ls_tape_reset(s.tape);
    ls_zero_grad(s.w);
    ls_split(s.tape, s.w, 1, (int64_t[]){1, 1}, 2, out);
    assert_status(LS_OK, ls_backward(s.tape, line(&s), 1));
    assert_elements(ls_grad(s.w), (double[]){2, 3}, 0);
    teardown(&s);
}

/* A value that two backwards read: the first one's readers no longer count. */
static void readers_that_backward_has_passed_do_not_count(void **state)
{
    bench s = setup();
    ls_tensor *twice = ls_add(s.tape, s.x, s.x);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_backward(s.tape, ls_linear(s.tape, twice, s.w, NULL), 1));
    assert_elements(twice, (double[]){4, 6}, 0);
    ls_tape_done(s.tape, twice);
    assert_null(twice->storage);
    teardown(&s);
}

/* --- forks --- */

enum { FORK_USES = 3 };

/* The last use comes first in backward: 1 + 1e8 is 1e8 in float32, and 1e8 - 1e8 is 0. Other orders
 * of the sum give 1. */
static const double fork_factors[FORK_USES] = {-1e8, 1e8, 1};
static const double fork_sum[2] = {0, 0};

/* The sum of the elements of factor[i] y; the factors are leaves. */
static ls_tensor *fork_loss(bench *s, ls_tensor *y, ls_tensor **factors)
{
    ls_tensor *sum = NULL;

    for (int i = 0; i < FORK_USES; i++) {
        ls_tensor *product = ls_mul(s->tape, y, factors[i]);

        sum = i == 0 ? product : ls_add(s->tape, sum, product);
    }
    return ls_sum(s->tape, sum, NULL, 0, 0);
}

static void make_factors(bench *s, ls_tensor **factors)
{
    for (int i = 0; i < FORK_USES; i++) {
        factors[i] = tensor_of(s->device, LS_F32, 1, (int64_t[]){1}, &fork_factors[i]);
        assert_status(LS_OK, ls_require_grad(factors[i]));
    }
}

/* relu, which takes two gradients on some devices, the same with a sum in it, and an operator that
 * takes one. */
static ls_tensor *fork_value(bench *s, int kind)
{
    switch (kind) {
    case 0:
        return ls_relu(s->tape, s->w);
    case 1:
        return ls_add_relu(s->tape, s->w, s->x);
    default:
        return ls_add(s->tape, s->w, s->x);
    }
}

static void gradients_of_a_fork_are_added_in_the_order_of_backward(void **state)
{
    bench s = setup();
    ls_tensor *factors[FORK_USES];

    LS_UNUSED(state);
    make_factors(&s, factors);
    for (int kind = 0; kind < 3; kind++) {
        for (int variant = 0; variant < 3; variant++) {
            ls_tensor *y = fork_value(&s, kind);

            if (variant == 1)
                ls_tape_keep(s.tape, y);
            ls_tape_check_nan(s.tape, variant == 2);
            assert_status(LS_OK, ls_backward(s.tape, fork_loss(&s, y, factors), 1));
            assert_elements(ls_grad(s.w), fork_sum, 0);
            if (variant == 1)
                assert_elements(ls_grad(y), fork_sum, 0);
            else
                assert_null(ls_grad(y));
            ls_tape_reset(s.tape);
            ls_zero_grad(s.w);
        }
    }
    destroy_all(factors, FORK_USES);
    teardown(&s);
}

typedef struct keeper {
    ls_tape *tape;
    ls_tensor *leaf;
    ls_tensor *value; /* to be retained when the leaf is ready */
} keeper;

static ls_status keep_at(void *arg, ls_tensor *leaf)
{
    const keeper *k = arg;

    if (leaf == k->leaf)
        ls_tape_keep(k->tape, k->value);
    return LS_OK;
}

static void a_value_retained_between_its_gradients_has_their_sum(void **state)
{
    bench s = setup();
    ls_tensor *factors[FORK_USES];
    keeper k = {.tape = s.tape};

    LS_UNUSED(state);
    make_factors(&s, factors);
    ls_tape_on_grad_ready(s.tape, keep_at, &k);
    for (int i = 0; i < FORK_USES; i++) {
        k.leaf = factors[i];
        k.value = ls_relu(s.tape, s.w);
        assert_status(LS_OK, ls_backward(s.tape, fork_loss(&s, k.value, factors), 1));
        assert_elements(ls_grad(k.value), fork_sum, 0);
        assert_elements(ls_grad(s.w), fork_sum, 0);
        ls_tape_reset(s.tape);
        ls_zero_grad(s.w);
    }
    destroy_all(factors, FORK_USES);
    teardown(&s);
}

static void a_failed_backward_frees_the_gradients_of_a_fork(void **state)
{
    bench s = setup();
    ls_tensor *factors[FORK_USES];
    hook_log log = {0};

    LS_UNUSED(state);
    make_factors(&s, factors);
    ls_tape_on_grad_ready(s.tape, note, &log);
    for (int i = 1; i <= FORK_USES; i++) {
        log = (hook_log){.fail_at = i};
        assert_status(LS_EPEER,
                      ls_backward(s.tape, fork_loss(&s, ls_relu(s.tape, s.w), factors), 1));
        ls_tape_reset(s.tape);
    }
    destroy_all(factors, FORK_USES);
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_gives_seed_times_the_derivatives),
        cmocka_unit_test(a_gradient_of_a_loss_that_was_written_is_not_the_next_seed),
        cmocka_unit_test(two_losses_have_gradients_of_their_own),
        cmocka_unit_test(gradients_add_up_until_they_are_forgotten),
        cmocka_unit_test(two_backwards_fit_on_one_tape_without_a_reset),
        cmocka_unit_test(a_loss_cannot_be_passed_twice),
        cmocka_unit_test(backward_releases_values_that_are_not_retained),
        cmocka_unit_test(a_retained_value_is_a_constant_after_its_backward),
        cmocka_unit_test(evaluation_records_nothing),
        cmocka_unit_test(bad_losses_are_refused),
        cmocka_unit_test(the_first_failure_stays),
        cmocka_unit_test(null_inputs_are_named),
        cmocka_unit_test(a_tapes_value_survives_an_attempt_to_destroy_it),
        cmocka_unit_test(only_floats_can_be_leaves),
        cmocka_unit_test(hooks_fire_once_in_the_order_of_completion),
        cmocka_unit_test(branches_off_the_loss_do_not_count),
        cmocka_unit_test(a_failing_hook_ends_the_backward),
        cmocka_unit_test(a_target_gets_the_gradient_and_gives_it_back),
        cmocka_unit_test(a_target_that_does_not_fit_is_refused),
        cmocka_unit_test(a_target_lost_for_want_of_memory_is_forgotten),
        cmocka_unit_test(no_rows_write_zeros),
        cmocka_unit_test(outputs_are_released_and_retained_one_by_one),
        cmocka_unit_test(an_output_is_released_when_only_the_others_are_read),
        cmocka_unit_test(an_output_that_the_loss_does_not_need_gets_no_gradient),
        cmocka_unit_test(readers_that_backward_has_passed_do_not_count),
        cmocka_unit_test(gradients_of_a_fork_are_added_in_the_order_of_backward),
        cmocka_unit_test(a_value_retained_between_its_gradients_has_their_sum),
        cmocka_unit_test(a_failed_backward_frees_the_gradients_of_a_fork),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
