/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h - operations on a pointer for each rank (ls_all_gather_list() and the like). */
#ifndef LS_COMM_GROUP_PARTS_H
#define LS_COMM_GROUP_PARTS_H

#include "comm/engine.h"

/* Gives the operation its buffers: where the parts follow each other, the caller's memory, else a
 * block of the work, to which the sources are copied. Before the operation is checked. */
LS_MUST_USE ls_status parts_join(ls_work *w, const coll_call *call, int rank, int size);
/* The work ends: copies the results to their parts if it has succeeded, and frees the block. */
void parts_end(ls_work *w, ls_status status);

#endif
