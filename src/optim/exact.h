/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exact.h - functions with the same bits on every machine. libm's pow and cos may differ in the
 * last bit between processors, but ranks on different hosts must compute equal rates. So these
 * functions use only operations that IEEE 754 defines to the bit.
 */
#ifndef LS_OPTIM_EXACT_H
#define LS_OPTIM_EXACT_H

#include <stdint.h>

double exact_power(double x, int64_t n); /* x^n; n at least 0 */

/* cos(pi * t / total) for 0 <= t <= total, total over 0. */
double exact_cosine(int64_t t, int64_t total);

#endif
