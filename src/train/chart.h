/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h - charts over training steps in a page: what they show can be read without a script; chart_script() puts the values
 * under the pointer there. Lines are SVG and stretch with the page; letters are not part of it and keep their size.
 */
#ifndef LS_TRAIN_CHART_H
#define LS_TRAIN_CHART_H

#include "base/text.h"

/* Values that are not finite, and those below 0 where `from_zero`, are left out. */
typedef struct chart_series {
    const char *name;
    const double *x; /* steps, rising */
    const double *y;
    int n;
} chart_series;

typedef struct chart {
    const char *title;
    const char *unit;           /* of y: "%", "ms"; NULL: a bare number */
    const chart_series *series; /* at most CHART_SERIES */
    int n_series;
    bool from_zero; /* the y axis begins at 0 */
    bool
        stacked; /* columns on top of each other, each as wide as its steps; all series have the same x */
    double begin; /* stacked: the step before the first column's */
} chart;

enum { CHART_SERIES = 7 };

/* Appends a <figure>; well-formed as XML, too. */
void chart_append(text_buf *t, const chart *c);

/* 1, 2 or 5 times a power of ten, so that about 5 of them make up `range` > 0. */
double chart_tick(double range);

enum { CHART_TICK_BYTES = 32 };

/* `value`, a multiple of `tick`, with as many digits as ticks differ in; from ten thousand (`largest` on the axis) on as "10k". */
void chart_tick_text(char out[CHART_TICK_BYTES], double value, double tick, double largest);

/* The rules of style that charts need, and the script; the page puts them into <style> and <script>. */
const char *chart_style(void);
const char *chart_script(void);

#endif
