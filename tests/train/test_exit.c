/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the launcher reports of a run that fails on rank 0, or that a rank ends with code 0 in its
 * middle. The program is its own rank: it defines fsync(), which a save calls, and exits there.
 */
#include "launch/job.h"
#include "train/small_run.h"

#include <lockstep/launch.h>

#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* --- a rank --- */

static bool exits_in_fsync;

int fsync(int fd)
{
    if (exits_in_fsync)
        exit(0);
    return fdatasync(fd);
}

typedef struct rank_job {
    /* save: exits inside its save; step: exits in training; resume: goes on; well: trains */
    const char *how;
    const char *dir;
    const char *save;
} rank_job;

static ls_status run_rank(int local_rank, void *arg)
{
    const rank_job *r = arg;
    small_job small = {.flags = small_flags(r->dir)};
    ls_status st;

    LS_TRY(ls_init(NULL, &small.comm));
    exits_in_fsync = text_equal(r->how, "save") && ls_comm_rank(small.comm) == 0;
    small.exit_at = text_equal(r->how, "step") && ls_comm_rank(small.comm) == 0 ? 5 : 0;
    small.flags.save = r->save;
    small.flags.epochs = 1;
    small.flags.resume = text_equal(r->how, "resume") ? "" : NULL;
    LS_UNUSED(local_rank);
    st = small_run(&small).status;
    ls_comm_destroy(small.comm);
    return st;
}

/* HOW DIR SAVE [RANKS]: with a number, the ranks are started by ls_spawn(). */
static int rank_main(char **args)
{
    rank_job r = {.how = args[0], .dir = args[1], .save = args[2]};
    const int n = args[3] != NULL ? atoi(args[3]) : 0;

    return ls_train_exit("rank", n > 0 ? ls_spawn(run_rank, n, &r, NULL) : run_rank(0, &r));
}

/* --- the tests --- */

static char dir[64];
static char save[128];
static char self[4096];

static void every_run_that_ends_well_has_code_0(void **state)
{
    static const char *const counts[] = {"1", "2"};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        job_expect_code(
            job_start(JOB_LIST(JOB_TOOL, "run", "-n", counts[i], self, "rank", "well", dir, save),
                      NULL),
            0);
        job_clean_up(NULL);
    }
}

/* A rank alone, and one with another that has ended well before. */
static void an_exit_in_a_save_is_a_failure_with_its_place(void **state)
{
    static const char *const counts[] = {"1", "2"};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        char told[256];
        job *j = job_start(
            JOB_LIST(JOB_TOOL, "run", "-n", counts[i], self, "rank", "save", dir, save), NULL);

        job_expect_code(j, 1);
        text_format(told, sizeof(told),
                    "exited with code 0 before it finalized, while saving step "
                    "%s to %s",
                    i == 0 ? "15" : "8", save);
        job_expect(j, job_said(j, 1, "lockstep: rank 0 (pid ") && job_said(j, 1, told));
        job_clean_up(NULL);
    }
}

static void an_exit_in_a_save_of_a_spawned_rank_is_a_failure(void **state)
{
    char told[256];
    job *j = job_start(JOB_LIST(self, "rank", "well", dir, save, "2"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_clean_up(NULL);
    j = job_start(JOB_LIST(self, "rank", "save", dir, save, "1"), NULL);
    job_expect_code(j, 1);
    text_format(told, sizeof(told), "finalized, while saving step 15 to %s", save);
    job_expect(j, job_said(j, 1, "rank: rank 0 (pid ") && job_said(j, 1, told));
}

static void an_exit_in_training_is_a_failure(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", self, "rank", "step", dir, save), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_said(j, 1, "exited with code 0 before it finalized, while training"));
}

static void a_checkpoint_that_rank_0_cannot_load_is_the_cause(void **state)
{
    char absent[128];
    char line[256];
    job *j;

    LS_UNUSED(state);
    text_format(absent, sizeof(absent), "%s/absent", dir);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", self, "rank", "resume", dir, absent), NULL);
    job_expect_code(j, 1);
    text_format(line, sizeof(line), "cannot open %s.resume.safetensors: No such file", absent);
    job_expect(j, job_said(j, 1, "lockstep: rank 0 ") && job_said(j, 1, line));
}

static void a_file_that_rank_0_cannot_write_is_the_cause(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "3", self, "rank", "well", dir, "/absent/w.safetensors"),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_said(j, 1, "lockstep: rank 0 (pid "));
    job_expect(j, job_said(j, 1,
                           "rank: --save: cannot create /absent/w.safetensors.tmp: No "
                           "such file or directory"));
}

static int make_set(void **state)
{
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    LS_UNUSED(state);
    small_set_make(dir, sizeof(dir));
    text_format(save, sizeof(save), "%s/w.safetensors", dir);
    return n > 0 ? 0 : -1;
}

static int remove_set(void **state)
{
    LS_UNUSED(state);
    small_set_remove(dir);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        test(every_run_that_ends_well_has_code_0),
        test(an_exit_in_a_save_is_a_failure_with_its_place),
        test(an_exit_in_a_save_of_a_spawned_rank_is_a_failure),
        test(an_exit_in_training_is_a_failure),
        test(a_checkpoint_that_rank_0_cannot_load_is_the_cause),
        test(a_file_that_rank_0_cannot_write_is_the_cause),
    };

    if (argc > 4 && text_equal(argv[1], "rank"))
        return rank_main(argv + 2);
    return cmocka_run_group_tests(tests, make_set, remove_set);
}
