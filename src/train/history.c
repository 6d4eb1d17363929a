/* SPDX-License-Identifier: Apache-2.0 */
#include "train/history.h"

#include "base/alloc.h"

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

void history_add(history *h, const history_point *p)
{
    if (h->points == NULL)
        return;
    if (h->n_points == HISTORY_POINTS) {
        for (int i = 0; i < HISTORY_POINTS / 2; i++)
            h->points[i] = join(&h->points[2 * i], &h->points[2 * i + 1]);
        h->n_points = HISTORY_POINTS / 2;
    }
    h->points[h->n_points++] = *p;
}

void history_add_test(history *h, const history_test *t)
{
    if (h->tests == NULL)
        return;
    if (h->n_tests == HISTORY_TESTS) {
        for (int i = 0; i < HISTORY_TESTS / 2; i++)
            h->tests[i] = h->tests[2 * i + 1];
        h->n_tests = HISTORY_TESTS / 2;
    }
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
