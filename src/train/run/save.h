/* SPDX-License-Identifier: Apache-2.0 */
/* save.h - writes weights and state, on rank 0. */
#ifndef LS_TRAIN_RUN_SAVE_H
#define LS_TRAIN_RUN_SAVE_H

#include <lockstep/checkpoint.h>
#include <lockstep/train.h>

#include "train/state/state_file.h"

enum { SAVE_META_MOST = 24, SAVE_META_BYTES = 32 };

/* The metadata of a state file. Items refer to the texts in it. */
typedef struct save_meta {
    ls_meta items[SAVE_META_MOST + STATE_SETTINGS_MAX];
    char text[SAVE_META_MOST][SAVE_META_BYTES];
    state_setting settings[STATE_SETTINGS_MAX];
    int n;
} save_meta;

typedef struct saver {
    int64_t saved_step; /* of the files on disk; -1: this process has written none */
    bool has_failed;    /* the last save; ls_run_close() reports it */
    char failure[LS_ERROR_BYTES];
} saver;

/* Writes the weights to --save, those of the best evaluation to --save-best, the state beside the
 * former. A failed write is logged; it ends the run with --on-save-error stop
 * only. */
LS_MUST_USE ls_status save_all(ls_run *run, bool is_best);
/* The metadata of the run's present position. */
void save_list_meta(ls_run *run, save_meta *m);
/* Whether the files of the flags can be written; LS_EIO with flag, path and reason. */
LS_MUST_USE ls_status save_probe(const ls_train_flags *flags);
/* Writes the events of --tensorboard that are in memory. */
LS_MUST_USE ls_status save_events(ls_run *run);
/* Handles a failed write of `what`: LS_OK when the run continues. */
LS_MUST_USE ls_status save_failed(ls_run *run, ls_status st, const char *what);

/* All ranks learn whether rank 0, which alone has the flags of files, writes a state of which each
 * rank has a part. Collective. */
LS_MUST_USE ls_status save_agree(ls_run *run);

#endif
