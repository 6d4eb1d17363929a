/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coroutine.h - functions with stacks of their own that suspend each other within one thread.
 *
 * coroutine_resume() runs the function until it calls coroutine_suspend() or returns. Thread-local
 * variables, errno and locks are those of the thread: a coroutine does not suspend while it holds a
 * lock, or within a parallel region of OpenMP.
 *
 * Threads    A coroutine is started, resumed and destroyed by one thread.
 */
#ifndef LS_BASE_COMPUTE_COROUTINE_H
#define LS_BASE_COMPUTE_COROUTINE_H

#include "base/status.h"

#include <stdbool.h>

typedef struct coroutine coroutine;

/* Reserves a stack: address space of the size of the main thread's (`ulimit -s`; 8 MiB if that is
 * unlimited), of which pages that are touched take memory, and below it a page that must not be
 * touched. LS_ENOMEM. */
LS_MUST_USE ls_status coroutine_create(coroutine **out);

/* NULL is allowed. A function that is suspended does not go on: what it owns leaks. */
void coroutine_destroy(coroutine *c);

/* The next coroutine_resume() begins fn(arg). The function before has returned. */
void coroutine_start(coroutine *c, void (*fn)(void *arg), void *arg);

/* Returns whether the function is suspended; false: it has returned, or was not started. Not called
 * within a coroutine. */
bool coroutine_resume(coroutine *c);

/* Called by the function of `c`: returns at its next coroutine_resume(). */
void coroutine_suspend(coroutine *c);

#endif
