/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what all ranks have counted since the last report, and the time of each phase. */
#ifndef LS_TRAIN_RUN_REPORT_H
#define LS_TRAIN_RUN_REPORT_H

#include <lockstep/train.h>

#include "comm/record/recorder.h"
#include "train/history.h"

typedef struct split split;

enum { REPORT_STEP_TIMES = 64, REPORT_RANKS_MAX = 256 };

/* Reports in a row, up to the last, whose loss is not finite. */
typedef struct report_bad {
    int64_t n;
    int64_t first_step; /* whose loss was not finite; 0: not known (stream devices) */
    int64_t first_rank; /* its lowest rank with such a loss */
} report_bad;

typedef struct report {
    rank_sums window;   /* of this rank since the last report, without what is pending */
    rank_sums *windows; /* of its parts (partition.h); the first one's is a copy of `window` */
    ls_tensor *pending; /* see rank_sums_add_logits() */
    rank_sums test;     /* of the current part in the current evaluation */
    rank_sums *tests;   /* of this rank's parts */
    rank_sums epoch;    /* of all ranks in this epoch, up to the last report */
    report_bad bad;
    int64_t bad_step;     /* of this rank's first loss that is not finite since the last report */
    int64_t bad_images;   /* of all ranks, up to the last report */
    uint64_t bad_seen[2]; /* of this rank, already counted: training, test */
    int64_t test_samples; /* of the last evaluation, all ranks */
    int64_t mark_ns;      /* start of the current phase */
    recorder_progress progress;       /* of this process, for the flight recorder */
    double reported_s;                /* training time in the last one */
    double step_s[REPORT_STEP_TIMES]; /* of this rank's steps since the last line of metrics; */
    int n_step_s;                     /* when the list is full, every second one is dropped, and */
    int step_stride;                  /* from then on one of so many steps is added; 0: one */
    int64_t n_steps;                  /* steps since the last line */
    history_point last;               /* of the last report_step() that reported */
    double *rank_seconds;             /* PHASE_TRAINING of each rank since the last line; or NULL */
    int64_t usage_ns;                 /* when its device_bytes were read */
} report;

/* Ends a phase of the step, which began at mark_ns, and begins the next one. */
void report_phase(ls_run *run, phase which);

/* Adds time to a phase. */
void report_seconds(ls_run *run, phase which, double seconds);
/* After each step: how far this rank is, for the flight recorder. */
void report_progress(ls_run *run);

/* With run --trace and --profile: the device's work from now on is of this phase, NULL: of none.
 * ddp and autograd mark the backward. */
void report_device_phase(ls_run *run, const char *name);
/* After each step: a report when one is due. Collective. */
LS_MUST_USE ls_status report_step(ls_run *run);
/* The sums since the last report of a part of this rank. */
rank_sums *report_part(ls_run *run, int part);
/* Those of the current part; for a batch of an audit, which are dropped. */
rank_sums *report_window(ls_run *run);
/* Broken images of a set's loaders since the last call; `seen` is the total so far. */
double report_bad_images(const split *s, uint64_t *seen);
/* Reports what has been counted since the last report. Collective. */
LS_MUST_USE ls_status report_rest(ls_run *run, history_point *point);
/* Writes a line of metrics; `point` may be NULL. */
LS_MUST_USE ls_status report_metrics(ls_run *run, const history_point *point, bool has_test);

#endif
