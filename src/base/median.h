/* SPDX-License-Identifier: Apache-2.0 */
/* median.h - the median of measured times. */
#ifndef LS_BASE_MEDIAN_H
#define LS_BASE_MEDIAN_H

#include <stddef.h>

/* Of `n` values, at least one, which it sorts; of an even number the mean of the middle two. */
double median_of(double *values, size_t n);

#endif
