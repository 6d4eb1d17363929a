/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.h - creates groups over an engine, and numbers them.
 *
 * comm/group/: groups: how they begin, split and end, the public calls on them, elastic jobs
 * (seat.h). Called by programs and comm/engine.
 */
#ifndef LS_COMM_GROUP_GROUP_H
#define LS_COMM_GROUP_GROUP_H

#include "comm/engine.h"

/* Creates a group of `size` ranks, of which this process is `rank`. Collective over the members;
 * blocks. Takes members (world ranks), also on failure. of: the parent group, whose end also ends
 * this call; NULL: none. The last group destroys the engine; without any group the caller does. */
LS_MUST_USE ls_status group_create(engine *e, const ls_comm *of, uint32_t id, int rank, int size,
                                   int *members, ls_comm **out);

/* The same in a group that group_close() has closed: the caller's pointer stays valid. */
LS_MUST_USE ls_status group_create_in(engine *e, uint32_t id, int rank, int size, int *members,
                                      ls_comm *comm);

/* ls_comm_destroy() without freeing *comm, which may only be passed to group_create_in() now. */
void group_close(ls_comm *comm);

/* The first of n ids without a hub: they start high and contain the rank that chooses them. Under
 * the lock. */
uint32_t group_own_id(engine *e, int n);

#endif
