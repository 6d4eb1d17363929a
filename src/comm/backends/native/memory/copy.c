/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - copies around the caches with non-temporal stores, which a fence orders before the
 * return, plain copies by string instructions, and the choice between both. The team's algorithms
 * and link_shm.c call it; offer_way.c uses its comparisons.
 *
 * String instructions: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Enhanced
 * REP MOVSB and STOSB operation". memcpy() of glibc 2.36 uses them too, but not from the size of
 * the second-level cache on (bench/shared_writes).
 */
#include "comm/backends/native/memory/copy.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define GAP_FIRST    6  /* most pages of the buffers then exist */
#define GAP_SOON     1  /* after a comparison that the other way has won */
#define GAP_MOST     64 /* a plain copy may take ten times as long */
#define WINS         3  /* in a row, after which the way changes: interrupts decide nothing */
#define SAMPLE_BYTES ((size_t)32768) /* at most half of a copy */
#define SAVED_NS     0.06 /* a byte, by which around must be faster: readers wait for memory */

#if defined(__SSE2__)
#include <emmintrin.h>

#define HAS_AROUND true
#define LINE_BYTES 64

static void stream_line(uint8_t *dst, const uint8_t *src)
{
    __m128i parts[4];

    memcpy(parts, src, sizeof(parts));
    for (size_t i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)(void *)(dst + i * sizeof(parts[0])), parts[i]);
}

void copy_around(void *dst, const void *src, size_t bytes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    const size_t to_line = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES;
    const size_t head = to_line < bytes ? to_line : bytes;

    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES) {
        stream_line(to, from);
        to += LINE_BYTES;
        from += LINE_BYTES;
    }
    memcpy(to, from, bytes);
    _mm_sfence(); // nothing else orders such stores
}
#else
#define HAS_AROUND false

void copy_around(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}
#endif

#if defined(__x86_64__)
#include <cpuid.h>

#define STRING_BYTES ((size_t)2048) /* fewer take as long by plain stores */

static bool has_string(void)
{
    static _Atomic int known; /* 1: yes, 2: no */
    int has = atomic_load_explicit(&known, memory_order_relaxed);
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;

    if (has == 0) {
        has = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & 1U << 9) != 0 ? 1 : 2; // ERMS
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has == 1;
}

void *copy_string(void *dst, const void *src, size_t bytes)
{
    void *to = dst;

    if (bytes < STRING_BYTES || !has_string())
        return memcpy(dst, src, bytes);
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(src), "+c"(bytes) : : "memory");
    return dst;
}
#else
void *copy_string(void *dst, const void *src, size_t bytes)
{
    return memcpy(dst, src, bytes);
}
#endif

static bool is_always_around;

void copy_always_around(bool always)
{
    is_always_around = always && HAS_AROUND;
}

bool copy_way_compares(copy_way *way)
{
    if (way->gap == 0)
        way->left = way->gap = GAP_FIRST;
    return way->left-- == 0;
}

void copy_way_compared(copy_way *way, bool around_is_faster)
{
    if (around_is_faster == way->is_around) {
        way->against = 0;
        way->gap = 2 * way->gap < GAP_MOST ? 2 * way->gap : GAP_MOST;
    } else if (++way->against < WINS) {
        way->gap = GAP_SOON;
    } else {
        way->against = 0;
        way->is_around = around_is_faster;
        way->gap = GAP_FIRST;
    }
    way->left = way->gap;
}

static void copy(bool is_around, uint8_t *dst, const uint8_t *src, size_t bytes)
{
    if (is_around)
        copy_around(dst, src, bytes);
    else
        (void)copy_string(dst, src, bytes);
}

/* The store that publishes the bytes waits for those of a plain copy, so it is part of their time.
 * It also waits for those around the caches, but as long for many as for few, and small copies of a
 * piece are published together. */
static void copy_and_compare(copy_way *way, uint8_t *dst, const uint8_t *src, size_t bytes)
{
    const size_t sample = bytes / 2 < SAMPLE_BYTES ? bytes / 2 : SAMPLE_BYTES;
    volatile _Atomic int published;
    int64_t at[3];

    at[0] = ls_now_ns();
    (void)copy_string(dst, src, sample);
    atomic_store_explicit(&published, 1, memory_order_seq_cst);
    at[1] = ls_now_ns();
    copy_around(dst + sample, src + sample, sample);
    at[2] = ls_now_ns();
    copy_way_compared(way, (double)(2 * at[1] - at[0] - at[2]) > SAVED_NS * (double)sample);
    copy(way->is_around, dst + 2 * sample, src + 2 * sample, bytes - 2 * sample);
}

void copy_shared(copy_way *way, void *dst, const void *src, size_t bytes)
{
    if (!HAS_AROUND || bytes < COPY_SHARED_BYTES)
        (void)copy_string(dst, src, bytes);
    else if (is_always_around)
        copy_around(dst, src, bytes);
    else if (copy_way_compares(way))
        copy_and_compare(way, dst, src, bytes);
    else
        copy(way->is_around, dst, src, bytes);
}
