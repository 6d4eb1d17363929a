/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - checks the arguments of an operation once, so that backends may trust them. */
#ifndef LS_COMM_CHECK_H
#define LS_COMM_CHECK_H

#include "comm/backends/backend.h"

/* Checks all conditions of comm.h and completes the description: pointers that this rank does not
 * use become NULL, and `accelerator` the owner of the others. LS_EINVAL names the operation and the
 * argument. */
LS_MUST_USE ls_status check_coll(coll *op, int rank, int size);

/* One side of a checked operation, as this rank uses it. */
typedef struct coll_side {
    int n_parts;          /* 0: not used; 1; the group's size: a part for each rank */
    size_t count;         /* elements of each part ... */
    const size_t *counts; /* ... unless they differ; NULL otherwise */
} coll_side;

coll_side check_src_side(const coll *op, int rank, int size);
coll_side check_dst_side(const coll *op, int rank, int size);

size_t check_side_bytes(const coll *op, const coll_side *side);

/* Fills in all of the stamp but group, sequence and site. */
void check_stamp(coll *op, int size);

#endif
