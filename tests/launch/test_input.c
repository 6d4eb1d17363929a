/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input of rank 0 on any host, and the terminals of --pty. Other hosts are this machine, and
 * ssh is fake_ssh.c.
 */
#include "launch/job.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

#define ON_NODE   JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H"
#define RUN_THERE JOB_TOOL " run --ssh " FAKE_SSH " -H 127.0.0.2 "

static void expect_end(job *j, int code)
{
    job_expect_code(j, code);
    job_expect_gone(j);
}

/* --- stdin of another host's rank --- */

static void piped_input_reaches_rank_0(void **state)
{
    job *j = job_start(
        JOB_LIST(ON_NODE, "127.0.0.2:2,localhost", "sh", "-c", "echo $RANK got $(cat)"), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 1| 1 got\n"); /* the others have /dev/null */
    job_await_text(j, 0, "rank 2| 2 got\n");
    job_write(j, "one\ntwo");
    job_read_output(j, 20);
    job_write(j, " three");
    job_close_stdin(j);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| 0 got one two three\n"));
}

/* A file, a pipe and nothing, of many times the bytes that may be under way. */
static void large_input_arrives_whole(void **state)
{
    static const char script[] =
        "f=$(mktemp) && trap 'rm -f $f' EXIT && head -c 8388608 /dev/urandom >$f && a=$(cksum "
        "<$f) && "
        "b=$(" RUN_THERE "cksum <$f) && c=$(cat $f | " RUN_THERE "cksum) && [ \"$a\" = \"$b\" ] && "
        "[ \"$a\" = \"$c\" ] && [ \"$(" RUN_THERE "wc -c </dev/null)\" = 0 ] && "
        "[ \"$(" RUN_THERE "wc -c <&-)\" = 0 ] && echo equal";
    job *j = job_start(JOB_LIST("sh", "-c", script), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "equal\n"));
}

static void rank_that_stops_reading_exits_normally(void **state)
{
    job *j = job_start(JOB_LIST("sh", "-c", "yes | " RUN_THERE "head -c 10 | wc -c"), NULL);

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "10\n"));
    j = job_start(JOB_LIST("sh", "-c",
                           "yes | " RUN_THERE
                           "sh -c 'exec <&-; echo closed; sleep 0.3; echo later'"),
                  NULL);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "closed\nlater\n"));
}

/* While rank 0 does not read an endless input, memory does not grow and output is printed. */
static void rank_that_does_not_read_delays_nothing(void **state)
{
    job *j = job_start(
        JOB_LIST("sh", "-c",
                 "exec </dev/zero; exec " RUN_THERE
                 "sh -c 'for i in 1 2 3 4 5 6; do echo line $i; sleep 0.1; done; exec sleep 1000'"),
        NULL);
    char path[64];
    char *status;
    size_t n;
    long kib;

    LS_UNUSED(state);
    job_await_text(j, 0, "line 6");
    text_format(path, sizeof(path), "/proc/%d/status", (int)j->pid);
    assert_ok(file_read(path, 65536, &status, &n));
    kib = strtol(strstr(status, "VmRSS:") + strlen("VmRSS:"), NULL, 10);
    job_expect(j, kib > 0 && kib < 64 * 1024);
    ls_free(status);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    expect_end(j, 128 + SIGTERM);
}

/* What the first one has not read is the next one's. */
static void input_continues_after_a_restart(void **state)
{
    job *j = job_start(JOB_LIST(ON_NODE, "127.0.0.2", "--max-restarts", "1", "sh", "-c",
                                "read line; echo $TORCHELASTIC_RESTART_COUNT $line; exit "
                                "$((1 - TORCHELASTIC_RESTART_COUNT))"),
                       NULL);

    LS_UNUSED(state);
    job_write(j, "first\n");
    job_await_text(j, 0, "0 first");
    job_await_text(j, 1, "restart 1 of 1");
    job_write(j, "second\n");
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "1 second"));
    j = job_start(JOB_LIST(ON_NODE, "127.0.0.2", "--max-restarts", "1", "sh", "-c",
                           "cat; exit $((1 - TORCHELASTIC_RESTART_COUNT))"),
                  NULL);
    job_write(j, "all\n");
    job_close_stdin(j);
    expect_end(j, 0); /* the end is reported again */
}

/* --- a terminal behind stdin --- */

static void ctrl_d_at_a_terminal_is_the_end_of_rank_0s_input(void **state)
{
    job *j = job_start_on_terminal(
        JOB_LIST(ON_NODE, "127.0.0.2", "sh", "-c", "echo ready; cat | sed s/^/got:/; echo over"),
        NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "ready");
    job_write(j, "typed\n\x04");
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "got:typed") && job_printed(j, 0, "over"));
}

