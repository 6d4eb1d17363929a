/* SPDX-License-Identifier: Apache-2.0 */
/* previous_state.h - files at the --save path that another process has written. */
#ifndef LS_TRAIN_STATE_PREVIOUS_STATE_H
#define LS_TRAIN_STATE_PREVIOUS_STATE_H

#include <lockstep/train.h>

#include <stdbool.h>

/* The launcher's name of this job, the same after a restart; "" without a launcher. */
const char *previous_state_job(void);
/* The launcher has started the ranks of this job again, after a failure or for more nodes. */
bool previous_state_is_restart(void);
/* Renames what is at --save and --save-best: NAME becomes NAME.earlier, or the first of
 * NAME.earlier2, ... that is free. For a run that does not continue the one that wrote it. On
 * rank 0. */
LS_MUST_USE ls_status previous_state_preserve(const ls_train_flags *flags);
/* The same of an explicit --save-best, for a run that continues that of --save, whose state names
 * another file: `best`, the item PREVIOUS_STATE_BEST, or NULL. */
#define PREVIOUS_STATE_BEST "save_best"
LS_MUST_USE ls_status previous_state_preserve_best(const ls_train_flags *flags, const char *best);
/* *is_same: `path` is the state file of --save. */
LS_MUST_USE ls_status previous_state_is_at(const char *path, const ls_train_flags *flags,
                                           bool *is_same);

#endif
