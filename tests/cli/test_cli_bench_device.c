/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_bench_device.c - lockstep bench on device memory, and --vs and --watch. */
#include "cli/bench_job.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

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
                                     "cudahost", "--backend", backends[k]),
                               JOB_LIST(FAKE_NCCL));

            job_expect_code(j, 0);
            text_format(header, sizeof(header),
                        "4 ranks, backend %s, transport shm, memory user, "
                        "device cudahost\n",
                        backends[k]);
            job_expect(j, job_printed(j, 0, header));
            job_expect(j, bench_count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
            job_clean_up(NULL);
        }
}

static void device_times_are_measured_in_every_mode(void **state)
{
    static const char *const modes[] = {"0", "1", "2", "3"};

    LS_UNUSED(state);
    for (size_t mode = 0; mode < LS_COUNT_OF(modes); mode++)
        for (int single = 0; single < 2; single++) {
            bench_row rows[2];
            job *j =
                job_start(BENCH("all_reduce", "-g2", "-b64", "-e4160", "-f65", "-n4", "-m3", "-u3",
                                "-c2", "-C1", "-M1", "-z", modes[mode], "-I", single ? "1" : "0",
                                "--device", "cudahost", "--backend", "nccl"),
                          JOB_LIST(FAKE_NCCL));

            job_expect_code(j, 0);
            job_expect(j, bench_count_rows(j) == 2 && job_printed(j, 0, "values : 0 OK"));
            job_expect(j, job_printed(j, 0, "# Memory usage         : Initialization 0 B"));
            job_expect(j, single || bench_rows(j, "", rows, 2) == 2);
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
        job *j = job_start(BENCH("all_reduce", "-g2", "-b64", "-e64", "-R1", "--device", "cudahost",
                                 "--backend", "nccl"),
                           JOB_LIST(libraries[has_it], "LOCKSTEP_LOG=nccl=debug"));

        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "memory registered, device cudahost"));
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
    j = job_start(BENCH("all_gather", "-g2", "-b64", "-e64", "-n4", "-N2", "--device", "cudahost",
                        "--backend", "nccl", "--vs", "native", "--json", path),
                  JOB_LIST(FAKE_NCCL));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "backend nccl, transport shm, memory user, device cudahost"));
    job_expect(j, job_printed(j, 0, "values : 0 OK"));
    v = bench_json(j, path);
    job_expect(j, json_size(v) == 4);
    for (size_t i = 0; i < json_size(v); i++)
        job_expect(j, text_equal(bench_text(json_at(v, i), "device"), "cudahost"));
    json_free(v);
}

static void devices_that_cannot_be_used_are_errors(void **state)
{
    job *j;

    LS_UNUSED(state);
    bench_expect_refused(BENCH("all_reduce", "--device", "abacus", "-g2"), 1, "abacus");
    bench_expect_refused(BENCH("all_reduce", "--device", "cudahost", "--touch"), 2,
                         "--touch with --device: it is for the caches of CPUs");
    bench_expect_refused(BENCH("all_reduce", "--device", "cpu_ref"), 1,
                         "--device cpu_ref: it has no memory of its own");
    bench_expect_refused(BENCH("all_reduce", "-g2", "--device", "cudahost", "-b1T", "-e1T"), 1,
                         ": a buffer needs 1.5 TiB, 1 GiB are free: lower -e");
    // it has four cards
    bench_expect_refused(BENCH("all_reduce", "-g5", "--device", "cudahost"), 1,
                         "start at most 4 ranks on this machine; or use --share-gpu");
    j = job_start(BENCH("all_reduce", "-g5", "--device", "cudahost", "--share-gpu", "-b8", "-e8"),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "values : 0 OK"));
}

static void messages_of_devices_can_be_watched(void **state)
{
    job *j =
        job_start(BENCH("sendrecv", "-g2", "--watch=1", "-e64K", "--device", "cudahost"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "messages of 64 KiB, device cudahost"));
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
    job_expect(j, bench_count_rows(j) == 3 && job_printed(j, 0, "values : 0 OK"));
    job_expect(j, j->err.length == 0);
    v = bench_json(j, path);
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
    job_expect(j, bench_count_rows(j) == 4 && job_printed(j, 0, "  auto\n"));
    v = bench_json(j, path);
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

    return cmocka_run_group_tests_name("cli bench device", tests, NULL, NULL);
}
