/* SPDX-License-Identifier: Apache-2.0 */
/* simd_pointwise.c - loops over single elements in a form that the compiler vectorises. */
#include "tensor/onednn/simd_isa.h"

#include "base/rng.h"

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
