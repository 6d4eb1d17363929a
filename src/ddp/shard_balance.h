/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_balance.h - a partition of shards, or of the rows of a batch, that follows the speed of the
 * ranks (balance.h), for ddp.c, shards.c and elastic.c; shard_step.h has what an ls_run calls. Each
 * rank measures its own time for a shard. The small all-reduce of a step gives it to all ranks, and
 * each of them computes the same partition. It changes between two steps.
 *
 * Rows are divided in units of equal size, so that a batch has few sizes, for each of which devices
 * make kernels. A rank has at least two rows, as batch norms need.
 *
 * Without ls_ddp_create_balanced() ddp->balance is NULL, and the functions do nothing.
 */
#ifndef LS_DDP_SHARD_BALANCE_H
#define LS_DDP_SHARD_BALANCE_H

#include <lockstep/ddp.h>

#include "ddp/balance.h"

typedef struct shard_balance {
    balancer all;
    balance_meter own;
    int64_t wait_ns;       /* of this rank in the last step */
    balance_speed *speeds; /* of each rank, in the last step */
    bool has_change;       /* all.starts is for the next step */
    int batch_rows;        /* of a rank in a batch, on average; 0: shards are divided */
    int unit;              /* rows that `all` has as one; with shards 1 */
    int *rows;             /* of each rank in a batch until has_change is carried out; or NULL */
} shard_balance;

/* Memory for the ranks of the present group, and the equal partition. Not collective. */
LS_MUST_USE ls_status shard_balance_open(ls_ddp *ddp);
void shard_balance_close(ls_ddp *ddp);
/* The same for a new group, whose ranks know their speed or not. Collective. */
LS_MUST_USE ls_status shard_balance_regroup(ls_ddp *ddp);

/* Numbers of all ranks in the small all-reduce of a step, which sums them. */
size_t shard_balance_count(const ls_ddp *ddp);
void shard_balance_put(const ls_ddp *ddp, double *numbers);
void shard_balance_take(ls_ddp *ddp, const double *numbers);

#endif
