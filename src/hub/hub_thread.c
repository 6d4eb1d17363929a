/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_thread.c - runs a hub in the thread "ls-hub", for rank 0 and for served stores. The owner and
 * the running thread share only stop_at_ms and the poller's wake-up.
 */
#include "hub/hub.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdint.h>

#define STILL_RUNNING INT64_MAX
#define CHECK_MS      10 /* how often a stopping hub counts its connections */

struct hub_thread {
    ls_thread thread;
    poller *loop;
    hub *hub;
    net_address bound;
    net_key key;
    _Atomic int64_t stop_at_ms; // written by the owner (release), read by the thread (acquire)
};

/* True when a stop was requested and all clients have gone or the grace is over. */
static bool is_over(const hub_thread *t, int64_t stop_at_ms)
{
    int n_open;
    int n_unauthenticated;

    if (stop_at_ms == STILL_RUNNING)
        return false;
    hub_count(t->hub, &n_open, &n_unauthenticated);
    return n_open == n_unauthenticated || ls_now_ms() >= stop_at_ms;
}

static void serve(void *arg)
{
    hub_thread *t = arg;

    for (;;) {
        const int64_t stop_at_ms = atomic_load_explicit(&t->stop_at_ms, memory_order_acquire);

        if (is_over(t, stop_at_ms))
            return;
        if (poller_run_once(t->loop, stop_at_ms == STILL_RUNNING ? -1 : CHECK_MS) != LS_OK) {
            ls_log(LS_LOG_ERROR, "hub", "the hub ends: %s", ls_last_error());
            return;
        }
    }
}

static void free_thread(hub_thread *t)
{
    hub_destroy(t->hub);
    poller_destroy(t->loop);
    net_key_wipe(&t->key);
    ls_free(t);
}

ls_status hub_thread_start(const hub_options *opt, const net_address *at, hub_thread **out)
{
    hub_thread *t;
    hub_options own = *opt;
    ls_status st;

    *out = NULL;
    LS_TRY(LS_NEW(&t, 1, "for a hub"));
    atomic_init(&t->stop_at_ms, STILL_RUNNING);
    if (opt->key != NULL) {
        t->key = *opt->key;
        own.key = &t->key;
    }
    st = poller_create(&t->loop);
    if (st == LS_OK)
        st = hub_create(t->loop, &own, &t->hub);
    if (st == LS_OK)
        st = hub_listen(t->hub, at, &t->bound);
    if (st == LS_OK)
        st = ls_thread_start(&t->thread, "ls-hub", serve, t);
    if (st != LS_OK) {
        free_thread(t);
        return st;
    }
    *out = t;
    return LS_OK;
}

const net_address *hub_thread_address(const hub_thread *t)
{
    return &t->bound;
}

void hub_thread_stop(hub_thread *t, int64_t grace_ms)
{
    if (t == NULL)
        return;
    atomic_store_explicit(&t->stop_at_ms, ls_now_ms() + grace_ms, memory_order_release);
    poller_wake(t->loop);
    ls_thread_join(&t->thread);
    free_thread(t);
}
