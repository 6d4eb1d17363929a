/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resize_rows.c - the inner loops of resize.c, in SSE2 (part of x86-64) and in plain C. Both add
 * the same integers and give the same bytes. Tests define RESIZE_PLAIN to compile the plain loops
 * only.
 */
#include "data/images/resize.h"

#if defined(__SSE2__) && !defined(RESIZE_PLAIN)
#define WITH_SSE2 1
#include <emmintrin.h>
#else
#define WITH_SSE2 0
#endif

#include <string.h>

/* A weight times a byte is below 2^30 and all weights of a pixel add up to about 1, so no sum
 * overflows. */
#define ROUND (1 << (RESIZE_BITS - 1))

static int32_t whole_weight(const resize_weight *w, size_t i)
{
    return (w[i / 2].high[i % 2] << RESIZE_LOW) + w[i / 2].low[i % 2];
}

static uint8_t to_byte(int32_t sum)
{
    const int32_t v = (sum + ROUND) >> RESIZE_BITS;

    return (uint8_t)(v > 255 ? 255 : v);
}

/* Bytes from ... to - 1 of a row of the vertical pass. */
static void rows_plain(const uint8_t *src, size_t stride, size_t n_rows,
                       const resize_weight *weights, uint8_t *dst, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        int32_t sum = 0;

        for (size_t k = 0; k < n_rows; k++)
            sum += whole_weight(weights, k) * src[k * stride + i];
        dst[i] = to_byte(sum);
    }
}

#if WITH_SSE2

/* The upper and lower halves of a pair of weights, each broadcast to four lanes. */
static inline void load_weight(const resize_weight *w, __m128i *high, __m128i *low)
{
    int32_t bits[2];

    memcpy(bits, w, sizeof(bits));
    *high = _mm_set1_epi32(bits[0]);
    *low = _mm_set1_epi32(bits[1]);
}

static inline __m128i finish(__m128i high, __m128i low)
{
    const __m128i sum = _mm_add_epi32(_mm_slli_epi32(high, RESIZE_LOW), low);

    return _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(ROUND)), RESIZE_BITS);
}

/* One pixel: its 4 channels are the 4 sums of a register. */
static inline void one_pixel(const uint8_t *src, const resize_weight *w, size_t n_pairs,
                             uint8_t *dst)
{
    const __m128i zero = _mm_setzero_si128();
    __m128i high = zero;
    __m128i low = zero;
    int32_t pixel;

    for (size_t k = 0; k < n_pairs; k++) {
        __m128i weight_high;
        __m128i weight_low;
        __m128i two;

        load_weight(w + k, &weight_high, &weight_low);
        two = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(const void *)(src + 8 * k)),
                                zero);                         // a0 a1 a2 a3 b0 b1 b2 b3
        two = _mm_unpacklo_epi16(two, _mm_srli_si128(two, 8)); // a0 b0 a1 b1 a2 b2 a3 b3
        high = _mm_add_epi32(high, _mm_madd_epi16(two, weight_high));
        low = _mm_add_epi32(low, _mm_madd_epi16(two, weight_low));
    }
    high = finish(high, low);
    high = _mm_packs_epi32(high, high);
    pixel = _mm_cvtsi128_si32(_mm_packus_epi16(high, high));
    memcpy(dst, &pixel, sizeof(pixel));
}

void resize_row_horizontal(const uint8_t *src, const int *starts, const resize_weight *weights,
                           size_t n_pairs, uint8_t *dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        one_pixel(src + (size_t)starts[i] * 4, weights + i * n_pairs, n_pairs, dst + i * 4);
}

/* Eight bytes of each of two rows, as pairs of 16 bits, times their weights. */
static inline void add_eight(__m128i bytes, __m128i weight_high, __m128i weight_low, __m128i *high,
                             __m128i *low)
{
    const __m128i zero = _mm_setzero_si128();
    const __m128i first = _mm_unpacklo_epi8(bytes, zero);
    const __m128i second = _mm_unpackhi_epi8(bytes, zero);

    high[0] = _mm_add_epi32(high[0], _mm_madd_epi16(first, weight_high));
    low[0] = _mm_add_epi32(low[0], _mm_madd_epi16(first, weight_low));
    high[1] = _mm_add_epi32(high[1], _mm_madd_epi16(second, weight_high));
    low[1] = _mm_add_epi32(low[1], _mm_madd_epi16(second, weight_low));
}

/* Sixteen bytes of the result. */
static inline void sixteen_bytes(const uint8_t *src, size_t stride, size_t n_rows,
                                 const resize_weight *weights, uint8_t *dst)
{
    __m128i high[4] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(),
                       _mm_setzero_si128()};
    __m128i low[4] = {high[0], high[0], high[0], high[0]};

    for (size_t k = 0; k < n_rows; k += 2) {
        // An odd last row is paired with itself: the second weight is 0.
        const uint8_t *row = src + k * stride;
        const uint8_t *next = k + 1 < n_rows ? row + stride : row;
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)row);
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)next);
        __m128i weight_high;
        __m128i weight_low;

        load_weight(weights + k / 2, &weight_high, &weight_low);
        add_eight(_mm_unpacklo_epi8(a, b), weight_high, weight_low, high, low);
        add_eight(_mm_unpackhi_epi8(a, b), weight_high, weight_low, high + 2, low + 2);
    }
    _mm_storeu_si128(
        (__m128i *)(void *)dst,
        _mm_packus_epi16(_mm_packs_epi32(finish(high[0], low[0]), finish(high[1], low[1])),
                         _mm_packs_epi32(finish(high[2], low[2]), finish(high[3], low[3]))));
}

void resize_rows_vertical(const uint8_t *src, size_t stride, size_t n_rows,
                          const resize_weight *weights, uint8_t *dst, size_t bytes)
{
    const size_t whole = bytes / 16 * 16;

    for (size_t i = 0; i < whole; i += 16)
        sixteen_bytes(src + i, stride, n_rows, weights, dst + i);
    rows_plain(src, stride, n_rows, weights, dst, whole, bytes);
}

#else

void resize_row_horizontal(const uint8_t *src, const int *starts, const resize_weight *weights,
                           size_t n_pairs, uint8_t *dst, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t *pixels = src + (size_t)starts[i] * 4;
        const resize_weight *w = weights + i * n_pairs;
        int32_t sum[4] = {0, 0, 0, 0};

        for (size_t k = 0; k < 2 * n_pairs; k++) {
            const int32_t weight = whole_weight(w, k);

            for (size_t c = 0; c < 4; c++)
                sum[c] += weight * pixels[k * 4 + c];
        }
        for (size_t c = 0; c < 4; c++)
            dst[i * 4 + c] = to_byte(sum[c]);
    }
}

void resize_rows_vertical(const uint8_t *src, size_t stride, size_t n_rows,
                          const resize_weight *weights, uint8_t *dst, size_t bytes)
{
    rows_plain(src, stride, n_rows, weights, dst, 0, bytes);
}

#endif
