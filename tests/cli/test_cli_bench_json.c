/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_bench_json.c - what lockstep bench writes to files: --json, and nccl-tests' report. */
#include "cli/bench_job.h"

#include "base/alloc.h"
#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect_report_row(job *j, const json_value *one, int64_t size, int n)
{
    const json_value *side = json_get(one, "in_place");
    const json_value *single = json_get(one, "in_place_per_iter");
    const json_value *ranks = json_get(single, "per_process_max_times_us");

    job_expect(j, json_as_int(json_get(one, "size"), 0) == size);
    job_expect(j, text_equal(bench_text(one, "type"), "float"));
    job_expect(j, text_equal(bench_text(one, "root"), "    -1"));
    job_expect(j, json_as_real(json_get(side, "time"), 0) > 0);
    job_expect(j, json_as_int(json_get(side, "nwrong"), -1) == 0);
    job_expect(j, json_as_int(json_get(single, "skipped_iterations"), 0) == 1);
    job_expect(j, json_size(json_get(single, "times_us")) == (size_t)n && json_size(ranks) == 2);
    for (int i = 0; i < n; i++) { // each is the slower rank's
        const double a = json_as_real(json_at(json_at(ranks, 0), (size_t)i), -1);
        const double b = json_as_real(json_at(json_at(ranks, 1), (size_t)i), -1);
        const double both = json_as_real(json_at(json_get(single, "times_us"), (size_t)i), -1);

        job_expect(j, both == (a > b ? a : b) && both > 0);
    }
}

/* Writes a report to a new folder, or beside the one that is there, and gives it parsed. */
static json_value *make_report(const char *folder, const char *file, job **j)
{
    char path[64];
    json_value *v = NULL;
    char *text;
    size_t bytes;

    text_format(path, sizeof(path), "%s/x.json", folder);
    *j = job_start(BENCH("all_reduce", "-g2", "-b", "4K", "-e", "8K", "-f2", "-n3", "-I1", "-K1",
                         "--output_file", path),
                   NULL);
    job_expect_code(*j, 0);
    text_format(path, sizeof(path), "%s/%s", folder, file);
    job_expect(*j, job_printed(*j, 0, "# Writing JSON output to ") && job_printed(*j, 0, path));
    assert_ok(file_read(path, 1 << 20, &text, &bytes));
    (void)unlink(path);
    assert_ok(json_parse(text, bytes, path, &v));
    ls_free(text);
    return v;
}

static void report_has_the_form_of_nccl_tests(void **state)
{
    char folder[] = "/tmp/lockstep-test-XXXXXX";
    char path[64];
    const json_value *config;
    json_value *v;
    job *j;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    v = make_report(folder, "x.json", &j);
    config = json_get(v, "config");
    job_expect(j, json_as_int(json_get(v, "version"), 0) == 3);
    job_expect(j, json_as_int(json_get(config, "iterations"), 0) == 3);
    job_expect(j, text_equal(bench_text(config, "per_iter_timing"), "true"));
    job_expect(j, json_size(json_get(config, "devices")) == 2);
    job_expect(j, json_size(json_get(v, "results")) == 2);
    for (size_t i = 0; i < 2; i++)
        expect_report_row(j, json_at(json_get(v, "results"), i), 4096 << i, 3);
    job_expect(j, text_equal(bench_text(json_get(v, "out_of_bounds"), "okay"), "true"));
    job_expect(j,
               text_equal(bench_text(json_get(v, "average_bus_bandwidth"), "okay"), "unchecked"));
    job_expect(j, strlen(bench_text(v, "end_time")) == strlen("2026-07-09 16:03:21"));
    json_free(v);
    job_clean_up(NULL);
    text_format(path, sizeof(path), "%s/x.json", folder);
    (void)close(open(path, O_CREAT | O_WRONLY, 0600));
    json_free(make_report(folder, "x.json.0", &j)); // what is there stays
    job_expect(j, access(path, F_OK) == 0);
    (void)unlink(path);
    job_expect(j, rmdir(folder) == 0);
}

