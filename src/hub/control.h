/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - a rank's only connection to its job's hub: store operations, and notifications in
 * both directions.
 *
 * One thread at a time uses it (comm's engine holds its lock).
 */
#ifndef LS_HUB_CONTROL_H
#define LS_HUB_CONTROL_H

#include <lockstep/store.h>

#include "hub/cause.h"
#include "hub/stamp.h"
#include "net/address.h"
#include "net/auth/handshake.h"

#include <stdbool.h>
#include <sys/types.h>

#define CONTROL_STACK_BYTES 1536     /* of the text of a stack, terminated */
#define CONTROL_CALLS_MAX   32       /* of one control_called() */
#define CONTROL_GROUPS_KEY  "groups" /* of the counter from which ids of groups are taken */

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
    /* "connection refused" is an error at once, otherwise it is retried until timeout_ms */
    bool refused_is_final;
    int64_t timeout_ms; /* of connecting */
    const char *server; /* the hub's process, for messages: "rank 0"; NULL: "the launcher" */
} control_options;

/* Connects to a store that the launcher hosts beside the hubs of its generations; ls_store_close()
 * ends it. `key` NULL: a unix socket of the same user. Blocks at most timeout_ms. */
LS_MUST_USE ls_status control_open_store(const net_address *at, const net_key *key,
                                         net_security security, int64_t timeout_ms, ls_store **out);

/* Connects and introduces this rank. LS_EAUTH: another key or user. LS_EMISMATCH: another job,
 * world size or generation, or the rank has joined already; both sides report it. */
LS_MUST_USE ls_status control_open(const control_options *opt, control **out);

/* Sends a leave (unless already failed) and closes. NULL is allowed. */
void control_close(control *c);

/* For poll(): readable when there may be notifications. They may also arrive with the answer to any
 * other call: call control_next_cause() before sleeping. */
int control_fd(const control *c);

/* The hub's store, for joining. Borrowed. A cause for the whole job ends its waits and all later
 * calls with that cause; control_next_cause() still returns it. A cause for a single group does not
 * affect the store: the rank may be joining again. */
ls_store *control_store(control *c);

/* Reserves n new group ids of this job; *first is the first of them. One rank calls it for all. */
LS_MUST_USE ls_status control_reserve_groups(control *c, int n, uint32_t *first);

/*
 * The values of the keys prefix + "0" to n-1 in one answer, once all exist: take() gets them in
 * order. They are valid in that call, which must not use the connection; its failure is the result.
 */
typedef ls_status (*control_take_fn)(void *arg, int i, const void *value, size_t bytes);
LS_MUST_USE ls_status control_gather(control *c, const char *prefix, int n, int64_t timeout_ms,
                                     control_take_fn take, void *arg);

/* Reads notifications without blocking; control_next_cause() and the like return them. LS_EPEER:
 * the hub itself is lost, as the text says. */
LS_MUST_USE ls_status control_poll(control *c);

/* Returns causes in order of arrival; false when there are no more. */
bool control_next_cause(control *c, job_cause *out);

/* Returns ranks that have left the job in good order; false when there are no more. */
bool control_next_left(control *c, int *rank);

/* A rank that has left a group, and the number of its last operation there. */
typedef struct group_leave {
    uint32_t group;
    int rank; /* of the world */
    uint64_t sequence;
} group_leave;

/* The same for groups in which this rank waits (control_waiting). A leave may be returned twice. */
bool control_next_group_leave(control *c, group_leave *out);

/*
 * Reports that this rank has waited in this operation for a while (comm calls it after 20 ms). The
 * hub compares the stamps of all ranks of the group, breaks the group when they differ, and sends
 * the leaves of the group from now on. Group ids must be unique in the job. *ticket (may be NULL)
 * is for control_is_acknowledged().
 */
