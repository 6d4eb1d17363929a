/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim_kernels.c - selects the compiled loops that this processor can run; optimizers and clipping
 * ask it.
 */
#include "optim/optim_kernel.h"

const optim_kernels *optim_kernels_at(int i)
{
    const optim_kernels *found[3];
    int n = 0;

#ifdef OPTIM_HAS_X86_KERNELS
    if (__builtin_cpu_supports("avx512f"))
        found[n++] = &optim_kernels_avx512f;
    if (__builtin_cpu_supports("avx2"))
        found[n++] = &optim_kernels_avx2;
#endif
    found[n++] = &optim_kernels_baseline;
    return i >= 0 && i < n ? found[i] : NULL;
}
