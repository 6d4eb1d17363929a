/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_bench.c - lockstep bench as a command: operations, table, flags, exit codes. */
#include "cli/bench_job.h"

#include <stdio.h>
#include <string.h>

static void expect_rows(job *j, const bench_row *rows, int n, int n_ranks)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            const bench_row *r = &rows[i];
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
    bench_row rows[8];

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "2 ranks, backend native, transport shm"));
    job_expect(j, job_printed(j, 0, "# Out of bounds values : 0 OK"));
    job_expect(j, job_printed(j, 0, "# Avg bus bandwidth"));
    job_expect(j, bench_rows(j, "", rows, 8) == 4);
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
    bench_row rows[8];

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "3 ranks, backend native, transport tcp"));
    job_expect(j, bench_rows(j, "rank 0| ", rows, 8) == 3);
    job_expect(j, rows[2].size == 24 && rows[2].count == 6);
    expect_rows(j, rows, 3, 3);
}

static void every_type_and_reduction_is_right(void **state)
{
    static bench_row rows[256];

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
            /* 8 types by 5 reductions, less the average of 4 whole types, and 3 bitwise ones of
             * these; 3 sizes */
            job_expect(j, bench_rows(j, "", rows, 256) == (8 * 5 - 4 + 4 * 3) * 3);
            job_expect(j, job_printed(j, 0, "# Out of bounds values : 0 OK"));
            job_clean_up(NULL);
        }
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
        job_expect(j, bench_count_rows(j) == LS_DTYPE_COUNT * 7 * (has_root ? 3 : 1));
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
    job_expect(j, bench_count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
    job_clean_up(NULL);
    j = job_start(BENCH("all_reduce", "-g", "4", "-b", "64", "-e", "64", "-m", "8", "-N", "2"),
                  JOB_LIST("NCCL_TESTS_SPLIT=MOD 2"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "2 ranks") && bench_count_rows(j) == 2);
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
        job_expect(j, job_printed(j, 0, header) && bench_count_rows(j) == 2);
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
        job_expect(j, bench_count_rows(j) == 1 && job_printed(j, 0, "values : 0 OK"));
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
            job_expect(j, bench_count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
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

static void low_bandwidth_fails_with_a_minimum(void **state)
{
    const char *const *argv = BENCH("all_reduce", "-g", "2", "-b", "64", "-e", "64", "-n", "2");
    job *j = job_start(argv, JOB_LIST("NCCL_TESTS_MIN_BW=1000000"));

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "is below 0.9 * NCCL_TESTS_MIN_BW"));
}

/* 16 connections, beside what the tool itself has open. */
static void a_comparison_needs_more_descriptors_than_the_soft_limit(void **state)
{
    job *j = job_start(JOB_LIST("sh", "-c",
                                "ulimit -Sn 16 && exec $0 bench all_reduce -g 8 -b 8 -e 8 -n 1 "
                                "-w 0 -N 1 --vs native",
                                JOB_TOOL),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
}

static void wrong_flags_are_errors(void **state)
{
    LS_UNUSED(state);
    bench_expect_refused(BENCH("all_scatter"), 2,
                         "all_scatter: unknown operation; must be all_reduce, all_gather");
    bench_expect_refused(BENCH("all_reduce", "--watch"), 2, "--watch is for sendrecv");
    bench_expect_refused(BENCH("all_reduce", "--bind-to", "moon"), 2,
                         "--bind-to moon: must be none or core");
    bench_expect_refused(BENCH("all_reduce", "--vs", "native", "-N", "0"), 2,
                         "-N 0 with --vs: give the number of turns");
    bench_expect_refused(BENCH("all_reduce", "--vs", "native,,gloo"), 2, "comma-separated list");
    bench_expect_refused(BENCH("all_reduce", "--vs", "a,b,c,d,e,f,g,h"), 2, "more than 7 backends");
    bench_expect_refused(BENCH("all_reduce", "-K", "20"), 2,
                         "-K 20 skips all iterations: -n is 20");
    bench_expect_refused(BENCH("all_reduce", "-G", "many"), 2, "--cudagraph");
    bench_expect_refused(BENCH("all_reduce", "-z", "4"), 2, "--blocking");
    bench_expect_refused(BENCH("all_reduce", "--memory", "2"), 2,
                         "--memory 2: must be user or registered");
    bench_expect_refused(BENCH("all_reduce", "--vs", "native", "-J", "x.json"), 2, "use --json");
    bench_expect_refused(BENCH("broadcast", "-r", "x"), 2, "--root");
    bench_expect_refused(BENCH("all_reduce", "-d", "complex"), 2,
                         "-d complex: unknown type; must be int8");
    bench_expect_refused(BENCH("all_reduce", "-o", "median"), 2,
                         "-o median: unknown reduction; must be sum");
    bench_expect_refused(BENCH("all_reduce", "-d", "int32", "-o", "avg"), 2,
                         "integer types have no avg");
    bench_expect_refused(BENCH("all_reduce", "-b", "2M", "-e", "1M"), 2,
                         "-b 2097152 is larger than -e 1048576");
    bench_expect_refused(BENCH("all_reduce", "-b", "1X"), 2, "--minbytes");
    bench_expect_refused(BENCH("all_reduce", "-b", "-8"), 2, "--minbytes");
    bench_expect_refused(BENCH("all_reduce", "-i", "0"), 2, "-i 0 without -f gives no next size");
    bench_expect_refused(BENCH("all_reduce", "-n", "0"), 2, "--iters");
    bench_expect_refused(BENCH("all_reduce", "--memory", "core"), 2,
                         "--memory core: must be user or registered");
    bench_expect_refused(BENCH("all_reduce", "--backend", "nccl", "-b", "8", "-e", "8"), 1, "nccl");
    bench_expect_refused(BENCH("all_reduce", "--transport", "pigeon", "-b", "8", "-e", "8"), 1,
                         "pigeon");
    bench_expect_refused(BENCH("all_reduce", "extra"), 2, "unexpected argument extra");
}

/* What only ranks can find out: the command line was right in itself, so the code is that of a
 * failed job. */
static void wrong_numbers_of_ranks_are_errors(void **state)
{
    LS_UNUSED(state);
    bench_expect_refused(BENCH("sendrecv", "-b", "8", "-e", "8"), 1, "but there is 1");
    bench_expect_refused(BENCH("sendrecv", "--watch"), 1, "but there is 1");
    bench_expect_refused(BENCH("hypercube", "-g", "3", "-b", "8", "-e", "8"), 1, "a power of two");
    bench_expect_refused(BENCH("broadcast", "-g", "2", "-r", "2", "-b", "8", "-e", "8"), 1,
                         "-r 2: the ranks are 0 to 1");
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
        test(low_bandwidth_fails_with_a_minimum),
        test(a_comparison_needs_more_descriptors_than_the_soft_limit),
        test(wrong_flags_are_errors),
        test(wrong_numbers_of_ranks_are_errors),
        test(the_choice_of_algorithms_is_shown),
    };

    return cmocka_run_group_tests_name("cli bench", tests, NULL, NULL);
}
