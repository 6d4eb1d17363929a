/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_isolate.c - lockstep run --isolate: the properties of a job in a pid namespace; and SIGKILL
 * of any of its processes, after which no process is left.
 */
#include "launch/job.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

#define RUN "run", "--isolate", "-n", "2"

/* --- properties of a job --- */

static void ranks_are_in_one_namespace_with_its_own_proc(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, RUN, "sh", "-c",
                           "test -e /proc/$$/stat && echo in $(readlink /proc/self/ns/pid) and "
                           "one is $(cat /proc/1/comm)"),
                  NULL);
    char outside[64];
    char inside[64];
    ssize_t n = readlink("/proc/self/ns/pid", outside, sizeof(outside) - 1);
    const char *at;

    LS_UNUSED(state);
    outside[n > 0 ? n : 0] = 0;
    job_expect_code(j, 0);
    at = strstr(text_str(&j->out), "in pid:");
    job_expect(j, at != NULL && job_printed(j, 0, "and one is lockstep-init\n"));
    text_format(inside, sizeof(inside), "%.*s", (int)strcspn(at + 3, " "), at + 3);
    job_expect(j, !text_equal(inside, outside));
    at = strstr(at + 3, "in pid:");
    job_expect(j, at != NULL && text_starts(at + 3, inside));
}

static void ranks_read_each_others_memory(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, RUN, UNRULY, "peek"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j,
               job_printed(j, 0, "rank 0 sees 1001\n") && job_printed(j, 0, "rank 1 sees 1000\n"));
    job_expect_gone(j);
}

static job *start_steps(void)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, RUN, JOB_ACTOR, "daemon", "steps"),
                       JOB_LIST("LOCKSTEP_LATE_MS=300"));

    job_await_text(j, 0, "step 100\n");
    job_note_sockets(j);
    return j;
}

/* In the cause of a failure and in wait reports. */
static void reports_contain_pids_of_the_outer_namespace(void **state)
{
    job *j = start_steps();
    const pid_t rank = job_find(j, JOB_RANK, 1);
    char wanted[96];

    LS_UNUSED(state);
    assert_int_equal(kill(rank, SIGSTOP), 0);
    text_format(wanted, sizeof(wanted), "pid %d, stopped", (int)rank);
    job_await_text(j, 1, wanted);
    assert_int_equal(kill(rank, SIGKILL), 0);
    job_expect_code(j, 137);
    text_format(wanted, sizeof(wanted), "rank 1 (pid %d) was killed by signal 9", (int)rank);
    job_expect(j, job_printed(j, 1, wanted));
    job_expect_gone(j);
}

static void error_file_of_a_rank_is_in_the_report(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--isolate", "sh", "-c",
                                "echo '{\"message\":\"boom\"}' >$TORCHELASTIC_ERROR_FILE; exit 3"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 3);
    job_expect(j, job_printed(j, 1, "exited with code 3\n  its error: boom\n"));
}

static void restart_has_a_new_namespace(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--isolate=pid", "-n", "2", "--max-restarts", "1",
                                "sh", "-c", "readlink /proc/self/ns/pid; exit 4"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 4);
    job_expect(j, count_parts(text_str(&j->out), "pid:") >= 2);
    job_expect_gone(j);
}

static void agents_on_other_hosts_isolate_too(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H", "127.0.0.2,127.0.0.3",
                                "--isolate", "sh", "-c",
                                "echo $LOCKSTEP_RANK is under $(cat /proc/1/comm)"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "0 is under lockstep-init\n") &&
                      job_printed(j, 0, "1 is under lockstep-init\n"));
    job_expect_gone(j);
}

static void isolate_off_is_the_default(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--isolate=off", "sh", "-c",
                                "echo one is $(cat /proc/1/comm) $LOCKSTEP_PID"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "one is ") && !job_printed(j, 0, "lockstep-init"));
}

/* --- as an unprivileged user --- */

/* A user namespace replaces root's rights; the user's id stays the same. */
static void unprivileged_users_isolate_too(void **state)
{
    const char *const unprivileged[] = {"setpriv", "--reuid=65534", "--regid=65534",
                                        "--clear-groups"};
    job *j;

    LS_UNUSED(state);
    if (geteuid() != 0)
        skip(); /* the other tests run as an unprivileged user */
    j = job_start(JOB_LIST(unprivileged[0], unprivileged[1], unprivileged[2], unprivileged[3],
                           "unshare", "-Up", "--fork", JOB_TOOL, "--version"),
                  NULL);
    job_await_end(j);
    if (!j->has_ended || j->status != 0)
        skip(); /* no setpriv, no access to the program, or a kernel that denies it */
    j = job_start(JOB_LIST(unprivileged[0], unprivileged[1], unprivileged[2], unprivileged[3],
                           JOB_TOOL, RUN, "sh", "-c",
                           "echo I am $(id -u) under $(cat /proc/1/comm); exec " JOB_ACTOR
                           " daemon steps"),
                  NULL);
    job_await_text(j, 0, "step 100\n");
    job_expect(j, job_printed(j, 0, "rank 1| I am 65534 under lockstep-init\n"));
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
}

