/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_power.h - --compress powersgd:R in a run: its flag, and in the state file what ranks have not
 * sent (ddp/power_sgd.h). With another --compress the functions do nothing.
 */
#ifndef LS_TRAIN_RUN_RUN_POWER_H
#define LS_TRAIN_RUN_RUN_POWER_H

#include <lockstep/checkpoint.h>
#include <lockstep/train.h>

#include "base/status.h"
#include "train/state/state_file.h"

/* *rank: R of powersgd:R; 0: another value. LS_EINVAL: "powersgd" without a number from 1 to 64. */
LS_MUST_USE ls_status run_power_rank(const ls_train_flags *f, int *rank);
/* LS_EINVAL: flags that do not go with it. */
LS_MUST_USE ls_status run_power_check(const ls_train_flags *f);

/* Before a save: rank 0 gets the errors of all ranks, until run_power_drop(). Collective. */
LS_MUST_USE ls_status run_power_collect(ls_run *run);
void run_power_drop(ls_run *run);
/* On rank 0: what the state file has besides state_list(), also that of `ranks` ranks which is
 * loaded to it (0: none). */
LS_MUST_USE ls_status run_power_list(ls_run *run, name_list *list);
/* LS_EFORMAT: the file does not have what so many ranks have not sent. */
LS_MUST_USE ls_status run_power_check_file(const ls_run *run, const ls_checkpoint *file,
                                           int64_t ranks);
LS_MUST_USE ls_status run_power_make(ls_run *run, int64_t ranks);
/* When rank 0 has loaded what the run starts from. Collective. */
LS_MUST_USE ls_status run_power_begin(ls_run *run);

#endif
