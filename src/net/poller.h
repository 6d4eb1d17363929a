/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller.h - the event loop of one thread over epoll: descriptors, timers, and a wake-up from other
 * threads.
 *
 * Threads    All calls belong to the thread that runs the loop, except poller_wake().
 * Ownership  Descriptors stay the caller's: call poller_unwatch() before closing one. Callbacks may
 *            watch and unwatch (themselves too), set and cancel timers; after poller_unwatch() or
 *            poller_timer_cancel() the callback is not called again.
 */
#ifndef LS_NET_POLLER_H
#define LS_NET_POLLER_H

#include "base/map.h"
#include "base/status.h"

#include <stdbool.h>

typedef struct poller poller;
typedef struct poll_watch poll_watch;

typedef enum poll_event {
    POLL_READ = 1,  /* readable, or at the end of the stream */
    POLL_WRITE = 2, /* writable */
    POLL_BROKEN = 4 /* error or hang-up; always reported */
} poll_event;

typedef void (*poll_fn)(void *arg, unsigned events);

LS_MUST_USE ls_status poller_create(poller **out);
void poller_destroy(poller *p); /* NULL is allowed; drops remaining watches */
/* For a forked child, which must use nothing else of it: closes the inherited descriptors. */
void poller_forked(const poller *p);

/* Calls fn(arg, events) from poller_run_once() while any of `events` holds (level-triggered). */
LS_MUST_USE ls_status poller_watch(poller *p, int fd, unsigned events, poll_fn fn, void *arg,
                                   poll_watch **out);
LS_MUST_USE ls_status poller_change(poll_watch *w, unsigned events);
/* For the function of a watch over a listening socket: accepts a connection, -1: there is none.
 * When descriptors have run out, connections wait in the queue and the watch pauses; `name` is the
 * component in the log line about that. */
int poller_accept(poll_watch *w, const char *name);
void poller_unwatch(poll_watch **w);        /* sets it to NULL, which is allowed */
void poller_close(poll_watch **w, int *fd); /* and closes its descriptor, unless it is -1 */

/* Embedded in its owner's struct, zero-initialised; setting it cannot fail. Cancel it before that
 * struct is freed. */
typedef struct poll_timer {
    list_node node;
    int64_t due_ms; /* on ls_now_ms()'s clock */
    void (*fn)(void *arg);
    void *arg;
    bool is_set;
} poll_timer;

/* Fires once, at due_ms or soon after; setting it again moves it. */
void poller_timer_set(poller *p, poll_timer *t, int64_t due_ms, void (*fn)(void *arg), void *arg);
void poller_timer_cancel(poll_timer *t); /* allowed when not set */

/* Makes poller_run_once() return soon. Callable from any thread and from signal handlers. */
void poller_wake(poller *p);

/* For a thread that waits elsewhere: a descriptor that is readable while poller_run_once() has
 * events to handle, and the time at which the next timer is due (ls_now_ms()'s clock; INT64_MAX =
 * none). */
int poller_fd(const poller *p);
int64_t poller_due_ms(const poller *p);

/* Waits at most timeout_ms (negative = no limit) for events, then handles them. */
LS_MUST_USE ls_status poller_run_once(poller *p, int timeout_ms);

#endif
