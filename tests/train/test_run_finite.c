/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_finite.c - tests runs that diverge: they stop, fail, and keep the last state whose loss
 * and weights are finite; states that are not finite are refused by name.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/unit.h"
#include "tensor/suite_device.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STEPS_AN_EPOCH = (SMALL_TRAIN + 15) / 16 };

static char output[16384]; /* of a captured run */
static small_result result;

/* One good epoch is saved; what resumes it diverges at once. */
static small_job make_diverging(const char *save)
{
    small_job job = {.flags = small_flags(small_dir)};

    job.flags.save = path_in(save);
    job.flags.epochs = 1;
    result = small_run(&job);
    assert_int_equal(result.status, LS_OK);
    job.flags.epochs = 6;
    job.flags.resume = "";
    job.flags.lr = 1e38;
    job.flags.schedule = NULL;
    job.flags.print_freq = 5;
    return job;
}

static void read_file(const char *path, char **text, size_t *n)
{
    assert_ok(file_read(path, 1 << 20, text, n));
}

static void assert_error_has(const char *words)
{
    if (strstr(result.error, words) == NULL)
        fail_msg("%s is not in: %s", words, result.error);
}

static void a_run_that_diverges_stops_and_its_finite_state_stays(void **state)
{
    small_job job = make_diverging("d.safetensors");
    const char *path = path_in("d.resume.safetensors");
    char *before;
    char *after;
    size_t n[2];

    LS_UNUSED(state);
    read_file(path, &before, &n[0]);
    result = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
    read_file(path, &after, &n[1]);
    assert_int_equal(result.status, LS_EFORMAT);
    assert_error_has("not finite in 3 reports in a row, the last at step ");
    if (strcmp(test_device_name(), "cpu_ref") == 0) // stream devices are not waited for
        assert_error_has(", first at step ");
    assert_error_has("model.fc.weight has an element that is NaN or infinite");
    assert_error_has("--check-nan names the first operator");
    assert_true(result.state.step <= STEPS_AN_EPOCH + 20);
    assert_null(strstr(output, "-nan"));
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(before, after, n[0]);
    ls_free(before);
    ls_free(after);
}

static void the_limit_can_be_set_and_switched_off(void **state)
{
    small_job job = make_diverging("limit.safetensors");

    LS_UNUSED(state);
    job.flags.nan_limit = 1;
    result = small_run(&job);
    assert_int_equal(result.status, LS_EFORMAT);
    assert_error_has("not finite in 1 reports in a row");
    job.flags.nan_limit = -1;
    result = small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_int_equal(result.state.step, 6 * STEPS_AN_EPOCH);
    assert_int_not_equal(result.status, LS_OK); // the last state is not saved
    assert_error_has("cannot save the weights of step ");
    assert_null(strstr(output, "-nan"));
    job.flags.save = NULL;
    job.flags.resume = NULL;
    result = small_run(&job);
    assert_int_equal(result.status, LS_OK);
}

static void a_run_that_ends_with_nan_has_failed(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    LS_UNUSED(state);
    job.flags.lr = 1e38;
    job.flags.steps = 6;
    result = small_run(&job);
    assert_int_equal(result.status, LS_EFORMAT);
    assert_error_has("the run ended with a loss that is not finite");
}

/* Replaces all numbers of a file by NaN. */
static void spoil_file(const char *path)
{
    char *text;
    size_t n;
    uint64_t header;

    read_file(path, &text, &n);
    memcpy(&header, text, sizeof(header));
    memset(text + sizeof(header) + header, 0xff, n - sizeof(header) - header);
    assert_ok(file_replace(path, text, n));
    ls_free(text);
}

static void a_state_that_is_not_finite_is_refused_by_name(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    LS_UNUSED(state);
    job.flags.save = path_in("nan.safetensors");
    job.flags.epochs = 1;
    assert_ok(small_run(&job).status);
    spoil_file(path_in("nan.resume.safetensors"));
    spoil_file(path_in("nan.safetensors"));
    job.flags.epochs = 2;
    job.flags.resume = "";
    job.flags.no_verify = 1; // their digests are those of finite values
    result = small_run(&job);
    assert_int_equal(result.status, LS_EFORMAT);
    assert_error_has("model.fc.weight has an element that is NaN or infinite");
    job.flags.resume = NULL;
    job.flags.init = path_in("nan.safetensors");
    job.flags.save = NULL;
    result = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
    assert_non_null(strstr(output, "nan.safetensors: fc.weight has an element that is NaN"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_diverges_stops_and_its_finite_state_stays),
        cmocka_unit_test(the_limit_can_be_set_and_switched_off),
        cmocka_unit_test(a_run_that_ends_with_nan_has_failed),
        cmocka_unit_test(a_state_that_is_not_finite_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
