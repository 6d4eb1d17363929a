/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_bench.c - lockstep bench as a command: table, JSON, exit codes, --vs and --watch. */
#include "launch/job.h"

#include "base/file.h"
#include "base/alloc.h"
#include "base/json.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BENCH(...) JOB_LIST(JOB_TOOL, "bench", __VA_ARGS__)
#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

typedef struct row {
    long long size, count, wrong[2];
    char type[16], redop[16];
    int root;
    double time[2], algbw[2], busbw[2];
} row;

/* The columns of nccl-tests: size count type redop root, then time algbw busbw #wrong out of place
 * and in place. */
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

            job_expect(j, r->time[k] > 0 && r->wrong[k] == 0);
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
    job_expect(j, job_printed(j, 0, "2 ranks, backend native, transport shm"));
    job_expect(j, job_printed(j, 0, "# Out of bounds values : 0 OK"));
    job_expect(j, job_printed(j, 0, "# Avg bus bandwidth"));
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
    job_expect(j, job_printed(j, 0, "3 ranks, backend native, transport tcp"));
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
            job_expect(j, job_printed(j, 0, "# Out of bounds values : 0 OK"));
            job_clean_up(NULL);
        }
}

/* A row of a table where there is no in place: those columns say N/A. */
static int count_rows(job *j)
{
    int n = 0;

    for (const char *line = text_str(&j->out); *line != '\0'; line = strchr(line, '\n') + 1)
        n += line[0] == ' ';
    return n;
}

static void every_operation_is_right(void **state)
{
    static const char *const ops[] = {"all_gather", "reduce_scatter", "broadcast", "reduce",
                                      "alltoall",   "all_to_all_v",   "gather",    "scatter",
                                      "sendrecv",   "hypercube"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(ops); i++) {
        const bool has_root = strstr("broadcast reduce gather scatter", ops[i]) != NULL;
        const bool is_cube = text_equal(ops[i], "hypercube");
        job *j = job_start(BENCH(ops[i], "-g", is_cube ? "4" : "3", "-b", "0", "-e", "6168", "-i",
                                 "1028", "-n", "1", "-w", "0", "-d", "all", "-r", "all"),
                           NULL);

        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "# Out of bounds values : 0 OK"));
        job_expect(j, count_rows(j) == LS_DTYPE_COUNT * 7 * (has_root ? 3 : 1));
        job_clean_up(NULL);
    }
}

/* The flags that make single operations be timed, several be started at once, and ranks be split,
 * change no result. */
static void ways_of_measuring_change_no_result(void **state)
{
    job *j =
        job_start(BENCH("all_gather", "-g", "4", "-b", "64", "-e", "4096", "-f", "8", "-n", "4",
                        "-I", "1", "-S", "1", "-a", "3", "-T", "60", "--touch", "-R", "1"),
                  NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "i_p99") && job_printed(j, 0, "memory registered, touched"));
    job_expect(j, count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
    job_clean_up(NULL);
    j = job_start(BENCH("all_reduce", "-g", "4", "-b", "64", "-e", "64", "-m", "8", "-N", "2"),
                  JOB_LIST("NCCL_TESTS_SPLIT=MOD 2"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "2 ranks") && count_rows(j) == 2);
    job_expect(j, job_printed(j, 0, "values : 0 OK"));
}

static void a_program_of_nccl_tests_runs_its_operation(void **state)
{
    static const char *const names[] = {"all_reduce_perf", "all_gather_perf", "reduce_scatter_perf",
                                        "broadcast_perf",  "reduce_perf",     "alltoall_perf",
                                        "alltoallv_perf",  "gather_perf",     "scatter_perf",
                                        "sendrecv_perf",   "hypercube_perf"};
    char path[512];
    char header[64];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        job *j;

        text_format(path, sizeof(path), "%s/%s", LOCKSTEP_BIN, names[i]);
        text_format(header, sizeof(header), " %.*s, 2 ranks",
                    (int)(strlen(names[i]) - strlen("_perf")), names[i]);
        j = job_start(JOB_LIST(path, "-b8", "-e", "64", "-f8", "--warmup_iters", "0", "-g2"), NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, header) && count_rows(j) == 2);
        job_clean_up(NULL);
    }
}