/*
 * A session on its own terminal, whose leader is in the foreground and the launcher in the
 * background. Returns the launcher's pid. The leader writes "stopped" if the launcher is stopped,
 * brings it to the foreground at 'f', and exits as the launcher does.
 */
static void lead_session(const char *const *argv, int commands, int news)
{
    const pid_t launcher = fork();
    char command;
    int status = 0;

    if (launcher == 0) {
        (void)setpgid(0, 0);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    (void)setpgid(launcher, launcher);
    (void)signal(SIGTTOU, SIG_IGN);
    if (read(commands, &command, 1) == 1 &&
        waitpid(launcher, &status, WNOHANG | WUNTRACED) == launcher)
        (void)!write(news, "stopped\n", 8);
    (void)tcsetpgrp(0, launcher);
    (void)waitpid(launcher, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
}

static int open_terminal(char *name, size_t n)
{
    const int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

    assert_true(fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0 && ptsname_r(fd, name, n) == 0);
    return fd;
}

/* Reads until the text has come. */
static void await(int fd, text_buf *got, const char *text)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);
    char bytes[1024];
    ssize_t n = 1;

    while (strstr(text_str(got), text) == NULL && n > 0 && ls_deadline_left(deadline_ms) > 0) {
        n = read(fd, bytes, sizeof(bytes));
        if (n > 0)
            text_append_bytes(got, bytes, (size_t)n);
    }
    if (strstr(text_str(got), text) == NULL)
        fail_msg("\"%s\" does not come: %s", text, text_str(got));
}

static void a_launcher_in_the_background_is_not_stopped_by_its_terminal(void **state)
{
    static const char *const argv[] = {
        ON_NODE,
        "127.0.0.2",
        "sh",
        "-c",
        "echo ready; sleep 0.5; echo awake; read line; echo got $line",
        NULL};
    text_buf got = {0};
    int commands[2];
    int news[2];
    char name[64];
    char bytes[16] = "";
    int status;
    int fd;
    pid_t leader;

    LS_UNUSED(state);
    fd = open_terminal(name, sizeof(name));
    assert_true(pipe2(commands, O_CLOEXEC) == 0 && pipe2(news, O_CLOEXEC) == 0);
    (void)fflush(NULL);
    leader = fork();
    if (leader == 0) {
        (void)setsid();
        (void)close(0);
        if (open(name, O_RDWR) != 0 || ioctl(0, TIOCSCTTY, 0) != 0 || dup2(0, 1) < 0 ||
            dup2(0, 2) < 0)
            _exit(97);
        lead_session(argv, commands[0], news[1]);
    }
    (void)close(commands[0]);
    (void)close(news[1]);
    await(fd, &got, "ready");
    assert_int_equal(write(fd, "for rank 0\n", 11), 11); /* the shell's, while we are behind it */
    await(fd, &got, "awake");
    assert_null(strstr(text_str(&got), "got"));
    assert_int_equal(write(commands[1], "f", 1), 1);
    await(fd, &got, "got for rank 0");
    assert_int_equal(waitpid(leader, &status, 0), leader);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(read(news[0], bytes, sizeof(bytes)), 0);
    (void)close(commands[1]);
    (void)close(news[0]);
    (void)close(fd);
    text_free(&got);
}

/* --- --pty --- */

#define TELL "for i in 0 1 2; do [ -t $i ] && echo $RANK has $i; done; stty size <&1; "

static void ranks_have_terminals(void **state)
{
    static const char *const hosts[] = {"localhost:2", "127.0.0.2:2"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(hosts); i++) {
        job *j = job_start(JOB_LIST(ON_NODE, hosts[i], "--pty", "sh", "-c",
                                    TELL "printf 'one\\ntwo\\n\\nno end'; echo error >&2"),
                           NULL);

        expect_end(j, 0);
        for (int rank = 0; rank < 2; rank++) {
            char text[64];

            text_format(text, sizeof(text), "rank %d| %d has 1\nrank %d| %d has 2\n", rank, rank,
                        rank, rank);
            job_expect(j, job_printed(j, 0, "24 72\n"));
            text_format(text, sizeof(text), "rank %d| no end\n", rank);
            job_expect(j, job_printed(j, 0, text));
            text_format(text, sizeof(text), "rank %d| error\n", rank);
            job_expect(j, job_printed(j, 1, text));
        }
        job_expect(j, !job_printed(j, 0, "has 0") && !job_printed(j, 0, "\r"));
    }
}

