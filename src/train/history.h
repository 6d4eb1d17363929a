/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - losses, rates and times of a whole run in bounded memory: for the plot of the
 * summary, and the state that --resume reads.
 */
#ifndef LS_TRAIN_HISTORY_H
#define LS_TRAIN_HISTORY_H

#include "train/rank_sums.h"

enum { HISTORY_POINTS = 1024, HISTORY_TESTS = 1024 };

/* Some steps of training, up to `step`. Doubles only: the state file stores it as in memory. */
typedef struct history_point {
    double epoch; /* from 0 */
    double step;
    double loss;
    double lr;
    double top1; /* -1: not counted */
    double top5;
    double rows;                /* of all ranks */
    double seconds[PHASES];     /* mean over ranks */
    double values[VALUES_MOST]; /* of the program; NaN: not known */
} history_point;

/* An evaluation. */
typedef struct history_test {
    double epoch; /* number of epochs trained before */
    double step;
    double loss;
    double top1; /* loss, top1, top5: NaN in evaluations by the program */
    double top5;
    double values[VALUES_MOST];
} history_test;

typedef struct history {
    history_point *points; /* HISTORY_POINTS; NULL except on rank 0 */
    history_test *tests;   /* HISTORY_TESTS */
    int n_points;
    int n_tests;
    int64_t n_added[2]; /* points and evaluations since the start, before they were merged */
} history;

ls_status history_open(history *h) LS_MUST_USE;
void history_free(history *h);

/* LS_EFORMAT when records of a file are not the history of a run up to this step. */
ls_status history_check(const history *h, double step) LS_MUST_USE;

/* A full list is thinned out: neighbours are merged, with about the same resolution everywhere. */
void history_add(history *h, const history_point *p);
void history_add_test(history *h, const history_test *t);
/* Drops the points and evaluations since h->n_added was `n_added`. */
void history_return(history *h, const int64_t n_added[2]);
/* Adds time to the last point. */
void history_add_seconds(history *h, const double *seconds);

/* Seconds of the training phases of a point. */
double history_training_s(const history_point *p);
/* Seconds of each phase in the whole history (`seconds` has PHASES values); returns their sum. */
double history_total_seconds(const history *h, double *seconds);

#endif