static void a_program_of_nccl_tests_is_named_in_help_and_errors(void **state)
{
    job *j = job_start(JOB_LIST(LOCKSTEP_BIN "/all_reduce_perf", "--help"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_starts(text_str(&j->out), "usage: all_reduce_perf [flags]\n"));
    job_clean_up(NULL);
    j = job_start(JOB_LIST(LOCKSTEP_BIN "/all_reduce_perf", "--warmup"), NULL);
    job_expect_code(j, 2);
    job_expect(j, text_starts(text_str(&j->err), "all_reduce_perf: unknown flag --warmup"));
}

/* As programs of ranks that the launcher starts, and as the ranks that --vs starts. */
static void a_program_of_nccl_tests_runs_as_ranks(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "broadcast_perf", "-b", "8", "-e", "8"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, " broadcast, 2 ranks"));
    job_clean_up(NULL);
    j = job_start(JOB_LIST(LOCKSTEP_BIN "/reduce_perf", "-b", "8", "-e", "8", "-g", "2", "--vs",
                           "native", "-N", "2"),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, " reduce, 2 ranks") && job_printed(j, 0, "medians of 2 turns"));
}

/* --- nccl-tests' flags --- */

static void every_flag_of_nccl_tests_is_accepted(void **state)
{
    static const char *const flags[][3] = {
        {"--nthreads", "-t", "1"},
        {"--ngpus", "-g", "1"},
        {"--minbytes", "-b", "8"},
        {"--maxbytes", "-e", "8"},
        {"--stepbytes", "-i", "8"},
        {"--stepfactor", "-f", "2"},
        {"--iters", "-n", "2"},
        {"--agg_iters", "-m", "2"},
        {"--warmup_iters", "-w", "1"},
        {"--run_cycles", "-N", "1"},
        {"--parallel_init", "-p", "1"},
        {"--check", "-c", "2"},
        {"--op", "-o", "max"},
        {"--datatype", "-d", "double"},
        {"--root", "-r", "0"},
        {"--blocking", "-z", "1"},
        {"--stream_null", "-y", "0"},
        {"--timeout", "-T", "60"},
        {"--cudagraph", "-G", "3"},
        {"--report_cputime", "-C", "1"},
        {"--average", "-a", "2"},
        {"--report_timestamps", "-S", "1"},
        {"--local_register", "-R", "1"},
        {"--cta_policy", "-x", "1"},
        {"--memory", "-M", "1"},
        {"--device_implementation", "-D", "1"},
        {"--unalign", "-u", "1"},
        {"--device_cta_count", "-V", "16"},
        {"--per_iter_timing", "-I", "1"},
        {"--per_iter_skip", "-K", "1"},
    };

    LS_UNUSED(state);
    for (int form = 0; form < 2; form++) {
        const char *words[2 * LS_COUNT_OF(flags) + 2] = {LOCKSTEP_BIN "/all_reduce_perf"};
        job *j;

        for (size_t i = 0; i < LS_COUNT_OF(flags); i++) {
            words[2 * i + 1] = flags[i][form];
            words[2 * i + 2] = flags[i][2];
        }
        j = job_start(words, NULL);
        job_expect_code(j, 0);
        job_expect(j, count_rows(j) == 1 && job_printed(j, 0, "values : 0 OK"));
        job_expect(j,
                   job_printed(j, 0, "memory registered") && job_printed(j, 0, "# Memory usage"));
        job_expect(j, job_printed(j, 0, "cputime") && job_printed(j, 0, "i_p99"));
        job_expect(j, job_printed(j, 0, "# -z 1: wait and barrier after each operation"));
        job_clean_up(NULL);
    }
}

