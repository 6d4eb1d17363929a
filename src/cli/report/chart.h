/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h - charts over training steps in an HTML page. They can be read without a script;
 * chart_script() adds the values under the pointer. Lines are SVG and stretch with the page; text
 * is HTML and keeps its size.
 */
#ifndef LS_CLI_REPORT_CHART_H
#define LS_CLI_REPORT_CHART_H

#include "base/text.h"

/* Values that are not finite, or below 0 with `from_zero`, are not drawn. */
typedef struct chart_series {
    const char *name;
    const double *x; /* steps, rising */
    const double *y;
    int n;
} chart_series;

typedef struct chart {
    const char *title;
    const char *x_name;         /* of x; NULL: step */
    const char *unit;           /* of y: "%", "ms"; NULL: a bare number */
    const chart_series *series; /* at most CHART_SERIES */
    int n_series;
    bool from_zero; /* the y axis begins at 0 */
    /* Stacked columns, each as wide as its steps; all series have the same x. */
    bool stacked;
    double begin; /* stacked: the step before the first column */
} chart;

enum { CHART_SERIES = 7 };

/* Appends a <figure>; well-formed as XML, too. */
void chart_append(text_buf *t, const chart *c);

/* 1, 2 or 5 times a power of ten, so that about 5 of them make up `range` > 0. */
double chart_tick(double range);

enum { CHART_TICK_BYTES = 32 };

/* Formats `value`, a multiple of `tick`, with as many digits as ticks differ in; as "10k" where the
 * largest value of the axis is ten thousand or more. */
void chart_tick_text(char out[CHART_TICK_BYTES], double value, double tick, double largest);

/* The content of <style> and of <script>. */
const char *chart_style(void);
const char *chart_script(void);

#endif
