/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorboard.h - the event file of --tensorboard: the values of metrics.h as scalars, histograms
 * of weights and gradients, images of the program, and the flags of the run (docs/training.md lists
 * the tags). Rank 0 writes it.
 */
#ifndef LS_TRAIN_RUN_TENSORBOARD_H
#define LS_TRAIN_RUN_TENSORBOARD_H

#include "train/output/event_file.h"
#include "train/output/metrics.h"

typedef struct tensorboard {
    event_file file; /* fd is -1 without --tensorboard, and on other ranks than 0 */
    bool has_failed; /* the last flush failed; the failure has been reported */
} tensorboard;

/* Whether an event file can be created in `dir`, which is created; NULL: LS_OK. */
LS_MUST_USE ls_status tensorboard_probe(const char *dir);
/* Creates the event file. step >= 0: the run is resumed after this step. */
LS_MUST_USE ls_status tensorboard_begin(tensorboard *t, const ls_train_flags *flags, int64_t step);
/* Adds a report. */
void tensorboard_add(tensorboard *t, const metrics_line *line);
/* Writes what was added. Of several failures in a row the first is returned. */
LS_MUST_USE ls_status tensorboard_flush(tensorboard *t);
/* Adds histograms of parameters and their gradients, which are divided by `scale`. LS_ENOMEM, or
 * the failure of the device. */
LS_MUST_USE ls_status tensorboard_add_histograms(tensorboard *t, int64_t step,
                                                 const ls_named *parameters, int n, double scale);
void tensorboard_close(tensorboard *t);

#endif
