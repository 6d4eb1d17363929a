/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.h - the shards of a step (ls_ddp_options.shards), for ddp.c: adds the gradients of this
 * rank's shards as shard_tree.h says, and those of all ranks.
 *
 * The pieces of this rank have memory of their own, but the one with the last shard, which stays in
 * the buckets. A shard that begins a piece computes its gradients there; others compute them in the
 * buckets, and are added to pieces.
 * If the partition is aligned and the backend is native, one all-reduce per bucket adds up the
 * pieces of all ranks. Otherwise the pieces are exchanged: the elements of a bucket are divided
 * among the ranks; each rank gets its elements of all pieces, adds them in the order of the tree
 * and sends the sums to all. For a bucket of B bytes, a rank with P pieces sends P B (n-1)/n in as
 * many all_to_all_v as the rank with the most pieces has, and receives B (n-1)/n in one
 * all_gather_v.
 *
 * With a communication hook the pieces are exchanged in any case, in the hook's type.
 *
 * Without shards (ddp->shards is NULL) the functions do nothing.
 */
#ifndef LS_DDP_SHARDS_H
#define LS_DDP_SHARDS_H

#include <lockstep/ddp.h>

#include "base/status.h"
#include "ddp/shard_tree.h"

#include <stdbool.h>

typedef struct shard_state shard_state;

/* Checks the options and plans the sums of the partition. Not collective. */
LS_MUST_USE ls_status shards_open(ls_ddp *ddp);
void shards_close(ls_ddp *ddp);

/* Memory for the pieces of all buckets. */
LS_MUST_USE ls_status shards_make_buckets(ls_ddp *ddp);
void shards_drop_buckets(ls_ddp *ddp);

/* The partition of the present group; shard_step.h has this rank's range in it. */
const int *shards_starts(const ls_ddp *ddp);
/* The rank with shard 0, which leaves the buffers of a step; 0 without shards. */
int shards_first_rank(const ls_ddp *ddp);

/* Shards of this rank that are complete in this step. */
int shards_done(const ls_ddp *ddp);
/* Whether sums need an exchange of pieces. */
bool shards_exchange(const ls_ddp *ddp);
/* Whether nodes are weighted means (shard_means.h): a backward gives the mean over its rows. */
bool shards_are_means(const ls_ddp *ddp);

/* LS_EINVAL when it is not the turn of the last shard (is_last), or of another one. */
LS_MUST_USE ls_status shards_check_turn(const ls_ddp *ddp, bool is_last);

/* Of each backward: before it, when no parameter has a gradient, with the weight of the shard; when
 * bucket i is complete; after the last one. */
LS_MUST_USE ls_status shards_begin_shard(ls_ddp *ddp, double weight);
/* The memory of parameter i's gradient in the current shard. */
ls_tensor *shards_target(const ls_ddp *ddp, int i);
LS_MUST_USE ls_status shards_add_bucket(ls_ddp *ddp, int i);
LS_MUST_USE ls_status shards_end_shard(ls_ddp *ddp);
/* On a rank without shards, in place of shards_add_bucket(). */
LS_MUST_USE ls_status shards_fill_idle(ls_ddp *ddp, int i);

/* Whether a shard of this rank in this step, before the current one, used parameter i. */
void shards_note_used(ls_ddp *ddp, int i, bool is_used);
bool shards_have_used(const ls_ddp *ddp, int i);

/* Starts the exchange of bucket i's pieces, which shards_add_bucket() has completed. */
LS_MUST_USE ls_status shards_start_bucket(ls_ddp *ddp, int i);
/* Waits for all exchanges, also when `st`, the status so far, is a failure. Then divides the sums
 * by `divisor` and starts the all-gather of each bucket as its work. */
LS_MUST_USE ls_status shards_collect(ls_ddp *ddp, ls_status st, double divisor);

/* --- shard_buffers.c --- */

/* Copies of the buffers of a model, for a rank with several shards. */
typedef struct shard_buffers {
    int n;
    ls_tensor **at_start; /* of each block: at the start of the step */
    ls_tensor **of_first; /* after shard 0, on its rank; NULL elsewhere */
    bool is_saved;        /* at_start is of this step */
} shard_buffers;

LS_MUST_USE ls_status shard_buffers_open(ls_ddp *ddp, shard_buffers *b, bool has_first);
void shard_buffers_close(shard_buffers *b);
/* Copies the buffers to at_start, and back. */
LS_MUST_USE ls_status shard_buffers_save(ls_ddp *ddp, shard_buffers *b);
LS_MUST_USE ls_status shard_buffers_restore(ls_ddp *ddp, shard_buffers *b);
/* At the start of a step. */
LS_MUST_USE ls_status shards_save_buffers(ls_ddp *ddp);
/* After a shard of the step. */
LS_MUST_USE ls_status shard_buffers_next(ls_ddp *ddp, shard_buffers *b, bool is_first,
                                         bool is_last);
shard_buffers *shards_buffers(ls_ddp *ddp); /* NULL: the rank needs no copies */

#endif
