/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_check.c - ls_grad_check(): compares backward with central differences, for tests and users.
 *
 * (f(x + h) - f(x - h)) / 2h is off by about h^2 f''' and by the rounding of f, eps |f| / h; in
 * float64 with h near 1e-5 both stay under 1e-9 for functions of ordinary size.
 */
#include "autograd/tape.h"

#include "base/alloc.h"

#include <math.h>

/* Differences below this are compared absolutely: a derivative of 0 has no relative error. */
#define SMALL_DERIVATIVE 1e-3

typedef struct checker {
    ls_tape *tape;
    ls_grad_check_fn fn;
    void *arg;
    ls_tensor *const *inputs;
    int n_inputs;
    double tolerance;
    double worst;
} checker;

static ls_status check_inputs(ls_tensor *const *inputs, int n_inputs)
{
    char text[TENSOR_TEXT_BYTES];

    if (n_inputs < 1)
        return ls_fail(LS_EINVAL, "grad check: no inputs");
    for (int i = 0; i < n_inputs; i++) {
        if (inputs[i] == NULL || inputs[i]->device != inputs[0]->device ||
            (inputs[i]->dtype != LS_F64 && leaf_of(inputs[i]) != NULL))
            return ls_fail(LS_EINVAL,
                           "grad check: input %d, %s, must be float64 on the first one's device", i,
                           tensor_text(text, sizeof(text), inputs[i]));
    }
    return LS_OK;
}

/* f(inputs) on a tape without history. */
static ls_status evaluate(checker *c, ls_tensor **loss, double *out)
{
    ls_tape_reset(c->tape);
    *loss = c->fn(c->tape, c->inputs, c->arg);
    LS_TRY(ls_tape_status(c->tape));
    if (*loss == NULL || ls_tensor_count(*loss) != 1 || (*loss)->dtype != LS_F64)
        return ls_fail(LS_EINVAL, "grad check: the function must give one float64 element");
    return ls_tensor_read(*loss, out, 1);
}

/* f with element i of `input` at `at`; `values` are the input's elements. */
static ls_status evaluate_at(checker *c, ls_tensor *input, double *values, size_t i, double at,
                             double *out)
{
    const size_t count = ls_tensor_count(input);
    const double was = values[i];
    ls_tensor *loss;
    ls_status st;

    values[i] = at;
    st = ls_tensor_write(input, values, count);
    if (st == LS_OK)
        st = evaluate(c, &loss, out);
    values[i] = was;
    LS_TRY(st);
    return ls_tensor_write(input, values, count);
}

static ls_status check_element(checker *c, int input, double *values, size_t i, double derivative)
{
    const double h = 1e-5 * fmax(1, fabs(values[i]));
    double above;
    double below;
    double difference;
    double error;

    LS_TRY(evaluate_at(c, c->inputs[input], values, i, values[i] + h, &above));
    LS_TRY(evaluate_at(c, c->inputs[input], values, i, values[i] - h, &below));
    difference = (above - below) / (2 * h);
    error = fabs(derivative - difference) /
            fmax(SMALL_DERIVATIVE, fmax(fabs(derivative), fabs(difference)));
    if (isnan(error))
        error = (double)INFINITY;
    c->worst = fmax(c->worst, error);
    if (error > c->tolerance)
        return ls_fail(LS_EFORMAT,
                       "grad check: input %d, element %zu: backward gives %.12g, differences give "
                       "%.12g",
                       input, i, derivative, difference);
    return LS_OK;
}

/* All elements of one input against `derivatives`, until the first failure. */
static ls_status check_elements(checker *c, int input, double *values, const double *derivatives)
{
    ls_status st = LS_OK;

    for (size_t i = 0; i < ls_tensor_count(c->inputs[input]) && st == LS_OK; i++)
        st = check_element(c, input, values, i, derivatives[i]);
    return st;
}

/* Copies of the values, which are changed one by one, and of the gradient, which a later backward
 * would change. */
static ls_status check_input(checker *c, int input)
{
    const ls_tensor *t = c->inputs[input];
    const ls_tensor *g = ls_grad(t);
    const size_t count = ls_tensor_count(t);
    double *values;
    ls_status st;

    LS_TRY(LS_NEW(&values, 2 * count + 1, "for %zu derivatives", count));
    st = ls_tensor_read(t, values, count);
    if (st == LS_OK && g != NULL)
        st = ls_tensor_read(g, values + count, count);
    if (st == LS_OK)
        st = check_elements(c, input, values, values + count);
    ls_free(values);
    return st;
}

static ls_status check_all(checker *c)
{
    ls_tensor *loss;
    double ignored;

    for (int i = 0; i < c->n_inputs; i++)
        ls_zero_grad(c->inputs[i]);
    LS_TRY(evaluate(c, &loss, &ignored));
    LS_TRY(ls_backward(c->tape, loss, 1));
    for (int i = 0; i < c->n_inputs; i++) {
        if (leaf_of(c->inputs[i]) != NULL)
            LS_TRY(check_input(c, i));
    }
    return LS_OK;
}

ls_status ls_grad_check(ls_grad_check_fn fn, void *arg, ls_tensor *const *inputs, int n_inputs,
                        double tolerance, double *worst)
{
    checker c = {
        .fn = fn, .arg = arg, .inputs = inputs, .n_inputs = n_inputs, .tolerance = tolerance};
    ls_status st;

    LS_TRY(LS_GIVEN(fn));
    LS_TRY(LS_GIVEN(inputs));
    LS_TRY(check_inputs(inputs, n_inputs));
    LS_TRY(ls_tape_create(inputs[0]->device, &c.tape));
    st = check_all(&c);
    ls_tape_destroy(c.tape);
    for (int i = 0; i < n_inputs; i++)
        ls_zero_grad(inputs[i]);
    if (worst != NULL)
        *worst = c.worst;
    return st;
}
