/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - the file of --metrics: one JSON object a line (docs/training.md lists the members).
 */
#ifndef LS_TRAIN_OUTPUT_METRICS_H
#define LS_TRAIN_OUTPUT_METRICS_H

#include <lockstep/train.h>

#include "train/history.h"
#include "train/values.h"

typedef struct metrics_file {
    const char *path; /* borrowed; NULL without --metrics */
    int fd;           /* -1 when closed */
    int64_t bytes;    /* of whole lines */
    int64_t step;     /* of the last line that metrics_begin() has found; -1: of none */
    bool has_run;     /* a line since metrics_begin() has described the run */
    bool has_failed;  /* the last line could not be written; the failure has been reported */
} metrics_file;

typedef struct metrics_line {
    const ls_run_state *state;
    const run_values *values;
    int ranks;
    const history_point *training; /* since the last line; NULL: no training values */
    bool has_test;                 /* state holds the result of an evaluation */
    bool has_own_test;             /* of the program's values */
    int64_t test_samples;
    const char *device; /* its fingerprint */
    int64_t batch_size;
    const double *rank_seconds; /* PHASE_TRAINING numbers of each rank; NULL: not known */
    const double *rank_shares;  /* of each rank its shards or rows and seconds for one; or NULL */
    bool has_rows;              /* they are rows */
    const double *step_s;       /* durations of some steps of this rank, in their order */
    int n_step_s;
} metrics_line;

/* Opens the file of --metrics, if any, without changing it. LS_EIO with flag, path and reason. */
LS_MUST_USE ls_status metrics_open(metrics_file *m, const char *path);
/* Before the first line, and to take lines back: keeps the lines up to `step`; -1: begins a new
 * file, and renames another run's. Pipes and terminals stay. */
LS_MUST_USE ls_status metrics_begin(metrics_file *m, int64_t step);
/* Appends a line, whole or not at all. Of several failures in a row the first is returned. */
LS_MUST_USE ls_status metrics_write(metrics_file *m, const metrics_line *line);
void metrics_close(metrics_file *m);

#endif
