/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_balance_lost.c - a rank is killed when all have agreed on another partition of the
 * shards, before they change to it: with --elastic the run ends with the bits of one rank. With
 * another division of rows it goes on as well. The program is also the rank that it starts.
 */
#include "comm/comm.h"
#include "launch/job.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <lockstep/launch.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- a rank --- */

/* Every second rank is three times slower; every 12 steps the others are. */
static int64_t alternating(int rank, int64_t step)
{
    return (step / 12 + rank) % 2 == 0 ? 10000000 : 30000000;
}

/* KILLED CHANGE DIR SAVE SHARDS; SHARDS 0: rows are divided */
static ls_status run_rank(char **args)
{
    small_job small = {
        .flags = small_flags(args[2]), .batch_norm = 1, .dropout = 0.3, .shard_ns = alternating};
    const int shards = atoi(args[4]);
    ls_status st;

    LS_TRY(ls_init(NULL, &small.comm));
    if (!comm_is_new(small.comm) && ls_comm_rank(small.comm) == atoi(args[0]))
        small.kill_in_change = atoi(args[1]);
    small.flags.batch_size = shards > 0 ? 2 : 6;
    small.flags.shards = shards;
    small.flags.balance = shards > 0 ? "" : "rows";
    small.flags.epochs = 4;
    small.flags.print_freq = 7;
    small.flags.save = args[3];
    st = small_run(&small).status;
    ls_comm_destroy(small.comm);
    return st;
}

/* --- the tests --- */

static char whole[128]; /* of one rank */

static void a_loss_in_a_change_of_the_partition_keeps_the_bits(void **state)
{
    static const char *const restarts[] = {"0", "1"};

    (void)state;
    for (int i = 0; i < 8; i++) {
        const char *killed = i % 2 == 0 ? "0" : "2";
        const char *change = i / 2 % 2 == 0 ? "1" : "2";
        char save[128];
        job *j;

        text_format(save, sizeof(save), "%s/%d.safetensors", small_dir, i);
        j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--elastic", "--max-restarts",
                               restarts[i / 4], small_program, "rank", killed, change, small_dir,
                               save, "8"),
                      NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
        small_assert_same_file(whole, save);
        job_clean_up(NULL);
    }
}

static void rows_are_divided_among_the_ranks_that_are_left(void **state)
{
    static const char *const changes[] = {"1", "2"};
    char save[128];

    (void)state;
    text_format(save, sizeof(save), "%s/rows.safetensors", small_dir);
    for (int i = 0; i < 4; i++) {
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--elastic", "--max-restarts",
                                    i / 2 == 0 ? "0" : "1", small_program, "rank", "2",
                                    changes[i % 2], small_dir, save, "0"),
                           NULL);

        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
        job_expect(j, job_printed(j, 0, i / 2 == 0 ? "with 2 ranks" : "going on at step"));
        job_expect(j, job_printed(j, 0, "rows of the ranks from now on: "));
        job_clean_up(NULL);
    }
}

static int make_set(void **state)
{
    if (small_dir_make(state) != 0)
        return -1;
    text_format(whole, sizeof(whole), "%s/whole.safetensors", small_dir);
    job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", small_program, "rank", "0", "0",
                                       small_dir, whole, "8"),
                              NULL),
                    0);
    job_clean_up(NULL);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_loss_in_a_change_of_the_partition_keeps_the_bits, job_clean_up),
        cmocka_unit_test_teardown(rows_are_divided_among_the_ranks_that_are_left, job_clean_up),
    };

    if (argc == 7)
        return ls_train_exit("rank", run_rank(argv + 2));
    return cmocka_run_group_tests(tests, make_set, small_dir_remove);
}
