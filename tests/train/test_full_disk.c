/* SPDX-License-Identifier: Apache-2.0 */
/* test_full_disk.c - tests runs whose files cannot be written: a full disk, a missing folder. */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/unit.h"

#include "base/alloc.h"
#include "base/file.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STEPS_AN_EPOCH = (SMALL_TRAIN + 15) / 16 };

static char output[8192]; /* of a captured run */

static small_result run_with(const ls_train_flags *flags)
{
    return small_run(&(small_job){.flags = *flags});
}

static int count_of(const char *text, const char *part)
{
    int n = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* A metrics file consists of whole lines. */
static void assert_whole_lines(const char *path)
{
    char *text = text_of(path);
    const size_t n = strlen(text);

    assert_true(n > 0);
    assert_int_equal(text[n - 1], '\n');
    assert_int_equal(count_of(text, "{\"epoch\""), count_of(text, "\n"));
    ls_free(text);
}

static void set_file_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Whole and with the weights of step 1: an earlier save. */
static void save_one_step(ls_train_flags *flags)
{
    flags->save = path_in("full.safetensors");
    flags->metrics = path_in("full.jsonl");
    flags->steps = 1;
    assert_int_equal(run_with(flags).status, LS_OK);
    flags->steps = 0;
    flags->resume = "";
}

static void training_continues_when_files_cannot_be_written(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    char *before;
    char *after;
    size_t n_before;
    size_t n_after;
    small_result r;

    (void)state;
    save_one_step(&flags);
    assert_int_equal(file_read(flags.save, 1 << 20, &before, &n_before), LS_OK);
    set_file_limit(1700); // some lines of metrics fit, weights do not
    r = small_run_captured(&(small_job){.flags = flags}, STDERR_FILENO, output, sizeof(output));
    set_file_limit(RLIM_INFINITY);
    assert_int_equal(r.state.step, 3 * STEPS_AN_EPOCH); // to the end
    assert_int_equal(r.status, LS_EIO);                 // reported at the end
    assert_non_null(strstr(r.error, "cannot save the weights of step "));
    assert_non_null(strstr(r.error, "full"));
    assert_int_equal(file_read(flags.save, 1 << 20, &after, &n_after), LS_OK);
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_before);
    assert_int_equal(size_of(path_in("full.safetensors.tmp")), -1);
    assert_int_equal(size_of(path_in("full.resume.safetensors.tmp")), -1);
    ls_free(before);
    ls_free(after);
    assert_whole_lines(flags.metrics);
    assert_int_equal(count_of(output, "train: cannot save metrics"), 1);
}

static void training_stops_on_a_save_error_with_stop(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    save_one_step(&flags);
    flags.on_save_error = "stop";
    flags.metrics = NULL;
    set_file_limit(700);
    r = run_with(&flags);
    set_file_limit(RLIM_INFINITY);
    assert_true(r.status != LS_OK);
    assert_int_equal(r.state.step, STEPS_AN_EPOCH);
    assert_non_null(strstr(r.error, "full"));
}

/* The data set does not exist either: it is opened later. */
static void an_unwritable_path_fails_before_data_is_loaded(void **state)
{
    static const char *const names[] = {"--save", "--save-best", "--metrics"};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        ls_train_flags flags = small_flags("/nowhere");
        const char *path = path_in("absent/file");
        small_result r;

        *(const char **[]){&flags.save, &flags.save_best, &flags.metrics}[i] = path;
        r = run_with(&flags);
        assert_true(r.status != LS_OK);
        assert_non_null(strstr(r.error, names[i]));
        assert_non_null(strstr(r.error, path));
        assert_non_null(strstr(r.error, "No such file or directory"));
    }
}

/* A program prints the run's error at the end; it must not be on standard error before. */
static void a_run_prints_its_error_once(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .other_classes = 9};
    small_result r;

    (void)state;
    save_one_step(&job.flags);
    job.flags.resume = NULL;
    job.flags.metrics = NULL;
    job.flags.save = path_in("once.safetensors");
    job.flags.epochs = 1;
    job.other_classes = 0;
    set_file_limit(700);
    r = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
    set_file_limit(RLIM_INFINITY);
    assert_int_equal(r.status, LS_EIO);
    assert_int_equal(count_of(output, "cannot save"), 0);
    job.flags.save = NULL;
    job.flags.init = path_in("full.safetensors");
    job.other_classes = 9;
    r = small_run_captured(&job, STDERR_FILENO, output, sizeof(output));
    assert_non_null(strstr(r.error, "fc.bias"));
    assert_int_equal(count_of(output, "fc.bias"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_continues_when_files_cannot_be_written),
        cmocka_unit_test(training_stops_on_a_save_error_with_stop),
        cmocka_unit_test(an_unwritable_path_fails_before_data_is_loaded),
        cmocka_unit_test(a_run_prints_its_error_once),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
