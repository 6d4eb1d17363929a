/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_oracle.h - reductions computed naively, one element at a time, and inputs that show every
 * difference.
 */
#ifndef TESTS_COMM_NATIVE_ORACLE_H
#define TESTS_COMM_NATIVE_ORACLE_H

#include <lockstep/comm.h>

#include "base/rng.h"

#include <stdbool.h>

/* Fills count elements: floats of all magnitudes, signed zeros, infinities, NaNs with payload,
 * subnormals; all integers. */
void oracle_fill(void *data, size_t count, ls_dtype type, ls_rng *rng);

/* dst[i] = the aligned tree over src[0..n-1][i], of ranks first .. first + n - 1. final: rounded,
 * averaged, NaN canonical; otherwise float32 for the 16-bit types. */
void oracle_reduce(void *dst, const void *const *src, int first, int n, size_t count, ls_dtype type,
                   ls_reduce_op op, bool final);

/* Bits are equal; where `any_nan`, a NaN of any payload equals another. Gives the first index that
 * differs, or count. */
size_t oracle_differs(const void *a, const void *b, size_t count, ls_dtype type, bool any_nan);

#endif
