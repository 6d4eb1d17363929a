/* SPDX-License-Identifier: Apache-2.0 */
/* A failed rank: what the other ranks and the user get, and how soon. */
#include "launch/job.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>

#define test(name)  cmocka_unit_test_teardown(name, job_clean_up)
#define NOTIFIED_MS 1000 /* within which every other rank's call fails */
#define BUSY_MS     4000 /* more, for a machine that does much else */

/* A job of 3 in the middle of all-reduces. */
static job *start_steps(void)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "steps"), NULL);

    job_await_text(j, 0, "step 100\n");
    return j;
}

static void a_killed_rank_is_named_by_every_other_within_a_second(void **state)
{
    LS_UNUSED(state);
    for (int round = 0; round < job_rounds(); round++) {
        const int victim = round % 3;
        job *j = start_steps();
        const pid_t pid = job_find(j, JOB_RANK, victim);
        char cause[128], line[192];
        int64_t since_ms;

        job_read_output(j, 7 * (round % 10));
        since_ms = ls_now_ms();
        assert_int_equal(kill(pid, SIGKILL), 0);
        job_expect_code(j, 137);
        print_message("ended %d ms after the kill\n", (int)(ls_now_ms() - since_ms));
        job_expect(j, ls_now_ms() - since_ms < NOTIFIED_MS + BUSY_MS);
        text_format(cause, sizeof(cause), "rank %d (pid %d) was killed by signal 9 (SIGKILL)",
                    victim, (int)pid);
        for (int r = 0; r < 3; r++) {
            text_format(line, sizeof(line), "rank %d| all_reduce failed: %s", r, cause);
            job_expect(j, job_printed(j, 1, line) == (r != victim));
        }
        text_format(line, sizeof(line), "lockstep: %s\n", cause);
        job_expect(j, job_printed(j, 1, line));
        job_expect(j, job_counts_others(j, 2));
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

/* A rank that does not listen to the others is not waited for. */
static void a_rank_that_only_sleeps_is_ended_after_a_failure(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                           "if [ $RANK = 0 ]; then exit 3; fi; trap '' TERM; while :; do sleep "
                           "1; done"),
                  NULL);
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    job_expect_code(j, 3);
    job_expect(j, ls_now_ms() - since_ms < 1100 + BUSY_MS);
    job_expect_gone(j);
}

static void the_report_has_the_last_lines_and_operations_of_that_rank(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                                "if [ $RANK = 1 ]; then for i in $(seq 30); do echo line $i; done; "
                                "printf '\\033[31mred\\033[0m\\n' >&2; exit 4; fi; sleep 100"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 4);
    job_expect(j, job_printed(j, 1, "  its last lines:\n"));
    job_expect(j, job_printed(j, 1, "  | line 30\n"));
    job_expect(j, job_printed(j, 1, "  | red\n"));
    job_expect(j, !job_printed(j, 1, "  | line 10\n"));
}

static void lines_in_view_are_not_printed_again(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                                "if [ $RANK = 1 ]; then echo bad >&2; exit 4; fi; exec sleep 100"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 4);
    job_expect(j, job_printed(j, 1, "rank 1| bad\n"));
    job_expect(j, !job_printed(j, 1, "last lines"));
    // On one terminal stdout is in roster too.
    j = job_start(JOB_LIST("sh", "-c", "exec " JOB_TOOL " run sh -c 'echo bad; exit 4' 2>&1"),
                  NULL);
    job_expect_code(j, 4);
    job_expect(j, job_printed(j, 0, "bad\nlockstep: rank 0 (pid "));
    job_expect(j, !job_printed(j, 0, "last lines"));
}

static void lines_out_of_view_are_printed_again(void **state)
{
    char file[64], script[512];
    job *j;

    LS_UNUSED(state);
    text_format(file, sizeof(file), "/tmp/lockstep-test-cause-%d", (int)getpid());
    text_format(script, sizeof(script),
                "if [ $RANK = 1 ]; then echo bad >&2; : >%s.1; "
                "until [ -e %s.2 ]; do sleep 0.01; done; exit 4; fi; "
                "until [ -e %s.1 ]; do sleep 0.01; done; seq 30 >&2; : >%s.2; exec sleep 100",
                file, file, file, file);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", script), NULL);
    job_expect_code(j, 4);
    job_expect(j, job_printed(j, 1, "  its last lines:\n  | bad\n"));
    for (int i = 1; i <= 2; i++) {
        text_format(script, sizeof(script), "%s.%d", file, i);
        (void)unlink(script);
    }
}

