/* SPDX-License-Identifier: Apache-2.0 */
/* sgd_kernels.c - which of the compiled loops this processor can run. */
#include "optim/sgd_kernel.h"

const sgd_kernels *sgd_kernels_at(int i)
{
    const sgd_kernels *found[3];
    int n = 0;

#ifdef SGD_HAS_X86_KERNELS
    if (__builtin_cpu_supports("avx512f"))
        found[n++] = &sgd_kernels_avx512f;
    if (__builtin_cpu_supports("avx2"))
        found[n++] = &sgd_kernels_avx2;
#endif
    found[n++] = &sgd_kernels_baseline;
    return i >= 0 && i < n ? found[i] : NULL;
}
