/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - a rank's one connection to its job's hub: store operations, and the news that must
 * reach it.
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

#define CONTROL_CALLS_MAX 32 /* of one control_called() */

typedef struct control control;

typedef struct control_options {
    net_address hub;
    const net_key *key;    /* NULL: unix socket of the same uid, or insecure */
    bool insecure;         /* without a key over TCP too: --insecure */
    net_security security; /* over TCP, as the hub has it */
    char job[JOB_ID_BYTES];
    int rank;
    int world_size;
    uint32_t generation;
    bool is_there;      /* the hub listens, or has gone */
    int64_t timeout_ms; /* of connecting; otherwise connection refused is tried again until then */
    const char *server; /* the hub's process, for messages: "rank 0"; NULL: "the launcher" */
} control_options;

/* Connects and introduces this rank. LS_EAUTH: another key or user; LS_EMISMATCH: another job,
 * world size or generation, or the rank is there already (both sides are told). */
LS_MUST_USE ls_status control_open(const control_options *opt, control **out);

/* Says goodbye (unless already failed) and closes. NULL is allowed. */
void control_close(control *c);

/* For poll(): readable when there may be news. News may also come along with the answer to any
 * other call: ask control_next_cause() before sleeping. */
int control_fd(const control *c);

/*
 * The store behind it, for boot. Borrowed. A cause for the whole job ends its waits and all later
 * calls with that cause; control_next_cause() still hands it out. One for a single group does not
 * touch the store: the rank may be joining anew.
 */
ls_store *control_store(control *c);

/*
 * The values of the keys prefix + "0" to n-1, once all are there, in one answer: take() gets them
 * in order. They are valid during the call, which must not use the connection; what it fails with
 * is the result. LS_ETIMEOUT: some are missing.
 */
typedef ls_status (*control_take_fn)(void *arg, int i, const void *value, size_t bytes);
LS_MUST_USE ls_status control_gather(control *c, const char *prefix, int n, int64_t timeout_ms,
                                     control_take_fn take, void *arg);

/* Reads news without blocking; control_next_cause() and control_next_left() hand it out. LS_EPEER:
 * the hub itself is gone; the text says so. */
LS_MUST_USE ls_status control_poll(control *c);

/* Hands out causes in order of arrival; false when there is no further one. */
bool control_next_cause(control *c, job_cause *out);

/* Ranks that have left the job with a goodbye since the last call; false when there is no further
 * one. */
bool control_next_left(control *c, int *rank);

/* A rank that has left a group, and the number of its last operation there. */
typedef struct group_leave {
    uint32_t group;
    int rank; /* of the world */
    uint64_t sequence;
} group_leave;

/* The same for groups in which this rank waits (control_waiting). A leave may be handed out
 * twice. */
bool control_next_group_leave(control *c, group_leave *out);

/*
 * This rank has been waiting in this operation for a while (comm calls it after 20 ms): the hub
 * compares the stamps of all ranks of the group, breaks the group when they differ, and sends the
 * leaves of the group from now on. number: tells this rank's operations apart. members: world ranks
 * of the group, this one included; for send and recv the two ends; NULL: all ranks of the job.
 * late_in_ms: after so long the hub makes the late report, and repeats it by itself with growing
 * pauses; 0: at once; negative: not yet, the call will be repeated. Group ids must be unique in the
 * job. *ticket (may be NULL) is for control_is_noted().
 */
LS_MUST_USE ls_status control_waiting(control *c, const op_stamp *stamp, uint64_t number,
                                      const int *members, int n_members, int64_t late_in_ms,
                                      int64_t waited_ms, uint64_t *ticket);

/* What the ranks of a job wait for besides operations: joining, connecting, opening a group. */
typedef struct control_stage {
    uint32_t group;     /* GROUP_JOIN, GROUP_CONNECT or the group */
    const int *members; /* borrowed until the end; NULL: all ranks of the job */
    int n_members;
    const char *what; /* "joining the job"; borrowed for the call */
    bool is_blind; /* control_watch() may not be called until the end: the hub times the report */
} control_stage;

/*
 * From now until control_end_stage() a wait for other ranks is reported as an operation's: all
 * requests of this connection, and control_watch(), see to that. One stage at a time. NULL: there
 * is no hub (any more).
 */
void control_begin_stage(control *c, const control_stage *stage);
void control_end_stage(control *c);

/* Does what is due: reports of the stage; a line when the hub has not answered a late report. Gives
 * the point in time (ms) at which it is to be called again. */
int64_t control_watch(control *c);

/* How long the hub may take for an answer from now on (ms, negative: for ever); then it counts as
 * gone. At first it is control_options.timeout_ms. */
void control_set_answer_limit(control *c, int64_t ms);

/* Whether the hub has answered that control_waiting(): all that it knew then about the group has
 * come. */
bool control_is_noted(const control *c, uint64_t ticket);

/* That operation has ended here. Only needed when control_waiting was called for it; group,
 * sequence, kind and number tell which. */
LS_MUST_USE ls_status control_arrived(control *c, const op_stamp *stamp, uint64_t number);

/* This rank leaves a group of so many members after operation `sequence`: members that wait in the
 * group are notified. */
LS_MUST_USE ls_status control_leave(control *c, uint32_t group, uint64_t sequence, int n_members);

/*
 * What this rank has called: n collectives of any group, in order, each with a digest of all that
 * the group has called up to it. The hub breaks a group when two ranks' words about the same number
 * differ, so ranks must tell of numbers that meet: all multiples of some power of two.
 */
LS_MUST_USE ls_status control_called(control *c, const op_stamp *stamps, const uint64_t *digests,
                                     int n);

/* Reports a failure: every other rank of cause->group hears it. */
LS_MUST_USE ls_status control_fail(control *c, const job_cause *cause);

#endif
