/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_elastic.c - lockstep run --elastic with a program that has its own loop (elastic_loop.c):
 * ranks die at given places, and the result has the bits of a job from which none was lost.
 */
#include "launch/job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEPS  "200"
#define STATE  "steps " STEPS " state"
#define LINE   8192
#define LISTED 12

static char undisturbed[LINE]; /* the line with the state */

static job *start(const char *const *flags, const char *const *program, const char *const *env)
{
    const char *argv[2 * LISTED + 4] = {LOCKSTEP_TOOL, "run", "--no-prefix"};
    int n = 3;

    for (; *flags != NULL; flags++)
        argv[n++] = *flags;
    argv[n++] = ELASTIC_LOOP;
    for (; *program != NULL; program++)
        argv[n++] = *program;
    assert_true(n < (int)LS_COUNT_OF(argv));
    return job_start(argv, env);
}

static void find_state(const job *j, char line[LINE])
{
    const char *at = strstr(text_str(&j->out), STATE);

    if (at == NULL)
        job_fail(j, __FILE__, __LINE__, "it prints its state");
    text_format(line, LINE, "%.*s", (int)strcspn(at, "\n"), at);
}

/* The job ends with this state, and has not been restarted. */
static job *expect_state(const char *wanted, const char *const *flags, const char *const *program,
                         const char *const *env)
{
    char line[LINE];
    job *j = start(flags, program, env);

    job_expect_code(j, 0);
    find_state(j, line);
    job_expect(j, text_equal(line, wanted));
    job_expect(j, !job_printed(j, 1, "restart"));
    return j;
}

static job *expect_same(const char *const *flags, const char *const *program,
                        const char *const *env)
{
    return expect_state(undisturbed, flags, program, env);
}

static int set_up(void **state)
{
    job *j = start(JOB_LIST("-n", "4"), JOB_LIST(STEPS), NULL);

    (void)state;
    job_expect_code(j, 0);
    find_state(j, undisturbed);
    job_clean_up(state);
    return 0;
}

static void the_others_go_on(void **state)
{
    static const char *const places[] = {"forward", "backward", "update"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char end[32];
        job *j;

        text_format(end, sizeof(end), "%d@%d:%s", i, 20 + i, places[i]);
        j = expect_same(JOB_LIST("-n", "4", "--elastic"), JOB_LIST(STEPS, end), NULL);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL): 3 ranks go on after"));
        job_clean_up(state);
    }
}

/* Also while shards of the lost rank, and of the others, wait in a batch norm. */
static void synchronized_batch_norms_go_on(void **state)
{
    static const char *const places[] = {"forward", "norm", "backward", "update"};
    const char *const *env = JOB_LIST("ELASTIC_SYNC=1");
    char wanted[LINE];
    job *j = start(JOB_LIST("-n", "4"), JOB_LIST(STEPS), env);

    job_expect_code(j, 0);
    find_state(j, wanted);
    job_expect(j, !text_equal(wanted, undisturbed));
    job_clean_up(state);
    for (int i = 0; i < 4; i++) {
        char end[32];

        text_format(end, sizeof(end), "%d@%d:%s", i % 2, 20 + i, places[i]);
        j = expect_state(wanted, JOB_LIST("-n", "2", "--elastic"), JOB_LIST(STEPS, end), env);
        job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL): 1 rank goes on after"));
        job_clean_up(state);
        (void)expect_state(wanted, JOB_LIST("-n", "2", "--elastic", "--max-restarts", "1"),
                           JOB_LIST(STEPS, end), env);
        job_clean_up(state);
    }
}

static void lost_ranks_are_replaced(void **state)
{
    const job *j;

    (void)state;
    j = expect_same(JOB_LIST("-n", "4", "--elastic", "--max-restarts", "5"),
                    JOB_LIST(STEPS, "0@20:forward", "2@60:update"), NULL);
    job_expect(j, job_printed(j, 1, "rank 0 (pid"));
    job_expect(j, job_printed(j, 1, "rank 2 (pid"));
}

