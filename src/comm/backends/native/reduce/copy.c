/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - copies around the caches with non-temporal stores, which a fence orders before the
 * return. team_shared.c calls it.
 */
#include "comm/backends/native/reduce/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

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
void copy_around(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}
#endif
