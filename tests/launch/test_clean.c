/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_clean.c - lockstep clean with whole jobs: leftovers of a dead job are killed, a living job
 * is not touched.
 */
#include "launch/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* Two ranks, each with two daemons: one plain, one without environment. */
static job *start_job(char name[32])
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--", "sh", "-c",
                                "echo of job $LOCKSTEP_JOB; exec " JOB_ACTOR " daemon steps"),
                       NULL);
    const char *at;

    job_await_text(j, 0, "step 100\n");
    job_expect(j, job_count_alive(j) >= 1 + 1 + 2 * 2 + 2 * 2);
    at = strstr(text_str(&j->out), "of job ");
    text_format(name, 32, "%.16s", at != NULL ? at + strlen("of job ") : "");
    return j;
}

/* Kills launcher, guardian and shims; the launcher is stopped first, so that it does not react. */
static void kill_watchers(job *j)
{
    const pid_t guardian = job_find(j, JOB_GUARDIAN, 0);
    const pid_t shims[] = {job_find(j, JOB_SHIM, 0), job_find(j, JOB_SHIM, 1)};

    assert_int_equal(kill(j->pid, SIGSTOP), 0);
    assert_int_equal(kill(guardian, SIGKILL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kill(shims[i], SIGKILL), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_await_end(j);
    job_expect(j, job_count_alive(j) >= 2); /* the daemons */
}

static job *clean(const char *name, const char *more)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "clean", "--job", name, more), NULL);

    job_await_end(j);
    return j;
}

static void only_the_dead_job_is_killed(void **state)
{
    char dead_name[32], live_name[32];
    job *dead = start_job(dead_name);
    job *live = start_job(live_name);
    const int n_live = job_count_alive(live);
    job *j;

    LS_UNUSED(state);
    kill_watchers(dead);
    j = clean(dead_name, "--dry-run");
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "would kill pid ") && job_printed(j, 0, "(actor), "));
    job_expect(j, job_printed(j, 0, dead_name) && !job_printed(j, 0, live_name));
    job_expect(dead, job_count_alive(dead) >= 2);

    j = clean(dead_name, NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "killed pid ") && job_printed(j, 0, " old, of job "));
    job_expect_gone(dead);
    job_expect(live, job_count_alive(live) == n_live);

    j = clean(dead_name, NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "no leftover processes of dead jobs\n"));
}

static void living_job_is_refused_by_name(void **state)
{
    char name[32];
    char wanted[96];
    job *live = start_job(name);
    const int n_live = job_count_alive(live);
    job *j = clean(name, NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    text_format(wanted, sizeof(wanted), "job %s is running: to end it, kill %d", name,
                (int)live->pid);
    job_expect(j, job_printed(j, 1, wanted));
    job_expect(live, job_count_alive(live) == n_live);
    assert_int_equal(kill(live->pid, SIGSTOP), 0); /* a stopped launcher is alive */
    j = clean(name, NULL);
    job_expect_code(j, 1);
    job_expect(live, job_count_alive(live) == n_live);
}

static void check_reports_leftovers(void **state)
{
    char name[32];
    char wanted[96];
    job *dead = start_job(name);
    job *j;

    LS_UNUSED(state);
    kill_watchers(dead);
    j = job_start(JOB_LIST(JOB_TOOL, "check", "--problems"), NULL);
    job_await_end(j);
    text_format(wanted, sizeof(wanted), "lockstep clean --job %s", name);
    job_expect(j, job_printed(j, 0, "warning  leftover: pid ") && job_printed(j, 0, wanted));
    j = clean(name, NULL);
    job_expect_code(j, 0);
    job_expect_gone(dead);
}

/* A shell of a dead job in which the user works. */
static void clean_inside_a_dead_job_spares_its_own_shell(void **state)
{
    job *j =
        job_start(JOB_LIST("sh", "-c", JOB_TOOL " clean --job 0123456789abcdef; echo still here"),
                  JOB_LIST("LOCKSTEP_JOB=0123456789abcdef", "LOCKSTEP_AGENT_PROCESS=4194304.1.1"));
    job *in;
    char entry[64];
    char link[64];

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "no leftover processes of dead jobs\nstill here\n"));
    assert_true(readlink("/proc/self/ns/pid", link, sizeof(link)) > 0);
    text_format(entry, sizeof(entry), "LOCKSTEP_AGENT_PROCESS=4194304.1.%.*s",
                (int)strcspn(link + 5, "]"), link + 5);
    in = job_start(JOB_LIST("sh", "-c", JOB_TOOL " clean --job 0123456789abcdef; echo still here"),
                   JOB_LIST("LOCKSTEP_JOB=0123456789abcdef", entry));
    job_expect_code(in, 0);
    job_expect(in, job_printed(in, 0, "no leftover processes of dead jobs\nstill here\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(only_the_dead_job_is_killed),
        test(living_job_is_refused_by_name),
        test(check_reports_leftovers),
        test(clean_inside_a_dead_job_spares_its_own_shell),
    };

    return cmocka_run_group_tests_name("clean", tests, NULL, NULL);
}
