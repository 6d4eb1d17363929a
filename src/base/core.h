/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - hints to the processor core: none changes what a program does.
 */
#ifndef LS_BASE_CORE_H
#define LS_BASE_CORE_H

/* This is a spin loop. */
static inline void core_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The line at `at` is written soon: it is fetched for writing, away from other cores that share it. */
static inline void core_prefetch_write(const void *at)
{
#if defined(__x86_64__)
    // The builtin means this only where the compiler may assume more than x86-64; every such processor takes it.
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
    __builtin_prefetch(at, 1);
#endif
}

#endif
