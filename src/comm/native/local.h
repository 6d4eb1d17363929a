/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - the ranks of this host: which they are, a channel to each, and waking those that sleep.
 *
 * A peer is local when its abstract unix socket can be reached, belongs to the same user, and
 * answers for the same job, rank and generation. The channel (SOCK_SEQPACKET, nonblocking) then
 * carries segment descriptors (segment.h) and doorbells; data never passes through it. Ranks that
 * are threads of one process join in the same way.
 *
 * Threads    local_poll_fds, local_prepare_sleep, local_end_sleep and local_ring may be called from
 *            any thread; all else under the engine's lock.
 */
#ifndef LS_NATIVE_LOCAL_H
#define LS_NATIVE_LOCAL_H

#include "comm/backend.h"

#include <poll.h>
#include <stdbool.h>

typedef struct local local;

/*
 * Finds the ranks of this host; every rank of the job calls it. Takes boot->local_fd (also on
 * failure; -1: no other rank is local). Blocks until each reachable rank has answered;
 * boot->records must stay valid until local_leave(). LS_ETIMEOUT and LS_EPEER name the rank that
 * did not answer or exited meanwhile. All functions that block call host->check() regularly and
 * fail when it fails; NULL: there is none.
 */
LS_MUST_USE ls_status local_join(const comm_boot *boot, const comm_host *host, local **out);

/* Closes all channels, unmaps all segments. Works that use them have ended. NULL is allowed. */
void local_leave(local *l);

/* In a forked child: closes its copies of the descriptors and nothing else, so that peers see the
 * end of this rank. */
void local_forked(const local *l);

bool local_has(const local *l, int rank);          /* world rank; true for this rank */
LS_MUST_USE ls_status local_check(const local *l); /* host->check() */
int local_count(const local *l);                   /* this rank included */
const int *local_ranks(const local *l);            /* world ranks, ascending */
int local_rank(const local *l);                    /* world rank of this process */
bool local_is_thread(const local *l, int rank); /* a local peer that is a thread of this process */

/* --- sleeping and waking --- */

/*
 * A rank that changes shared memory for which a peer waits does so with a seq_cst store (or
 * read-modify-write) and then calls local_ring(). The peer, before it sleeps:
 * local_prepare_sleep(), then checks once more with seq_cst loads, and only then poll()s. Either
 * the check sees the change or local_ring() sees the sleeper. Each local_prepare_sleep() is
 * followed by one local_end_sleep() of the same thread, which must check again afterwards: a
 * doorbell wakes all sleeping threads of a process, and one of them reads it.
 */
void local_ring(local *l, int peer);
void local_prepare_sleep(local *l);
void local_end_sleep(local *l);

/* Fills in the descriptors that poll() has to watch, at most local_count() - 1; returns their
 * number. */
int local_poll_fds(const local *l, struct pollfd *fds, int max);

/* Reads the channels: doorbells, new and removed segments, ends. One system call a channel: to be
 * called when poll() has reported one of their descriptors. */
void local_receive(local *l);

/* Sends announcements that the channels did not take at once. No system call when there are
 * none. */
void local_flush(local *l);

/* Whether this peer's channel has ended, and why: "" while it has not. */
bool local_has_ended(const local *l, int peer);
const char *local_end_text(const local *l, int peer);

/* A peer whose channel has ended since the last call; false when there is none. */
bool local_next_ended(local *l, int *rank);

#endif
