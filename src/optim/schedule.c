/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c - ls_schedule_lr(): learning rates as pure functions of the position. */
#include <lockstep/optim.h>

#include "optim/exact.h"

static int64_t at_least_one(int64_t n)
{
    return n < 1 ? 1 : n;
}

static int64_t milestones_passed(const ls_schedule *s, int64_t t)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_milestones; i++)
        n += s->milestones[i] <= t;
    return n;
}

/* The schedule without warm-up; t counts from the end of that. */
static double rate_at(const ls_schedule *s, int64_t t)
{
    const double gamma = s->gamma != 0 ? s->gamma : 0.1;
    const int64_t total = at_least_one(s->total);
    const double way = s->base_lr - s->min_lr;

    switch (s->kind) {
    case LS_SCHEDULE_STEP:
        return s->base_lr * exact_power(gamma, t / at_least_one(s->step));
    case LS_SCHEDULE_MULTI_STEP:
        return s->base_lr * exact_power(gamma, milestones_passed(s, t));
    case LS_SCHEDULE_COSINE:
        return t >= total ? s->min_lr : s->min_lr + way * (1 + exact_cosine(t, total)) / 2;
    case LS_SCHEDULE_LINEAR:
        return t >= total ? s->min_lr : s->base_lr - way * ((double)t / (double)total);
    case LS_SCHEDULE_CONSTANT:
        break;
    }
    return s->base_lr;
}

double ls_schedule_lr(const ls_schedule *s, int64_t t)
{
    double first;
    int64_t warmup;

    if (s == NULL)
        return 0;
    first = s->warmup_factor != 0 ? s->warmup_factor : 1.0 / 3;
    warmup = s->warmup < 0 ? 0 : s->warmup;
    if (t < 0)
        t = 0;
    if (t < warmup)
        return s->base_lr * (first + (1 - first) * ((double)t / (double)warmup));
    return rate_at(s, t - warmup);
}
