/* SPDX-License-Identifier: Apache-2.0 */
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

/* Doubles only, of which the first two are the epoch and the step. A loss may be no number. */
static bool is_course(const double *records, int n, size_t width, double last)
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

    if (!is_course((const double *)h->points, h->n_points, of_point, step) ||
        !is_course((const double *)h->tests, h->n_tests, of_test, step))
        return ls_fail(LS_EFORMAT, "its steps do not rise to step %.0f", step);
    for (int i = 0; i < h->n_points; i++)
        for (int k = 0; k < PHASES; k++)
            if (!(h->points[i].rows >= 0) || !isfinite(h->points[i].seconds[k]))
                return ls_fail(LS_EFORMAT, "point %d of %d has no rows or times", i, h->n_points);
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
    p.rows = a->rows + b->rows;
    for (int i = 0; i < PHASES; i++)
        p.seconds[i] = a->seconds[i] + b->seconds[i];
    return p;
}

/* How far apart what remains should be after making room in a list of `n`: then a quarter to a half of it is in use. Old entries, which are
 * that far apart already, stay as they are, so that the whole run keeps one resolution and not its end alone. */
static double room_step(double first, double last, int n)
{
    const int parts = n / 4;

    return (last - first) / parts;
}

/* Neighbours become one up to `width` steps; out may be the points themselves. */
static int join_points(const history_point *points, int n, double width, history_point *out)
{
    // Where the first one begins is not known: likely it is as wide as the second.
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

int history_even(const history *h, int n, history_point *out)
{
    if (h->n_points == 0)
        return 0;
    return join_points(h->points, h->n_points,
                       (h->points[h->n_points - 1].step - h->points[0].step) / n, out);
}

void history_add(history *h, const history_point *p)
{
    if (h->points == NULL)
        return;
    if (h->n_points == HISTORY_POINTS)
        h->n_points = join_points(
            h->points, h->n_points,
            room_step(h->points[0].step, h->points[HISTORY_POINTS - 1].step, HISTORY_POINTS),
            h->points);
    h->points[h->n_points++] = *p;
}

/* Of those near each other the latest stays. */
static void thin_tests(history *h)
{
    double begin = h->tests[0].step;
    const double step = room_step(begin, h->tests[h->n_tests - 1].step, HISTORY_TESTS);
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
