/* SPDX-License-Identifier: Apache-2.0 */
/* previous_state.h - files at the --save path that another process has written. */
#ifndef LS_TRAIN_PREVIOUS_STATE_H
#define LS_TRAIN_PREVIOUS_STATE_H

#include <lockstep/train.h>

#include <stdbool.h>

/* The launcher's name of this job, the same after a restart; "" without a launcher. */
const char *previous_state_job(void);
/* The launcher has started the ranks of this job again, after a failure or for more nodes. */
bool previous_state_is_restart(void);
/* Renames the files of another run of a later step than `step`, where this run starts: NAME becomes
 * NAME.earlier. Where NAME.earlier is of an even later step, it stays instead. On rank 0. */
LS_MUST_USE ls_status previous_state_preserve(const ls_train_flags *flags, int64_t step);

#endif
