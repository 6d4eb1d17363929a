/* SPDX-License-Identifier: Apache-2.0 */
/* local_rules.c - see local_rules.h. local_sgd.c calls it. */
#include "ddp/local_rules.h"

/* A parameter belongs to the fragment in which its middle is. */
void local_divide(const size_t *counts, int n, int fragments, int *of)
{
    size_t total = 0;
    size_t at = 0;

    for (int i = 0; i < n; i++)
        total += counts[i];
    for (int i = 0; i < n; i++) {
        const double middle = (double)at + (double)counts[i] / 2;
        const int f = total > 0 ? (int)(middle / (double)total * fragments) : 0;

        of[i] = f < fragments ? f : fragments - 1;
        at += counts[i];
    }
}

bool local_is_due(int64_t step, int64_t every, int fragment, int fragments)
{
    const int64_t offset = every * (fragment + 1) / fragments;

    return step > 0 && (step - offset) % every == 0;
}

void local_outer_step(float *p, float *m, const float *d, size_t n, float lr, float momentum)
{
    for (size_t i = 0; i < n; i++) {
        m[i] = momentum * m[i] + d[i];
        p[i] -= lr * (momentum > 0 ? d[i] + momentum * m[i] : d[i]);
    }
}

void local_mix(float *own, const float *p, size_t n, float share)
{
    for (size_t i = 0; i < n; i++)
        own[i] = share * own[i] + (1 - share) * p[i];
}
