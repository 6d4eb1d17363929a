/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h - runs a function or a program in a child process with a time limit, for calls that may
 * hang or crash. A child dies with the calling thread; one that SIGKILL cannot end is left to the
 * kernel. Needs a process with one thread.
 */
#ifndef LS_DIAGNOSE_CHILD_H
#define LS_DIAGNOSE_CHILD_H

#include "base/status.h"

#include <sys/types.h>

typedef ls_status (*child_fn)(void *arg, void *answer);

/*
 * Runs fn(arg, answer) in a forked child whose standard streams are /dev/null. Returns its status
 * and error text, and the `bytes` bytes that it has written to `answer` (zeros on failure).
 * LS_ETIMEOUT after limit_ms, LS_ESYSTEM when the child dies; `what` names the task in both
 * messages.
 */
LS_MUST_USE ls_status child_ask(const char *what, int64_t limit_ms, child_fn fn, void *arg,
                                void *answer, size_t bytes);

/* The same in two halves, for several children at once. */
typedef struct child_question {
    pid_t pid;
    int fd;
    int64_t limit_ms;
    int64_t deadline_ms;
} child_question;

LS_MUST_USE ls_status child_begin(const char *what, int64_t limit_ms, child_fn fn, void *arg,
                                  size_t bytes, child_question *out);
/* Waits for the answer; call once after each child_begin(). */
LS_MUST_USE ls_status child_end(const char *what, const child_question *q, void *answer,
                                size_t bytes);

/*
 * Runs a program of PATH and returns the first n - 1 bytes of its stdout, terminated. LS_ENOTFOUND:
 * the program does not exist or exits with a code other than 0. LS_ETIMEOUT: it did not exit within
 * limit_ms and was killed with its session.
 */
LS_MUST_USE ls_status child_run(const char *what, char *const *argv, int64_t limit_ms, char *out,
                                size_t n);

#endif
