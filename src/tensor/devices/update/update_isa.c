/* SPDX-License-Identifier: Apache-2.0 */
/* update_isa.c - selects the compiled loops that this processor can run; cpu_ref asks it. */
#include "tensor/devices/update/update_loops.h"

const update_isa *update_isa_at(int i)
{
    const update_isa *found[3];
    int n = 0;

#ifdef UPDATE_HAS_X86_LOOPS
    if (__builtin_cpu_supports("avx512f"))
        found[n++] = &update_isa_avx512f;
    if (__builtin_cpu_supports("avx2"))
        found[n++] = &update_isa_avx2;
#endif
    found[n++] = &update_isa_baseline;
    return i >= 0 && i < n ? found[i] : NULL;
}