static void report_has_the_flight_recorder_of_a_dead_rank(void **state)
{
    job *j = start_steps();

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_RANK, 1), SIGKILL), 0);
    job_expect_code(j, 137);
    job_expect(j, job_printed(j, 1, "  its last operations:\n  | all_reduce #"));
}

/* Both are dead before the agent can look. The exit is news first, the crash is the reason. */
static void a_crash_is_the_root_of_an_exit_that_followed_at_once(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                                "if [ $RANK = 0 ]; then exit 9; fi; kill -SEGV $$"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 139);
    job_expect(j, job_printed(j, 1, "lockstep: rank 1 "));
}

/* --- ranks that leave --- */

static void expect_left_named(const char *how, int rank, const char *text)
{
    char number[16];
    job *j;

    text_format(number, sizeof(number), "%d", rank);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "leave", how, number), NULL);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, text));
    job_expect_gone(j);
    job_clean_up(NULL);
}

static void a_rank_that_leaves_while_others_wait_is_named(void **state)
{
    LS_UNUSED(state);
    for (int r = 0; r < 2; r++) {
        char text[64];

        text_format(text, sizeof(text), "lockstep: rank %d ", r);
        expect_left_named("exit", r, text);
        expect_left_named("destroy", r, text);
    }
}

static void a_rank_that_never_joins_is_named_at_once(void **state)
{
    const int64_t since_ms = ls_now_ms();
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "absent", "2"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, ls_now_ms() - since_ms < NOTIFIED_MS + BUSY_MS);
    job_expect(j, job_printed(j, 1, "lockstep: rank 2 (pid "));
    job_expect(j, job_printed(j, 1, "exited with code 0 without joining the job"));
    job_expect(j, job_printed(j, 1, "| init failed: rank "));
}

static void a_rank_that_does_not_join_again_is_named(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "again", "1"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "exited with code 0 and does not join again"));
}

static void ranks_that_disagree_are_both_in_the_report(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "differ"), NULL);
    const char *report;

    LS_UNUSED(state);
    job_expect_code(j, 1);
    report = strstr(text_str(&j->err), "lockstep: ");
    job_expect(j, report != NULL && strstr(report, "rank 0 called all_reduce") != NULL &&
                      strstr(report, "rank 1 called all_reduce") != NULL);
    job_expect(j, strstr(report, "4 float32") != NULL && strstr(report, "8 float32") != NULL);
}

/* A rank that exits right after its last message must not take data from a slower rank. */
static void exit_after_the_last_message_does_not_fail_other_ranks(void **state)
{
    const int rounds = 20 * job_rounds();

    LS_UNUSED(state);
    for (int round = 0; round < rounds; round++) {
        static const char *const transports[] = {"LOCKSTEP_TRANSPORT=shm",
                                                 "LOCKSTEP_TRANSPORT=tcp"};
        job *j = job_start(
            JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "once", round % 3 == 0 ? "1" : "3"),
            JOB_LIST(transports[round % 2]));

        job_expect_code(j, 0);
        job_clean_up(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_killed_rank_is_named_by_every_other_within_a_second),
        test(a_rank_that_only_sleeps_is_ended_after_a_failure),
        test(the_report_has_the_last_lines_and_operations_of_that_rank),
        test(lines_in_view_are_not_printed_again),
        test(lines_out_of_view_are_printed_again),
        test(report_has_the_flight_recorder_of_a_dead_rank),
        test(a_crash_is_the_root_of_an_exit_that_followed_at_once),
        test(a_rank_that_leaves_while_others_wait_is_named),
        test(a_rank_that_never_joins_is_named_at_once),
        test(a_rank_that_does_not_join_again_is_named),
        test(ranks_that_disagree_are_both_in_the_report),
        test(exit_after_the_last_message_does_not_fail_other_ranks),
    };

    return cmocka_run_group_tests_name("launch cause", tests, NULL, NULL);
}