/* --isolate was requested, so the job does not start without it. */
static void refusal_of_the_kernel_names_the_fix(void **state)
{
    job *j =
        job_start(JOB_LIST("unshare", "-Ur", "sh", "-c",
                           "echo 0 >/proc/sys/user/max_pid_namespaces || exit 77; exec " JOB_TOOL
                           " run --isolate -n 2 echo started"),
                  NULL);

    LS_UNUSED(state);
    job_await_end(j);
    if (job_printed(j, 1, "unshare: ") || job_printed(j, 1, "sh: "))
        skip();
    job_expect_code(j, 1);
    job_expect(j, !job_printed(j, 0, "started"));
    job_expect(j, job_printed(j, 1, "--isolate: the kernel permits no namespaces: run `sysctl ") &&
                      job_printed(j, 1, "or run without --isolate\n"));
    job_expect_gone(j);
}

static void other_values_are_refused(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--isolate=net", "true"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 2);
    job_expect(j, job_printed(j, 1, "--isolate=net: must be pid or off\n"));
}

/* --- SIGKILL --- */

enum { PARTS_MOST = 5 };

typedef struct murder {
    job_part parts[PARTS_MOST];
    int rank[PARTS_MOST];
    int n;
    bool agent_dies;
} murder;

static void kill_and_expect_nothing(const murder *m)
{
    job *j = start_steps();
    pid_t pids[PARTS_MOST];

    for (int i = 0; i < m->n; i++)
        pids[i] = job_find(j, m->parts[i], m->rank[i]);
    for (int i = 0; i < m->n; i++) /* the kernel may have killed the others with the first */
        assert_true(kill(pids[i], SIGKILL) == 0 || (i > 0 && errno == ESRCH));
    if (!m->agent_dies)
        job_await_end(j);
    job_expect_gone(j);
    job_clean_up(NULL);
}

/* The rank and the first process alone are killed in other tests. */
static void kill_of_each_process_and_of_several_leaves_none(void **state)
{
    static const murder all[] = {
        {{JOB_AGENT}, {0}, 1, true},
        {{JOB_SHIM}, {1}, 1, false},
        {{JOB_INIT, JOB_AGENT}, {0}, 2, true},
        {{JOB_AGENT, JOB_SHIM, JOB_SHIM}, {0, 0, 1}, 3, true},
        {{JOB_SHIM, JOB_SHIM, JOB_GUARDIAN, JOB_AGENT}, {0, 1, 0, 0}, 4, true},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(all); i++)
        kill_and_expect_nothing(&all[i]);
}

static void kill_of_the_first_process_is_reported_as_the_cause(void **state)
{
    job *j = start_steps();

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_INIT, 0), SIGKILL), 0);
    job_expect_code(j, 137);
    job_expect(j, job_printed(
                      j, 1, "the process that watches over it, or over its namespace, was killed"));
    job_expect_gone(j);
}

static void kill_of_the_launcher_ends_a_stopped_first_process(void **state)
{
    job *j = start_steps();

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_INIT, 0), SIGSTOP), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
}

/* Processes without any mark, when agent and guardian are dead. */
static void unmarked_processes_end_with_the_namespace(void **state)
{
    char seconds[32];
    pid_t shims[2];
    job *j;

    LS_UNUSED(state);
    text_format(seconds, sizeof(seconds), "%d.25", 100000 + (int)getpid());
    j = job_start(JOB_LIST(JOB_TOOL, RUN, UNRULY, "stray", seconds), NULL);
    job_await_text(j, 0, "rank 0 has a stray\n");
    job_await_text(j, 0, "rank 1 has a stray\n");
    job_await_process(j, seconds, true);
    for (int i = 0; i < 2; i++)
        shims[i] = job_find(j, JOB_SHIM, i);
    assert_int_equal(kill(job_find(j, JOB_GUARDIAN, 0), SIGSTOP), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kill(shims[i], SIGKILL), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_await_process(j, seconds, false);
}

/* The kernel or the administrator may deny namespaces. */
static bool is_possible(void)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--isolate", "true"), NULL);
    bool is;

    job_await_end(j);
    is = !job_printed(j, 1, "--isolate: ");
    if (!is)
        print_message("skipped: %s", text_str(&j->err));
    job_clean_up(NULL);
    return is;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_are_in_one_namespace_with_its_own_proc),
        test(ranks_read_each_others_memory),
        test(reports_contain_pids_of_the_outer_namespace),
        test(error_file_of_a_rank_is_in_the_report),
        test(restart_has_a_new_namespace),
        test(agents_on_other_hosts_isolate_too),
        test(isolate_off_is_the_default),
        test(unprivileged_users_isolate_too),
        test(refusal_of_the_kernel_names_the_fix),
        test(other_values_are_refused),
        test(kill_of_each_process_and_of_several_leaves_none),
        test(kill_of_the_first_process_is_reported_as_the_cause),
        test(kill_of_the_launcher_ends_a_stopped_first_process),
        test(unmarked_processes_end_with_the_namespace),
    };

    if (!is_possible())
        return 77;
    return cmocka_run_group_tests_name("isolate", tests, NULL, NULL);
}