/* More than a terminal holds, with its end in the moment in which the last program leaves. */
static void nothing_is_lost_at_the_end_of_a_terminal(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "--pty", "-n", "2", "seq", "-f", "line %.0f of many", "20000"),
        NULL);
    size_t n_lines = 0;

    LS_UNUSED(state);
    expect_end(j, 0);
    for (const char *at = text_str(&j->out); (at = strchr(at, '\n')) != NULL; at++)
        n_lines++;
    job_expect(j, n_lines == 40000);
    job_expect(j, job_printed(j, 0, "rank 0| line 20000 of many\n") &&
                      job_printed(j, 0, "rank 1| line 20000 of many\n"));
}

static void set_size(const job *j, unsigned short rows, unsigned short columns)
{
    const struct winsize size = {.ws_row = rows, .ws_col = columns};

    assert_int_equal(ioctl(j->out_fd, TIOCSWINSZ, &size), 0);
}

static void typed_input_and_window_size_reach_local_and_remote_ranks(void **state)
{
    static const char *const hosts[] = {"localhost:2", "127.0.0.2:2"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(hosts); i++) {
        job *j = job_start_on_terminal(
            JOB_LIST(ON_NODE, hosts[i], "--pty", "--no-fold", "sh", "-c",
                     "trap 'echo now $(stty size <&2)' WINCH; [ -t 0 ] && echo $RANK can be typed "
                     "to; echo ready $RANK; while :; do sleep 0.05; done"),
            NULL);

        job_await_text(j, 0, "0 can be typed to");
        job_await_text(j, 0, "ready 0");
        job_await_text(j, 0, "ready 1");
        set_size(j, 40, 120);
        assert_int_equal(kill(j->pid, SIGWINCH), 0); /* it is not the terminal's foreground here */
        job_await_text(j, 0, "now 40 112");
        job_expect(j, !job_printed(j, 0, "1 can be typed to"));
        assert_int_equal(kill(j->pid, SIGTERM), 0);
        job_await_end(j);
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

static void typed_lines_and_ctrl_d_reach_rank_0(void **state)
{
    static const char *const hosts[] = {"localhost:2", "127.0.0.2:2"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(hosts); i++) {
        job *j =
            job_start_on_terminal(JOB_LIST(ON_NODE, hosts[i], "--pty", "sh", "-c",
                                           "[ $RANK = 0 ] || exit 0; [ -t 0 ] && echo ready; read "
                                           "line; echo read: $line; cat | sed s/^/more:/; "
                                           "read line; echo again: $line"),
                                  NULL);

        job_await_text(j, 0, "ready");
        job_write(j, "one\n");
        job_await_text(j, 0, "read: one");
        job_write(j, "two\n");
        job_write(j, "\x04");
        job_await_text(j, 0, "more:two");
        job_write(j, "three\n"); /* a terminal goes on behind its end */
        job_await_text(j, 0, "again: three");
        expect_end(j, 0);
        job_clean_up(NULL);
    }
}

static void log_files_hold_what_was_written(void **state)
{
    char folder[64] = "/tmp/lockstep-test-pty-XXXXXX";
    char script[256];
    job *j;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "--pty", "--log-dir", folder, "sh", "-c",
                           "printf '\\033[1;31mred\\033[0m\\r50%%\\r100%%\\nend\\n'"),
                  NULL);
    expect_end(j, 0);
    text_format(script, sizeof(script),
                "od -An -c %s/*/attempt_0/0/stdout.log | tr -d ' \\n'; rm -r %s", folder, folder);
    j = job_start(JOB_LIST("sh", "-c", script), NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "033[1;31mred033[0m\\r50%\\r100%\\nend\\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(piped_input_reaches_rank_0),
        test(large_input_arrives_whole),
        test(rank_that_stops_reading_exits_normally),
        test(rank_that_does_not_read_delays_nothing),
        test(input_continues_after_a_restart),
        test(ctrl_d_at_a_terminal_is_the_end_of_rank_0s_input),
        test(a_launcher_in_the_background_is_not_stopped_by_its_terminal),
        test(ranks_have_terminals),
        test(nothing_is_lost_at_the_end_of_a_terminal),
        test(typed_input_and_window_size_reach_local_and_remote_ranks),
        test(typed_lines_and_ctrl_d_reach_rank_0),
        test(log_files_hold_what_was_written),
    };

    return cmocka_run_group_tests_name("launch input", tests, NULL, NULL);
}
