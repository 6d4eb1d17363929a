/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_choose.c - which of the compiled tables fits this processor.
 */
#include "tensor/onednn/simd.h"

extern const simd_table simd_table_baseline;
#ifdef SIMD_HAS_X86_TABLES
extern const simd_table simd_table_avx2;
extern const simd_table simd_table_avx512;
#endif

const simd_table *simd_choose(void)
{
#ifdef SIMD_HAS_X86_TABLES
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return &simd_table_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &simd_table_avx2;
#endif
    return &simd_table_baseline;
}