typedef struct control_wait {
    const op_stamp *stamp;
    uint64_t number; /* distinguishes this rank's operations */
    /* world ranks of the group, this one included; for send and recv the two ends; NULL: all ranks
     * of the job */
    const int *members;
    int n_members;
    /* after this time the hub makes a wait report, and repeats it with growing pauses; 0: at once;
     * negative: not yet, the call will be repeated */
    int64_t report_in_ms;
    int64_t waited_ms;
    int n_later; /* pending operations of this rank that the report stands for as well */
} control_wait;

LS_MUST_USE ls_status control_waiting(control *c, const control_wait *w, uint64_t *ticket);

/* A wait of ranks besides operations: joining, connecting, opening a group. */
typedef struct control_stage {
    uint32_t group;     /* GROUP_JOIN, GROUP_CONNECT or the group */
    const int *members; /* borrowed until the end; NULL: all ranks of the job */
    int n_members;
    const char *what; /* "joining the job"; borrowed for the call */
    bool is_blind;    /* control_watch() is not called until the end, so the hub times the report */
} control_stage;

/* Until control_end_stage() all requests of this connection, and control_watch(), report waits as
 * those of an operation. One stage at a time. c NULL: there is no hub (any more). */
void control_begin_stage(control *c, const control_stage *stage);
void control_end_stage(control *c);

/* Sends the reports of the stage that are due, and logs a line when the hub has not acknowledged a
 * report. Returns the point in time (ms) of the next call. */
int64_t control_watch(control *c);

/* How long the hub may take for an answer from now on (ms, negative: no limit); then it counts as
 * lost. At first it is control_options.timeout_ms. */
void control_set_answer_limit(control *c, int64_t ms);

/* Whether the hub has acknowledged that report: what it knew about the group has arrived. */
bool control_is_acknowledged(const control *c, uint64_t ticket);

/* That operation, for which control_waiting was called, has ended on this rank. */
LS_MUST_USE ls_status control_arrived(control *c, const op_stamp *stamp, uint64_t number);

/* This rank leaves a group after operation `sequence`: members that wait in it are notified. */
LS_MUST_USE ls_status control_leave(control *c, uint32_t group, uint64_t sequence, int n_members);

/* Members of a group that wait for each other outside of its operations. */
typedef struct control_barrier {
    uint64_t ticket; /* of this rank, of the answer */
    uint32_t group;
    const char *what;   /* "creating group tp", equal on all members; at most 95 bytes count */
    const int *members; /* world ranks, in the same order on all of them */
    int n_members;
    int64_t timeout_ms;   /* negative: none. The first member's counts. */
    int64_t report_in_ms; /* of the wait report */
} control_barrier;

/* The hub's answer. LS_ETIMEOUT names the missing ranks, LS_EMISMATCH two that name different
 * members, LS_EPEER one that has left the job. The group is not affected. */
typedef struct barrier_answer {
    uint64_t ticket;
    ls_status status;
    uint32_t id; /* a new id of a group, the same on all members */
    char text[512];
} barrier_answer;

/* Does not wait: control_next_answer() returns the answer later, unless a cause of the group comes
 * first. Answers arrive in the same order at all ranks. */
LS_MUST_USE ls_status control_meet(control *c, const control_barrier *m);
bool control_next_answer(control *c, barrier_answer *out);

/* Whether the hub has asked for the stack of this rank's program since the last call, because other
 * ranks wait for it; control_stack() answers, with at most CONTROL_STACK_BYTES - 1 bytes. */
bool control_next_ask(control *c);
LS_MUST_USE ls_status control_stack(control *c, const char *text);

/* Reports n collectives that this rank has called, of any group, in order, each with a digest of
 * all calls of the group up to it. The hub breaks a group when the reports of two ranks for the
 * same number differ, so ranks must report the same numbers: all multiples of a power of two. */
LS_MUST_USE ls_status control_called(control *c, const op_stamp *stamps, const uint64_t *digests,
                                     int n);

/* Reports a failure to every other rank of cause->group. */
LS_MUST_USE ls_status control_fail(control *c, const job_cause *cause);

#endif
