/* SPDX-License-Identifier: Apache-2.0 */
/* simd_tables.c - selects the compiled table of inner loops for this processor. */
#include "tensor/devices/onednn/simd/simd.h"

extern const simd_table simd_table_baseline;
#ifdef SIMD_HAS_X86_TABLES
extern const simd_table simd_table_avx2;
extern const simd_table simd_table_avx512f;
#endif

const simd_table *simd_table_at(int i)
{
    const simd_table *found[3];
    int n = 0;

#ifdef SIMD_HAS_X86_TABLES
    if (__builtin_cpu_supports("avx512f"))
        found[n++] = &simd_table_avx512f;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found[n++] = &simd_table_avx2;
#endif
    found[n++] = &simd_table_baseline;
    return i >= 0 && i < n ? found[i] : NULL;
}

const simd_table *simd_table_for(isa_level most)
{
    const simd_table *table = NULL;

    for (int i = 0; simd_table_at(i) != NULL && (table == NULL || table->level > most); i++)
        table = simd_table_at(i);
    return table;
}
