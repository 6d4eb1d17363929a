/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_limits.c - tests that need control groups: a rank that the kernel kills when memory runs
 * out, a rank that cannot be killed, and processes without a mark. Each needs the right to create a
 * group, and is skipped with a message without it.
 */
#include "launch/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "host/process_id.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, clean_up)

#define LIMIT "67108864"

/* --- groups of the test's own, in the hierarchy of a version 1 controller --- */

static char group[1200]; /* "": none */

static bool write_value(const char *file, const char *value)
{
    char path[1300];
    bool done;
    int fd;

    text_format(path, sizeof(path), "%s/%s", group, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    done = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);
    file_close(&fd);
    return done;
}

/* The group of this process, "/a/b" of a line "4:memory:/a/b". */
static bool own_group(const char *controller, char *out, size_t n)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char wanted[64];
    char line[1024];
    bool found = false;

    text_format(wanted, sizeof(wanted), ":%s:", controller);
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        const char *at = strstr(line, wanted);
        found = at != NULL;
        if (found)
            text_format(out, n, "%.*s", (int)strcspn(at + strlen(wanted), "\n"),
                        at + strlen(wanted));
    }
    if (file != NULL)
        (void)fclose(file);
    return found;
}

static bool make_group(const char *controller)
{
    char own[900];

    if (!own_group(controller, own, sizeof(own))) {
        print_message("skipped: no control group of %s, version 1\n", controller);
        return false;
    }
    text_format(group, sizeof(group), "/sys/fs/cgroup/%s%s/lockstep-test-%d", controller,
                text_equal(own, "/") ? "" : own, (int)getpid());
    if (mkdir(group, 0755) == 0)
        return true;
    print_message("skipped: %s: %s\n", group, strerror(errno));
    group[0] = 0;
    return false;
}

static int clean_up(void **state)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    if (group[0] != 0)
        (void)write_value("freezer.state", "THAWED");
    job_clean_up(state);
    while (group[0] != 0 && rmdir(group) != 0 && ls_deadline_left(deadline_ms) > 0)
        (void)poll(NULL, 0, 10);
    group[0] = 0;
    return 0;
}

/* --- out of memory --- */

static void rank_that_exceeds_the_memory_limit_is_named(void **state)
{
    char script[2048];
    char wanted[1300];
    char own[900];
    job *j;

    LS_UNUSED(state);
    if (!make_group("memory"))
        skip();
    if (!write_value("memory.limit_in_bytes", LIMIT) || !own_group("memory", own, sizeof(own))) {
        print_message("skipped: %s has no limit that can be set\n", group);
        skip();
    }
    (void)write_value("memory.swappiness",
                      "0"); /* otherwise it would swap instead of being killed */
    text_format(script, sizeof(script),
                "echo 0 >%s/cgroup.procs || exit 77; exec %s run -n 2 %s hog 500 1", group,
                JOB_TOOL, UNRULY);
    j = job_start(JOB_LIST("sh", "-c", script), NULL);
    job_expect_code(j, 137);
    job_expect_failed_rank(j, 1,
                           " was killed by the kernel: out of memory (limit 64 MiB of cgroup ");
    text_format(wanted, sizeof(wanted), "lockstep-test-%d; it had ", (int)getpid());
    job_expect(j, job_printed(j, 1, wanted));
}

static void plain_sigkill_is_not_reported_as_out_of_memory(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", UNRULY, "wait"), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0 waits\n");
    job_await_text(j, 0, "rank 1 waits\n");
    assert_int_equal(kill(job_find(j, JOB_RANK, 1), SIGKILL), 0);
    job_expect_code(j, 137);
    job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)") &&
                      !job_printed(j, 1, "memory"));
}

/* --- processes that cannot be killed --- */

/* In version 1 SIGKILL does not end a frozen process, as one that waits for a dead file server. */
static void freeze(pid_t pid)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);
    char number[32];

    text_format(number, sizeof(number), "%d", (int)pid);
    assert_true(write_value("cgroup.procs", number));
    assert_true(write_value("freezer.state", "FROZEN"));
    while (process_state(pid) != 'D') {
        assert_true(ls_deadline_left(deadline_ms) > 0);
        (void)poll(NULL, 0, 5);
    }
}

static void expect_left_behind(const char *flag)
{
    const int64_t since_ms = ls_now_ms();
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", flag, "-n", "2", UNRULY, "wait"), NULL);
    char wanted[96];
    pid_t stuck;

    job_await_text(j, 0, "rank 0 waits\n");
    job_await_text(j, 0, "rank 1 waits\n");
    stuck = job_find(j, JOB_RANK, 1);
    freeze(stuck);
    assert_int_equal(kill(job_find(j, JOB_RANK, 0), SIGKILL), 0);
    job_expect_code(j, 137);
    text_format(wanted, sizeof(wanted),
                "rank 1 (pid %d) cannot be killed (waiting for I/O) and is left behind",
                (int)stuck);
    job_expect(j, job_printed(j, 1, wanted));
    job_expect(j, ls_now_ms() - since_ms < JOB_LONG_MS);
    job_expect(j, process_state(stuck) == 'D');
    assert_true(write_value("freezer.state", "THAWED"));
    job_expect_gone(j);
}

