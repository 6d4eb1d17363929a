/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_local_lost.c - a rank of a run with --sync-every is killed between two means, around a
 * mean, around and in the exchange of a snapshot, or while islands move to other ranks: with
 * --elastic the run ends with the bits of one rank, unless an island is lost. The program is also
 * the rank that it starts; the linker puts the functions below in front of those of the library.
 */
#include "comm/comm.h"
#include "ddp/local_mean.h"
#include "ddp/local_sgd.h"
#include "ddp/local_state.h"
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

static const char *move = ""; /* on all ranks: what happens while islands move */
static const char *gates;     /* the beginning of the names of files, each of which is an event */
static int n_ranks;           /* of the job */
static bool is_new;           /* this process has come for a lost one */
static int n_copies;          /* that this process has made */
static int n_regroups;

static bool is_move(const char *name)
{
    return strcmp(move, name) == 0;
}

static const char *gate_path(const char *name)
{
    static char path[160];

    text_format(path, sizeof(path), "%s.%s", gates, name);
    return path;
}

static void open_gate(const char *name)
{
    FILE *f = fopen(gate_path(name), "w");

    if (f != NULL)
        (void)fclose(f);
}

static void await_gate(const char *name)
{
    while (access(gate_path(name), F_OK) != 0)
        (void)usleep(1000);
}

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

/* When the others have gone on without a lost rank, rank 0 waits for the process that replaces it,
 * once. */
static bool has_awaited_new_process(ls_comm *comm)
{
    static bool has_waited;

    if (*move == 0 || has_waited || ls_comm_rank(comm) != 0 || ls_comm_size(comm) != n_ranks - 1)
        return false;
    open_gate("others");
    while (!ls_comm_is_called(comm))
        (void)usleep(1000);
    has_waited = true;
    return true;
}

