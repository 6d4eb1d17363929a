/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - a rank's one connection to its job's hub: store operations, and the news that must reach it.
 *
 * Used by one thread at a time (comm's engine locks around it).
 */
#ifndef LS_STORE_CONTROL_H
#define LS_STORE_CONTROL_H

#include <lockstep/store.h>

#include "net/address.h"
#include "net/handshake.h"
#include "store/cause.h"
#include "store/stamp.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct control control;

typedef struct control_options {
    net_address hub;
    const net_key *key; /* NULL: unix socket of the same uid */
    char job[JOB_ID_BYTES];
    int rank;
    int world_size;
    uint32_t generation;
    int64_t timeout_ms; /* of connecting; connection refused is tried again until then */
} control_options;

/* Connects and introduces this rank. LS_EAUTH: another key or user; LS_EMISMATCH: another job, world size or
 * generation, or the rank is there already (both sides are told). */
LS_MUST_USE ls_status control_open(const control_options *opt, control **out);

/* Says goodbye (unless already failed) and closes. NULL is allowed. */
void control_close(control *c);

int control_fd(const control *c); /* for poll(): readable when there may be news */

/* The store behind it, for boot; an abort that arrives ends its waits with the cause. Borrowed. */
ls_store *control_store(control *c);

/* Reads news without blocking. LS_OK: nothing that concerns `group`s listed by the caller: see control_next_cause.
 * LS_EPEER: the hub itself is gone; the text says so. */
LS_MUST_USE ls_status control_poll(control *c);

/* Hands out causes in order of arrival; false when there is no further one. */
bool control_next_cause(control *c, job_cause *out);

/* Ranks that have left the job with a goodbye since the last call; false when there is no further one. */
bool control_next_left(control *c, int *rank);

/* This rank has been waiting in this operation for a while (comm calls it after 20 ms): the hub compares the stamps of
 * all ranks of the group and breaks the group when they differ. members: world ranks of the group. `late` repeats it after
 * late_ms: the hub then makes the late report. */
LS_MUST_USE ls_status control_waiting(control *c, const op_stamp *stamp, const int *members,
                                      int n_members, bool late, int64_t waited_ms);

/* That operation has ended here. Only needed when control_waiting was called for it. */
LS_MUST_USE ls_status control_arrived(control *c, uint32_t group, uint64_t sequence);

/* Reports a failure: every other rank of cause->group hears it. */
LS_MUST_USE ls_status control_fail(control *c, const job_cause *cause);

#endif
