/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_values.c - the public calls of named values: a program declares them before the run starts
 * and adds to them in its own steps. They are added up in float64 with the sums of each rank.
 */
#include "train/run/run.h"

#include <math.h>
#include <string.h>

/* Names stand in JSON, HTML and lines of words. */
static bool is_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/";
    const size_t n = strlen(name);

    return n > 0 && n < VALUE_NAME_BYTES && strspn(name, allowed) == n;
}

static ls_status declare(ls_run *run, const char *name, ls_value_fn fn)
{
    run_values *v = &run->values;

    if (run->is_started)
        return ls_fail(LS_EINVAL, "call ls_run_declare() before ls_run_start()");
    if (!is_name(name))
        return ls_fail(LS_EINVAL,
                       "ls_run_declare: a name has 1 to %d letters, digits and characters of _.-/",
                       VALUE_NAME_BYTES - 1);
    if (values_find(v, name) >= 0)
        return ls_fail(LS_EINVAL, "ls_run_declare: %s is declared already", name);
    if (v->n == VALUES_MOST)
        return ls_fail(LS_EINVAL, "ls_run_declare: a run has at most %d values", VALUES_MOST);
    v->of[v->n] = fn;
    text_format(v->names[v->n++], VALUE_NAME_BYTES, "%s", name);
    return LS_OK;
}

ls_status ls_run_declare(ls_run *run, const char *name)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(name));
    return declare(run, name, NULL);
}

ls_status ls_run_declare_with(ls_run *run, const char *name, ls_value_fn fn)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(name));
    LS_TRY(LS_GIVEN(fn));
    return declare(run, name, fn);
}

static ls_status find_declared(const run_values *v, const char *name, int *i)
{
    *i = values_find(v, name);
    return *i >= 0 ? LS_OK
                   : ls_fail(LS_EINVAL,
                             "the value %.64s is not declared: call ls_run_declare() "
                             "before ls_run_start()",
                             name);
}

static ls_status find_to_add(const ls_run *run, const char *name, double weight, int *i)
{
    LS_TRY(LS_GIVEN(name));
    if (!run->is_started)
        return ls_fail(LS_EINVAL, "call ls_run_start() before values are added");
    if (!(weight >= 0) || isinf(weight))
        return ls_fail(LS_EINVAL, "the weight of %.64s is %g; it must be finite and not below 0",
                       name, weight);
    return find_declared(&run->values, name, i);
}

static rank_sums *current_sums(ls_run *run)
{
    return run->is_testing ? &run->report.test : report_window(run);
}

static ls_status add_tensor(ls_run *run, const char *name, const ls_tensor *value, double weight)
{
    rank_sums *to = current_sums(run);
    int i;

    LS_TRY(find_to_add(run, name, weight, &i));
    if (ls_tensor_count(value) != 1 ||
        (ls_tensor_dtype(value) != LS_F32 && ls_tensor_dtype(value) != LS_F64))
        return ls_fail(LS_EINVAL,
                       "ls_run_add: %.64s is a tensor of %zu elements of %s; give one element of "
                       "float32 or float64",
                       name, ls_tensor_count(value), ls_dtype_name(ls_tensor_dtype(value)));
    return losses_add(&run->losses, value, weight, &to->values[i], &to->weights[i]);
}

void ls_run_add(ls_run *run, const char *name, const ls_tensor *value, double weight)
{
    ls_status st;

    if (run == NULL || value == NULL || run->failure != LS_OK)
        return;
    st = add_tensor(run, name, value, weight);
    if (st != LS_OK)
        run_fail(run, st);
}

static ls_status add_number(ls_run *run, const char *name, double value, double weight)
{
    rank_sums *to = current_sums(run);
    int i;

    LS_TRY(find_to_add(run, name, weight, &i));
    to->values[i] += value * weight;
    to->weights[i] += weight;
    return LS_OK;
}

void ls_run_add_number(ls_run *run, const char *name, double value, double weight)
{
    ls_status st;

    if (run == NULL || run->failure != LS_OK)
        return;
    st = add_number(run, name, value, weight);
    if (st != LS_OK)
        run_fail(run, st);
}

double ls_run_value(const ls_run *run, const char *name, int of_test)
{
    const value_of kind = of_test ? OF_TEST : OF_TRAINING;
    int i;

    if (run == NULL || name == NULL)
        return 0;
    i = values_find(&run->values, name);
    return i >= 0 && run->values.is_known[kind][i] ? run->values.mean[kind][i] : (double)NAN;
}

ls_status ls_run_evaluate_with(ls_run *run, ls_evaluate_fn fn, void *arg, const char *best,
                               int lowest_is_best)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(fn));
    LS_TRY(LS_GIVEN(best));
    if (run->is_started)
        return ls_fail(LS_EINVAL, "call ls_run_evaluate_with() before ls_run_start()");
    LS_TRY(find_declared(&run->values, best, &run->values.best));
    run->values.lowest_is_best = lowest_is_best != 0;
    run->evaluate = fn;
    run->evaluate_arg = arg;
    return LS_OK;
}
