/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.c - the means of named values over all ranks, which report.c and evaluate.c update, and
 * which metrics.c and progress.c print. A program declares and adds them by run_values.c.
 */
#include "train/values.h"

#include "train/finite.h"

#include <lockstep/log.h>

#include <math.h>
#include <string.h>

int values_find(const run_values *v, const char *name)
{
    for (int i = 0; i < v->n; i++)
        if (text_equal(v->names[i], name))
            return i;
    return -1;
}

void values_update(run_values *v, value_of kind, const rank_sums *sum)
{
    for (int i = 0; i < v->n; i++) {
        if (!(sum->weights[i] > 0))
            continue;
        v->mean[kind][i] = finite_mean(sum->values[i], sum->weights[i]);
        if (v->of[i] != NULL)
            v->mean[kind][i] = v->of[i](v->mean[kind][i]);
        v->is_known[kind][i] = true;
    }
}

void values_copy(const run_values *v, value_of kind, double *out)
{
    for (int i = 0; i < VALUES_MOST; i++)
        out[i] = i < v->n && v->is_known[kind][i] ? v->mean[kind][i] : (double)NAN;
}

bool values_improved(run_values *v)
{
    const double mean = v->mean[OF_TEST][v->best];

    if (!v->is_known[OF_TEST][v->best] || isnan(mean))
        return false;
    if (v->has_best && !(v->lowest_is_best ? mean < v->best_mean : mean > v->best_mean))
        return false;
    v->has_best = true;
    v->best_mean = mean;
    return true;
}

void values_append(const run_values *v, value_of kind, text_buf *out)
{
    for (int i = 0; i < v->n; i++)
        if (v->is_known[kind][i])
            text_append(out, "  %s %.4f", v->names[i], v->mean[kind][i]);
}

void values_warn_unused(run_values *v, bool has_tested)
{
    if (v->is_checked || !has_tested)
        return;
    v->is_checked = true;
    for (int i = 0; i < v->n; i++)
        if (!v->is_known[OF_TRAINING][i] && !v->is_known[OF_TEST][i])
            ls_log(LS_LOG_WARN, "train",
                   "the value %s is declared, but nothing was added to it: call ls_run_add()",
                   v->names[i]);
}
