/* SPDX-License-Identifier: Apache-2.0 */
/* Signals to the launcher, and ranks that stand still. */
#include "launch/job.h"

#include "base/clock.h"
#include "host/process_id.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)
#define BUSY_MS    4000

static job *start_role(const char *grace, const char *role, const char *argument)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "--grace", grace, JOB_ACTOR, role, argument), NULL);

    job_await_text(j, 0, "rank 0 is ready");
    job_await_text(j, 0, "rank 1 is ready");
    return j;
}

/* --- ranks that are stopped and need not be --- */

/*
 * Rank 1 is a shell that stops itself before or after its part in the job; a line names it, and
 * then it goes on.
 */
static void expect_stopped_rank_named(const char *script, const char *line)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", script),
                       JOB_LIST("LOCKSTEP_LATE_MS=300"));
    const long number = job_await_number(j, 0, "shell 1 is ");

    job_await_text(j, 1, line);
    assert_int_equal(kill((pid_t)number, SIGCONT), 0);
    job_expect_code(j, 0);
    job_expect_gone(j);
}

#define STOP "if [ $LOCKSTEP_RANK = 1 ]; then echo shell 1 is $$; kill -STOP $$; fi;"

static void a_rank_stopped_before_it_joins_is_named_by_those_that_join(void **state)
{
    LS_UNUSED(state);
    expect_stopped_rank_named(STOP JOB_ACTOR " once", " 1 (has not joined, stopped)");
}

static void a_rank_stopped_after_it_has_left_is_named_by_the_launcher(void **state)
{
    LS_UNUSED(state);
    expect_stopped_rank_named(JOB_ACTOR " once;" STOP, ") has been stopped for ");
}

static void a_rank_stopped_in_a_program_without_groups_is_named_by_the_launcher(void **state)
{
    LS_UNUSED(state);
    expect_stopped_rank_named(STOP "true", "rank 1 has been stopped for ");
}

/*
 * The hub is stopped with its process, and cannot name the stopped rank: the rank that waits names
 * the hub.
 */
static void stopped_launcher_is_named_and_the_job_continues(void **state)
{
    job *j = job_start(JOB_LIST(JOB_ACTOR, "spawn", "2", "steps", "400", "2"),
                       JOB_LIST("LOCKSTEP_LATE_MS=300"));
    pid_t rank;

    LS_UNUSED(state);
    job_await_text(j, 0, "step 100");
    rank = job_find(j, JOB_RANK, 1);
    assert_int_equal(kill(j->pid, SIGSTOP), 0);
    assert_int_equal(kill(rank, SIGSTOP), 0);
    job_await_text(j, 1, "stopped), which hosts the hub, has not answered for ");
    assert_int_equal(kill(j->pid, SIGCONT), 0);
    job_await_text(j, 1, "not arrived ");
    assert_int_equal(kill(rank, SIGCONT), 0);
    job_expect_code(j, 0);
    job_expect_gone(j);
}

/* --- the job is asked to end --- */

static void expect_asked(job *j, int number)
{
    for (int rank = 0; rank < 2; rank++) {
        char line[64];

        text_format(line, sizeof(line), "rank %d was asked by signal %d\n", rank, number);
        job_expect(j, job_printed(j, 0, line));
    }
}

