/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h - asking something that may take too long, or crash, in a child process.
 *
 * A child dies with the thread that asked. One that cannot even be killed is left to the kernel. Needs a process with one thread.
 */
#ifndef LS_LAUNCH_CHILD_H
#define LS_LAUNCH_CHILD_H

#include "base/status.h"

#include <sys/types.h>

typedef ls_status (*child_fn)(void *arg, void *answer);

/*
 * Runs fn(arg, answer) in a forked child, whose standard streams lead nowhere, and gives its status, its error text and the
 * `bytes` bytes that it has put into `answer` (zeros when that fails). LS_ETIMEOUT after limit_ms, LS_ESYSTEM when the child died;
 * `what` names the question in both.
 */
LS_MUST_USE ls_status child_ask(const char *what, int64_t limit_ms, child_fn fn, void *arg,
                                void *answer, size_t bytes);

/* The same in two halves, so that several can be asked at once. */
typedef struct child_question {
    pid_t pid;
    int fd;
    int64_t limit_ms;
    int64_t deadline_ms;
} child_question;

LS_MUST_USE ls_status child_begin(const char *what, int64_t limit_ms, child_fn fn, void *arg,
                                  size_t bytes, child_question *out);
/* Waits for the answer; once for each that has begun. */
LS_MUST_USE ls_status child_end(const char *what, const child_question *q, void *answer,
                                size_t bytes);

/*
 * Runs a program, found by PATH, and gives the beginning of what it writes to stdout, terminated. LS_ENOTFOUND: it is not there, or
 * ends with another code than 0. LS_ETIMEOUT: it has not ended within limit_ms; it is killed with all that it has started.
 */
LS_MUST_USE ls_status child_run(const char *what, char *const *argv, int64_t limit_ms, char *out,
                                size_t n);

#endif
