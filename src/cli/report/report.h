/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - lockstep report: metrics files of training runs as one self-contained HTML page.
 *
 *     read.c       a file of --metrics as columns of numbers; its text is not trusted
 *     page.c       the page
 *     chart*.c     its charts
 */
#ifndef LS_CLI_REPORT_REPORT_H
#define LS_CLI_REPORT_REPORT_H

#include "base/status.h"
#include "base/text.h"

enum {
    REPORT_RUNS = 7, /* at most, one colour each */
    REPORT_POINTS = 400,
    REPORT_TESTS = 400,
    REPORT_PHASES = 5,
    REPORT_RANKS = 256,
    REPORT_VALUES = 16,
    REPORT_STEPS = 1 << 20 /* step times that are kept */
};

extern const char *const report_phases[REPORT_PHASES];

/* A line of training: means over the steps since the line before. */
typedef struct report_point {
    double step;
    double loss; /* NaN: not known, as all others */
    double top1;
    double samples_per_s;
    double seconds[REPORT_PHASES];
    double values[REPORT_VALUES];
    double *ranks; /* REPORT_PHASES of each rank; NULL: not known */
    int n_ranks;
} report_point;

/* A line with an evaluation. */
typedef struct report_test {
    double step;
    double epoch; /* completed ones: the line at the end of an epoch has its number from 0 */
    double loss;
    double top1;
    double top5;
    double values[REPORT_VALUES];
} report_test;

typedef struct report_run {
    char name[64]; /* of the file */
    char command[512];
    char version[32];
    char host[64];
    char device[128];
    double cores; /* NaN: not known */
    double memory_bytes;
    double ranks;
    double batch_size;
    int64_t started;
    char value_names[REPORT_VALUES][32];
    int n_values;
    report_point *points;
    int n_points;
    int max_points;
    report_test *tests;
    int n_tests;
    int max_tests;
    double *steps; /* their times, seconds */
    int n_steps;
    int max_steps;
} report_run;

/* LS_ENOTFOUND, LS_EIO: the file cannot be read. LS_EFORMAT names file and line; a last line
 * without its end is ignored, as that of a run that was killed. */
LS_MUST_USE ls_status report_read(const char *path, report_run *out);
void report_free(report_run *r); /* zeros are allowed */

/* The whole page. Thins the points of the runs. */
void report_page(report_run *runs, int n, text_buf *out);

#endif
