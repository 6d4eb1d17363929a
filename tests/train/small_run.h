/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_run.h - a whole run of a small network on the small set, as a program would do it.
 */
#ifndef TESTS_TRAIN_SMALL_RUN_H
#define TESTS_TRAIN_SMALL_RUN_H

#include <lockstep/train.h>

#include "base/status.h"
#include "train/small_set.h"

enum { SMALL_WEIGHTS = SMALL_CLASSES * SMALL_SIDE * SMALL_SIDE, SMALL_STEPS = 64 };

typedef struct small_result {
    ls_status status;
    char error[LS_ERROR_BYTES];
    ls_run_state state;
    float weights[SMALL_WEIGHTS];
    double lr[SMALL_STEPS]; /* of each step that this process has done */
} small_result;

typedef struct small_job {
    ls_train_flags flags; /* .data is the folder */
    ls_comm *comm;        /* NULL: one process */
    int64_t stop_at;      /* raises SIGTERM before this step; 0: never */
    int other_classes;    /* of the last layer; 0: as many as the set has */
} small_job;

/* What most tests begin with. */
ls_train_flags small_flags(const char *dir);

small_result small_run(const small_job *job);

#endif
