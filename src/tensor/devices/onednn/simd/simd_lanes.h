/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_lanes.h - vectors of 16, 8 and 1 floats under one set of names, so that a loop is written
 * once.
 *
 * The compiler splits a vector that is wider than the processor's. A source defines LANES and
 * includes its loop's .inc for each; V(name) is then the name for that width.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_LANES_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define SIMD_INLINE static inline __attribute__((always_inline))

/* For loops over registers: without unrolling these would be in memory. */
#ifdef __clang__
#define SIMD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SIMD_UNROLL _Pragma("GCC unroll 64")
#endif

#define V_JOIN(name, lanes)   name##_##lanes
#define V_EXPAND(name, lanes) V_JOIN(name, lanes)
#define V(name)               V_EXPAND(name, LANES)

/* Halves as 32-bit integers, and back. */
#define SIMD_HALVES(N)                                                                             \
    SIMD_INLINE void unpack_##N(bits_##N *to, const uint16_t *from)                                \
    {                                                                                              \
        halves_##N h;                                                                              \
                                                                                                   \
        memcpy(&h, from, sizeof(h));                                                               \
        *to = __builtin_convertvector(h, bits_##N);                                                \
    }                                                                                              \
    SIMD_INLINE void pack_##N(uint16_t *to, const bits_##N *from)                                  \
    {                                                                                              \
        const halves_##N h = __builtin_convertvector(*from, halves_##N);                           \
                                                                                                   \
        memcpy(to, &h, sizeof(h));                                                                 \
    }

/* get() and put(): elements from `at` on of an array of float32, or with a constant bf16 of
 * bfloat16, with the bits of simd_half.c, but that a signalling NaN stays one until arithmetic
 * follows. A select keeps `yes` where all bits of the mask are set. Vectors go through memory by
 * memcpy: alignment is not promised. */
#define SIMD_VECTORS(N, BYTES)                                                                     \
    typedef float vec_##N __attribute__((vector_size(BYTES)));                                     \
    typedef int32_t mask_##N __attribute__((vector_size(BYTES)));                                  \
    typedef uint8_t bytes_##N __attribute__((vector_size(N)));                                     \
    typedef uint16_t halves_##N __attribute__((vector_size(2 * (N))));                             \
    typedef uint32_t bits_##N __attribute__((vector_size(BYTES)));

#define SIMD_ACCESS(N)                                                                             \
    SIMD_INLINE void load_##N(vec_##N *v, const float *from)                                       \
    {                                                                                              \
        memcpy(v, from, sizeof(*v));                                                               \
    }                                                                                              \
    SIMD_INLINE void store_##N(float *to, const vec_##N *v)                                        \
    {                                                                                              \
        memcpy(to, v, sizeof(*v));                                                                 \
    }                                                                                              \
    SIMD_INLINE void get_##N(vec_##N *v, const void *from, size_t at, bool bf16)                   \
    {                                                                                              \
        bits_##N b;                                                                                \
                                                                                                   \
        if (bf16) {                                                                                \
            unpack_##N(&b, (const uint16_t *)from + at);                                           \
            *v = (vec_##N)(b << 16);                                                               \
        } else {                                                                                   \
            memcpy(v, (const float *)from + at, sizeof(*v));                                       \
        }                                                                                          \
    }                                                                                              \
    SIMD_INLINE void put_##N(void *to, size_t at, const vec_##N *v, bool bf16)                     \
    {                                                                                              \
        const bits_##N b = (bits_##N) * v;                                                         \
        const bits_##N nan = (bits_##N)((mask_##N)(b & 0x7FFFFFFFU) > 0x7F800000);                 \
        const bits_##N rounded = b + 0x7FFFU + (b >> 16 & 1U);                                     \
        const bits_##N h = ((nan & (b | 0x400000U)) | (~nan & rounded)) >> 16;                     \
                                                                                                   \
        if (bf16) {                                                                                \
            pack_##N((uint16_t *)to + at, &h);                                                     \
        } else {                                                                                   \
            memcpy((float *)to + at, v, sizeof(*v));                                               \
        }                                                                                          \
    }                                                                                              \
    SIMD_INLINE void select_##N(vec_##N *to, const mask_##N *mask, const vec_##N *yes,             \
                                const vec_##N *no)                                                 \
    {                                                                                              \
        *to = (vec_##N)((*mask & (mask_##N) * yes) | (~*mask & (mask_##N) * no));                  \
    }                                                                                              \
    SIMD_INLINE void keep_positive_##N(vec_##N *to, const vec_##N *by)                             \
    {                                                                                              \
        *to = (vec_##N)(~(mask_##N)(*by <= 0.0F) & (mask_##N) * to);                               \
    }                                                                                              \
    SIMD_INLINE void load_index_##N(mask_##N *v, const uint8_t *from)                              \
    {                                                                                              \
        bytes_##N b;                                                                               \
        memcpy(&b, from, sizeof(b));                                                               \
        *v = __builtin_convertvector(b, mask_##N);                                                 \
    }                                                                                              \
    SIMD_INLINE void store_index_##N(uint8_t *to, const mask_##N *v)                               \
    {                                                                                              \
        const bytes_##N b = __builtin_convertvector(*v, bytes_##N);                                \
        memcpy(to, &b, sizeof(b));                                                                 \
    }

/* The widest vector: wider ones than the processor's gain nothing. */
#ifndef SIMD_LANES_MAX
#ifdef __AVX512F__
#define SIMD_LANES_MAX 16
#else
#define SIMD_LANES_MAX 8
#endif
#endif

/* The number of lanes of the next step, with `left` elements left. */
SIMD_INLINE size_t width_for(size_t left)
{
    if (SIMD_LANES_MAX >= 16 && left >= 16)
        return 16;
    return left >= 8 ? 8 : 1;
}

/* Calls FN##_16, _8 or _1 with these arguments, the lane `i` among them, for all lanes. */
#define EACH_WIDTH(FN, ...)                                                                        \
    do {                                                                                           \
        for (size_t i = 0, width; i < lanes; i += width) {                                         \
            width = width_for(lanes - i);                                                          \
            if (width == 16)                                                                       \
                FN##_16(__VA_ARGS__);                                                              \
            else if (width == 8)                                                                   \
                FN##_8(__VA_ARGS__);                                                               \
            else                                                                                   \
                FN##_1(__VA_ARGS__);                                                               \
        }                                                                                          \
    } while (0)

SIMD_VECTORS(16, 64)
SIMD_VECTORS(8, 32)
SIMD_VECTORS(1, 4)

#ifdef __AVX512F__
/* One instruction each; the compiler makes several of a conversion of vectors. */
SIMD_INLINE void unpack_16(bits_16 *to, const uint16_t *from)
{
    *to = (bits_16)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

SIMD_INLINE void pack_16(uint16_t *to, const bits_16 *from)
{
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16((__m512i)*from));
}
#else
SIMD_HALVES(16)
#endif
SIMD_HALVES(8)
SIMD_HALVES(1)

SIMD_ACCESS(16)
SIMD_ACCESS(8)
SIMD_ACCESS(1)

#endif
