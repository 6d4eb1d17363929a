/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - keeps at most 1024 points and 1024 evaluations of a run and merges neighbours when
 * there are more. report.c and evaluate.c add to it on rank 0.
 */
#include "train/history.h"

#include "base/alloc.h"
#include "base/status.h"

#include <math.h>

ls_status history_open(history *h)
{
    h->points = ls_calloc(HISTORY_POINTS, sizeof(*h->points));
    h->tests = ls_calloc(HISTORY_TESTS, sizeof(*h->tests));
    if (h->points == NULL || h->tests == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the history of a run");
    return LS_OK;
}

void history_free(history *h)
{
    ls_free(h->points);
    ls_free(h->tests);
    *h = (history){0};
}

/* The first two doubles of a record are epoch and step, which must not decrease. */
static bool is_ascending(const double *records, int n, size_t width, double last)
{
    double before = 0;

    for (int i = 0; i < n; i++) {
        const double *r = records + (size_t)i * width;

        if (!(r[0] >= 0 && r[0] <= last && r[1] >= before && r[1] <= last))
            return false;
        before = r[1];
    }
    return true;
}

ls_status history_check(const history *h, double step)
{
    const size_t of_point = sizeof(*h->points) / sizeof(double);
    const size_t of_test = sizeof(*h->tests) / sizeof(double);

    if (!is_ascending((const double *)h->points, h->n_points, of_point, step) ||
        !is_ascending((const double *)h->tests, h->n_tests, of_test, step))
        return ls_fail(LS_EFORMAT, "its steps do not ascend to step %.0f", step);
    for (int i = 0; i < h->n_points; i++)
        for (int k = 0; k < PHASES; k++)
            if (!(h->points[i].rows >= 0) || !isfinite(h->points[i].seconds[k]))
                return ls_fail(LS_EFORMAT, "point %d of %d has invalid rows or times", i,
                               h->n_points);
    return LS_OK;
}

static double mean(double a, double weight_a, double b, double weight_b)
{
    const double weight = weight_a + weight_b;

    return weight > 0 ? (a * weight_a + b * weight_b) / weight : b;
}

static history_point join(const history_point *a, const history_point *b)
{
    history_point p = *b;

    p.loss = mean(a->loss, a->rows, b->loss, b->rows);
    if (a->top1 >= 0 && b->top1 >= 0) {
        p.top1 = mean(a->top1, a->rows, b->top1, b->rows);
        p.top5 = mean(a->top5, a->rows, b->top5, b->rows);
    }
    for (int i = 0; i < VALUES_MOST; i++) {
        if (isfinite(a->values[i]) && isfinite(b->values[i]))
            p.values[i] = mean(a->values[i], a->rows, b->values[i], b->rows);
    }
    p.rows = a->rows + b->rows;
    for (int i = 0; i < PHASES; i++)
        p.seconds[i] = a->seconds[i] + b->seconds[i];
    return p;
}

/* Least distance of records after a list of `n` is thinned out: a quarter to a half of the list
 * remains in use. Older records, which are that far apart already, stay as they are. */
static double merge_width(double first, double last, int n)
{
    const int quarter = n / 4;

    return (last - first) / quarter;
}

/* Merges neighbours up to `width` steps; out may be `points`. */
static int join_points(const history_point *points, int n, double width, history_point *out)
{
    // Assumes that the first point covers as many steps as the second.
    double begin = n > 1 ? 2 * points[0].step - points[1].step : 0;
    int at = 0;

    out[0] = points[0];
    for (int i = 1; i < n; i++) {
        if (points[i].step - begin <= width) {
            out[at] = join(&out[at], &points[i]);
            continue;
        }
        begin = out[at].step;
        out[++at] = points[i];
    }
    return at + 1;
}

void history_add(history *h, const history_point *p)
{
    if (h->points == NULL)
        return;
    if (h->n_points == HISTORY_POINTS)
        h->n_points = join_points(
            h->points, h->n_points,
            merge_width(h->points[0].step, h->points[HISTORY_POINTS - 1].step, HISTORY_POINTS),
            h->points);
    h->points[h->n_points++] = *p;
    h->n_added[0]++;
}

/* Keeps the latest of evaluations that are close to each other. */
static void thin_tests(history *h)
{
    double begin = h->tests[0].step;
    const double step = merge_width(begin, h->tests[h->n_tests - 1].step, HISTORY_TESTS);
    int n = 0;

    for (int i = 1; i < h->n_tests; i++) {
        if (h->tests[i].step - begin > step)
            begin = h->tests[n++].step;
        h->tests[n] = h->tests[i];
    }
    h->n_tests = n + 1;
}

void history_add_test(history *h, const history_test *t)
{
    if (h->tests == NULL)
        return;
    if (h->n_tests == HISTORY_TESTS)
        thin_tests(h);
    h->tests[h->n_tests++] = *t;
    h->n_added[1]++;
}

/* Neighbours are merged before a record is added: the last ones are those since then. */
void history_return(history *h, const int64_t n_added[2])
{
    const int64_t points = h->n_added[0] - n_added[0];
    const int64_t tests = h->n_added[1] - n_added[1];

    h->n_points -= points < h->n_points ? (int)points : h->n_points;
    h->n_tests -= tests < h->n_tests ? (int)tests : h->n_tests;
    h->n_added[0] = n_added[0];
    h->n_added[1] = n_added[1];
}

void history_add_seconds(history *h, const double *seconds)
{
    if (h->n_points == 0)
        return;
    for (int i = 0; i < PHASES; i++)
        h->points[h->n_points - 1].seconds[i] += seconds[i];
}

double history_training_s(const history_point *p)
{
    double sum = 0;

    for (int i = 0; i < PHASE_TRAINING; i++)
        sum += p->seconds[i];
    return sum;
}

double history_total_seconds(const history *h, double *seconds)
{
    double sum = 0;

    for (int k = 0; k < PHASES; k++) {
        seconds[k] = 0;
        for (int i = 0; i < h->n_points; i++)
            seconds[k] += h->points[i].seconds[k];
        sum += seconds[k];
    }
    return sum;
}