static void a_flag_without_effect_is_named_with_the_reason(void **state)
{
    job *j = job_start(BENCH("all_reduce", "-b8", "-e8", "-p", "0", "-y1", "-G", "10", "-x2", "-D1",
                             "-V", "3", "-K", "1"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "# -p 0 has no effect: ranks are processes"));
    job_expect(j, job_printed(j, 0, "# -y 1 has no effect: the null stream is not used"));
    job_expect(j, job_printed(j, 0, "# -G 10 has no effect: operations are not captured"));
    job_expect(j, job_printed(j, 0, "# -x 2 has no effect: NCCL chooses its thread"));
    job_expect(j, job_printed(j, 0, "# -D 1 has no effect: NCCL's device API is not used"));
    job_expect(j, job_printed(j, 0, "# -V 3 has no effect: NCCL chooses its thread"));
    job_expect(j, job_printed(j, 0, "# -K has no effect without -I 1"));
    job_clean_up(NULL);
    j = job_start(BENCH("all_reduce", "-b8", "-e8"), NULL);
    job_expect_code(j, 0);
    job_expect(j, !job_printed(j, 0, "no effect"));
    job_clean_up(NULL);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_TOOL, "bench", "all_reduce", "-b8",
                           "-e8", "-g", "4"),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "2 ranks"));
    job_expect(j,
               job_printed(j, 0, "# -g and -t have no effect: the launcher has started the ranks"));
}

/* What changes how operations are called changes no result: moved buffers, waiting, many at once.
 * */
static void results_are_right_however_operations_are_called(void **state)
{
    static const char *const ops[] = {"all_reduce", "reduce_scatter", "alltoallv", "sendrecv",
                                      "hypercube"};
    static const char *const modes[] = {"0", "1", "2", "3"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(ops); i++)
        for (size_t mode = 0; mode < LS_COUNT_OF(modes); mode++) {
            job *j = job_start(BENCH(ops[i], "-g4", "-b64", "-e4160", "-f5", "-n2", "-m3", "-u3",
                                     "-c2", "-C1", "-z", modes[mode]),
                               NULL);

            job_expect_code(j, 0);
            job_expect(j, count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
            job_clean_up(NULL);
        }
}

static void memory_report_counts_the_buffers(void **state)
{
    double mib = 0;
    const char *at;
    job *j = job_start(BENCH("all_reduce", "-g2", "-b", "8M", "-e", "8M", "-n1", "-M1"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    at = strstr(text_str(&j->out), "User-Allocated ");
    job_expect(j, at != NULL && sscanf(at, "User-Allocated %lf MiB", &mib) == 1);
    job_expect(j, mib >= 15 && mib < 40); // two of 8 MiB, on huge pages
    job_expect(j, job_printed(j, 0, "# Memory usage         : Initialization "));
}

static const char *text_at(const json_value *object, const char *key)
{
    return json_as_string(json_get(object, key), "");
}

static void expect_report_row(job *j, const json_value *one, int64_t size, int n)
{
    const json_value *side = json_get(one, "in_place");
    const json_value *single = json_get(one, "in_place_per_iter");
    const json_value *ranks = json_get(single, "per_process_max_times_us");

    job_expect(j, json_as_int(json_get(one, "size"), 0) == size);
    job_expect(j, text_equal(text_at(one, "type"), "float"));
    job_expect(j, text_equal(text_at(one, "root"), "    -1"));
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
    job_expect(j, text_equal(text_at(config, "per_iter_timing"), "true"));
    job_expect(j, json_size(json_get(config, "devices")) == 2);
    job_expect(j, json_size(json_get(v, "results")) == 2);
    for (size_t i = 0; i < 2; i++)
        expect_report_row(j, json_at(json_get(v, "results"), i), 4096 << i, 3);
    job_expect(j, text_equal(text_at(json_get(v, "out_of_bounds"), "okay"), "true"));
    job_expect(j, text_equal(text_at(json_get(v, "average_bus_bandwidth"), "okay"), "unchecked"));
    job_expect(j, strlen(text_at(v, "end_time")) == strlen("2026-07-09 16:03:21"));
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
    job_expect(j, job_printed(j, 1, "/no/such/folder/x.json") && count_rows(j) == 0);
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
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "NCCL_TESTS_MIN_BW"));
    job_expect(j, rmdir(folder) == 0);
}

static void low_bandwidth_fails_with_a_minimum(void **state)
{
    const char *const *argv = BENCH("all_reduce", "-g", "2", "-b", "64", "-e", "64", "-n", "2");
    job *j = job_start(argv, JOB_LIST("NCCL_TESTS_MIN_BW=1000000"));

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "is below 0.9 * NCCL_TESTS_MIN_BW"));
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
    if (!job_printed(j, 1, text))
        print_message("wanted: %s\n", text);
    job_expect(j, job_printed(j, 1, text) && j->out.length == 0);
    job_clean_up(NULL);
}