ls_status __wrap_local_sgd_snapshot(ls_local_sgd *l, bool calls, bool *is_called)
{
    ls_status st;

    pass("before a snapshot", n_calls);
    calls = has_awaited_new_process(l->comm) || calls;
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

ls_status __real_local_copy_create(const local_layout *l, local_copy **out);
ls_status __wrap_local_copy_create(const local_layout *l, local_copy **out);
ls_status __real_local_sgd_regroup(ls_local_sgd *l, int64_t n_snapshots, int64_t step);
ls_status __wrap_local_sgd_regroup(ls_local_sgd *l, int64_t n_snapshots, int64_t step);
ls_status __real_ls_barrier(ls_comm *comm, ls_work **out);
ls_status __wrap_ls_barrier(ls_comm *comm, ls_work **out);
ls_status __real_local_send_copy(const ls_local_sgd *l, local_copy **copy, int from, int to);
ls_status __wrap_local_send_copy(const ls_local_sgd *l, local_copy **copy, int from, int to);

ls_status __wrap_local_copy_create(const local_layout *l, local_copy **out)
{
    n_copies++;
    return __real_local_copy_create(l, out);
}

/* Rank 1, when the new process has come: it has nothing to send. */
static void note_end_of_moves(ls_comm *comm)
{
    if (is_move("behind others") && n_regroups == 2 && ls_comm_rank(comm) == 1)
        open_gate("moved");
}

ls_status __wrap_local_sgd_regroup(ls_local_sgd *l, int64_t n_snapshots, int64_t step)
{
    ls_status st;

    if (is_new && n_regroups == 0 && n_copies > 0)
        return ls_fail(LS_EINTERNAL, "a new process has made %d copies of islands", n_copies);
    n_regroups++;
    st = __real_local_sgd_regroup(l, n_snapshots, step);
    if (st == LS_OK)
        note_end_of_moves(l->comm);
    return st;
}

ls_status __wrap_ls_barrier(ls_comm *comm, ls_work **out)
{
    note_end_of_moves(comm);
    return __real_ls_barrier(comm, out);
}

/*
 * "to a new process", which is rank 2 of 3: where rank 0 sends it an island, rank 1 dies, and rank
 * 0 does not send before the group has failed.
 * "behind others": the new process is rank 3 of 4. Where rank 2 sends it an island that only rank 1
 * has besides, it waits until rank 1 has taken part in all moves, and dies.
 * "from the only rank": rank 1 of 2 dies where it sends rank 0 an island that no other rank has.
 */
ls_status __wrap_local_send_copy(const ls_local_sgd *l, local_copy **copy, int from, int to)
{
    const int rank = ls_comm_rank(l->comm);
    const int size = ls_comm_size(l->comm);

    if (is_move("to a new process") && size == 3 && from == 0 && to == 2) {
        if (rank == 1)
            raise(SIGKILL);
        while (rank == 0 && ls_comm_status(l->comm) == LS_OK)
            (void)usleep(1000);
    }
    if (is_move("behind others") && size == 4 && rank == 2 && from == 2 && to == 3) {
        await_gate("moved");
        raise(SIGKILL);
    }
    if (is_move("from the only rank") && size == 2 && rank == 1 && from == 1 && to == 0)
        raise(SIGKILL);
    return __real_local_send_copy(l, copy, from, to);
}

/* KILLED POINT CALL KIND DIR SAVE [MOVE]; KIND 1: two fragments in 4 bits, 2: a delay, 3: all
 * three; point "no shards": the islands are the ranks, "islands": there is one of all */
static ls_status run_rank(char **args)
{
    small_job small = {.flags = small_flags(args[4]), .batch_norm = 1, .dropout = 0.3, .pad = 1};
    const int kind = atoi(args[3]);
    ls_status st;

    move = args[6] != NULL ? args[6] : "";
    gates = args[5];
    if (*move != 0 && getenv("LOCKSTEP_NEW_MEMBER") != NULL)
        await_gate("others");
    LS_TRY(ls_init(NULL, &small.comm));
    is_new = comm_is_new(small.comm);
    n_ranks = ls_comm_size(small.comm);
    if (!is_new && ls_comm_rank(small.comm) == atoi(args[0])) {
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

/* A copy that has not come as a whole is none; and until it has, that of another rank stays. */
static void a_loss_while_a_new_process_gets_its_islands_costs_none(void **state)
{
    static const struct {
        const char *ranks, *move, *first, *second;
    } moves[] = {{"3", "to a new process", "2", "rank 1 (pid "},
                 {"4", "behind others", "3", "rank 2 (pid "}};

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const size_t m = (size_t)i % 2;
        const int kind = i / 2 + (int)m;
        char kind_text[8];
        char save[128];
        job *j;

        text_format(save, sizeof(save), "%s/move-%d.safetensors", small_dir, i);
        text_format(kind_text, sizeof(kind_text), "%d", kind);
        j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", moves[m].ranks, "--elastic", "--max-restarts",
                               "1", small_program, "rank", moves[m].first, "a step", "11",
                               kind_text, small_dir, save, moves[m].move),
                      NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, moves[m].second));
        small_assert_same_file(whole[kind], save);
        job_clean_up(NULL);
    }
}

static void an_island_that_was_on_its_way_is_lost_with_its_only_rank(void **state)
{
    char save[128];
    job *j;

    (void)state;
    text_format(save, sizeof(save), "%s/lost.safetensors", small_dir);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--elastic", "--max-restarts", "0",
                           small_program, "rank", "1", "a step", "11", "0", small_dir, save,
                           "from the only rank"),
                  NULL);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "island 2 is lost"));
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
        cmocka_unit_test_teardown(a_loss_while_a_new_process_gets_its_islands_costs_none,
                                  job_clean_up),
        cmocka_unit_test_teardown(an_island_that_was_on_its_way_is_lost_with_its_only_rank,
                                  job_clean_up),
        cmocka_unit_test_teardown(islands_that_are_ranks_are_refused, job_clean_up),
    };

    if (argc >= 8)
        return ls_train_exit("rank", run_rank(argv + 2));
    return cmocka_run_group_tests(tests, make_set, small_dir_remove);
}
