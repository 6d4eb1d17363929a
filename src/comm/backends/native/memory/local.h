/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - the ranks of this host: which they are, the memory that they share, and waking those
 * that sleep.
 *
 * A peer is local when its abstract unix socket can be reached, belongs to the same user, and
 * answers for the same job, rank and generation. What n ranks of a host need grows with n: each has
 * a mailbox and one mapping (local_internal.h); only the lowest has a connection to each of the
 * others. Ranks that are threads of one process join in the same way.
 *
 * Threads    local_poll_fds, local_prepare_sleep, local_end_sleep and local_ring may be called from
 *            any thread; all else under the engine's lock.
 *
 * comm/backends/native/memory/: what ranks of one host share: memory, segments, rings. Called by
 * team/ and the backend.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_LOCAL_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_LOCAL_H

#include "comm/backends/backend.h"

#include <poll.h>
#include <stdbool.h>

#define LOCAL_FDS_MAX 2

typedef struct local local;

/*
 * Finds the ranks of this host; every rank of the job calls it. Takes boot->local_fd (also on
 * failure; -1: no other rank is local). Blocks until all ranks of this host have joined;
 * boot->records must stay valid until local_leave(). LS_ETIMEOUT and LS_EPEER name the rank that
 * did not answer or exited meanwhile. All functions that block call host->check() regularly and
 * fail when it fails; NULL: there is none.
 */
LS_MUST_USE ls_status local_join(const comm_boot *boot, const comm_host *host, local **out);

/* Notifies the others, closes all descriptors, unmaps all segments. Works that use them have ended.
 * NULL is allowed. */
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

/* --- rings --- */

/* For a stream to or from a local peer: link_shm_ring_bytes() of shared memory, zero at first; and
 * one byte, beside those of the reader's other streams, which only the writer writes. */
void *local_ring_to(const local *l, int peer);
void *local_ring_from(const local *l, int peer);
_Atomic unsigned char *local_state_to(const local *l, int peer);
_Atomic unsigned char *local_state_from(const local *l, int peer);

/* --- sleeping and waking --- */

/*
 * A rank that changes shared memory for which a peer waits does so with a seq_cst store (or
 * read-modify-write) and then calls local_ring(). The peer, before it sleeps:
 * local_prepare_sleep(), then checks once more with seq_cst loads (also local_has_events()), and
 * only then poll()s. Either the check sees the change or local_ring() sees the sleeper. Each
 * local_prepare_sleep() is followed by one local_end_sleep() of the same thread, which must check
 * again afterwards: a doorbell wakes all sleeping threads of a process, and one of them reads it.
 */
void local_ring(local *l, int peer);
void local_prepare_sleep(local *l);
void local_end_sleep(local *l);

/* Whether another rank has last waited on the processor on which this thread runs: then that rank
 * cannot go on while this one spins. Others learn from the call where this rank waits. */
bool local_shares_processor(local *l);

/* Fills in the descriptors that poll() has to watch; returns their number. */
int local_poll_fds(const local *l, struct pollfd fds[LOCAL_FDS_MAX]);

/* Whether there is something for local_receive() or local_next_ended() to do. No system call. */
bool local_has_events(const local *l);
/* When local_receive() is to be called again though nothing may have happened; INT64_MAX: never. */
int64_t local_due_ms(const local *l);

/* Reads the mailbox and the connections, and handles events: descriptors that peers ask for or have
 * sent, segments that were destroyed, ends. To be called when poll() has reported a descriptor, or
 * there are events. True: new events have come meanwhile, perhaps without a doorbell; the caller
 * calls it again before it sleeps. */
bool local_receive(local *l);

bool local_has_ended(const local *l, int peer);

/* A peer that has ended since the last call; false when there is none. */
bool local_next_ended(local *l, int *rank);

#endif
