/* SPDX-License-Identifier: Apache-2.0 */
/* lockstep bench: its table, its JSON, its verdict. */
#include "launch/job.h"

#include "base/file.h"
#include "base/alloc.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

typedef struct row {
    long long size, count, wrong[2];
    char type[16], redop[16];
    int root;
    double time[2], algbw[2], busbw[2];
} row;

/* The columns of nccl-tests: size count type redop root, then time algbw busbw #wrong out of place and in place. */
static bool parse_row(const char *line, row *r)
{
    return sscanf(line, "%lld %lld %15s %15s %d %lf %lf %lf %lld %lf %lf %lf %lld", &r->size,
                  &r->count, r->type, r->redop, &r->root, &r->time[0], &r->algbw[0], &r->busbw[0],
                  &r->wrong[0], &r->time[1], &r->algbw[1], &r->busbw[1], &r->wrong[1]) == 13;
}

/* All rows of the table in *rows, at most `max`; lines of the header and footer begin with '#'. */
static int parse_table(job *j, const char *prefix, row *rows, int max)
{
    const char *line = text_str(&j->out);
    int n = 0;

    while (*line != 0) {
        const char *end = strchr(line, '\n');

        job_expect(j, end != NULL && text_starts(line, prefix));
        line += strlen(prefix);
        if (*line != '#') {
            job_expect(j, n < max && parse_row(line, &rows[n]));
            n++;
        }
        line = end + 1;
    }
    return n;
}

static void expect_rows(job *j, const row *rows, int n, int n_ranks)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            const row *r = &rows[i];
            const double algbw = (double)r->size / r->time[k] * 1e-3;

            job_expect(j, r->time[k] > 0 && r->wrong[k] == 0 && r->root == -1);
            job_expect(j, r->algbw[k] > 0.97 * algbw - 0.01 && r->algbw[k] < 1.03 * algbw + 0.01);
            job_expect(j, r->busbw[k] > 0.99 * r->algbw[k] * 2 * (n_ranks - 1) / n_ranks - 0.02);
        }
}

static void the_table_has_nccl_tests_columns(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "bench", "all_reduce", "-g", "2", "-b", "1K", "-e", "64K",
                                "-f", "4", "-n", "5", "-w", "1", "-d", "double", "-o", "max"),
                       NULL);
    row rows[8];

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_said(j, 0, "2 ranks, backend native, transport shm"));
    job_expect(j, job_said(j, 0, "# Out of bounds values : 0 OK"));
    job_expect(j, job_said(j, 0, "# Avg bus bandwidth"));
    job_expect(j, parse_table(j, "", rows, 8) == 4);
    for (int i = 0; i < 4; i++) {
        job_expect(j, rows[i].size == 1024 << (2 * i) && rows[i].count == rows[i].size / 8);
        job_expect(j, text_equal(rows[i].type, "double") && text_equal(rows[i].redop, "max"));
    }
    expect_rows(j, rows, 4, 2);
    job_expect_gone(j);
}

static void only_rank_0_prints_under_the_launcher(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_TOOL, "bench", "all_reduce", "-b",
                                "8", "-e", "24", "-i", "8", "-n", "3"),
                       JOB_LIST("LOCKSTEP_TRANSPORT=tcp"));
    row rows[8];

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_said(j, 0, "3 ranks, backend native, transport tcp"));
    job_expect(j, parse_table(j, "rank 0| ", rows, 8) == 3);
    job_expect(j, rows[2].size == 24 && rows[2].count == 6);
    expect_rows(j, rows, 3, 3);
}

static void every_type_and_reduction_is_right(void **state)
{
    static row rows[256];

    LS_UNUSED(state);
    for (int memory = 0; memory < 2; memory++)
        for (int tcp = 0; tcp < 2; tcp++) {
            job *j =
                job_start(JOB_LIST(JOB_TOOL, "bench", "all_reduce", "-g", "3", "-b", "0", "-e",
                                   "2056", "-i", "1028", "-n", "1", "-w", "0", "-d", "all", "-o",
                                   "all", "--memory", memory == 0 ? "user" : "registered",
                                   "--transport", tcp == 0 ? "shm" : "tcp"),
                          NULL);

            job_expect_code(j, 0);
            /* 8 types by 5 reductions, less the average of 4 whole types; 3 sizes */
            job_expect(j, parse_table(j, "", rows, 256) == (8 * 5 - 4) * 3);
            job_expect(j, job_said(j, 0, "# Out of bounds values : 0 OK"));
            job_clean_up(NULL);
        }
}