/* Also while the others recover, and all but one. */
static void several_ranks_die(void **state)
{
    (void)state;
    (void)expect_same(JOB_LIST("-n", "4", "--elastic"),
                      JOB_LIST(STEPS, "1@30:forward", "2@30:forward", "0@30:recovery"), NULL);
    job_clean_up(state);
    (void)expect_same(JOB_LIST("-n", "4", "--elastic", "--max-restarts", "3"),
                      JOB_LIST(STEPS, "1@30:forward", "2@30:recovery", "3@31:backward"), NULL);
}

/* No rank answers for a stopped one, so it is left out and replaced. */
static void a_stopped_rank_is_replaced(void **state)
{
    const job *j;

    (void)state;
    j = expect_same(JOB_LIST("-n", "3", "--elastic", "--max-restarts", "1"),
                    JOB_LIST(STEPS, "1@30:stop"),
                    JOB_LIST("LOCKSTEP_MEET_MS=500", "LOCKSTEP_OP_TIMEOUT_MS=1500"));
    job_expect(j, job_printed(j, 1, "the group of all ranks has failed: 2 ranks go on"));
}

static void too_few_ranks_end_the_job(void **state)
{
    job *j = start(JOB_LIST("-n", "3", "--elastic=2"),
                   JOB_LIST(STEPS, "1@30:forward", "2@60:forward"), NULL);

    (void)state;
    job_expect_code(j, 137);
    job_expect_failed_rank(j, 2, "was killed by signal 9 (SIGKILL)");
    job_expect(j, job_printed(j, 1, "2 ranks go on"));
}

/* A program that cannot recover, and one that could but has not begun, fail as in other jobs. */
static void other_losses_fail_as_usual(void **state)
{
    job *j =
        start(JOB_LIST("-n", "3", "--elastic"), JOB_LIST("plain", STEPS, "1@30:forward"), NULL);

    (void)state;
    job_expect_code(j, 137);
    job_expect_failed_rank(j, 1, "was killed by signal 9 (SIGKILL)");
    job_expect(j, !job_printed(j, 1, "go on"));
    job_clean_up(state);
    j = start(JOB_LIST("-n", "3", "--elastic", "--isolate"), JOB_LIST(STEPS), NULL);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "--elastic with --isolate"));
}

/* Its last line waits for the same line of other ranks while no process can be started. */
static void lines_of_a_rank_that_cannot_be_replaced_are_printed(void **state)
{
    const struct rlimit few = {.rlim_cur = 4, .rlim_max = 4};
    char gate[64];
    char entry[80];
    job *j;
    int fd;

    (void)state;
    text_format(gate, sizeof(gate), "/tmp/lockstep-test-gate-%d", (int)getpid());
    text_format(entry, sizeof(entry), "ELASTIC_GATE=%s", gate);
    j = job_start_on_terminal(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--elastic", "--max-restarts",
                                       "1", ELASTIC_LOOP, STEPS, "1@20:hold", "1@21:forward"),
                              JOB_LIST(entry));
    job_await_text(j, 0, "hold of step 20");
    assert_int_equal(prlimit(j->pid, RLIMIT_NOFILE, &few, NULL), 0);
    fd = open(gate, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    job_await_text(j, 0, "rank 1 cannot be replaced: ");
    (void)close(fd);
    (void)unlink(gate);
    job_await_end(j);
    job_expect(j, WIFEXITED(j->status) && job_printed(j, 0, "forward of step 21"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_others_go_on, job_clean_up),
        cmocka_unit_test_teardown(synchronized_batch_norms_go_on, job_clean_up),
        cmocka_unit_test_teardown(lost_ranks_are_replaced, job_clean_up),
        cmocka_unit_test_teardown(several_ranks_die, job_clean_up),
        cmocka_unit_test_teardown(a_stopped_rank_is_replaced, job_clean_up),
        cmocka_unit_test_teardown(too_few_ranks_end_the_job, job_clean_up),
        cmocka_unit_test_teardown(lines_of_a_rank_that_cannot_be_replaced_are_printed,
                                  job_clean_up),
        cmocka_unit_test_teardown(other_losses_fail_as_usual, job_clean_up),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
