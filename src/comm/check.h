/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - the arguments of an operation, looked at once, so that backends may trust them.
 */
#ifndef LS_COMM_CHECK_H
#define LS_COMM_CHECK_H

#include "comm/backend.h"

/*
 * Checks everything that the header of comm.h demands and brings the description into its final
 * form: pointers that this rank's part of the operation does not look at become NULL. LS_EINVAL
 * names the operation and the argument.
 */
LS_MUST_USE ls_status check_coll(coll *op, int rank, int size);

/* Bytes of this rank's side of a checked operation. */
size_t check_src_bytes(const coll *op, int rank, int size);
size_t check_dst_bytes(const coll *op, int rank, int size);

/* Offset in bytes of rank `part` in the buffer that is cut by rank. */
size_t check_part_offset(const coll *op, const size_t *counts, int part);

/* Fills in all of the stamp but group, sequence and site. */
void check_stamp(coll *op, int size);

#endif
