/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h - collectives of a group whose ranks are all on this host, over counters in shared memory.
 *
 * Each member owns one part of the group's shared memory: a line of counters, a table of slots in
 * which it publishes an operation's stamp and the addresses of its buffers, and staging buffers.
 * Operations run one after the other in the order they were started. Every member waits until all
 * have published (one that only gives a small contribution does so in its next operation), compares
 * the stamps, and selects the algorithm from what all published (so all select the same one):
 * team_inline.c, team_staged.c, team_shared.c, team_direct.c or team_levels.c, by
 * algorithm_table.h. Where members share cores or are in several sockets or core complexes, one
 * member compares for others, and they wait at gates (team_gate.c).
 *
 * Failure    A rank that has died leaves its counters unchanged: team_progress() then never moves.
 *            The engine learns of the death elsewhere and calls team_abort(). After that this rank
 *            touches no caller's buffer. A member that still reads this rank's buffer then fails,
 *            because the buffer may have changed meanwhile. Memory from ls_comm_alloc() that was
 *            part of an aborted operation may still be read, and a destination written, by members
 *            that have not yet received the abort, for the duration of one step; freeing it is
 *            always safe (segment.h).
 * Threads    Under the engine's lock.
 *
 * comm/backends/native/team/: collectives within one host, and the table that selects their
 * algorithms. Called by the backend through this header.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_TEAM_TEAM_H
#define LS_COMM_BACKENDS_NATIVE_TEAM_TEAM_H

#include "comm/backends/backend.h"
#include "comm/backends/native/memory/local.h"
#include "comm/backends/native/team/algorithm_table.h"
#include "host/topology.h"

typedef struct team team;

/* Whether a team carries out this operation: all but the v-variants, send and receive. Depends on
 * kind and counts only, so all ranks get the same answer. */
bool team_supports(const coll *op);

typedef struct team_options {
    size_t segment_bytes;         /* of one staging piece, 0: the default */
    const algorithm_table *table; /* the same rows on all members; NULL: the defaults */
    bool shares_cores;            /* there are more ranks than cores */
    topology_place place;         /* of this rank */
} team_options;

/* Collective over the members, which are all local. info, host and table must stay valid until
 * team_close(). Blocks until all have mapped the memory or deadline_ms has passed; LS_ETIMEOUT,
 * LS_EPEER name the rank. */
LS_MUST_USE ls_status team_open(local *l, const comm_host *host, const group_info *info,
                                const team_options *opt, int64_t deadline_ms, team **out);

/* Pending works must have been ended (team_abort()). NULL is allowed. */
void team_close(team *t);

/* Queues the operation and advances it as far as possible. host->done may be called before it
 * returns. */
void team_start(team *t, backend_work *work);

/* True when something moved. May call host->done and host->broken. */
bool team_progress(team *t);

/* Whether members can read each other's memory. */
bool team_can_read(const team *t);
/* Copies `bytes` from a member's address `from`; false: they cannot be read (any more). For
 * messages between members. */
bool team_read(const team *t, int member, const char *from, char *to, size_t bytes);

/* Whether a member has given up its pending operations, messages included. Called after this rank
 * has read the member's buffer; false: the bytes read are those that the member sent. */
bool team_gave_up(const team *t, int member);

/* Whether a member has ended, or has given up or closed the group, before it has done its part of
 * the pending operation. for_messages: at all. */
bool team_is_gone(const team *t, int member, bool for_messages);

/* Sleeps until the gate opens at which this rank waits, about a millisecond at most. False: it is
 * at none, or no member shares cores. */
bool team_futex_wait(team *t);

/* Whether operations are pending. */
bool team_busy(const team *t);

/* Ends all pending works with this status through host->done; later ones fail at once with the
 * same. Allowed inside host->broken. */
void team_abort(team *t, ls_status status, const char *text);

#endif
