/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_local.h - --sync-every: the islands of a run train alone between means of their parameter
 * differences (<lockstep/local_sgd.h>). An island is a shard, or without --shards a rank, or with
 * --islands several ranks, whose gradients run->ddp averages in each step. Without --sync-every
 * (run->local is NULL) the functions do nothing.
 */
#ifndef LS_TRAIN_RUN_RUN_LOCAL_H
#define LS_TRAIN_RUN_RUN_LOCAL_H

#include <lockstep/local_sgd.h>
#include <lockstep/train.h>

#include "base/status.h"
#include "train/state/state_file.h"

#include <stdbool.h>

/* The defaults of --outer-lr and --outer-momentum. */
#define LOCAL_OUTER_LR       0.7
#define LOCAL_OUTER_MOMENTUM 0.9

/* LS_EINVAL: flags that do not go with --sync-every, or need it. */
LS_MUST_USE ls_status run_local_check(const ls_train_flags *f);

/* In place of a ddp of all ranks, with its options. */
LS_MUST_USE ls_status run_local_distribute(ls_run *run, const ls_ddp_options *opt);
/* When model and optimizer are complete; makes the ddp of islands of several ranks. Collective. */
LS_MUST_USE ls_status run_local_open(ls_run *run);
/* When rank 0 has loaded what the run starts from; has_islands: of a run with islands. Collective,
 * as all that follow but run_local_meets() and run_local_list(). */
LS_MUST_USE ls_status run_local_begin(ls_run *run, bool has_islands);

/* Before forward: the island of the current part. */
LS_MUST_USE ls_status run_local_enter(ls_run *run);
/* After the update of the last island: a mean, if one is due. step->stop: all ranks stop here. */
LS_MUST_USE ls_status run_local_step(ls_run *run, ls_ddp_step *step);
/* Whether all ranks meet after the present step: reports do not make them wait besides. */
bool run_local_meets(const ls_run *run);

/* Before an evaluation or a save: the model is the last mean. is_end: of the last steps, too. */
LS_MUST_USE ls_status run_local_show(ls_run *run, bool is_end);

/* This rank has failed, before it aborts the group of all: aborts those of islands of several
 * ranks. Where another rank has failed before, the text of the failure becomes that of the first
 * one, and not of a rank that has followed. Not collective. */
void run_local_failed(ls_run *run);

/* Before a save: rank 0 gets all islands, until run_local_drop(). */
LS_MUST_USE ls_status run_local_collect(ls_run *run);
void run_local_drop(ls_run *run);

/* On rank 0: what the state file has besides state_list(). */
LS_MUST_USE ls_status run_local_list(ls_run *run, name_list *list);

#endif
