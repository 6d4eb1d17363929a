/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - the choice of an instruction set for the reductions of comm/reduce.h.
 */
#ifndef LS_NATIVE_KERNELS_H
#define LS_NATIVE_KERNELS_H

#include "comm/reduce.h"

/* "avx512", "avx2", "baseline": what the table chose; LOCKSTEP_SIMD is not read, tests choose with
 * reduce_use(). */
const char *reduce_simd(void);
/* Tests: NULL restores the choice. False where this machine cannot. */
bool reduce_use(const char *name);

#endif