static void the_signal_that_stops_the_job_is_named_and_passed_on(void **state)
{
    static const struct {
        int number;
        const char *name;
    } signals[] = {
        {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGQUIT, "SIGQUIT"}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(signals); i++) {
        job *j = start_role("60", "orderly", "0");

        assert_int_equal(kill(j->pid, signals[i].number), 0);
        job_expect_code(j, 128 + signals[i].number);
        expect_asked(j, signals[i].number);
        job_expect(j, job_printed(j, 1, signals[i].name));
        job_expect(j, !job_printed(j, 1, "failed"));
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

/* Ranks without a handler end by it, and their end is no failure. */
static void a_listed_signal_ends_ranks_without_a_handler(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--signals-to-handle", "USR1,TERM",
                                "sh", "-c", "echo ready $LOCKSTEP_STOP_SIGNALS; exec sleep 1000"),
                       NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| ready SIGTERM,SIGUSR1\n");
    job_await_text(j, 0, "rank 1| ready SIGTERM,SIGUSR1\n");
    assert_int_equal(kill(j->pid, SIGUSR1), 0);
    job_expect_code(j, 128 + SIGUSR1);
    job_expect(j, job_printed(j, 1, "SIGUSR1: the ranks have "));
    job_expect(j, !job_printed(j, 1, "was killed by"));
    job_expect_gone(j);
}

/* The terminal sends SIGINT to the processes in its foreground, too; the ranks are not there. */
static void ctrl_c_on_a_terminal_reaches_each_rank_once(void **state)
{
    job *j = job_start_on_terminal(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "--grace", "60", JOB_ACTOR, "counting"), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0 is ready");
    job_await_text(j, 0, "rank 1 is ready");
    job_write(j, "\x03");
    job_await_text(j, 0, "SIGINT: the ranks have 60.0 s to end");
    assert_int_equal(kill(j->pid, SIGUSR1), 0); // arrives at a rank behind all signals before
    job_expect_code(j, 128 + SIGINT);
    job_expect(j, job_printed(j, 0, "rank 0 got 1, the last was signal 2"));
    job_expect(j, job_printed(j, 0, "rank 1 got 1, the last was signal 2"));
    job_expect_gone(j);
}

static void ctrl_c_interrupts_python_programs_which_then_save(void **state)
{
    static const char script[] = "import os, time\n"
                                 "rank = os.environ['RANK']\n"
                                 "print('ready', rank)\n"
                                 "try:\n"
                                 "    time.sleep(1000)\n"
                                 "except KeyboardInterrupt:\n"
                                 "    print('interrupted', rank)\n"
                                 "finally:\n"
                                 "    time.sleep(0.1)\n"
                                 "    print('saved', rank)\n";
    job *j =
        job_start_on_terminal(JOB_LIST(JOB_TOOL, "run", "-n", "2", "python3", "-c", script), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "ready 0");
    job_await_text(j, 0, "ready 1");
    job_write(j, "\x03");
    job_expect_code(j, 128 + SIGINT);
    job_expect(j, job_printed(j, 0, "interrupted 0") && job_printed(j, 0, "saved 0"));
    job_expect(j, job_printed(j, 0, "interrupted 1") && job_printed(j, 0, "saved 1"));
    job_expect_gone(j);
}

static void a_second_ctrl_c_on_a_terminal_kills_at_once(void **state)
{
    job *j = job_start_on_terminal(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "--grace", "60", JOB_ACTOR, "stubborn"), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0 is ready");
    job_await_text(j, 0, "rank 1 is ready");
    job_write(j, "\x03");
    job_await_text(j, 0, "a second one kills them");
    job_write(j, "\x03");
    job_expect_code(j, 128 + SIGINT);
    job_expect(j, !job_printed(j, 0, "did not end within"));
    job_expect_gone(j);
}

/* Its agent is in the process of the program. */
static void a_program_that_starts_its_own_ranks_passes_the_signal_on(void **state)
{
    job *j = job_start(JOB_LIST(JOB_ACTOR, "spawn", "2", "orderly", "0"), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0 is ready");
    job_await_text(j, 0, "rank 1 is ready");
    assert_int_equal(kill(j->pid, SIGINT), 0);
    job_await_end(j);
    expect_asked(j, SIGINT);
    job_expect_gone(j);
}

static void ranks_that_do_not_end_in_time_are_named_and_killed(void **state)
{
    job *j = start_role("1", "stubborn", NULL);
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_expect_code(j, 143);
    job_expect(j, ls_now_ms() - since_ms >= 1000 && ls_now_ms() - since_ms < 1000 + BUSY_MS);
    job_expect(j, job_printed(j, 1, "rank 0 (pid ") &&
                      job_printed(j, 1, "did not end within 1.0 s and is killed"));
    job_expect_gone(j);
}

static void a_second_signal_kills_at_once(void **state)
{
    job *j = start_role("60", "stubborn", NULL);
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    assert_int_equal(kill(j->pid, SIGINT), 0);
    job_await_text(j, 1, "SIGINT: the ranks have 60.0 s to end; a second one kills them\n");
    assert_int_equal(kill(j->pid, SIGINT), 0);
    job_expect_code(j, 130);
    job_expect(j, ls_now_ms() - since_ms < BUSY_MS);
    job_expect_gone(j);
}

static void a_stopped_shim_still_serves(void **state)
{
    job *j = start_role("1", "stubborn", NULL);

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_SHIM, 0), SIGSTOP), 0);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_expect_code(j, 143);
    job_expect_gone(j);
}

static void signals_of_the_users_own_are_passed_on(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                           "trap 'echo got 1' USR1; trap 'echo got 2; exit 6' USR2; echo ready; "
                           "while :; do sleep 0.01; done"),
                  NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| ready");
    job_await_text(j, 0, "rank 1| ready");
    assert_int_equal(kill(j->pid, SIGUSR1), 0);
    job_await_text(j, 0, "rank 0| got 1");
    job_await_text(j, 0, "rank 1| got 1");
    assert_int_equal(kill(j->pid, SIGUSR2), 0);
    job_expect_code(j, 6);
}

