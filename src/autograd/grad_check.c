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

static ls_status evaluate_at(checker *c, double *element, double at, double *out)
{
    const double was = *element;
    ls_tensor *loss;
    ls_status st;

    *element = at;
    st = evaluate(c, &loss, out);
    *element = was;
    return st;
}

static ls_status check_element(checker *c, int input, size_t i, double derivative)
{
    double *element = (double *)ls_tensor_data(c->inputs[input]) + i;
    const double h = 1e-5 * fmax(1, fabs(*element));
    double above;
    double below;
    double difference;
    double error;

    LS_TRY(evaluate_at(c, element, *element + h, &above));
    LS_TRY(evaluate_at(c, element, *element - h, &below));
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
static ls_status check_input(checker *c, int input, const double *derivatives)
{
    ls_status first = LS_OK;

    for (size_t i = 0; i < ls_tensor_count(c->inputs[input]); i++) {
        const ls_status st = check_element(c, input, i, derivatives[i]);

        if (st != LS_OK && st != LS_EFORMAT)
            return st;
        if (first == LS_OK)
            first = st;
        if (first != LS_OK)
            break;
    }
    return first;
}

/* A copy of the gradient: a later backward would change the leaf's. */
static ls_status read_derivatives(ls_tensor *input, double **out)
{
    const ls_tensor *g = ls_grad(input);

    *out = ls_calloc(ls_tensor_count(input) + 1, sizeof(double));
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu derivatives", ls_tensor_count(input));
    return g == NULL ? LS_OK : ls_tensor_read(g, *out, ls_tensor_count(input));
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
        double *derivatives = NULL;
        ls_status st = LS_OK;

        if (leaf_of(c->inputs[i]) == NULL)
            continue;
        st = read_derivatives(c->inputs[i], &derivatives);
        if (st == LS_OK)
            st = check_input(c, i, derivatives);
        ls_free(derivatives);
        LS_TRY(st);
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
