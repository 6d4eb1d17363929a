/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.c - child processes with a time limit: the child writes a header and its answer to a pipe,
 * the parent reads until the deadline and kills the child. Called by checks that load libraries or
 * run programs.
 */
#include "diagnose/child.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/process.h"
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* END_MS: for the end of a child that was killed or has closed its pipe; a driver may hold it. */
enum { END_MS = 2000, REAP_STEP_MS = 2 };

/* Precedes the answer in the pipe. */
typedef struct child_head {
    int32_t status;
    char text[LS_ERROR_BYTES];
} child_head;

static void close_streams(void)
{
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int i = 0; i <= STDERR_FILENO && null_fd >= 0; i++)
        (void)dup2(null_fd, i);
}

/* Forks; *fd is the write end of a pipe in the child, where *pid is 0, else the read end. */
static ls_status fork_with_pipe(const char *what, pid_t *pid, int *fd)
{
    const pid_t parent = getpid();
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("%s", what);
    *pid = fork();
    *fd = *pid == 0 ? fds[1] : fds[0];
    if (*pid == 0) {
        /* A parent that has exited before prctl() sends no signal. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(1);
        return LS_OK;
    }
    (void)close(fds[1]);
    if (*pid > 0)
        return LS_OK;
    (void)close(fds[0]);
    return ls_fail_errno("%s", what);
}

static void become_child(int fd, child_fn fn, void *arg, size_t bytes)
{
    void *answer = ls_calloc(bytes, 1);
    child_head head;

    close_streams();
    memset(&head, 0, sizeof(head));
    head.status = answer != NULL ? (int32_t)fn(arg, answer)
                                 : (int32_t)ls_fail(LS_ENOMEM, "no memory for an answer");
    if (head.status != LS_OK)
        text_format(head.text, sizeof(head.text), "%s", ls_last_error());
    if (file_write_all(fd, "a pipe", &head, sizeof(head)) != LS_OK || answer == NULL ||
        file_write_all(fd, "a pipe", answer, bytes) != LS_OK)
        _exit(1);
    _exit(0);
}

/* Exactly `bytes`; LS_ETIMEOUT, or LS_EIO at an early end. */
static ls_status read_all(int fd, void *into, size_t bytes, int64_t deadline_ms)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n;

        if (net_wait(fd, POLLIN, deadline_ms) != LS_OK)
            return LS_ETIMEOUT;
        n = read(fd, (char *)into + done, bytes - done);
        if (n == 0 || (n < 0 && errno != EINTR))
            return LS_EIO;
        done += n > 0 ? (size_t)n : 0;
    }
    return LS_OK;
}

/* Waits for the child until deadline_ms. */
static bool reap(pid_t pid, int *wait_status, int64_t deadline_ms)
{
    while (waitpid(pid, wait_status, WNOHANG) != pid) {
        if (ls_deadline_left(deadline_ms) == 0)
            return false;
        (void)poll(NULL, 0, REAP_STEP_MS);
    }
    return true;
}

static ls_status fail_died(const char *what, pid_t pid)
{
    char end[96] = "exited without an answer";
    int wait_status = 0;

    if (reap(pid, &wait_status, ls_deadline_ms(END_MS)))
        process_end_text(end, sizeof(end), wait_status);
    return ls_fail(LS_ESYSTEM, "%s: the child process %s", what, end);
}

ls_status child_begin(const char *what, int64_t limit_ms, child_fn fn, void *arg, size_t bytes,
                      child_question *out)
{
    *out = (child_question){
        .pid = -1, .fd = -1, .limit_ms = limit_ms, .deadline_ms = ls_deadline_ms(limit_ms)};
    LS_TRY(fork_with_pipe(what, &out->pid, &out->fd));
    if (out->pid == 0)
        become_child(out->fd, fn, arg, bytes);
    return LS_OK;
}

ls_status child_end(const char *what, const child_question *q, void *answer, size_t bytes)
{
    child_head head;
    int wait_status;
    ls_status st = read_all(q->fd, &head, sizeof(head), q->deadline_ms);

    if (st == LS_OK)
        st = read_all(q->fd, answer, bytes, q->deadline_ms);
    (void)close(q->fd);
    if (st != LS_OK)
        memset(answer, 0, bytes);
    if (st == LS_EIO)
        return fail_died(what, q->pid);
    kill(q->pid, SIGKILL);
    (void)reap(q->pid, &wait_status, ls_deadline_ms(END_MS));
    if (st != LS_OK)
        return ls_fail(LS_ETIMEOUT, "%s: no answer within %.1f s", what, (double)q->limit_ms / 1e3);
    head.text[sizeof(head.text) - 1] = 0;
    if (head.status == LS_OK)
        return LS_OK;
    memset(answer, 0, bytes);
    return ls_fail((ls_status)head.status, "%s", head.text);
}

ls_status child_ask(const char *what, int64_t limit_ms, child_fn fn, void *arg, void *answer,
                    size_t bytes)
{
    child_question q;

    memset(answer, 0, bytes);
    LS_TRY(child_begin(what, limit_ms, fn, arg, bytes, &q));
    return child_end(what, &q, answer, bytes);
}

/* --- programs --- */

static void become_program(int fd, char *const *argv)
{
    close_streams();
    (void)setsid(); /* so that its children are killed with it */
    if (dup2(fd, STDOUT_FILENO) < 0)
        _exit(127);
    execvp(argv[0], argv);
    _exit(127);
}

/* Reads to the end of the output and keeps its first n - 1 bytes. */
static ls_status read_text(int fd, char *out, size_t n, int64_t deadline_ms)
{
    char rest[512];
    size_t done = 0;

    for (;;) {
        const bool is_full = done == n - 1;
        ssize_t got;

        if (net_wait(fd, POLLIN, deadline_ms) != LS_OK)
            return LS_ETIMEOUT;
        got = read(fd, is_full ? rest : out + done, is_full ? sizeof(rest) : n - 1 - done);
        if (got == 0 || (got < 0 && errno != EINTR))
            return LS_OK;
        done += got > 0 && !is_full ? (size_t)got : 0;
    }
}

ls_status child_run(const char *what, char *const *argv, int64_t limit_ms, char *out, size_t n)
{
    const int64_t deadline_ms = ls_deadline_ms(limit_ms);
    int wait_status = -1;
    ls_status st;
    pid_t pid;
    int fd;

    memset(out, 0, n);
    LS_TRY(fork_with_pipe(what, &pid, &fd));
    if (pid == 0)
        become_program(fd, argv);
    st = read_text(fd, out, n, deadline_ms);
    (void)close(fd);
    if (st == LS_OK && !reap(pid, &wait_status, deadline_ms))
        st = LS_ETIMEOUT;
    (void)kill(-pid, SIGKILL);
    if (st != LS_OK) {
        kill(pid, SIGKILL); /* setsid() may not have run yet */
        (void)reap(pid, &wait_status, ls_deadline_ms(END_MS));
        return ls_fail(LS_ETIMEOUT, "%s: did not exit within %.1f s", what, (double)limit_ms / 1e3);
    }
    return wait_status == 0 ? LS_OK : ls_fail(LS_ENOTFOUND, "%s: not found, or failed", what);
}