static void wrong_flags_are_errors(void **state)
{
    LS_UNUSED(state);
    expect_refused(BENCH("all_scatter"), 2,
                   "all_scatter: unknown operation; must be all_reduce, all_gather");
    expect_refused(BENCH("all_reduce", "--watch"), 2, "--watch is for sendrecv");
    expect_refused(BENCH("all_reduce", "--bind-to", "moon"), 2,
                   "--bind-to moon: must be none or core");
    expect_refused(BENCH("all_reduce", "--vs", "native", "-N", "0"), 2,
                   "-N 0 with --vs: give the number of turns");
    expect_refused(BENCH("all_reduce", "--vs", "native,,gloo"), 2, "comma-separated list");
    expect_refused(BENCH("all_reduce", "--vs", "a,b,c,d,e,f,g,h"), 2, "more than 7 backends");
    expect_refused(BENCH("all_reduce", "-K", "20"), 2, "-K 20 skips all iterations: -n is 20");
    expect_refused(BENCH("all_reduce", "-G", "many"), 2, "--cudagraph");
    expect_refused(BENCH("all_reduce", "-z", "4"), 2, "--blocking");
    expect_refused(BENCH("all_reduce", "--memory", "2"), 2,
                   "--memory 2: must be user or registered");
    expect_refused(BENCH("all_reduce", "--vs", "native", "-J", "x.json"), 2, "use --json");
    expect_refused(BENCH("broadcast", "-r", "x"), 2, "--root");
    expect_refused(BENCH("all_reduce", "-d", "complex"), 2,
                   "-d complex: unknown type; must be int8");
    expect_refused(BENCH("all_reduce", "-o", "median"), 2,
                   "-o median: unknown reduction; must be sum");
    expect_refused(BENCH("all_reduce", "-d", "int32", "-o", "avg"), 2,
                   "avg needs a floating-point type");
    expect_refused(BENCH("all_reduce", "-b", "2M", "-e", "1M"), 2,
                   "-b 2097152 is larger than -e 1048576");
    expect_refused(BENCH("all_reduce", "-b", "1X"), 2, "--minbytes");
    expect_refused(BENCH("all_reduce", "-b", "-8"), 2, "--minbytes");
    expect_refused(BENCH("all_reduce", "-i", "0"), 2, "-i 0 without -f gives no next size");
    expect_refused(BENCH("all_reduce", "-n", "0"), 2, "--iters");
    expect_refused(BENCH("all_reduce", "--memory", "core"), 2,
                   "--memory core: must be user or registered");
    expect_refused(BENCH("all_reduce", "--backend", "nccl", "-b", "8", "-e", "8"), 1, "nccl");
    expect_refused(BENCH("all_reduce", "--transport", "pigeon", "-b", "8", "-e", "8"), 1, "pigeon");
    expect_refused(BENCH("all_reduce", "extra"), 2, "unexpected argument extra");
}

/* What only ranks can find out: the command line was right in itself, so the code is that of a
 * failed job. */
