/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partition.h - how a step is divided: into parts that have samplers, batches, random numbers and
 * sums of their own. A part is all that a rank does, or with --shards one of the shards, of which a
 * rank has a contiguous range, and with --balance none at times.
 *
 * train/: train/ has what the parts of a run share: flags, sums, values. Below it run/, state/ and
 * output/; programs use <lockstep/train.h>.
 */
#ifndef LS_TRAIN_PARTITION_H
#define LS_TRAIN_PARTITION_H

#include <lockstep/train.h>

#include "train/rank_sums.h"

#include <stdbool.h>

typedef struct partition {
    int n_all; /* parts of all ranks */
    int first; /* of this rank */
    int n;
    bool has_shards;
} partition;

/* The shards of a step by the flags: those of --shards times the batches of --accumulate; 0: none.
 * ls_ddp_create() refuses too many. */
int partition_shards(const ls_train_flags *flags);

/* Whether the rows of batches are divided by speed: --balance rows. */
bool partition_divides_rows(const ls_train_flags *flags);

/* The sum over all parts, with shards in the tree of their numbers (ddp/shard_tree.h), so that it
 * has the same bits on each number of ranks. `own`: of this rank's parts; the times and the numbers
 * of broken images are those of the rank, in own[0], also on a rank without parts. comm may be
 * NULL. Collective. */
LS_MUST_USE ls_status partition_sums(const partition *d, ls_comm *comm, const rank_sums *own,
                                     rank_sums *out);

/* With shards, in a new partition `to`: out[] becomes the sums of the parts that this rank has now,
 * with the rank's own numbers in out[0]. Collective. */
LS_MUST_USE ls_status partition_move(const partition *d, const partition *to, ls_comm *comm,
                                     const rank_sums *own, rank_sums *out);

#endif
