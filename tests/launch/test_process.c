/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_process.c - killing children and marked processes, closing descriptors, and texts about the
 * end of processes.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "host/process_id.h"
#include "base/text.h"
#include "host/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 20000

/* --- children --- */

static void sleep_for_ever(void)
{
    for (;;)
        pause();
}

/* Forks `depth` levels deep, each process in its own session; each writes its pid. */
static void fork_down(int depth, int tell_fd)
{
    pid_t pid;

    (void)signal(SIGTERM, SIG_IGN);
    do {
        (void)setsid();
    } while (depth-- > 0 && fork() == 0);
    pid = getpid();
    if (write(tell_fd, &pid, sizeof(pid)) != sizeof(pid))
        _exit(1);
    sleep_for_ever();
}

static bool is_alive(pid_t pid)
{
    const char c = process_state(pid);

    return c != 0 && c != 'Z';
}

static void await_death(pid_t pid)
{
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);

    while (is_alive(pid)) {
        assert_true(ls_deadline_left(deadline_ms) > 0);
        (void)poll(NULL, 0, 2);
    }
}

/* Runs in a child process, because all descendants of the caller are killed. */
static void kill_below(int tell_fd)
{
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < 3; i++)
        if (fork() == 0)
            fork_down(3, tell_fd);
    (void)poll(NULL, 0,
               50); /* some processes still fork when the killing begins, others have exited */
    process_kill_children(ls_deadline_ms(LONG_MS));
    _exit(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : 1);
}

static void all_descendants_are_killed(void **state)
{
    int fds[2], status = 0;
    pid_t pid, descendant;

    LS_UNUSED(state);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0)
        kill_below(fds[1]);
    (void)close(fds[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    while (read(fds[0], &descendant, sizeof(descendant)) == sizeof(descendant))
        await_death(descendant);
    (void)close(fds[0]);
}

static void call_without_children_returns_at_once(void **state)
{
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    process_kill_children(ls_deadline_ms(LONG_MS));
    assert_true(ls_now_ms() - since_ms < LONG_MS / 2);
}

/* --- processes of a job --- */

static pid_t start_sleeper(const char *entry)
{
    const pid_t pid = fork();

    if (pid == 0) {
        static char name[] = "sleep", time[] = "1000";
        char *argv[] = {name, time, NULL};
        char *env[] = {(char *)(uintptr_t)entry, NULL};

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* if a test fails */
        (void)execve("/bin/sleep", argv, entry != NULL ? env : env + 1);
        _exit(99);
    }
    return pid;
}

/* Waits until the child has executed its program. */
static void await_exec(pid_t pid)
{
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);
    char path[64];
    char name[32] = "";

    text_format(path, sizeof(path), "/proc/%d/comm", (int)pid);
    while (!text_starts(name, "sleep")) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t n = read(fd, name, sizeof(name) - 1);

        name[n > 0 ? n : 0] = 0;
        (void)close(fd);
        assert_true(ls_deadline_left(deadline_ms) > 0);
    }
}

static void end(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void only_processes_of_the_job_are_killed(void **state)
{
    static const struct {
        const char *entry;
        bool dies;
    } cases[] = {
        {"LOCKSTEP_AGENT=00112233aabbccdd", true},
        {"LOCKSTEP_AGENT=00112233aabbccde", false},
        {"LOCKSTEP_AGENT=00112233aabbccdd0", false},
        {"MY_LOCKSTEP_AGENT=00112233aabbccdd", false},
        {NULL, false},
    };
    const process_mark mark = {.agent = "00112233aabbccdd", .key_fd = -1};
    pid_t pids[LS_COUNT_OF(cases)];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        pids[i] = start_sleeper(cases[i].entry);
        await_exec(pids[i]);
    }
    process_sweep_job(&mark, ls_deadline_ms(LONG_MS));
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        if (cases[i].dies)
            await_death(pids[i]);
        assert_int_equal(is_alive(pids[i]), !cases[i].dies);
        end(pids[i]);
    }
}

static void mark_at_any_offset_of_the_environment_is_found(void **state)
{
    const process_mark mark = {.agent = "00112233aabbccdd", .key_fd = -1};
    static char filler[60][1000];

    LS_UNUSED(state);
    for (int shift = 0; shift < 60; shift += 7) { /* across the boundaries of single reads */
        const pid_t pid = fork();

        if (pid == 0) {
            static char name[] = "sleep", time[] = "1000",
                        entry[] = "LOCKSTEP_AGENT=00112233aabbccdd";
            char *argv[] = {name, time, NULL};
            char *env[64] = {NULL};

            for (int i = 0; i < 20; i++) {
                memset(filler[i], 'x', 400 + (size_t)shift);
                env[i] = filler[i];
            }
            env[20] = entry;
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            (void)execve("/bin/sleep", argv, env);
            _exit(99);
        }
        await_exec(pid);
        process_sweep_job(&mark, ls_deadline_ms(LONG_MS));
        await_death(pid);
        end(pid);
    }
}

