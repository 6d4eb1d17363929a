/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleep.h - lets threads sleep until something may have moved: a link's descriptor, a rank of this
 * host, a call to sleep_wake().
 *
 * Threads    sleep_wait() and sleep_wake() may be called from any thread; all else under the
 *            engine's lock.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_SLEEP_H
#define LS_COMM_BACKENDS_NATIVE_SLEEP_H

#include "comm/backends/native/link/link.h"
#include "comm/backends/native/memory/local.h"

typedef struct sleepers sleepers;

/* A link whose descriptor is watched. Zero-initialise. */
typedef struct sleep_link {
    peer_link *link;
    bool is_watched; /* its descriptor is in the set that sleepers poll */
    bool watches_write;
} sleep_link;

/* control_fd: polled as well; -1: none. */
LS_MUST_USE ls_status sleep_create(int control_fd, sleepers **out);
void sleep_destroy(sleepers *z);      /* NULL is allowed */
void sleep_forked(const sleepers *z); /* closes what a forked child inherited */

/* The ranks of this host wake this one too. Before the first sleep. */
void sleep_set_local(sleepers *z, local *l);

/* Watches the link's descriptor, if it has one. */
LS_MUST_USE ls_status sleep_watch(sleepers *z, sleep_link *w, peer_link *link);
void sleep_unwatch(sleepers *z, sleep_link *w);
/* Watches for writing too while the link's stream is full. */
void sleep_update(const sleepers *z, sleep_link *w);

/* Watches a descriptor that is no link's, until sleep_destroy(). */
LS_MUST_USE ls_status sleep_watch_fd(sleepers *z, int fd);

/* At most `max` links whose descriptors are readable, or writable again; *is_fd_ready: a descriptor
 * of sleep_watch_fd() is readable. */
int sleep_ready(sleepers *z, sleep_link **ready, int max, bool *is_fd_ready);

/* Whether a sleeping thread was woken by links, or by local channels. */
bool sleep_links_ready(const sleepers *z);
bool sleep_locals_ready(sleepers *z); /* clears it */

/* The begin and end of a call to progress() by this thread. due_ms: when there is something to do
 * without any event, INT64_MAX: never. */
void sleep_begin_progress(sleepers *z);
void sleep_end_progress(sleepers *z, bool moved, int64_t due_ms);

void sleep_wait(sleepers *z, int timeout_ms);
void sleep_wake(sleepers *z);

#endif
