/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - what rank 0 prints during a run: lines on standard output, and on a terminal a
 * progress bar on standard error.
 *
 * train/output/: what a run prints and writes, for train/run.
 */
#ifndef LS_TRAIN_OUTPUT_PROGRESS_H
#define LS_TRAIN_OUTPUT_PROGRESS_H

#include <lockstep/train.h>

#include "base/text.h"
#include "tensor/device.h"
#include "train/values.h"

typedef struct progress {
    bool is_enabled;    /* on rank 0 */
    bool is_terminal;   /* a bar is redrawn; else there is a line every few seconds */
    int64_t print_freq; /* steps from line to line; 0: by time */
    int64_t last_ms;    /* time of the last line or redraw */
    /* whose usage is shown if it is a GPU; NULL: none */
    const ls_device *device;
    int64_t gpu_ms; /* time of the last look at it */
    char gpu[40];
} progress;

/* What a line or the bar shows. */
typedef struct progress_values {
    const ls_run_state *state;
    const run_values *values; /* of training; NULL: none */
    int64_t epochs;           /* of the whole run */
    int64_t batch;            /* in this epoch */
    int64_t epoch_batches;    /* of this epoch */
    int ranks;
    const char *gpu; /* usage of the GPU, as "87 % 12.3 GiB"; NULL, "": none */
} progress_values;

void progress_init(progress *p, bool is_enabled, int64_t print_freq, const ls_device *device);
/* After each step: redraws the bar or prints a line, when one is due. */
void progress_step(progress *p, const progress_values *v);
/* Appends the bar and as many values as fit `columns`, at least the epoch. */
void progress_bar_text(const progress_values *v, int columns, text_buf *out);
/* Clears the bar and prints a line; nothing when not enabled. */
void progress_line(progress *p, const char *format, ...) LS_PRINTF(2, 3);
/* Writes all of `text` to a descriptor; errors are ignored. */
void progress_write(int fd, const char *text);

#endif
