/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_table.h - the loops that kernels.c calls, compiled once per instruction set from one
 * source (kernels_body.h).
 *
 * In every loop dst may be one of its sources exactly, or overlap none.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_REDUCE_KERNELS_TABLE_H
#define LS_COMM_BACKENDS_NATIVE_REDUCE_KERNELS_TABLE_H

#include <lockstep/comm.h>

/* dst = left op right, all of one partial type. */
typedef void (*combine_fn)(void *dst, const void *left, const void *right, size_t count);
/* dst (float32) = src (fp16 or bf16). */
typedef void (*widen_fn)(void *dst, const void *src, size_t count);
/* dst (the type) = src (its partial type) / divisor, rounded, each NaN the canonical one. */
typedef void (*finish_fn)(void *dst, const void *src, size_t count, double divisor);
/* The whole tree over 2, 3 or 4 float32 contributions at once / divisor, each NaN the canonical
 * one. */
typedef void (*sum_f32_fn)(float *dst, const float *const *src, size_t count, double divisor);

#define SUM_F32_MAX 4

typedef struct kernel_table {
    const char *name;
    /* By partial type; NULL for fp16, bf16, and for bitwise operations on floats. */
    combine_fn combine[LS_DTYPE_COUNT][LS_REDUCE_OP_COUNT];
    widen_fn widen[LS_DTYPE_COUNT];      /* NULL: the partial type is the type */
    finish_fn finish[LS_DTYPE_COUNT];    /* NULL: nothing to do (integers) */
    sum_f32_fn sum_f32[SUM_F32_MAX + 1]; /* by number of contributions, from 2 */
} kernel_table;

extern const kernel_table kernels_baseline;
#if defined(__x86_64__)
extern const kernel_table kernels_avx2;   /* needs AVX2 and F16C */
extern const kernel_table kernels_avx512; /* needs AVX-512 F, BW, DQ, VL as well */
#endif

#endif
