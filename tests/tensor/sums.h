/* SPDX-License-Identifier: Apache-2.0 */
/* sums.h - stands for other ranks in op_sync.sum, on devices of all kinds. */
#ifndef TESTS_TENSOR_SUMS_H
#define TESTS_TENSOR_SUMS_H

#include <lockstep/base.h>

/* values[i] = factor values[i] + added(i, n), in the order of the operators; n is at most 64. */
LS_MUST_USE ls_status sums_change(double *values, size_t n, double factor,
                                  double (*added)(size_t i, size_t n));

#endif
