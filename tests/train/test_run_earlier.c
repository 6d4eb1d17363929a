/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_earlier.c - tests that a run overwrites no file that another run, or another program,
 * has written to the paths of its flags: it is renamed.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/unit.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char output[8192]; /* of a captured run */
static small_job job;

static int make_job(void **state)
{
    LS_UNUSED(state);
    job = (small_job){.flags = small_flags(small_dir)};
    job.flags.steps = 2;
    return 0;
}

static void read_file(const char *path, char **text, size_t *n)
{
    assert_ok(file_read(path, 1 << 20, text, n));
}

static void assert_same_file(const char *path, const char *text, size_t n)
{
    char *now;
    size_t n_now;

    read_file(path, &now, &n_now);
    assert_int_equal(n_now, n);
    assert_memory_equal(now, text, n);
    ls_free(now);
}

static void weights_without_a_state_are_renamed(void **state)
{
    char *text;
    size_t n;

    LS_UNUSED(state);
    job.flags.save = path_in("made.safetensors");
    assert_ok(small_run(&job).status);
    assert_int_equal(rename(path_in("made.safetensors"), path_in("j.safetensors")), 0);
    read_file(path_in("j.safetensors"), &text, &n);
    job.flags.save = path_in("j.safetensors");
    job.flags.init = job.flags.save;
    assert_ok(small_run_captured(&job, STDERR_FILENO, output, sizeof(output)).status);
    assert_same_file(path_in("j.earlier.safetensors"), text, n);
    assert_non_null(strstr(output, "j.safetensors, which this run has not written, was renamed"));
    ls_free(text);
}

static void the_best_weights_of_another_run_are_renamed(void **state)
{
    LS_UNUSED(state);
    job.flags.save_best = path_in("model_best.safetensors");
    write_text(job.flags.save_best, "weights of somewhere else");
    assert_ok(small_run(&job).status);
    assert_same_file(path_in("model_best.earlier.safetensors"), "weights of somewhere else", 25);
    write_text(path_in("b.best.safetensors"), "beside");
    job.flags.save_best = NULL;
    job.flags.save = path_in("b.safetensors");
    assert_ok(small_run(&job).status);
    assert_same_file(path_in("b.earlier.best.safetensors"), "beside", 6);
}

static void metrics_of_another_run_are_renamed(void **state)
{
    char *text[2];
    size_t n[2];

    LS_UNUSED(state);
    job.flags.metrics = path_in("m.jsonl");
    job.flags.print_freq = 1;
    assert_ok(small_run(&job).status);
    read_file(job.flags.metrics, &text[0], &n[0]);
    assert_ok(small_run(&job).status);
    assert_same_file(path_in("m.earlier.jsonl"), text[0], n[0]);
    read_file(job.flags.metrics, &text[1], &n[1]);
    assert_ok(small_run(&job).status);
    assert_same_file(path_in("m.earlier.jsonl"), text[0], n[0]);
    assert_same_file(path_in("m.earlier2.jsonl"), text[1], n[1]);
    ls_free(text[0]);
    ls_free(text[1]);
}

static void a_profile_of_another_run_is_renamed(void **state)
{
    LS_UNUSED(state);
    job.flags.profile = "1:1";
    job.flags.profile_file = path_in("p");
    write_text(path_in("p.rank0.json"), "notes");
    assert_ok(small_run(&job).status);
    assert_same_file(path_in("p.rank0.earlier.json"), "notes", 5);
}

static void a_run_that_goes_on_renames_nothing(void **state)
{
    LS_UNUSED(state);
    job.flags.save = path_in("own.safetensors");
    job.flags.metrics = path_in("own.jsonl");
    assert_ok(small_run(&job).status);
    job.flags.resume = path_in("own.resume.safetensors");
    job.flags.steps = 4;
    assert_ok(small_run(&job).status);
    job.flags.resume = "auto";
    job.flags.steps = 6;
    assert_ok(small_run(&job).status);
    assert_false(file_exists(path_in("own.earlier.safetensors")));
    assert_false(file_exists(path_in("own.earlier.jsonl")));
}

/* The state names the file of --save-best that the run has written. */
static void a_run_that_goes_on_renames_the_best_weights_of_another_run(void **state)
{
    char *text;
    size_t n;

    LS_UNUSED(state);
    job.flags.save = path_in("next.safetensors");
    job.flags.save_best = path_in("next_best.safetensors");
    job.flags.epochs = 1;
    job.flags.steps = 0;
    assert_ok(small_run(&job).status);
    read_file(job.flags.save_best, &text, &n);
    job.flags.resume = "";
    job.flags.epochs = 2;
    assert_ok(small_run(&job).status);
    assert_false(file_exists(path_in("next_best.earlier.safetensors")));

    job.flags.save_best = path_in("foreign.safetensors");
    write_text(job.flags.save_best, "weights of somewhere else");
    job.flags.epochs = 3;
    assert_ok(small_run_captured(&job, STDERR_FILENO, output, sizeof(output)).status);
    assert_same_file(path_in("foreign.earlier.safetensors"), "weights of somewhere else", 25);
    assert_non_null(strstr(output, "foreign.safetensors, which this run has not written, was"));
    assert_false(file_exists(path_in("next.earlier.safetensors")));
    ls_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(weights_without_a_state_are_renamed, make_job),
        cmocka_unit_test_setup(the_best_weights_of_another_run_are_renamed, make_job),
        cmocka_unit_test_setup(metrics_of_another_run_are_renamed, make_job),
        cmocka_unit_test_setup(a_profile_of_another_run_is_renamed, make_job),
        cmocka_unit_test_setup(a_run_that_goes_on_renames_nothing, make_job),
        cmocka_unit_test_setup(a_run_that_goes_on_renames_the_best_weights_of_another_run,
                               make_job),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
