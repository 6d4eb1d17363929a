/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_local_lost.c - a rank of a run with --sync-every is killed between two means, around a
 * mean, or around and in the exchange of a snapshot: with --elastic the run ends with the bits of
 * one rank. The program is also the rank that it starts; the linker puts the functions below in
 * front of those of the library.
 */
#include "comm/comm.h"
#include "ddp/local_mean.h"
#include "ddp/local_sgd.h"
#include "launch/job.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <lockstep/launch.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- a rank --- */

/* Where this rank kills itself: at the n-th call. */
static const char *point = "";
static int n_calls;
static bool is_in_snapshot;

static void pass(const char *here, int kill_at)
{
    static int n;

    if (strcmp(point, here) == 0 && ++n == kill_at)
        raise(SIGKILL);
}

ls_status __real_local_mean_start(ls_comm *comm, int islands, const int *starts,
                                  float *const *values, size_t n, ls_ddp_hook hook,
                                  local_exchange **out);
ls_status __wrap_local_mean_start(ls_comm *comm, int islands, const int *starts,
                                  float *const *values, size_t n, ls_ddp_hook hook,
                                  local_exchange **out);
ls_status __real_local_mean_end(local_exchange *x);
ls_status __wrap_local_mean_end(local_exchange *x);
ls_status __real_local_sgd_snapshot(ls_local_sgd *l, bool calls, bool *is_called);
ls_status __wrap_local_sgd_snapshot(ls_local_sgd *l, bool calls, bool *is_called);
ls_status __real_ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out);
ls_status __wrap_ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out);

ls_status __wrap_local_mean_start(ls_comm *comm, int islands, const int *starts,
                                  float *const *values, size_t n, ls_ddp_hook hook,
                                  local_exchange **out)
{
    ls_status st;

    pass("before a mean", n_calls);
    st = __real_local_mean_start(comm, islands, starts, values, n, hook, out);
    pass("in a mean", n_calls);
    return st;
}

ls_status __wrap_local_mean_end(local_exchange *x)
{
    const ls_status st = __real_local_mean_end(x);

    pass("after a mean", n_calls);
    return st;
}

ls_status __wrap_local_sgd_snapshot(ls_local_sgd *l, bool calls, bool *is_called)
{
    ls_status st;

    pass("before a snapshot", n_calls);
    is_in_snapshot = true;
    st = __real_local_sgd_snapshot(l, calls, is_called);
    is_in_snapshot = false;
    pass("after a snapshot", n_calls);
    return st;
}

ls_status __wrap_ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out)
{
    if (is_in_snapshot)
        pass("in a snapshot", n_calls);
    return __real_ls_all_reduce(comm, src, dst, count, type, op, out);
}

/* KILLED POINT CALL KIND DIR SAVE; KIND 1: two fragments in 4 bits, 2: a delay, 3: all three;
 * point "no shards": the islands are the ranks, "islands": there is one of all */
static ls_status run_rank(char **args)
{
    small_job small = {.flags = small_flags(args[4]), .batch_norm = 1, .dropout = 0.3, .pad = 1};
    const int kind = atoi(args[3]);
    ls_status st;

    LS_TRY(ls_init(NULL, &small.comm));
    if (!comm_is_new(small.comm) && ls_comm_rank(small.comm) == atoi(args[0])) {
        point = args[1];
        n_calls = atoi(args[2]);
        small.kill_at = strcmp(point, "a step") == 0 ? n_calls : 0;
    }
    small.flags.batch_size = 2;
    small.flags.islands = strcmp(args[1], "islands") == 0 ? "1" : NULL;
    small.flags.shards = strcmp(args[1], "no shards") == 0 || small.flags.islands != NULL ? 0 : 5;
    small.flags.sync_every = 4;
    small.flags.sync_fragments = kind % 2 == 1 ? 2 : 0;
    small.flags.compress = kind % 2 == 1 ? "int4" : NULL;
    small.flags.sync_delay = kind == 2 ? 3 : kind == 3 ? 2 : 0;
    small.flags.optimizer = "adamw";
    small.flags.lr = 0.01;
    small.flags.print_freq = 7;
    small.flags.save = args[5];
    st = small_run(&small).status;
    ls_comm_destroy(small.comm);
    return st;
}

