/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet.h - waits for members of a group outside of its operations, through the hub: the group stays
 * usable when some do not come. The engine goes on with all operations meanwhile.
 */
#ifndef LS_COMM_GROUP_MEET_H
#define LS_COMM_GROUP_MEET_H

#include "comm/engine.h"

/* On the stack of its caller, in a list of the engine until it has ended. */
typedef struct barrier_wait {
    list_node node; /* in engine->barriers, or engine->openings when it is answered */
    ls_comm *comm;
    uint64_t ticket;
    bool opens; /* a group is opened when all have come */
    uint32_t id;
    ls_status status; /* of the answer, later of the group that is opened */
    job_cause cause;  /* of a failure */
    ls_work wait;     /* ends when the caller's turn has come; no operation */
} barrier_wait;

/* Under the lock. */
void meet_answered(engine *e, const barrier_answer *answer);
void meet_end_group(engine *e, const ls_comm *comm);     /* which breaks: its status and text */
void meet_note_cause(engine *e, const job_cause *cause); /* of a group that is being opened */
void meet_lose_hub(engine *e, const char *why);
/* The cause of the group that is being opened; NULL: it has none, or there is no such group. */
const job_cause *meet_opening_cause(const engine *e);

#endif