static json_value *load(job *j, const char *path)
{
    json_value *v = NULL;
    char *text;
    size_t bytes;

    assert_ok(file_read(path, 1 << 20, &text, &bytes));
    assert_ok(json_parse(text, bytes, path, &v));
    ls_free(text);
    job_expect(j, json_kind_of(v) == JSON_IS_ARRAY);
    return v;
}

static void json_holds_what_the_table_shows(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    json_value *v;
    job *j;
    row rows[4];

    LS_UNUSED(state);
    assert_true(fd >= 0);
    (void)close(fd);
    j = job_start(JOB_LIST(JOB_TOOL, "bench", "all_reduce", "-g", "2", "-b", "4K", "-e", "8K", "-f",
                           "2", "-n", "2", "--json", path),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, parse_table(j, "", rows, 4) == 2);
    v = load(j, path);
    (void)unlink(path);
    job_expect(j, json_size(v) == 4);
    for (size_t i = 0; i < 4; i++) {
        const json_value *one = json_at(v, i);
        const row *r = &rows[i / 2];

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

static void unchecked_results_are_not_called_right(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    json_value *v;
    job *j;

    LS_UNUSED(state);
    (void)close(fd);
    j = job_start(JOB_LIST(JOB_TOOL, "bench", "all_reduce", "-b", "64", "-e", "64", "-n", "1", "-c",
                           "0", "-J", path),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_said(j, 0, "N/A"));
    v = load(j, path);
    (void)unlink(path);
    job_expect(j, json_get(json_at(v, 0), "wrong") != NULL);
    job_expect(j, json_kind_of(json_get(json_at(v, 0), "wrong")) == JSON_IS_NULL);
    json_free(v);
}

static void expect_refused(const char *const *argv, int code, const char *text)
{
    job *j = job_start(argv, NULL);

    job_expect_code(j, code);
    if (!job_said(j, 1, text))
        print_message("wanted: %s\n", text);
    job_expect(j, job_said(j, 1, text) && j->out.length == 0);
    job_clean_up(NULL);
}

#define BENCH(...) JOB_LIST(JOB_TOOL, "bench", __VA_ARGS__)

static void wrong_flags_are_told(void **state)
{
    LS_UNUSED(state);
    expect_refused(BENCH("all_scatter"), 1, "all_scatter: this version measures all_reduce");
    expect_refused(BENCH("all_reduce", "-d", "complex"), 2, "-d complex is no type: int8");
    expect_refused(BENCH("all_reduce", "-o", "median"), 2, "-o median is no reduction: sum");
    expect_refused(BENCH("all_reduce", "-d", "int32", "-o", "avg"), 2,
                   "whole numbers have no average");
    expect_refused(BENCH("all_reduce", "-b", "2M", "-e", "1M"), 2, "-b is over -e");
    expect_refused(BENCH("all_reduce", "-b", "1X"), 2, "--minbytes");
    expect_refused(BENCH("all_reduce", "-b", "-8"), 2, "--minbytes");
    expect_refused(BENCH("all_reduce", "-i", "0"), 2, "must lead from one size to the next");
    expect_refused(BENCH("all_reduce", "-n", "0"), 2, "--iters");
    expect_refused(BENCH("all_reduce", "--memory", "core"), 2, "--memory core: user or registered");
    expect_refused(BENCH("all_reduce", "--backend", "nccl", "-b", "8", "-e", "8"), 1, "nccl");
    expect_refused(BENCH("all_reduce", "--transport", "pigeon", "-b", "8", "-e", "8"), 1, "pigeon");
    expect_refused(BENCH("all_reduce", "extra"), 2, "unexpected argument extra");
}

static void a_json_file_that_cannot_be_written_is_told(void **state)
{
    job *j = job_start(
        BENCH("all_reduce", "-b", "8", "-e", "8", "-n", "1", "--json", "/no/such/folder/x.json"),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_said(j, 1, "/no/such/folder/x.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(the_table_has_nccl_tests_columns),
        test(only_rank_0_prints_under_the_launcher),
        test(every_type_and_reduction_is_right),
        test(json_holds_what_the_table_shows),
        test(unchecked_results_are_not_called_right),
        test(wrong_flags_are_told),
        test(a_json_file_that_cannot_be_written_is_told),
    };

    return cmocka_run_group_tests_name("cli bench", tests, NULL, NULL);
}
