/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_capsule_lost.c - a rank of an elastic job is killed before the step of a capsule: with
 * shards and without, one process computes the step of the remaining ranks again. The program is
 * also the rank that it starts.
 */
#include "comm/comm.h"
#include "launch/job.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <lockstep/launch.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- a rank --- */

/* args: KILLED SHARDS DIR CAPSULE; replay: the capsule, NULL in the job. */
static ls_status run_rank(char **args, const char *replay)
{
    small_job small = {.flags = small_flags(args[2]), .batch_norm = 1, .dropout = 0.3};
    ls_status st;

    LS_TRY(ls_init(NULL, &small.comm));
    if (replay == NULL && ls_comm_rank(small.comm) == atoi(args[0]))
        small.kill_at = 20;
    small.flags.batch_size = 2;
    small.flags.shards = atoi(args[1]);
    small.flags.print_freq = 1000; // no later copy of the state replaces that of the new group
    small.flags.capsule = args[3];
    small.flags.capsule_step = 33;
    small.flags.replay = replay;
    st = small_run(&small).status;
    ls_comm_destroy(small.comm);
    return st;
}

/* --- the tests --- */

static void steps_after_a_loss_are_computed_again(void **state)
{
    char capsule[128];

    LS_UNUSED(state);
    text_format(capsule, sizeof(capsule), "%s/lost.safetensors", small_dir);
    for (int i = 0; i < 4; i++) {
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--elastic", small_program, "rank",
                                    i % 2 == 0 ? "0" : "2", i < 2 ? "0" : "5", small_dir, capsule),
                           NULL);

        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
        job_expect(j, job_printed(j, 0, "going on at step 19 with 2 ranks"));
        job_clean_up(NULL);
        j = job_start(JOB_LIST(JOB_TOOL, "replay", capsule), NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "step 33 of 2 ranks"));
        job_expect(j, job_printed(j, 0, ", as in the capsule"));
        job_clean_up(NULL);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(steps_after_a_loss_are_computed_again, job_clean_up),
    };

    if (argc == 6)
        return ls_train_exit("rank", run_rank(argv + 2, NULL));
    if (argc == 8 && strcmp(argv[1], "--replay") == 0)
        return ls_train_exit("rank", run_rank(argv + 4, argv[2]));
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
