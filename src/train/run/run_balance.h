/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_balance.h - --balance: a run measures how long its shards take, or with --balance rows the
 * rows of its batches, and moves them between ranks when these have agreed on another partition
 * (ddp/balance.h). Without the flag the functions do nothing.
 */
#ifndef LS_TRAIN_RUN_RUN_BALANCE_H
#define LS_TRAIN_RUN_RUN_BALANCE_H

#include <lockstep/train.h>

#include "train/rank_sums.h"

typedef struct run_balance {
    double seconds[PHASE_TRAINING]; /* of this process, up to the last step */
    double batch_norm_wait_s;       /* likewise */
    double wait_s;                  /* likewise, for gradients */
    double samples;                 /* likewise */
    double *of_ranks;               /* of run_balance_ranks() */
    /* In tests: the time of a shard or row in a step, not the measured one; NULL otherwise. */
    int64_t (*shard_ns)(int rank, int64_t step);
} run_balance;

/* After a step: what this rank has taken for it. */
void run_measure(ls_run *run);

/* Before a step: the new partition, if there is one. Collective. */
LS_MUST_USE ls_status run_rebalance(ls_run *run);

/* Of each rank its shards or rows and its seconds for one (0: unknown), for metrics; NULL: not
 * balanced, or no memory. */
const double *run_balance_ranks(ls_run *run);

/* With a line for each of the first ranks. On rank 0. */
void run_balance_print(ls_run *run);

#endif
