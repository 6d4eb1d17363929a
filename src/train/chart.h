/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h - charts as inline SVG in a page: what they show can be read without a script; chart_script() adds values under the pointer.
 */
#ifndef LS_TRAIN_CHART_H
#define LS_TRAIN_CHART_H

#include "base/text.h"

/* Values that are not finite, and those below 0 where `from_zero`, are left out. */
typedef struct chart_series {
    const char *name;
    const double *x; /* rising */
    const double *y;
    int n;
} chart_series;

typedef struct chart {
    const char *title;
    const chart_series *series; /* at most CHART_SERIES */
    int n_series;
    bool from_zero; /* the y axis begins at 0 */
    bool stacked;   /* columns on top of each other; all series have the same x */
} chart;

enum { CHART_SERIES = 6 };

/* Appends a <figure>; well-formed as XML, too. */
void chart_append(text_buf *t, const chart *c);
/* The rules of style that charts need, and the script; the page puts them into <style> and <script>. */
const char *chart_style(void);
const char *chart_script(void);

#endif
