/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finite.h - numbers and tensors that are NaN or infinite. What a run does about them:
 * run_finite.c.
 */
#ifndef LS_TRAIN_FINITE_H
#define LS_TRAIN_FINITE_H

#include <lockstep/train.h>

#include "base/status.h"

#include <math.h>
#include <stdbool.h>

enum { NAN_LIMIT = 3 }; /* reports in a row, when --nan-limit is not given */

/* The quotient; a NaN has no sign, so that it is printed as "nan". */
static inline double finite_mean(double sum, double n)
{
    const double mean = sum / n;

    return isnan(mean) ? (double)NAN : mean;
}

/* *name: the first tensor with an element that is NaN or infinite; NULL: there is none. Blocks
 * until the device has computed them. */
LS_MUST_USE ls_status finite_check(const ls_named *items, int n, const char **name);

#endif
