/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_sums.h - sums of a few numbers of each shard, in the tree of shard_tree.h: what batch norms
 * add up over all shards of a step.
 */
#ifndef LS_DDP_SHARD_SUMS_H
#define LS_DDP_SHARD_SUMS_H

#include <lockstep/comm.h>

#include "base/status.h"

/* values[i][0..n): of the i-th shard of this rank in a partition (shard_tree.h) in which each rank
 * has one; all become the sums over the shards of all ranks. The bits depend on the number of
 * shards only. Collective on `comm`, whose ranks have all shards; blocks. */
LS_MUST_USE ls_status shard_sums(ls_comm *comm, int shards, const int *starts,
                                 double *const *values, size_t n);

#endif
