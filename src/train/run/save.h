/* SPDX-License-Identifier: Apache-2.0 */
/* save.h - writes weights and state, on rank 0. */
#ifndef LS_TRAIN_RUN_SAVE_H
#define LS_TRAIN_RUN_SAVE_H

#include <lockstep/train.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct saver {
    int64_t saved_step; /* of the files on disk; -1: this process has written none */
    bool has_failed;    /* the last save; ls_run_close() reports it */
    char failure[LS_ERROR_BYTES];
} saver;

/* Writes the weights to --save, those of the best evaluation to --save-best, the state beside the
 * former. A failed write is logged; it ends the run with --on-save-error stop
 * only. */
LS_MUST_USE ls_status save_all(ls_run *run, bool is_best);
/* Whether the files of the flags can be written; LS_EIO with flag, path and reason. */
LS_MUST_USE ls_status save_probe(const ls_train_flags *flags);
/* Writes the events of --tensorboard that are in memory. */
LS_MUST_USE ls_status save_events(ls_run *run);
/* Handles a failed write of `what`: LS_OK when the run continues. */
LS_MUST_USE ls_status save_failed(ls_run *run, ls_status st, const char *what);

#endif
