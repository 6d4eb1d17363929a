/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_queues.c - optimizers, clipping and gradient scaling on a device with queues: how often the
 * host waits, and what happens when the device is lost.
 */
#include "optim/optim_scene.h"

#include "devices/cudahost.h"

#include <math.h>
#include <stdbool.h>

static const double start[3] = {0.5, -1.25, 2};
static uint64_t waits_before;

static ls_status make_adam(const ls_named *parameter, const void *opt, ls_optimizer **out)
{
    const ls_adam_options adam = {.size = sizeof(adam), .lr = 0.1};

    LS_UNUSED(opt);
    return ls_adam_create(parameter, 1, grad_of, &adam, out);
}

static fixture begin(void)
{
    fixture f = setup(LS_F32, start, make_adam, NULL);

    set_values(f.g, start);
    waits_before = cudahost()->n_host_waits;
    return f;
}

/* Since begin(). */
static void assert_waits(uint64_t want)
{
    assert_int_equal(cudahost()->n_host_waits - waits_before, want);
}

static void a_step_and_clipping_do_not_wait(void **state)
{
    fixture f = begin();
    const ls_named named = {.name = "p", .tensor = f.p};
    double norm = 0;

    LS_UNUSED(state);
    for (int i = 0; i < 5; i++) {
        assert_ok(ls_clip_grad_value(&named, 1, grad_of, 1.5));
        assert_ok(ls_clip_grad_norm(&named, 1, grad_of, 1, NULL));
        assert_ok(ls_optimizer_step(f.o));
    }
    assert_waits(0);
    assert_ok(ls_clip_grad_norm(&named, 1, grad_of, 1, &norm));
    assert_waits(1);
    assert_true(norm > 0.99 && norm < 1.01);
    teardown(&f);
}

static void a_scaled_step_waits_once(void **state)
{
    fixture f = begin();
    const ls_named named = {.name = "p", .tensor = f.p};
    ls_grad_scaler *s;

    LS_UNUSED(state);
    assert_ok(ls_grad_scaler_create(f.o, NULL, &s));
    for (uint64_t i = 0; i < 5; i++) {
        assert_ok(ls_grad_scaler_unscale(s));
        assert_ok(ls_clip_grad_norm(&named, 1, grad_of, 1, NULL));
        assert_ok(ls_grad_scaler_step(s));
        assert_waits(i);
        assert_ok(ls_grad_scaler_update(s));
        assert_waits(i + 1);
    }
    ls_grad_scaler_destroy(s);
    teardown(&f);
}

/* The update waits for the step alone: work that is queued behind it may still be under way. */
static void the_decision_is_that_of_the_step_before(void **state)
{
    fixture f = begin();
    ls_grad_scaler *s;

    LS_UNUSED(state);
    assert_ok(ls_grad_scaler_create(f.o, NULL, &s));
    for (int i = 0; i < 20; i++) {
        const bool is_bad = i % 3 == 1;
        const double scale = ls_grad_scaler_scale(s);

        set_values(f.g, (double[]){1, is_bad ? (double)INFINITY : 2, 3});
        assert_ok(ls_grad_scaler_step(s));
        set_values(f.g, start); // of the next step
        assert_ok(ls_grad_scaler_update(s));
        assert_true(ls_grad_scaler_scale(s) == (is_bad ? scale / 2 : scale));
    }
    ls_grad_scaler_destroy(s);
    teardown(&f);
}

static void a_lost_device_is_an_error_of_every_later_call(void **state)
{
    fixture f = begin();
    const ls_named named = {.name = "p", .tensor = f.p};
    ls_grad_scaler *s;

    LS_UNUSED(state);
    assert_ok(ls_grad_scaler_create(f.o, NULL, &s));
    cudahost()->lose_at = 1;
    // The step may only queue work; the update waits.
    assert_true(ls_grad_scaler_step(s) != LS_OK || ls_grad_scaler_update(s) != LS_OK);
    assert_true(ls_optimizer_step(f.o) != LS_OK);
    assert_true(ls_clip_grad_norm(&named, 1, grad_of, 1, NULL) != LS_OK);
    ls_grad_scaler_destroy(s);
    teardown(&f);
}

/* Opens a device for one test, which may lose it. */
static int open_sim(void **state)
{
    (void)cudahost_reset();
    return open_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_and_clipping_do_not_wait, open_sim, close_device),
        cmocka_unit_test_setup_teardown(a_scaled_step_waits_once, open_sim, close_device),
        cmocka_unit_test_setup_teardown(the_decision_is_that_of_the_step_before, open_sim,
                                        close_device),
        cmocka_unit_test_setup_teardown(a_lost_device_is_an_error_of_every_later_call, open_sim,
                                        close_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
