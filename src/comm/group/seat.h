/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seat.h - the place of this process in an elastic job: a connection to the launcher's store of
 * members (store/seat_text.h), which outlives the groups. The functions for other layers are in
 * comm.h.
 *
 * A ROSTER is a group that the launcher has formed (launch/head/elastic/recovery.h), 0 the first
 * one.
 */
#ifndef LS_COMM_GROUP_SEAT_H
#define LS_COMM_GROUP_SEAT_H

#include "comm/engine.h"
#include "comm/join/join.h"

typedef struct seat seat;

/* Whether the launcher has given this process a place in an elastic job. */
bool seat_is_given(const comm_env *env, const identity *id);

/* Connects to the store of members; settings and parts are copied. Of a new process *id becomes
 * that of a job of one rank. */
LS_MUST_USE ls_status seat_open(const comm_env *env, identity *id, const join_settings *s,
                                engine_parts *parts, seat **out);
void seat_close(seat *s); /* NULL is allowed */

/* --- init.c --- */

/* Joins with this identity and creates the group of all ranks. into: a closed group that is created
 * again; NULL: a new one. */
LS_MUST_USE ls_status init_join(const identity *id, const join_settings *s, engine_parts *parts,
                                ls_comm *into, ls_comm **out);
/* An engine of a job of one rank; on failure *out is NULL. */
LS_MUST_USE ls_status init_engine_alone(const identity *id, engine_parts *parts, engine **out);

#endif