static void rank_that_cannot_be_killed_is_named(void **state)
{
    LS_UNUSED(state);
    if (!make_group("freezer"))
        skip();
    expect_left_behind("--isolate=off");
    expect_left_behind("--isolate");
}

/* An orphan of a rank, reparented to its shim. */
static void descendant_that_cannot_be_killed_is_named(void **state)
{
    char seconds[32];
    char wanted[96];
    pid_t stuck;
    job *j;

    LS_UNUSED(state);
    if (!make_group("freezer"))
        skip();
    text_format(seconds, sizeof(seconds), "%d.5", 300000 + (int)getpid());
    j = job_start(JOB_LIST(JOB_TOOL, "run", UNRULY, "stray", seconds), NULL);
    job_await_text(j, 0, "rank 0 has a stray\n");
    stuck = job_await_process(j, seconds, true);
    freeze(stuck);
    assert_int_equal(kill(job_find(j, JOB_RANK, 0), SIGKILL), 0);
    job_expect_code(j, 137);
    text_format(wanted, sizeof(wanted),
                "pid %d (sleep) cannot be killed (waiting for I/O) and is left behind", (int)stuck);
    job_expect(j, job_printed(j, 1, wanted));
    job_expect(j, strstr(strstr(text_str(&j->err), wanted) + strlen(wanted), "cannot be killed") ==
                      NULL);
    assert_true(write_value("freezer.state", "THAWED"));
    job_await_process(j, seconds, false);
}

/* --- processes without a mark --- */

static job *start_logging(const char *const *command)
{
    return job_start(command, JOB_LIST("LOCKSTEP_LOG=agent=debug"));
}

/* Skips where the ranks have no control group: strays would outlive the test. */
static void need_group(void)
{
    job *j = start_logging(JOB_LIST(JOB_TOOL, "run", "true"));

    job_expect_code(j, 0);
    if (job_printed(j, 1, "the ranks are in the control group"))
        return;
    print_message("skipped: %s", text_str(&j->err));
    skip();
}

static job *start_strays(char seconds[32])
{
    static int n_started;
    job *j;

    need_group();
    text_format(seconds, 32, "%d.75", 200000 + 10 * (int)getpid() + n_started++);
    j = start_logging(JOB_LIST(JOB_TOOL, "run", "-n", "2", UNRULY, "stray", seconds));
    job_await_text(j, 0, "rank 0 has a stray\n");
    job_await_text(j, 0, "rank 1 has a stray\n");
    job_await_process(j, seconds, true);
    return j;
}

static void control_group_ends_unmarked_processes(void **state)
{
    char seconds[32];
    job *j = start_strays(seconds);
    pid_t shims[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        shims[i] = job_find(j, JOB_SHIM, i);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kill(shims[i], SIGKILL), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
    job_await_process(j, seconds, false);
}

static void death_of_a_shim_leaves_no_unmarked_process(void **state)
{
    char seconds[32];
    job *j = start_strays(seconds);

    LS_UNUSED(state);
    assert_int_equal(kill(job_find(j, JOB_SHIM, 1), SIGKILL), 0);
    job_expect_code(j, 137);
    job_await_process(j, seconds, false);
}

/* Agent, guardian and shims are dead; the name of the group still identifies the job. */
static void clean_finds_unmarked_processes_by_their_group(void **state)
{
    char seconds[32];
    job *j = start_strays(seconds);
    const pid_t guardian = job_find(j, JOB_GUARDIAN, 0);
    pid_t shims[2];
    char name[64];
    job *c;

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        shims[i] = job_find(j, JOB_SHIM, i);
    text_format(name, sizeof(name), "%.16s", strstr(text_str(&j->err), "/lockstep-") + 10);
    assert_int_equal(kill(j->pid, SIGSTOP), 0);
    assert_int_equal(kill(guardian, SIGKILL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kill(shims[i], SIGKILL), 0);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_await_end(j);
    job_await_process(j, seconds, true);
    c = job_start(JOB_LIST(JOB_TOOL, "clean", "--job", name), NULL);
    job_expect_code(c, 0);
    job_expect(c, job_printed(c, 0, "(sleep), "));
    job_await_process(j, seconds, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = {
        test(rank_that_exceeds_the_memory_limit_is_named),
        test(plain_sigkill_is_not_reported_as_out_of_memory),
        test(control_group_ends_unmarked_processes),
        test(death_of_a_shim_leaves_no_unmarked_process),
        test(clean_finds_unmarked_processes_by_their_group),
    };
    const struct CMUnitTest slow[] = {
        test(rank_that_cannot_be_killed_is_named),
        test(descendant_that_cannot_be_killed_is_named),
    };

    if (argc > 1 && text_equal(argv[1], "slow"))
        return cmocka_run_group_tests_name("limits, slow", slow, NULL, NULL);
    return cmocka_run_group_tests_name("limits", quick, NULL, NULL);
}