static void wrong_numbers_of_ranks_are_errors(void **state)
{
    LS_UNUSED(state);
    expect_refused(BENCH("sendrecv", "-b", "8", "-e", "8"), 1, "but there is 1");
    expect_refused(BENCH("sendrecv", "--watch"), 1, "but there is 1");
    expect_refused(BENCH("hypercube", "-g", "3", "-b", "8", "-e", "8"), 1, "a power of two");
    expect_refused(BENCH("broadcast", "-g", "2", "-r", "2", "-b", "8", "-e", "8"), 1,
                   "-r 2: the ranks are 0 to 1");
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

static void the_choice_of_algorithms_is_shown(void **state)
{
    job *j = job_start(BENCH("--show-algorithms"),
                       JOB_LIST("LOCKSTEP_ALGORITHMS=all_reduce:staged<=1M"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "all_reduce") && job_printed(j, 0, "staged"));
    job_clean_up(NULL);
    j = job_start(BENCH("--show-algorithms"), JOB_LIST("LOCKSTEP_ALGORITHMS=all_reduce:magic"));
    job_expect_code(j, 2);
    job_expect(j, job_printed(j, 1, "LOCKSTEP_ALGORITHMS") && job_printed(j, 1, "magic"));
}

// --- device memory, of the simulated device and a library with NCCL's interface ---

#define FAKE_NCCL "LOCKSTEP_NCCL_LIBRARY=" FAKE_NCCL_LIBRARY

static void every_operation_runs_on_device_memory(void **state)
{
    static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                      "reduce",     "alltoall",   "alltoallv",      "gather",
                                      "scatter",    "sendrecv",   "hypercube"};
    static const char *const backends[] = {"native", "nccl"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(ops); i++)
        for (size_t k = 0; k < LS_COUNT_OF(backends); k++) {
            char header[100];
            job *j = job_start(BENCH(ops[i], "-g4", "-b0", "-e2056", "-i1028", "-n2", "--device",
                                     "sim", "--backend", backends[k]),
                               JOB_LIST(FAKE_NCCL));

            job_expect_code(j, 0);
            text_format(header, sizeof(header),
                        "4 ranks, backend %s, transport shm, memory user, "
                        "device sim\n",
                        backends[k]);
            job_expect(j, job_printed(j, 0, header));
            job_expect(j, count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
            job_clean_up(NULL);
        }
}

static void device_times_are_measured_in_every_mode(void **state)
{
    static const char *const modes[] = {"0", "1", "2", "3"};

    LS_UNUSED(state);
    for (size_t mode = 0; mode < LS_COUNT_OF(modes); mode++)
        for (int single = 0; single < 2; single++) {
            row rows[2];
            job *j = job_start(BENCH("all_reduce", "-g2", "-b64", "-e4160", "-f65", "-n4", "-m3",
                                     "-u3", "-c2", "-C1", "-M1", "-z", modes[mode], "-I",
                                     single ? "1" : "0", "--device", "sim", "--backend", "nccl"),
                               JOB_LIST(FAKE_NCCL));

            job_expect_code(j, 0);
            job_expect(j, count_rows(j) == 2 && job_printed(j, 0, "values : 0 OK"));
            job_expect(j, job_printed(j, 0, "# Memory usage         : Initialization 0 B"));
            job_expect(j, single || parse_table(j, "", rows, 2) == 2);
            job_expect(j, single || (rows[0].time[0] > 0 && rows[1].time[1] > 0));
            job_clean_up(NULL);
        }
}

/* With each version of NCCL; only the newer one has registration. */
static void registered_device_memory_is_measured(void **state)
{
    static const char *const libraries[] = {"LOCKSTEP_NCCL_LIBRARY=" FAKE_NCCL_OLD_LIBRARY,
                                            FAKE_NCCL};

    LS_UNUSED(state);
    for (int has_it = 0; has_it < 2; has_it++) {
        job *j = job_start(BENCH("all_reduce", "-g2", "-b64", "-e64", "-R1", "--device", "sim",
                                 "--backend", "nccl"),
                           JOB_LIST(libraries[has_it], "LOCKSTEP_LOG=nccl=debug"));

        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "memory registered, device sim"));
        job_expect(j, job_printed(j, 0, "values : 0 OK"));
        job_expect(j, job_printed(j, 1, "bytes: no error") == (has_it == 1));
        job_clean_up(NULL);
    }
}

