/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_mean.h - the mean over islands of float32 numbers, added in the tree of shard_tree.h, so
 * that the bits depend on the number of islands only.
 *
 * Where the tree over the ranks is that over the islands, one all-reduce of backend native adds
 * them. Otherwise, and with a hook, each rank gets its part of the elements of all nodes that
 * others have added, or with a hook of all islands, adds them, and sends the means to all. With a
 * hook each island's numbers are rounded once, and the mean once: the sum is in float32.
 */
#ifndef LS_DDP_LOCAL_MEAN_H
#define LS_DDP_LOCAL_MEAN_H

#include <lockstep/ddp.h>

#include "base/status.h"

/* A mean that has been started. */
typedef struct local_exchange local_exchange;

/* values[i][0..n): of the i-th island of this rank, in a partition (shard_tree.h) in which each
 * rank has one. values[0] becomes the mean over all islands, on all ranks; others are undefined
 * then. Where a number is NaN or infinite, or becomes so, so is the mean. hook: how numbers are
 * sent, also INT8 and INT4 (int_blocks.h; blocks begin at multiples of INT_BLOCK). values and
 * starts must stay until the end; they are read and written meanwhile. Collective; does not wait
 * for other ranks. */
LS_MUST_USE ls_status local_mean_start(ls_comm *comm, int islands, const int *starts,
                                       float *const *values, size_t n, ls_ddp_hook hook,
                                       local_exchange **out);
/* Waits for the first of two operations, if there are two, and starts the other. In the same order
 * of operations on all ranks; the end does it otherwise. */
LS_MUST_USE ls_status local_mean_go_on(local_exchange *x);
/* Waits for the mean, and frees x, also after a failure. */
LS_MUST_USE ls_status local_mean_end(local_exchange *x);
/* Waits for what has been started, without a mean, and frees x. NULL is allowed. */
void local_mean_drop(local_exchange *x);

#endif
