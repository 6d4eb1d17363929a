/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.h - the state machine of an elastic job (lockstep run --elastic): which processes are
 * ranks of the job, and when they form a new group.
 *
 *     STEADY --a member died, or asks--> ASKING --all living members have asked--> STEADY
 *
 * A pure step function: an event goes in, actions come out. It reads no clock, opens nothing and
 * allocates only in recovery_create() and for RECOVERY_OFFERED.
 *
 * Words
 *   slot    a place for a process on some node; its number never changes
 *   member  a process that is or was in a slot; numbers are never used again
 *   roster    the members that form one group. Their ranks follow their numbers, so rank 0 is the
 *           member that has been in the job the longest.
 *
 * Rules
 *   - When a member of the roster dies, the others are notified (RECOVERY_DO_ABORT); each of them
 *     asks for a place in the next roster. So does a member whose group failed for another reason,
 *     and each member after RECOVERY_DO_CALL. The next roster is made as soon as all living members
 *     of the present one have asked.
 *   - A member that has not asked meet_ms after the first death or question is out of the job: it
 *     is killed where that is possible, and refused when it asks later.
 *   - A process is started in the place of a dead one while replacements are left. It prepares
 *     itself alone and then asks. The roster calls its members together, at the end of their step,
 *     and is followed by one with the new member. In a slot that was lost with its node a process
 *     is started when another node offers it, which costs no replacement.
 *   - The roster is given up, and the job restarted or ended as without --elastic, when no living
 *     member of it has a state, when too few are left, or when one of them has never asked and
 *     never reported a state: its program cannot recover.
 *
 * Another head takes over (succession.h) with a machine of recovery_read(): RECOVERY_MOVED, after
 * which the members of a roster of several are to ask, as their hub is lost; then RECOVERY_FOUND
 * for each process that the agents report, which repeats actions that have not reached them, and
 * RECOVERY_DIED for those of nodes that do not come.
 *
 * What the driver (head_elastic.c) does: it reports each end of a process once, and each question
 * and each report of a state as it comes. Late, repeated and reordered questions do no harm.
 *
 * launch/head/elastic/: the machines of elastic jobs: members (this header) and heads
 * (succession.h), for launch/head.
 */
#ifndef LS_LAUNCH_HEAD_ELASTIC_RECOVERY_H
#define LS_LAUNCH_HEAD_ELASTIC_RECOVERY_H

#include "base/status.h"
#include "net/wire.h"

#include <stdbool.h>

#define RECOVERY_NEVER INT64_MAX

typedef struct recovery recovery;

typedef struct recovery_options {
    int n_slots;   /* the first roster has a member in each: member i in slot i, with rank i */
    int min_ranks; /* with fewer the roster is given up */
    int max_replacements; /* processes that may be started in the place of dead ones */
    int64_t meet_ms;
} recovery_options;

typedef enum recovery_event_kind {
    RECOVERY_TICK,
    /* member, roster, number, has_state: it wants a place in the roster after `roster` */
    RECOVERY_ASKED,
    RECOVERY_READY, /* member: it has the state of the training */
    RECOVERY_DIED,  /* member, is_lost */
    RECOVERY_ENDED, /* member: with exit code 0 */
    /* After recovery_read(): the group of the present roster has failed with the head. Its members
     * may not have received their answers, so they may name an earlier roster. */
    RECOVERY_MOVED,
    RECOVERY_FOUND, /* member, slot, found: what the agent of that slot has there */
    /* slot: another node has taken the place of the lost one. It is answered by RECOVERY_DO_START
     * or RECOVERY_DO_DROP, or ignored if it is occupied. */
    RECOVERY_OFFERED
} recovery_event_kind;

typedef enum recovery_found {
    RECOVERY_RUNS,
    RECOVERY_HAS_FAILED,  /* and the agent waits for an action */
    RECOVERY_WAS_DROPPED, /* has failed; the agent waits for nothing */
    RECOVERY_HAS_ENDED    /* with exit code 0 */
} recovery_found;

typedef struct recovery_event {
    recovery_event_kind kind;
    int member;
    int slot;
    int64_t roster;  /* of the member's present group; a new process has 0 as well */
    uint64_t number; /* of this question, from 1, growing for each member */
    bool has_state;  /* of the training */
    bool is_lost;    /* with its node: nothing can be started in its slot */
    recovery_found found;
} recovery_event;

typedef enum recovery_action_kind {
    RECOVERY_DO_ABORT,  /* the members of the roster are notified that its group has failed */
    RECOVERY_DO_CALL,   /* ... that they are to ask at the end of their step */
    RECOVERY_DO_ROSTER, /* the next roster is made: recovery_roster() */
    RECOVERY_DO_START,  /* slot, member: this new member */
    RECOVERY_DO_DROP,   /* slot: nothing will be started there any more */
    RECOVERY_DO_KILL,   /* member */
    RECOVERY_DO_REFUSE, /* member, number: the answer to its question */
    RECOVERY_DO_GIVE_UP /* no more rosters are made */
} recovery_action_kind;

typedef struct recovery_action {
    recovery_action_kind kind;
    int member;
    int slot;
    uint64_t number;
} recovery_action;

/* Valid until the next step. */
typedef struct recovery_result {
    const recovery_action *actions;
    int n_actions;
    int64_t wake_at_ms; /* when a tick is needed; RECOVERY_NEVER */
} recovery_result;

/* A member of a roster; its rank is its place in the list. */
typedef struct recovery_seat {
    int member;
    int slot;
    uint64_t number; /* of the question that this answers */
    bool is_new;     /* it was not in the roster before */
} recovery_seat;

/* LS_EINVAL: n_slots or min_ranks below 1, min_ranks above n_slots, negative numbers. */
LS_MUST_USE ls_status recovery_create(const recovery_options *opt, recovery **out);
void recovery_destroy(recovery *r); /* NULL is allowed */

/* For a head on another node: the machine as bytes. The times of its clock are not included.
 * LS_EPROTO: what was read is no machine with n_slots slots. */
void recovery_write(const recovery *r, wire_writer *w);
LS_MUST_USE ls_status recovery_read(wire_reader *reader, int n_slots, recovery **out);

/* Takes one event. now_ms never goes back. Events about unknown members are ignored. */
recovery_result recovery_step(recovery *r, const recovery_event *e, int64_t now_ms);

/* The seats of the present roster, whose number is *roster: 0 for the first one. Valid until the
 * next step. */
const recovery_seat *recovery_roster(const recovery *r, int *n, int64_t *roster);

/* The member in this slot now or most recently. */
int recovery_member_in(const recovery *r, int slot);
/* Whether no event has reported the end of this member's process. */
bool recovery_exists(const recovery *r, int member);
/* Whether the others could go on without the members in these slots. */
bool recovery_can_spare(const recovery *r, int first_slot, int n_slots);
/* The rank of the process in this slot in the present roster; -1: none. */
int recovery_rank_in(const recovery *r, int slot);

#endif
