/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards_together.h - computes all shards of a rank at a time, for batch norms over all shards of a
 * step (ls_ddp_options.sync_batch_norm) where a rank has several shards.
 *
 * Each shard is a coroutine with a tape of its own. In each batch norm, forward and backward, it is
 * suspended until all shards of the rank have arrived; their sums are added in the tree of
 * shard_tree.h, then those of all ranks, and all shards go on with the result. So the activations
 * of all shards are in memory at a time, and their gradients: until the backward of all has ended,
 * a parameter's gradients are in states of their own (autograd_exchange_state()). Then they are
 * added as those of shards that were computed one after the other; the order of operations is that
 * of as many ranks as shards, and so are the bits.
 *
 * On a stream device the host reads and writes the sums, and waits for the device each time.
 *
 * Of the rank's tapes the first one's batch norms move the running statistics; they would be moved
 * by each shard alike.
 */
#ifndef LS_DDP_SHARDS_TOGETHER_H
#define LS_DDP_SHARDS_TOGETHER_H

#include <lockstep/ddp.h>

#include "ddp/shard_step.h"

typedef struct shards_together shards_together;

/* Computes loss and gradients of all shards of this rank. */
LS_MUST_USE ls_status together_compute(ls_ddp *ddp, const shard_calls *calls);
void together_close(ls_ddp *ddp);

/* Shard i of the rank, which has been computed: its tape, loss and rows. */
ls_tape *together_tape(const ls_ddp *ddp, int i);
ls_tensor *together_loss(const ls_ddp *ddp, int i);
int64_t together_rows(const ls_ddp *ddp, int i);
/* In place of its backward: copies its gradients into the memory of the leaves, in the order in
 * which they became complete, and calls the ddp's owner for each. */
LS_MUST_USE ls_status together_give(ls_ddp *ddp, int i);

/* In a batch norm: values[0..n) of a shard become their sums over all shards. */
LS_MUST_USE ls_status together_sum(ls_ddp *ddp, double *values, size_t n);

#endif
