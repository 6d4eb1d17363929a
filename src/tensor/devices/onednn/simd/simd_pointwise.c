/* SPDX-License-Identifier: Apache-2.0 */
/* simd_pointwise.c - loops over single elements in a form that the compiler vectorises. */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#include "base/rng.h"

#define REAL              float
#define BINARY_FN         SIMD_INLINE
#define BINARY_NAME(name) name
#include "tensor/formulas/binary.inc"

enum { DROP_CHUNK = 16 };

void SIMD_NAME(relu)(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] <= 0 ? 0 : x[i];
}

void SIMD_NAME(relu_backward)(const float *y, const float *dy, float *dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = y[i] <= 0 ? 0 : dy[i];
}

/* clang-format off */
#define EACH_BINARY(X)                                                                             \
    X(BINARY_ADD) X(BINARY_SUB) X(BINARY_MUL) X(BINARY_DIV) X(BINARY_MAXIMUM) X(BINARY_MINIMUM)    \
    X(BINARY_DISTANCE) X(BINARY_SQUARE) X(BINARY_SMOOTH)
/* clang-format on */

SIMD_INLINE void values(op_binary f, float p, const float *a, const float *b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = binary_value(f, a[i], b[i], p);
}

void SIMD_NAME(binary)(op_binary f, float p, const float *a, const float *b, float *y, size_t n)
{
    switch (f) {
#define VALUES(F)                                                                                  \
    case F:                                                                                        \
        values(F, p, a, b, y, n);                                                                  \
        break;
        EACH_BINARY(VALUES)
#undef VALUES
    }
}

SIMD_INLINE void slopes(op_binary f, int operand, float p, const float *dy, const float *a,
                        const float *b, float *d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        d[i] = binary_slope(f, operand, dy[i], a[i], b[i], p);
}

void SIMD_NAME(binary_slope)(const binary_term *t, const float *dy, const float *a, const float *b,
                             float *d, size_t n)
{
    switch (t->f) {
#define SLOPES(F)                                                                                  \
    case F:                                                                                        \
        if (t->operand == 0)                                                                       \
            slopes(F, 0, t->p, dy, a, b, d, n);                                                    \
        else                                                                                       \
            slopes(F, 1, t->p, dy, a, b, d, n);                                                    \
        break;
        EACH_BINARY(SLOPES)
#undef SLOPES
    }
}

void SIMD_NAME(accumulate)(const float *x, double *sums, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sums[i] += (double)x[i];
}

void SIMD_NAME(add)(const float *a, const float *b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

void SIMD_NAME(add_relu)(const float *a, const float *b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float sum = a[i] + b[i];

        y[i] = sum <= 0 ? 0 : sum;
    }
}

/* A chunk's masks first: their 64-bit arithmetic has half as many lanes. */
void SIMD_NAME(dropout)(const drop_run *r, const float *x, float *y, size_t n)
{
    const drop_run run = *r; // y may be anywhere
    const uint64_t base = ls_mix(run.random + LS_GOLDEN) + LS_GOLDEN;
    uint32_t kept[DROP_CHUNK];
    size_t count;

    for (size_t at = 0; at < n; at += count) {
        count = n - at < DROP_CHUNK ? n - at : DROP_CHUNK;
        for (size_t i = 0; i < DROP_CHUNK; i++) {
            const uint64_t number = run.first + (at + i) * run.step;

            kept[i] = ls_mix(ls_mix(base + number) + LS_GOLDEN) >> 11 >= run.threshold;
        }
        for (size_t i = 0; i < count; i++)
            y[at + i] = kept[i] != 0 ? x[at + i] * run.scale : 0;
    }
}
