/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.h - making and ending groups over an engine.
 */
#ifndef LS_COMM_GROUP_H
#define LS_COMM_GROUP_H

#include "comm/engine.h"

/*
 * A group of `size` ranks, of which this process is number `rank`; collective over the members,
 * blocks. members (world ranks) is taken, also on failure. of: the group that it is a part of,
 * whose end ends the wait for others; NULL: none. The engine is ended with its last group, and by
 * the caller when it has none yet.
 */
LS_MUST_USE ls_status group_create(engine *e, const ls_comm *of, uint32_t id, int rank, int size,
                                   int *members, ls_comm **out);

/* Gives n group ids that no group of this job has had; *first is the first of them. Only one rank
 * asks. */
LS_MUST_USE ls_status group_reserve(control *c, int n, uint32_t *first);

#endif
