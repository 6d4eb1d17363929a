/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - the course of a run in bounded memory: for the page, the summary's plot, and the checkpoint, so that both go on after a
 * resume.
 */
#ifndef LS_TRAIN_HISTORY_H
#define LS_TRAIN_HISTORY_H

#include "train/tally.h"

enum { HISTORY_POINTS = 1024, HISTORY_TESTS = 1024 };

/* A stretch of training, up to its last step. Doubles only: a checkpoint keeps it as it is in memory (little-endian). */
typedef struct history_point {
    double epoch; /* from 0 */
    double step;
    double loss;
    double lr;
    double top1; /* -1: not counted */
    double top5;
    double rows;            /* of all ranks */
    double seconds[PHASES]; /* mean over ranks */
} history_point;

/* An evaluation. */
typedef struct history_test {
    double epoch; /* how many were trained before it */
    double step;
    double loss;
    double top1;
    double top5;
} history_test;

typedef struct history {
    history_point *points; /* HISTORY_POINTS, NULL on ranks that keep none */
    history_test *tests;   /* HISTORY_TESTS */
    int n_points;
    int n_tests;
} history;

ls_status history_open(history *h) LS_MUST_USE;
void history_free(history *h);

/* LS_EFORMAT: what was read from a file is not the course of a run up to this step. */
ls_status history_check(const history *h, double step) LS_MUST_USE;

/* When there is no room, neighbours become one, such that the whole run keeps about one resolution. */
void history_add(history *h, const history_point *p);
void history_add_test(history *h, const history_test *t);
/* Time that belongs to the last point. */
void history_add_seconds(history *h, const double *seconds);

/* The points again, each a mean over about an n-th of the run; out: HISTORY_POINTS. Gives how many there are: at most 2 n + 2, and not more
 * than before. */
int history_even(const history *h, int n, history_point *out);

/* Seconds of the training phases of a point. */
double history_training_s(const history_point *p);

#endif
