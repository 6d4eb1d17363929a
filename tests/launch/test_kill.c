/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 of the parts of a running job: 5 s later nothing of it is left, whatever its ranks
 * have started. */
#include "launch/job.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* Entries of the file system where shared memory could be left. */
static int count_shared_files(void)
{
    DIR *shm = opendir("/dev/shm");
    const struct dirent *e;
    int n = 0;

    while (shm != NULL && (e = readdir(shm)) != NULL)
        n += text_starts(e->d_name, "lockstep") || text_starts(e->d_name, "ls-");
    if (shm != NULL)
        closedir(shm);
    return n;
}

/* Two ranks in the middle of all-reduces, each with daemons of its own: one plain, one that has
 * no environment. */
static job *start_job(void)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "daemon", "steps"), NULL);

    job_await_text(j, 0, "step 100\n");
    job_note_sockets(j);
    job_expect(j, job_count_alive(j) >= 1 + 1 + 2 * 2 + 2 * 2);
    return j;
}

/* Kills up to two parts at once; rank < 0: none. */
static void kill_and_expect_nothing(const job_part *parts, int n_parts, bool agent_dies)
{
    for (int round = 0; round < job_rounds(); round++) {
        const int shared = count_shared_files();
        job *j = start_job();
        pid_t pids[2];

        for (int i = 0; i < n_parts; i++)
            pids[i] = job_find(j, parts[i], 0);
        for (int i = 0; i < n_parts; i++)
            assert_int_equal(kill(pids[i], SIGKILL), 0);
        if (!agent_dies)
            job_await_end(j);
        job_expect_gone(j);
        assert_int_equal(count_shared_files(), shared);
        job_clean_up(NULL);
    }
}

static void of_the_launcher(void **state)
{
    const job_part parts[] = {JOB_AGENT};

    LS_UNUSED(state);
    kill_and_expect_nothing(parts, 1, true);
}

static void of_the_launcher_and_a_shim(void **state)
{
    const job_part parts[] = {JOB_AGENT, JOB_SHIM};
    const job_part other_order[] = {JOB_SHIM, JOB_AGENT};

    LS_UNUSED(state);
    kill_and_expect_nothing(parts, 2, true);
    kill_and_expect_nothing(other_order, 2, true);
}

static void of_the_launcher_and_the_guardian(void **state)
{
    const job_part parts[] = {JOB_GUARDIAN, JOB_AGENT};

    LS_UNUSED(state);
    kill_and_expect_nothing(parts, 2, true);
}

static void of_a_shim(void **state)
{
    const job_part parts[] = {JOB_SHIM};

    LS_UNUSED(state);
    kill_and_expect_nothing(parts, 1, false);
}

static void of_the_launcher_of_stopped_shims(void **state)
{
    job *j = start_job();

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kill(job_find(j, JOB_SHIM, i), SIGSTOP), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
}

static void of_a_shim_is_reported(void **state)
{
    job *j = start_job();

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_SHIM, 0), SIGKILL), 0);
    job_expect_code(j, 137);
    job_expect(j, job_printed(j, 1, "lockstep: rank 0 (pid ") &&
                      job_printed(j, 1, "the process that watches over it was killed"));
}

/* Also without a control group of the ranks, which an ordinary user may not have. */
static void of_a_shim_leaves_nothing_beside_the_next_start(void **state)
{
    char script[256];
    char seconds[32];
    job *j;

    LS_UNUSED(state);
    text_format(seconds, sizeof(seconds), "%d.25", 400000 + (int)getpid());
    text_format(script, sizeof(script),
                "echo start $TORCHELASTIC_RESTART_COUNT; "
                "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && { read line; exit; }; sleep %s & wait",
                seconds);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "--max-restarts", "1", "sh", "-c", script), NULL);
    job_await_text(j, 0, "start 0");
    while (job_find_process(j, "sleep", seconds, "") == 0)
        job_read_output(j, 5);
    assert_int_equal(kill(job_find(j, JOB_SHIM, 0), SIGKILL), 0);
    job_await_text(j, 0, "start 1");
    job_expect(j, job_find_process(j, "sleep", seconds, "") == 0);
    job_close_stdin(j);
    job_await_end(j);
}

static void of_a_rank(void **state)
{
    const job_part parts[] = {JOB_RANK};

    LS_UNUSED(state);
    kill_and_expect_nothing(parts, 1, false);
}

/* The job goes on, with a new guardian that does what the old one would have done. */
static void of_the_guardian_brings_a_new_one(void **state)
{
    job *j = start_job();
    const pid_t old = job_find(j, JOB_GUARDIAN, 0);
    pid_t guardian = old;

    LS_UNUSED(state);
    assert_int_equal(kill(old, SIGKILL), 0);
    for (int i = 0; i < 1000 && (guardian == old || guardian == 0); i++) {
        job_read_output(j, 5);
        guardian = job_find(j, JOB_GUARDIAN, 0);
    }
    job_expect(j, guardian != old && !j->has_ended);
    assert_int_equal(kill(job_find(j, JOB_SHIM, 1), SIGKILL), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
}

/* While the job is only being made. */
static void of_the_launcher_at_any_moment(void **state)
{
    LS_UNUSED(state);
    for (int round = 0; round < 5 * job_rounds(); round++) {
        job *j =
            job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "daemon", "steps"), NULL);

        job_read_output(j, round % 15);
        assert_int_equal(kill(j->pid, SIGKILL), 0);
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

static void of_the_outer_launcher_takes_the_inner_job_along(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_TOOL, "run", "-n", "2", JOB_ACTOR,
                                "daemon", "steps"),
                       NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| rank 0| step 100\n");
    job_await_text(j, 0, "rank 1| rank 0| step 100\n");
    job_note_sockets(j);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
}

static void daemons_end_with_a_job_that_ends_well(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "daemon", "once"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(of_the_launcher),
        test(of_the_launcher_and_a_shim),
        test(of_the_launcher_and_the_guardian),
        test(of_a_shim),
        test(of_the_launcher_of_stopped_shims),
        test(of_a_shim_is_reported),
        test(of_a_shim_leaves_nothing_beside_the_next_start),
        test(of_a_rank),
        test(of_the_guardian_brings_a_new_one),
        test(of_the_launcher_at_any_moment),
        test(of_the_outer_launcher_takes_the_inner_job_along),
        test(daemons_end_with_a_job_that_ends_well),
    };

    return cmocka_run_group_tests_name("launch kill", tests, NULL, NULL);
}