static void sets_of_ranks_compare_device_memory(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    json_value *v;
    job *j;

    LS_UNUSED(state);
    assert_true(fd >= 0);
    (void)close(fd);
    j = job_start(BENCH("all_gather", "-g2", "-b64", "-e64", "-n4", "-N2", "--device", "sim",
                        "--backend", "nccl", "--vs", "native", "--json", path),
                  JOB_LIST(FAKE_NCCL));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "backend nccl, transport shm, memory user, device sim"));
    job_expect(j, job_printed(j, 0, "values : 0 OK"));
    v = load(j, path);
    (void)unlink(path);
    job_expect(j, json_size(v) == 4);
    for (size_t i = 0; i < json_size(v); i++)
        job_expect(j, text_equal(text_at(json_at(v, i), "device"), "sim"));
    json_free(v);
}

static void devices_that_cannot_be_used_are_errors(void **state)
{
    job *j;

    LS_UNUSED(state);
    expect_refused(BENCH("all_reduce", "--device", "abacus", "-g2"), 1, "abacus");
    expect_refused(BENCH("all_reduce", "--device", "sim", "--touch"), 2,
                   "--touch with --device: it is for the caches of CPUs");
    expect_refused(BENCH("all_reduce", "--device", "cpu_ref"), 1,
                   "--device cpu_ref: it has no memory of its own");
    expect_refused(BENCH("all_reduce", "-g2", "--device", "sim", "-b1T", "-e1T"), 1,
                   "out of memory on sim:0: a buffer needs 1.5 TiB, ");
    // it has two cards
    expect_refused(BENCH("all_reduce", "-g3", "--device", "cudahost"), 1,
                   "start at most 2 ranks on this machine; or use --share-gpu");
    j = job_start(BENCH("all_reduce", "-g3", "--device", "cudahost", "--share-gpu", "-b8", "-e8"),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "values : 0 OK"));
}

static void messages_of_devices_can_be_watched(void **state)
{
    job *j = job_start(BENCH("sendrecv", "-g2", "--watch=1", "-e64K", "--device", "sim"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "messages of 64 KiB, device sim"));
    job_expect(j, job_printed(j, 0, "  1 -> 0 "));
}

// --- --vs ---

static void two_sets_of_ranks_take_turns(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    int64_t n_with_ratio = 0;
    json_value *v;
    job *j;

    LS_UNUSED(state);
    assert_true(fd >= 0);
    (void)close(fd);
    j = job_start(BENCH("all_reduce", "-g", "2", "-b", "64", "-e", "4096", "-f", "8", "-n", "4",
                        "-N", "3", "--vs", "native", "--json", path),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "time of native (ours) and of native (theirs), medians of 3"));
    job_expect(j, count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
    job_expect(j, j->err.length == 0);
    v = load(j, path);
    (void)unlink(path);
    job_expect(j, json_size(v) == 12);
    for (size_t i = 0; i < json_size(v); i++) {
        job_expect(j, json_as_real(json_get(json_at(v, i), "time_us"), -1) > 0);
        n_with_ratio += json_as_real(json_get(json_at(v, i), "ratio"), -1) > 0;
    }
    job_expect(j, n_with_ratio == 6);
    json_free(v);
    job_expect_gone(j);
}

static void three_sets_have_a_line_for_each_peer(void **state)
{
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    int64_t n_with_ratio = 0;
    json_value *v;
    job *j;

    LS_UNUSED(state);
    assert_true(fd >= 0);
    (void)close(fd);
    j = job_start(BENCH("all_reduce", "-g", "2", "-b", "64", "-e", "512", "-f", "8", "-n", "4",
                        "-N", "2", "--vs", "native,auto", "--json", path),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "and of native, auto (theirs, one line each), medians of 2"));
    job_expect(j, count_rows(j) == 4 && job_printed(j, 0, "  auto\n"));
    v = load(j, path);
    (void)unlink(path);
    job_expect(j, json_size(v) == 12); // two sizes, out of place and in place, three sets
    for (size_t i = 0; i < json_size(v); i++)
        n_with_ratio += json_as_real(json_get(json_at(v, i), "ratio"), -1) > 0;
    job_expect(j, n_with_ratio == 8);
    json_free(v);
    job_expect_gone(j);
}

