/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/child.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "launch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REAP_MS = 100, REAP_STEP_MS = 2 };

/* What comes before the answer. */
typedef struct child_head {
    int32_t status;
    char text[LS_ERROR_BYTES];
} child_head;

static void become_child(int fd, ls_status (*fn)(void *arg, void *answer), void *arg, void *answer,
                         size_t bytes)
{
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    child_head head;

    for (int i = 0; i <= STDERR_FILENO && null_fd >= 0; i++)
        (void)dup2(null_fd, i);
    memset(&head, 0, sizeof(head));
    memset(answer, 0, bytes);
    head.status = (int32_t)fn(arg, answer);
    if (head.status != LS_OK)
        text_format(head.text, sizeof(head.text), "%s", ls_last_error());
    if (file_write_all(fd, "a pipe", &head, sizeof(head)) != LS_OK ||
        file_write_all(fd, "a pipe", answer, bytes) != LS_OK)
        _exit(1);
    _exit(0);
}

/* Exactly `bytes`; LS_ETIMEOUT, or LS_EIO at an early end. */
static ls_status read_all(int fd, void *into, size_t bytes, int64_t deadline_ms)
{
    size_t done = 0;

    while (done < bytes) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, ls_deadline_left(deadline_ms)) == 0)
            return LS_ETIMEOUT;
        n = read(fd, (char *)into + done, bytes - done);
        if (n == 0 || (n < 0 && errno != EINTR))
            return LS_EIO;
        done += n > 0 ? (size_t)n : 0;
    }
    return LS_OK;
}

/* How the child ended; 0 when it does not. */
static bool reap(pid_t pid, int *wait_status)
{
    const int64_t deadline_ms = ls_deadline_ms(REAP_MS);

    while (waitpid(pid, wait_status, WNOHANG) != pid) {
        if (ls_deadline_left(deadline_ms) == 0)
            return false;
        (void)poll(NULL, 0, REAP_STEP_MS);
    }
    return true;
}

static ls_status fail_died(const char *what, pid_t pid)
{
    char end[96] = "ended without an answer";
    int wait_status = 0;

    if (reap(pid, &wait_status))
        process_end_text(end, sizeof(end), wait_status);
    return ls_fail(LS_ESYSTEM, "%s: the process that asked %s", what, end);
}

ls_status child_ask(const char *what, int64_t limit_ms, ls_status (*fn)(void *arg, void *answer),
                    void *arg, void *answer, size_t bytes)
{
    const int64_t deadline_ms = ls_deadline_ms(limit_ms);
    child_head head;
    int wait_status;
    ls_status st;
    int fds[2];
    pid_t pid;

    memset(answer, 0, bytes);
    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("%s", what);
    pid = fork();
    if (pid == 0)
        become_child(fds[1], fn, arg, answer, bytes);
    (void)close(fds[1]);
    st = pid < 0 ? ls_fail_errno("%s", what) : read_all(fds[0], &head, sizeof(head), deadline_ms);
    if (st == LS_OK)
        st = read_all(fds[0], answer, bytes, deadline_ms);
    (void)close(fds[0]);
    if (pid < 0)
        return st;
    if (st == LS_EIO)
        return fail_died(what, pid);
    kill(pid, SIGKILL);
    (void)reap(pid, &wait_status);
    if (st != LS_OK)
        return ls_fail(LS_ETIMEOUT, "%s: no answer within %.1f s", what, (double)limit_ms / 1e3);
    head.text[sizeof(head.text) - 1] = 0;
    if (head.status == LS_OK)
        return LS_OK;
    memset(answer, 0, bytes);
    return ls_fail((ls_status)head.status, "%s", head.text);
}
