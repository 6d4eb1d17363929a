/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - named threads, locks and conditions with deadlines, thin over pthreads.
 *
 * Locks are leaves: never held across a callback, a wait on a peer or another lock.
 */
#ifndef LS_BASE_THREAD_H
#define LS_BASE_THREAD_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/select.h> /* sigset_t */

typedef struct ls_mutex {
    pthread_mutex_t m;
} ls_mutex;

typedef struct ls_cond {
    pthread_cond_t c; /* on CLOCK_MONOTONIC */
} ls_cond;

void ls_mutex_init(ls_mutex *m);
void ls_mutex_destroy(ls_mutex *m);
void ls_mutex_lock(ls_mutex *m);
bool ls_mutex_trylock(ls_mutex *m);
void ls_mutex_unlock(ls_mutex *m);

void ls_cond_init(ls_cond *c);
void ls_cond_destroy(ls_cond *c);
void ls_cond_signal(ls_cond *c);
void ls_cond_broadcast(ls_cond *c);
/* Waits for a wake-up or until deadline_ms (ls_deadline_ms); false when the deadline has passed. */
bool ls_cond_wait(ls_cond *c, ls_mutex *m, int64_t deadline_ms);

typedef struct ls_thread {
    pthread_t id;
    bool started;
} ls_thread;

/* Starts a joinable thread with the first 15 bytes of `name` as its name. All signals are blocked
 * except those of its own faults. */
LS_MUST_USE ls_status ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *arg),
                                      void *arg);
/* Joins it if it was started; it may then be started again. */
void ls_thread_join(ls_thread *t);

/* Blocks all signals of the calling thread except those of its own faults. *before: its mask until
 * then, for pthread_sigmask(). */
void thread_block_signals(sigset_t *before);

#endif