static void missing_backend_ends_both_sets(void **state)
{
    job *j = job_start(BENCH("all_reduce", "-g", "2", "-b", "64", "-e", "64", "--vs", "nccl"),
                       JOB_LIST("LOCKSTEP_NCCL_LIBRARY=/nowhere/libnccl.so.2"));

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "backend nccl: LOCKSTEP_NCCL_LIBRARY cannot be loaded"));
    job_expect(j, job_printed(j, 1, "the ranks of backend nccl exited with code 1"));
    job_expect(j, !job_printed(j, 1, "closed the connection"));
    job_expect_gone(j);
}

static void no_rank_is_left_when_the_parent_of_vs_is_killed(void **state)
{
    job *j = job_start(BENCH("all_reduce", "-g", "2", "-b", "1M", "-e", "1M", "-n", "100", "-N",
                             "100000", "--vs", "native"),
                       NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "# time of native");
    job_expect(j, kill(j->pid, SIGKILL) == 0);
    job_await_end(j);
    job_expect_gone(j);
}

// --- --watch ---

static void throughput_is_shown_pair_by_pair(void **state)
{
    job *j = job_start(BENCH("sendrecv", "-g", "3", "-e", "64K", "--watch=1"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "messages of 64 KiB") && job_printed(j, 0, "# rank 2 is on "));
    job_expect(j, job_printed(j, 0, "1  0 -> 1 ") && job_printed(j, 0, "  2 -> 0 "));
    job_expect(j, job_printed(j, 0, "#    mean  0 -> 1 "));
}

static void ctrl_c_ends_the_watch_with_code_0(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_TOOL, "bench", "sendrecv", "-e", "64K", "--watch"),
        NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "        1  0 -> 1");
    job_expect(j, kill(j->pid, SIGINT) == 0);
    job_await_end(j);
    job_expect(j, job_printed(j, 0, "#    mean  0 -> 1 "));
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(the_table_has_nccl_tests_columns),
        test(only_rank_0_prints_under_the_launcher),
        test(every_type_and_reduction_is_right),
        test(every_operation_is_right),
        test(ways_of_measuring_change_no_result),
        test(a_program_of_nccl_tests_runs_its_operation),
        test(a_program_of_nccl_tests_is_named_in_help_and_errors),
        test(a_program_of_nccl_tests_runs_as_ranks),
        test(every_flag_of_nccl_tests_is_accepted),
        test(a_flag_without_effect_is_named_with_the_reason),
        test(results_are_right_however_operations_are_called),
        test(memory_report_counts_the_buffers),
        test(report_has_the_form_of_nccl_tests),
        test(report_that_cannot_be_written_fails_before_measuring),
        test(report_of_a_failed_run_is_removed),
        test(low_bandwidth_fails_with_a_minimum),
        test(json_holds_what_the_table_shows),
        test(unchecked_results_are_not_reported_as_right),
        test(wrong_flags_are_errors),
        test(wrong_numbers_of_ranks_are_errors),
        test(json_file_that_cannot_be_written_is_an_error),
        test(the_choice_of_algorithms_is_shown),
        test(every_operation_runs_on_device_memory),
        test(device_times_are_measured_in_every_mode),
        test(registered_device_memory_is_measured),
        test(sets_of_ranks_compare_device_memory),
        test(devices_that_cannot_be_used_are_errors),
        test(messages_of_devices_can_be_watched),
        test(two_sets_of_ranks_take_turns),
        test(three_sets_have_a_line_for_each_peer),
        test(missing_backend_ends_both_sets),
        test(no_rank_is_left_when_the_parent_of_vs_is_killed),
        test(throughput_is_shown_pair_by_pair),
        test(ctrl_c_ends_the_watch_with_code_0),
    };

    return cmocka_run_group_tests_name("cli bench", tests, NULL, NULL);
}
