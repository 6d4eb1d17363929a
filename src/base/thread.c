/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - wraps pthreads; deadlines are on CLOCK_MONOTONIC. The engine, the hub, the data loader
 * and the Gloo backend run their threads with it.
 */
#include "base/thread.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

// The pthread calls below fail only for invalid arguments, which are errors of this library.

void ls_mutex_init(ls_mutex *m)
{
    const int rc = pthread_mutex_init(&m->m, NULL);

    LS_ASSERT(rc == 0);
}

void ls_mutex_destroy(ls_mutex *m)
{
    const int rc = pthread_mutex_destroy(&m->m);

    LS_ASSERT(rc == 0);
}

void ls_mutex_lock(ls_mutex *m)
{
    const int rc = pthread_mutex_lock(&m->m);

    LS_ASSERT(rc == 0);
}

bool ls_mutex_trylock(ls_mutex *m)
{
    const int rc = pthread_mutex_trylock(&m->m);

    LS_ASSERT(rc == 0 || rc == EBUSY);
    return rc == 0;
}

void ls_mutex_unlock(ls_mutex *m)
{
    const int rc = pthread_mutex_unlock(&m->m);

    LS_ASSERT(rc == 0);
}

void ls_cond_init(ls_cond *c)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    LS_ASSERT(rc == 0);
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    LS_ASSERT(rc == 0);
    rc = pthread_cond_init(&c->c, &attr);
    LS_ASSERT(rc == 0);
    (void)pthread_condattr_destroy(&attr);
}

void ls_cond_destroy(ls_cond *c)
{
    (void)pthread_cond_destroy(&c->c);
}

void ls_cond_signal(ls_cond *c)
{
    (void)pthread_cond_signal(&c->c);
}

void ls_cond_broadcast(ls_cond *c)
{
    (void)pthread_cond_broadcast(&c->c);
}

bool ls_cond_wait(ls_cond *c, ls_mutex *m, int64_t deadline_ms)
{
    struct timespec until;
    int rc;

    if (ls_deadline_left(deadline_ms) < 0) {
        rc = pthread_cond_wait(&c->c, &m->m);
        LS_ASSERT(rc == 0);
        return true;
    }
    until.tv_sec = (time_t)(deadline_ms / 1000);
    until.tv_nsec = (long)(deadline_ms % 1000) * 1000000;
    rc = pthread_cond_timedwait(&c->c, &m->m, &until);
    LS_ASSERT(rc == 0 || rc == ETIMEDOUT);
    return rc == 0;
}

typedef struct start_record {
    void (*fn)(void *arg);
    void *arg;
    char name[16];
} start_record;

static void *thread_main(void *record)
{
    const start_record start = *(start_record *)record;

    ls_free(record);
    (void)pthread_setname_np(pthread_self(), start.name);
    start.fn(start.arg);
    return NULL;
}

/* Signals are for the program's own threads. The signals of a thread's own faults must reach their
 * handlers, for debuggers and sanitizers. */
void thread_block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t blocked;

    (void)sigfillset(&blocked);
    for (size_t i = 0; i < LS_COUNT_OF(faults); i++)
        (void)sigdelset(&blocked, faults[i]);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, before);
}

ls_status ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *arg), void *arg)
{
    start_record *record;
    sigset_t before;
    int rc;

    t->started = false;
    LS_TRY(LS_NEW(&record, 1, "to start the thread %s", name));
    record->fn = fn;
    record->arg = arg;
    (void)text_format(record->name, sizeof(record->name), "%s", name);

    thread_block_signals(&before);
    rc = pthread_create(&t->id, NULL, thread_main, record);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        ls_free(record);
        return ls_fail(LS_ESYSTEM, "cannot start the thread %s: %s", name, ls_errno_text(rc));
    }
    t->started = true;
    return LS_OK;
}

void ls_thread_join(ls_thread *t)
{
    if (!t->started)
        return;
    (void)pthread_join(t->id, NULL);
    t->started = false;
}
