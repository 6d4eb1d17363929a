/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_norms_lost.c - a rank of a run with --shards and --sync-bn is killed: with --elastic the
 * run ends with the bits of one rank, also where each rank had one shard until then. The program is
 * also the rank that it starts.
 */
#include "comm/comm.h"
#include "launch/job.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <lockstep/launch.h>

#include <stdlib.h>

/* --- a rank --- */

/* KILLED STEP DIR SAVE */
static ls_status run_rank(char **args)
{
    small_job small = {
        .flags = small_flags(args[2]), .batch_norm = 1, .dropout = 0.3, .is_one_call = 1};
    ls_status st;

    LS_TRY(ls_init(NULL, &small.comm));
    if (!comm_is_new(small.comm) && ls_comm_rank(small.comm) == atoi(args[0]))
        small.kill_at = atoi(args[1]);
    small.flags.batch_size = 4;
    small.flags.shards = 3;
    small.flags.sync_bn = 1;
    small.flags.print_freq = 7;
    small.flags.save = args[3];
    st = small_run(&small).status;
    ls_comm_destroy(small.comm);
    return st;
}

/* --- the tests --- */

static char whole[128]; /* of one rank */

static void a_loss_keeps_the_bits(void **state)
{
    static const struct {
        const char *ranks, *restarts, *killed, *step;
    } cases[] = {{"3", "0", "0", "9"},  {"3", "0", "2", "2"},  {"3", "1", "1", "12"},
                 {"3", "1", "0", "20"}, {"2", "0", "1", "21"}, {"2", "1", "0", "7"}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        char save[128];
        job *j;

        text_format(save, sizeof(save), "%s/%d.safetensors", small_dir, (int)i);
        j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", cases[i].ranks, "--elastic", "--max-restarts",
                               cases[i].restarts, small_program, "rank", cases[i].killed,
                               cases[i].step, small_dir, save),
                      NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
        job_expect(j, job_printed(j, 0, "going on at step"));
        small_assert_same_file(whole, save);
        job_clean_up(NULL);
    }
}

static int make_set(void **state)
{
    if (small_dir_make(state) != 0)
        return -1;
    text_format(whole, sizeof(whole), "%s/whole.safetensors", small_dir);
    job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", small_program, "rank", "0", "0",
                                       small_dir, whole),
                              NULL),
                    0);
    job_clean_up(NULL);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_loss_keeps_the_bits, job_clean_up),
    };

    if (argc == 6)
        return ls_train_exit("rank", run_rank(argv + 2));
    return cmocka_run_group_tests(tests, make_set, small_dir_remove);
}
