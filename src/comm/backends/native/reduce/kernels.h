/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - the choice of an instruction set for the reductions of comm/backends/reduce.h.
 *
 * comm/backends/native/reduce/: loops that add and copy, once for each instruction set. Called by
 * team/ and plans through comm/backends/reduce.h.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_REDUCE_KERNELS_H
#define LS_COMM_BACKENDS_NATIVE_REDUCE_KERNELS_H

#include "comm/backends/reduce.h"

/* The selected instruction set: "avx512", "avx2" or "baseline". */
const char *reduce_simd(void);
/* Selects another one, for tests; NULL restores the choice. False where this machine cannot run
 * it. */
bool reduce_use(const char *name);

#endif