/* --- the tests --- */

static const struct {
    const char *killed, *point, *call;
} cases[] = {{"0", "a step", "11"},          {"2", "a step", "12"},
             {"1", "a step", "26"},          {"0", "before a mean", "2"},
             {"2", "before a mean", "5"},    {"1", "after a mean", "4"},
             {"0", "after a mean", "2"},     {"0", "before a snapshot", "2"},
             {"2", "in a snapshot", "3"},    {"0", "in a snapshot", "4"},
             {"1", "after a snapshot", "2"}, {"1", "in a mean", "3"},
             {"2", "in a mean", "4"},        {"0", "a step", "14"}};

enum { KINDS = 4 };

static char whole[KINDS][128]; /* of one rank, of each kind */

/* Each case with two of the four kinds, others with and without restarts. */
static void lose_ranks(const char *restarts)
{
    for (size_t i = 0; i < 2 * LS_COUNT_OF(cases); i++) {
        const size_t c = i / 2;
        const size_t kind = (c + 2 * (i % 2) + (size_t)atoi(restarts)) % KINDS;
        char kind_text[8];
        char save[128];
        job *j;

        text_format(save, sizeof(save), "%s/%s-%d.safetensors", small_dir, restarts, (int)i);
        text_format(kind_text, sizeof(kind_text), "%d", (int)kind);
        j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--elastic", "--max-restarts", restarts,
                               small_program, "rank", cases[c].killed, cases[c].point,
                               cases[c].call, kind_text, small_dir, save),
                      NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
        job_expect(j, job_printed(j, 0, "going on at step")); // not from a saved state
        small_assert_same_file(whole[kind], save);
        job_clean_up(NULL);
    }
}

static void the_others_go_on_with_its_islands(void **state)
{
    (void)state;
    lose_ranks("0");
}

static void a_new_process_gets_its_islands(void **state)
{
    (void)state;
    lose_ranks("1");
}

static void islands_that_are_ranks_are_refused(void **state)
{
    static const char *const refused[][2] = {
        {"no shards", "--sync-every in a job of lockstep run --elastic needs"},
        {"islands", "--islands 1 does not go with lockstep run --elastic"}};
    char save[128];

    (void)state;
    text_format(save, sizeof(save), "%s/none.safetensors", small_dir);
    for (size_t i = 0; i < LS_COUNT_OF(refused); i++) {
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--elastic", small_program, "rank",
                                    "9", refused[i][0], "0", "0", small_dir, save),
                           NULL);

        job_expect_code(j, 1);
        job_expect(j, job_printed(j, 1, refused[i][1]));
        job_clean_up(NULL);
    }
}

static int make_set(void **state)
{
    if (small_dir_make(state) != 0)
        return -1;
    for (int i = 0; i < KINDS; i++) {
        char kind[8];

        text_format(kind, sizeof(kind), "%d", i);
        text_format(whole[i], sizeof(whole[i]), "%s/whole%d.safetensors", small_dir, i);
        job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", small_program, "rank", "9",
                                           "", "0", kind, small_dir, whole[i]),
                                  NULL),
                        0);
        job_clean_up(NULL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_others_go_on_with_its_islands, job_clean_up),
        cmocka_unit_test_teardown(a_new_process_gets_its_islands, job_clean_up),
        cmocka_unit_test_teardown(islands_that_are_ranks_are_refused, job_clean_up),
    };

    if (argc == 8)
        return ls_train_exit("rank", run_rank(argv + 2));
    return cmocka_run_group_tests(tests, make_set, small_dir_remove);
}
