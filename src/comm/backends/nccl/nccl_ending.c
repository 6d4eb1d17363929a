/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_ending.c - ends communicators in threads of their own, because ncclCommAbort() and
 * ncclCommFinalize() may block: for works of the device, or for ranks that have failed. A thread
 * has its communicator alone. nccl_group.c and nccl_backend.c call it, under the engine's lock.
 */
#include "comm/backends/nccl/nccl_backend.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#define FINALIZE_MS 2000
#define POLL_NS     (200 * INT64_C(1000))

static void free_ending(nccl_ending *e)
{
    void (*free_block)(void *block) = e->free;

    (void)pthread_mutex_destroy(&e->mu);
    (void)pthread_cond_destroy(&e->changed);
    free_block(e);
}

/* Until all operations are done on all ranks; false when that takes too long or has failed. */
static bool finalize(const nccl_ending *e)
{
    const struct timespec step = {.tv_nsec = POLL_NS};
    const int64_t until_ns = nccl_now_ns() + ls_duration_ns(FINALIZE_MS);
    int state = e->api->finalize(e->comm);

    while (state == NCCL_IN_PROGRESS && nccl_now_ns() < until_ns) {
        (void)nanosleep(&step, NULL);
        if (e->api->get_async_error(e->comm, &state) != NCCL_SUCCESS)
            return false;
    }
    return state == NCCL_SUCCESS;
}

static void *end_comm(void *arg)
{
    nccl_ending *e = arg;
    bool is_abandoned;

    nccl_bind(e->owner);
    if (e->is_abort || !finalize(e))
        (void)e->api->abort(e->comm);
    else
        (void)e->api->destroy(e->comm);
    (void)pthread_mutex_lock(&e->mu);
    e->has_ended = true;
    is_abandoned = e->is_abandoned;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->mu);
    if (is_abandoned)
        free_ending(e);
    return NULL;
}

/* The program's signals are not for this thread. */
static bool start_thread(nccl_ending *e)
{
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    bool started;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, NULL, end_comm, e) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started)
        return false;
    (void)pthread_setname_np(thread, "ls-nccl");
    (void)pthread_detach(thread);
    return true;
}

static bool wait_for(nccl_ending *e, int64_t timeout_ms)
{
    const int64_t until_ns = nccl_now_ns() + ls_duration_ns(timeout_ms);
    const struct timespec until = {.tv_sec = until_ns / 1000000000,
                                   .tv_nsec = until_ns % 1000000000};
    bool has_ended;
    int rc = 0;

    (void)pthread_mutex_lock(&e->mu);
    while (!e->has_ended && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&e->changed, &e->mu, &until);
    has_ended = e->has_ended;
    (void)pthread_mutex_unlock(&e->mu);
    return has_ended;
}

static nccl_ending *make_ending(const backend_state *s, accel *owner, nccl_comm *comm,
                                bool is_abort)
{
    nccl_ending *e = s->host->alloc(1, sizeof(*e));
    pthread_condattr_t attr;

    if (e == NULL)
        return NULL;
    e->api = s->api;
    e->free = s->host->free;
    e->owner = owner;
    e->comm = comm;
    e->is_abort = is_abort;
    (void)pthread_mutex_init(&e->mu, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&e->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    return e;
}

bool nccl_end(backend_state *s, accel *owner, nccl_comm *comm, bool is_abort, int64_t wait_ms)
{
    nccl_ending *e = make_ending(s, owner, comm, is_abort);

    if (e == NULL || !start_thread(e)) {
        if (e != NULL)
            free_ending(e);
        // its operations would go on, and so would all that waits for the accelerator
        if (is_abort) {
            nccl_bind(owner);
            (void)s->api->abort(comm);
        }
        return is_abort;
    }
    e->next = s->endings;
    s->endings = e;
    return wait_for(e, wait_ms);
}

/* False: the thread frees it. */
static bool abandon(nccl_ending *e)
{
    bool has_ended;

    (void)pthread_mutex_lock(&e->mu);
    has_ended = e->has_ended;
    e->is_abandoned = true;
    (void)pthread_mutex_unlock(&e->mu);
    return !has_ended;
}

void nccl_endings_join(backend_state *s, const accel *owner, int64_t timeout_ms)
{
    const int64_t until_ns = nccl_now_ns() + ls_duration_ns(timeout_ms);
    nccl_ending **at = &s->endings;

    while (*at != NULL) {
        nccl_ending *e = *at;
        const int64_t left_ms = (until_ns - nccl_now_ns()) / 1000000;

        if (owner != NULL && e->owner != owner) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        if (wait_for(e, left_ms > 0 ? left_ms : 0) || !abandon(e))
            free_ending(e);
    }
}
