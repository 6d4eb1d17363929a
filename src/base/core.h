/* SPDX-License-Identifier: Apache-2.0 */
/* core.h - hints to the processor core; they never change results. */
#ifndef LS_BASE_CORE_H
#define LS_BASE_CORE_H

/* For the body of a spin loop. */
static inline void core_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Prefetches the cache line at `at` for writing, away from other cores that share it. */
static inline void core_prefetch_write(const void *at)
{
#if defined(__x86_64__)
    // The builtin does this only when compiled for more than x86-64; all such processors have
    // prefetchw.
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
    __builtin_prefetch(at, 1);
#endif
}

#endif
