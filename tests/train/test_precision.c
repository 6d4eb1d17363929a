/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_precision.c - tests runs with --precision: losses near those of fp32, saved states that do
 * not depend on it, and the lines that name it.
 */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/alloc.h"
#include "base/unit.h"
#include "tensor/suite_device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char output[16384]; /* of a captured run */

static small_job job_with(const char *precision)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1};

    job.flags.precision = precision;
    return job;
}

static void a_run_learns_as_with_fp32(void **state)
{
    static const char *const names[] = {"bf16", "fp16"};
    static small_result want; // static: frames are bounded
    static small_result got;
    small_job job = job_with(NULL);

    (void)state;
    want = small_run(&job);
    assert_int_equal(want.status, LS_OK);
    assert_true(want.state.accuracy > 0.9);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        job = job_with(names[i]);
        got = small_run(&job);
        assert_int_equal(got.status, LS_OK);
        assert_true(fabs(got.state.loss - want.state.loss) < 0.03);
        assert_true(fabs(got.state.accuracy - want.state.accuracy) < 0.04);
        assert_true(fabs(got.state.test_loss - want.state.test_loss) < 0.03);
        assert_memory_not_equal(got.weights, want.weights, sizeof(want.weights));
    }
}

static void a_resumed_run_has_the_bits_of_an_uninterrupted_one(void **state)
{
    static small_result whole;
    static small_result rest;
    (void)state;
    for (int i = 0; i < 2; i++) {
        small_job job = job_with(i == 0 ? "bf16" : "fp16");

        job.flags.clip_grad_norm = 0.5; // of the gradients without their scale
        whole = small_run(&job);
        job.flags.save = path_in("bits.safetensors");
        job.stop_at = 9;
        assert_int_equal(small_run(&job).status, LS_OK);
        job.stop_at = 0;
        job.flags.resume = "";
        rest = small_run(&job);
        assert_int_equal(rest.status, LS_OK);
        assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
    }
}

static void another_precision_may_resume(void **state)
{
    static const char *const names[] = {"bf16", "fp32", "fp16", "fp16", "bf16"};
    small_job job = job_with(names[0]);
    char line[100];

    (void)state;
    job.flags.save = path_in("other.safetensors");
    job.flags.epochs = 1;
    assert_int_equal(small_run(&job).status, LS_OK);
    job.flags.resume = "";
    for (size_t i = 1; i < LS_COUNT_OF(names); i++) {
        const int is_other = strcmp(names[i], names[i - 1]) != 0;

        job.flags.precision = names[i];
        job.flags.epochs++;
        assert_int_equal(small_run_captured(&job, 2, output, sizeof(output)).status, LS_OK);
        snprintf(line, sizeof(line), "saved with --precision %s, resumed with %s", names[i - 1],
                 names[i]);
        assert_true((strstr(output, line) != NULL) == is_other);
    }
}

static void summary_and_warning_name_the_precision(void **state)
{
    small_job job = job_with("bf16");
    const int is_slow = strcmp(test_device_name(), "cpu_ref") == 0; // others have the types
    const char *warning;

    (void)state;
    assert_int_equal(small_run_captured(&job, 1, output, sizeof(output)).status, LS_OK);
    assert_non_null(strstr(output, " after 3 epochs on 1 rank in bf16, "));
    assert_int_equal(small_run_captured(&job, 2, output, sizeof(output)).status, LS_OK);
    warning = strstr(output, "--precision bf16 is slower than fp32 here: device cpu_ref");
    assert_int_equal(warning != NULL, is_slow);
    assert_true(!is_slow || strstr(warning + 1, "--precision") == NULL);
    job = job_with("fp32");
    assert_int_equal(small_run_captured(&job, 1, output, sizeof(output)).status, LS_OK);
    assert_non_null(strstr(output, " after 3 epochs on 1 rank, "));
    assert_int_equal(small_run_captured(&job, 2, output, sizeof(output)).status, LS_OK);
    assert_null(strstr(output, "--precision"));
}

/* The learning rate makes weights, then activations and losses infinite. */
static void a_diverged_run_of_fp16_stops_with_advice(void **state)
{
    small_job job = job_with("fp16");
    small_result r;

    (void)state;
    job.flags.lr = 1e9;
    job.flags.epochs = 20;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "100 steps in a row were skipped"));
    assert_non_null(strstr(r.error, "train in bfloat16, lower the learning rate"));
    assert_in_range(r.state.step, 100, 130);
}

/* The number of skipped steps in the summary of a run; 0 without such a line. */
static int skipped_steps(const small_job *job)
{
    const char *line;
    int n = 0;

    assert_int_equal(small_run_captured(job, 1, output, sizeof(output)).status, LS_OK);
    line = strstr(output, "skipped ");
    if (line != NULL)
        assert_int_equal(
            sscanf(line, "skipped %d steps whose gradients in fp16 were not finite", &n), 1);
    return n;
}

/* The learning rate makes activations infinite, so that every step of the second epoch, which the
 * resumed run trains, is skipped as well. */
static void skipped_steps_are_counted_over_a_resume(void **state)
{
    enum { EPOCH_STEPS = 15 };
    small_job job = job_with("fp16");
    int n;

    (void)state;
    assert_int_equal(skipped_steps(&job), 0);
    job.flags.save = path_in("skipped.safetensors");
    job.flags.lr = 3000;
    job.flags.epochs = 1;
    n = skipped_steps(&job);
    assert_in_range(n, 2, EPOCH_STEPS - 1);
    job.flags.resume = "";
    job.flags.epochs = 2;
    assert_int_equal(skipped_steps(&job), n + EPOCH_STEPS);
}

static void an_unknown_precision_is_refused(void **state)
{
    small_job job = job_with("int8");
    small_result r;

    (void)state;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--precision int8: choose one of fp32, bf16, fp16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_learns_as_with_fp32),
        cmocka_unit_test(a_resumed_run_has_the_bits_of_an_uninterrupted_one),
        cmocka_unit_test(another_precision_may_resume),
        cmocka_unit_test(summary_and_warning_name_the_precision),
        cmocka_unit_test(a_diverged_run_of_fp16_stops_with_advice),
        cmocka_unit_test(skipped_steps_are_counted_over_a_resume),
        cmocka_unit_test(an_unknown_precision_is_refused),
    };

    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
