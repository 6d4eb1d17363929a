/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finite.h - a run whose loss or weights are NaN or infinite: it stops, says where to look, and
 * does not replace what it has saved.
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

/* Counts the loss of a report: LS_EFORMAT when so many in a row are not finite. The same on all
 * ranks. */
LS_MUST_USE ls_status finite_report(ls_run *run, double loss);

/* At the end of a run: LS_EFORMAT when the loss of the last report is not finite. */
LS_MUST_USE ls_status finite_end(const ls_run *run);

/* Whether weights and optimizer may replace the saved ones; LS_EFORMAT names what is not finite. On
 * rank 0. */
LS_MUST_USE ls_status finite_to_save(ls_run *run);

#endif