static void process_that_holds_the_key_is_killed(void **state)
{
    process_mark mark = {.agent = "ffffffffffffffff"};
    const int other_fd = memfd_create("other", MFD_CLOEXEC);
    pid_t holds, others;

    LS_UNUSED(state);
    mark.key_fd = memfd_create("key", MFD_CLOEXEC);
    assert_true(mark.key_fd >= 0 && other_fd >= 0);
    holds = fork();
    if (holds == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep_for_ever();
    }
    (void)close(fcntl(mark.key_fd, F_DUPFD_CLOEXEC, 0)); /* a duplicate is the same key */
    others = start_sleeper(NULL);
    await_exec(others); /* it closed both */
    process_sweep_job(&mark, ls_deadline_ms(LONG_MS));
    await_death(holds);
    assert_true(is_alive(others));
    end(holds);
    end(others);
    (void)close(mark.key_fd);
    (void)close(other_fd);
}

/* --- descriptors --- */

static void descriptors_opened_since_are_closed(void **state)
{
    int early = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int late, kept;
    process_fds then;

    LS_UNUSED(state);
    assert_ok(process_list_fds(&then));
    late = open("/dev/null", O_RDONLY | O_CLOEXEC);
    kept = open("/dev/null", O_RDONLY | O_CLOEXEC);
    process_close_since(&then, &kept, 1);
    assert_true(fcntl(early, F_GETFD) >= 0);
    assert_true(fcntl(kept, F_GETFD) >= 0);
    assert_int_equal(fcntl(late, F_GETFD), -1);
    ls_free(then.fds);
    (void)close(early);
    (void)close(kept);
}

/* Each shim closes the descriptors of all others: nothing may be read for each of them. */
static void descriptors_are_closed_without_opening_one(void **state)
{
    int status = 0;
    const pid_t pid = fork();

    LS_UNUSED(state);
    if (pid == 0) {
        struct rlimit limit;
        process_fds then;
        int late[64];
        int n_open = 0;

        if (process_list_fds(&then) != LS_OK || getrlimit(RLIMIT_NOFILE, &limit) != 0)
            _exit(2);
        for (int i = 0; i < 64; i++)
            late[i] = dup(STDERR_FILENO);
        limit.rlim_cur = 3;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
            _exit(3);
        process_close_since(&then, &late[5], 1);
        for (int i = 0; i < 64; i++)
            n_open += fcntl(late[i], F_GETFD) >= 0;
        _exit(n_open == 1 && fcntl(late[5], F_GETFD) >= 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void descriptors_that_are_not_listed_are_closed(void **state)
{
    int status = 0;
    const pid_t pid = fork();

    LS_UNUSED(state);
    if (pid == 0) {
        const int keep[] = {20, -1, 10, 20};
        int open_fds = 0;

        (void)dup2(1, 10);
        (void)dup2(1, 20);
        (void)dup2(1, 200);
        process_close_all_but(keep, 4);
        for (int fd = 0; fd < 1000; fd++)
            open_fds += fcntl(fd, F_GETFD) >= 0;
        _exit(open_fds == 2 && fcntl(10, F_GETFD) >= 0 && fcntl(20, F_GETFD) >= 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* --- texts --- */

static void end_of_a_process_has_a_text(void **state)
{
    char buf[96];

    LS_UNUSED(state);
    assert_string_equal(process_end_text(buf, sizeof(buf), 3 << 8), "exited with code 3");
    assert_string_equal(process_end_text(buf, sizeof(buf), SIGKILL),
                        "was killed by signal 9 (SIGKILL)");
    assert_string_equal(process_end_text(buf, sizeof(buf), SIGSEGV | 0x80),
                        "was killed by signal 11 (SIGSEGV), core dumped");
    assert_string_equal(process_end_text(buf, sizeof(buf), 40),
                        "was killed by signal 40 (a real-time signal)");
    for (int i = 1; i < 32; i++)
        if (i != SIGCHLD && i != SIGCONT && i != SIGURG && i != SIGWINCH && i != SIGSTOP &&
            i != SIGTTIN && i != SIGTTOU) /* these signals end no process */
            assert_true(text_starts(process_signal_name(i), "SIG"));
}

static void pidfd_is_readable_after_the_end(void **state)
{
    const pid_t pid = fork();
    struct pollfd fd = {.events = POLLIN};

    LS_UNUSED(state);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep_for_ever();
    }
    fd.fd = process_open(pid);
    if (fd.fd < 0) { /* a kernel before 5.3 */
        end(pid);
        skip();
    }
    assert_int_equal(fcntl(fd.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(poll(&fd, 1, 0), 0);
    (void)kill(pid, SIGKILL);
    assert_int_equal(poll(&fd, 1, LONG_MS), 1);
    (void)close(fd.fd);
    end(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_descendants_are_killed),
        cmocka_unit_test(call_without_children_returns_at_once),
        cmocka_unit_test(only_processes_of_the_job_are_killed),
        cmocka_unit_test(mark_at_any_offset_of_the_environment_is_found),
        cmocka_unit_test(process_that_holds_the_key_is_killed),
        cmocka_unit_test(descriptors_opened_since_are_closed),
        cmocka_unit_test(descriptors_are_closed_without_opening_one),
        cmocka_unit_test(descriptors_that_are_not_listed_are_closed),
        cmocka_unit_test(end_of_a_process_has_a_text),
        cmocka_unit_test(pidfd_is_readable_after_the_end),
    };

    return cmocka_run_group_tests_name("launch process", tests, NULL, NULL);
}