static void report_that_cannot_be_written_fails_before_measuring(void **state)
{
    job *j =
        job_start(BENCH("all_reduce", "-b8", "-e8", "-g2", "-J", "/no/such/folder/x.json"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "/no/such/folder/x.json") && bench_count_rows(j) == 0);
}

static void report_of_a_failed_run_is_removed(void **state)
{
    char folder[] = "/tmp/lockstep-test-XXXXXX";
    char path[64];
    job *j;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    text_format(path, sizeof(path), "%s/x.json", folder);
    j = job_start(BENCH("all_reduce", "-b8", "-e8", "-g2", "-J", path),
                  JOB_LIST("NCCL_TESTS_MIN_BW=much"));
    job_expect_code(j, 2);
    job_expect(j, j->out.length == 0 && job_printed(j, 1, "NCCL_TESTS_MIN_BW"));
    job_expect(j, rmdir(folder) == 0);
}

static void json_holds_what_the_table_shows(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    json_value *v;
    job *j;
    bench_row rows[4];

    LS_UNUSED(state);
    assert_true(fd >= 0);
    (void)close(fd);
    j = job_start(JOB_LIST(JOB_TOOL, "bench", "all_reduce", "-g", "2", "-b", "4K", "-e", "8K", "-f",
                           "2", "-n", "2", "--json", path),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, bench_rows(j, "", rows, 4) == 2);
    v = bench_json(j, path);
    job_expect(j, json_size(v) == 4);
    for (size_t i = 0; i < 4; i++) {
        const json_value *one = json_at(v, i);
        const bench_row *r = &rows[i / 2];

        job_expect(j, text_equal(json_as_string(json_get(one, "op"), ""), "all_reduce"));
        job_expect(j, json_as_int(json_get(one, "size"), -1) == r->size);
        job_expect(j, json_as_int(json_get(one, "count"), -1) == r->count);
        job_expect(j, text_equal(json_as_string(json_get(one, "type"), ""), "float"));
        job_expect(j, text_equal(json_as_string(json_get(one, "redop"), ""), "sum"));
        job_expect(j, json_kind_of(json_get(one, "in_place")) == JSON_IS_BOOL);
        job_expect(j, json_as_bool(json_get(one, "in_place"), false) == (i % 2 == 1));
        job_expect(j, text_equal(json_as_string(json_get(one, "backend"), ""), "native"));
        job_expect(j, text_equal(json_as_string(json_get(one, "transport"), ""), "shm"));
        job_expect(j, text_equal(json_as_string(json_get(one, "memory"), ""), "user"));
        job_expect(j, json_as_real(json_get(one, "time_us"), -1) > 0);
        job_expect(j, json_as_real(json_get(one, "algbw_gbs"), -1) > 0);
        job_expect(j, json_as_real(json_get(one, "busbw_gbs"), -1) > 0);
        job_expect(j, json_as_int(json_get(one, "wrong"), -1) == 0);
    }
    json_free(v);
}

static void unchecked_results_are_not_reported_as_right(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    json_value *v;
    job *j;

    LS_UNUSED(state);
    (void)close(fd);
    j = job_start(JOB_LIST(JOB_TOOL, "bench", "all_reduce", "-b", "64", "-e", "64", "-n", "1", "-c",
                           "0", "--json", path),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "N/A"));
    v = bench_json(j, path);
    job_expect(j, json_get(json_at(v, 0), "wrong") != NULL);
    job_expect(j, json_kind_of(json_get(json_at(v, 0), "wrong")) == JSON_IS_NULL);
    json_free(v);
}

static void json_file_that_cannot_be_written_is_an_error(void **state)
{
    job *j = job_start(
        BENCH("all_reduce", "-b", "8", "-e", "8", "-n", "1", "--json", "/no/such/folder/x.json"),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "/no/such/folder/x.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(report_has_the_form_of_nccl_tests),
        test(report_that_cannot_be_written_fails_before_measuring),
        test(report_of_a_failed_run_is_removed),
        test(json_holds_what_the_table_shows),
        test(unchecked_results_are_not_reported_as_right),
        test(json_file_that_cannot_be_written_is_an_error),
    };

    return cmocka_run_group_tests_name("cli bench json", tests, NULL, NULL);
}
