/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_other_device.c - runs that are saved on one device and resumed on another: on the processor
 * and on the CUDA device over host memory. A run that passes through the other device's memory has
 * the bits of an undisturbed one, in weights and in the state of its optimizer.
 */
#include "train/small_folder.h"
#include "train/small_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST_STEPS = 20, STEPS = 45 };

static const char *const optimizers[] = {"sgd", "adam"};

static small_job job_of(const char *optimizer)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .dropout = 0.25, .pad = 1};

    job.flags.optimizer = optimizer;
    job.flags.lr = strcmp(optimizer, "sgd") == 0 ? 0.05 : 0.01;
    job.flags.seed = 7;
    return job;
}

/* Runs on `device` up to `steps` (0: to the end), from the state of the file `from` (NULL: from the
 * start), and saves to the file `to`. */
static small_result run(small_job job, const char *device, const char *from, const char *to,
                        int64_t steps)
{
    small_result r;

    job.flags.device = device;
    job.flags.resume = from == NULL ? NULL : path_in(from);
    job.flags.save = path_in(to);
    job.flags.steps = steps;
    r = small_run(&job);
    assert_string_equal(r.error, "");
    assert_int_equal(r.state.step, steps > 0 ? steps : STEPS);
    return r;
}

static void check_detour(const char *optimizer, const char *home, const char *away)
{
    const small_job job = job_of(optimizer);
    const small_result whole = run(job, home, NULL, "whole.safetensors", 0);
    const small_result first = run(job, home, NULL, "first.safetensors", FIRST_STEPS);
    const small_result moved =
        run(job, away, "first.safetensors", "moved.safetensors", FIRST_STEPS);
    const small_result rest = run(job, home, "moved.safetensors", "rest.safetensors", 0);

    assert_memory_equal(moved.weights, first.weights, sizeof(first.weights));
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
    assert_true(rest.state.test_loss == whole.state.test_loss);
}

static void weights_and_optimizer_pass_through_the_other_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++) {
        check_detour(optimizers[i], "cpu", "cudahost");
        check_detour(optimizers[i], "cudahost", "cpu");
    }
}

/* The devices add in different orders. */
static void a_run_goes_on_on_the_other_device_as_on_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++) {
        const small_job job = job_of(optimizers[i]);
        small_result own, other;

        (void)run(job, "cpu", NULL, "first.safetensors", FIRST_STEPS);
        own = run(job, "cpu", "first.safetensors", "own.safetensors", 0);
        other = run(job, "cudahost", "first.safetensors", "rest.safetensors", 0);
        for (int k = 0; k < SMALL_WEIGHTS; k++) {
            if (fabsf(own.weights[k] - other.weights[k]) > 1e-3F * (1 + fabsf(own.weights[k])))
                fail_msg("%s: weight %d is %g, not %g", optimizers[i], k, (double)other.weights[k],
                         (double)own.weights[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_and_optimizer_pass_through_the_other_device),
        cmocka_unit_test(a_run_goes_on_on_the_other_device_as_on_its_own),
    };

    if (setenv("LOCKSTEP_AUTOTUNE", "0", 1) != 0)
        return 1;
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
