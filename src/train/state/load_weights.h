/* SPDX-License-Identifier: Apache-2.0 */
/* load_weights.h - loads the weights of --init, or of --resume with --evaluate, into a model. */
#ifndef LS_TRAIN_STATE_LOAD_WEIGHTS_H
#define LS_TRAIN_STATE_LOAD_WEIGHTS_H

#include <lockstep/checkpoint.h>

#include "train/output/progress.h"
#include "train/state/state_file.h"

/* Loads all of the list; otherwise LS_EFORMAT with the differences and `hint`. Long lists of
 * differences are printed to standard error. */
LS_MUST_USE ls_status load_list(ls_checkpoint *file, const name_list *list, ls_load_mode mode,
                                const char *hint);

/* Loads a file of weights, with or without DistributedDataParallel's prefix, or a state file. With
 * --skip-mismatched it loads what fits and prints what it skips. */
LS_MUST_USE ls_status load_weights(ls_model *model, const ls_train_flags *flags, progress *p,
                                   const char *path);

#endif