static void a_stopped_rank_can_be_ended(void **state)
{
    job *j = start_role("60", "orderly", "0");

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_RANK, 1), SIGSTOP), 0);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_expect_code(j, 143);
}

/* --- the whole job is paused --- */

static void await_state(job *j, pid_t pid, char state, bool is)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while ((process_state(pid) == state) != is) {
        job_expect(j, ls_deadline_left(deadline_ms) > 0);
        job_read_output(j, 5);
    }
}

static void ctrl_z_stops_all_and_fg_continues_without_alarm(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "steps", "400", "1"),
                       JOB_LIST("LOCKSTEP_LATE_MS=300"));
    pid_t ranks[2];

    LS_UNUSED(state);
    job_await_text(j, 0, "step 100\n");
    for (int r = 0; r < 2; r++)
        ranks[r] = job_find(j, JOB_RANK, r);
    assert_int_equal(kill(j->pid, SIGTSTP), 0);
    await_state(j, j->pid, 'T', true);
    await_state(j, ranks[0], 'T', true);
    await_state(j, ranks[1], 'T', true);
    job_read_output(j, 1000);
    job_expect(j, !job_printed(j, 0, "step 400\n"));
    assert_int_equal(kill(j->pid, SIGCONT), 0);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "step 400\n"));
    job_expect(j, j->err.length == 0);
}

/* --- one rank stands still --- */

static void stopped_rank_is_named_and_continues_with_the_same_bits(void **state)
{
    char sums[2][64];

    LS_UNUSED(state);
    for (int round = 0; round < 2; round++) { /* the second time without a stop */
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "steps", "600", "1"),
                           JOB_LIST("LOCKSTEP_LATE_MS=300"));
        const char *sum;

        job_await_text(j, 0, "step 100\n");
        if (round == 0) {
            const pid_t pid = job_find(j, JOB_RANK, 1);
            char line[64];

            text_format(line, sizeof(line), "not arrived 1 (pid %d, stopped", (int)pid);
            assert_int_equal(kill(pid, SIGSTOP), 0);
            job_await_text(j, 1, line);
            job_expect(j, job_printed(j, 1, "lockstep: all_reduce #"));
            assert_int_equal(kill(pid, SIGCONT), 0);
        }
        job_expect_code(j, 0);
        sum = strstr(text_str(&j->out), "sum ");
        job_expect(j, sum != NULL);
        text_format(sums[round], sizeof(sums[round]), "%.*s", (int)strcspn(sum, "\n"), sum);
        job_clean_up(NULL);
    }
    assert_string_equal(sums[0], sums[1]);
}

static void a_rank_that_stays_stopped_is_ended_at_the_operations_timeout(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "steps"),
                       JOB_LIST("LOCKSTEP_OP_TIMEOUT_MS=1500", "LOCKSTEP_LATE_MS=300"));
    pid_t pid;
    int64_t since_ms;

    LS_UNUSED(state);
    job_await_text(j, 0, "step 100\n");
    pid = job_find(j, JOB_RANK, 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    since_ms = ls_now_ms();
    job_expect_code(j, 1);
    job_expect(j, ls_now_ms() - since_ms >= 1400);
    job_expect(j, job_printed(j, 1, "timed out after"));
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_rank_stopped_before_it_joins_is_named_by_those_that_join),
        test(a_rank_stopped_after_it_has_left_is_named_by_the_launcher),
        test(a_rank_stopped_in_a_program_without_groups_is_named_by_the_launcher),
        test(stopped_launcher_is_named_and_the_job_continues),
        test(the_signal_that_stops_the_job_is_named_and_passed_on),
        test(a_listed_signal_ends_ranks_without_a_handler),
        test(ctrl_c_on_a_terminal_reaches_each_rank_once),
        test(ctrl_c_interrupts_python_programs_which_then_save),
        test(a_second_ctrl_c_on_a_terminal_kills_at_once),
        test(a_program_that_starts_its_own_ranks_passes_the_signal_on),
        test(ranks_that_do_not_end_in_time_are_named_and_killed),
        test(a_second_signal_kills_at_once),
        test(a_stopped_rank_can_be_ended),
        test(a_stopped_shim_still_serves),
        test(signals_of_the_users_own_are_passed_on),
        test(ctrl_z_stops_all_and_fg_continues_without_alarm),
        test(stopped_rank_is_named_and_continues_with_the_same_bits),
        test(a_rank_that_stays_stopped_is_ended_at_the_operations_timeout),
    };

    return cmocka_run_group_tests_name("launch stop", tests, NULL, NULL);
}
