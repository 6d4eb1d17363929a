/* SPDX-License-Identifier: Apache-2.0 */
/* op_results.c - how far the results of a case are from those of another device. */
#include "tensor/op_cases.h"

#include "base/alloc.h"

#include <math.h>

void op_results_free(op_results *r)
{
    for (int i = 0; i < r->n; i++)
        ls_free(r->r[i].values);
    r->n = 0;
}

double op_result_distance(const op_result *got, const op_result *want)
{
    double error = 0;
    double size = 0;

    for (size_t i = 0; i < want->count; i++) {
        const double a = got->values[i];
        const double b = want->values[i];

        if (a == b || (isnan(a) && isnan(b))) {
            size += isfinite(b) ? b * b : 0;
            continue;
        }
        error += (a - b) * (a - b); // not finite where one of the two is not
        size += b * b;
    }
    return error == 0 ? 0 : sqrt(error / size);
}

double op_result_error(const op_result *got, const op_result *want, double eps)
{
    double worst = 0;
    double squares = 0;
    double scale;

    for (size_t i = 0; i < want->count; i++)
        squares += isfinite(want->values[i]) ? want->values[i] * want->values[i] : 0;
    scale = want->count == 0 ? 0 : sqrt(squares / (double)want->count);
    for (size_t i = 0; i < want->count; i++) {
        const double near = 4 * sqrt(want->k) * eps * (fabs(want->values[i]) + scale);
        const double distance = fabs(got->values[i] - want->values[i]);

        if (got->values[i] == want->values[i] || (isnan(got->values[i]) && isnan(want->values[i])))
            continue;
        if (isnan(distance) || near == 0)
            return (double)INFINITY;
        worst = fmax(worst, distance / near);
    }
    return worst;
}
