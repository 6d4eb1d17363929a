/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h - asking something that may take too long, or crash, in a child process.
 */
#ifndef LS_LAUNCH_CHILD_H
#define LS_LAUNCH_CHILD_H

#include "base/status.h"

/*
 * Runs fn(arg, answer) in a forked child, whose standard streams lead nowhere, and gives its status, its error text and the
 * `bytes` bytes that it has put into `answer` (zeros when that fails). LS_ETIMEOUT after limit_ms, LS_ESYSTEM when the child died;
 * `what` names the question in both. Needs a process with one thread. A child that cannot even be killed is left to the kernel.
 */
LS_MUST_USE ls_status child_ask(const char *what, int64_t limit_ms,
                                ls_status (*fn)(void *arg, void *answer), void *arg, void *answer,
                                size_t bytes);

#endif
