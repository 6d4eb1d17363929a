/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_recurrent.c - rows of the steps of LSTM and GRU cells. A row goes through arrays of a few
 * units, which the compiler knows not to overlap.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_sigmoid.h"

#define REAL                 float
#define RECURRENT_FN         SIMD_INLINE
#define RECURRENT_NAME(name) name
#define RECURRENT_SIGMOID(x) sigmoid(x).is
#define RECURRENT_TANH       fast_tanh
#include "tensor/formulas/recurrent.inc"

enum { UNITS = 64 };

SIMD_INLINE size_t units_at(size_t at, size_t n)
{
    return n - at < UNITS ? n - at : UNITS;
}

/* x + y, NULL standing for zeros. */
SIMD_INLINE void load_sum(const float *x, const float *y, size_t at, float *out, size_t m)
{
    for (size_t i = 0; i < m; i++)
        out[i] = x == NULL ? 0 : x[at + i];
    for (size_t i = 0; i < m && y != NULL; i++)
        out[i] += y[at + i];
}

SIMD_INLINE void store(float *to, size_t at, const float *from, size_t m)
{
    if (to != NULL)
        memcpy(to + at, from, m * sizeof(*from));
}

/* Gate k of each unit is part[k]; the gates of a row are n elements apart. */
SIMD_INLINE void load_gates(const float *a, const float *b, size_t n, size_t at, int n_gates,
                            float part[][UNITS], size_t m)
{
    for (int k = 0; k < n_gates; k++)
        load_sum(a, b, (size_t)k * n + at, part[k], m);
}

SIMD_INLINE void store_gates(float *to, size_t n, size_t at, int n_gates, float part[][UNITS],
                             size_t m)
{
    for (int k = 0; k < n_gates && to != NULL; k++)
        store(to, (size_t)k * n + at, part[k], m);
}

void SIMD_NAME(lstm)(const recurrent_row *r, size_t n)
{
    float part[4][UNITS];
    float c[UNITS];
    float h[UNITS];
    size_t m;

    for (size_t at = 0; at < n; at += m) {
        m = units_at(at, n);
        load_gates(r->a, r->b, n, at, 4, part, m);
        load_sum(r->state, NULL, at, c, m);
        for (size_t i = 0; i < m; i++) {
            const lstm_unit u = lstm_step(part[0][i], part[1][i], part[2][i], part[3][i], c[i]);

            part[0][i] = u.i;
            part[1][i] = u.f;
            part[2][i] = u.g;
            part[3][i] = u.o;
            c[i] = u.c;
            h[i] = u.h;
        }
        store(r->h, at, h, m);
        store(r->c, at, c, m);
        store_gates(r->gates, n, at, 4, part, m);
    }
}

void SIMD_NAME(lstm_backward)(const recurrent_slope *r, size_t n)
{
    float part[4][UNITS];
    float c[UNITS];
    float dh[UNITS];
    float dc[UNITS];
    size_t m;

    for (size_t at = 0; at < n; at += m) {
        m = units_at(at, n);
        load_gates(r->gates, NULL, n, at, 4, part, m);
        load_sum(r->state, NULL, at, c, m);
        load_sum(r->dh, r->dy, at, dh, m);
        load_sum(r->dc, NULL, at, dc, m);
        for (size_t i = 0; i < m; i++) {
            const lstm_unit u =
                lstm_slope(part[0][i], part[1][i], part[2][i], part[3][i], c[i], dh[i], dc[i]);

            part[0][i] = u.i;
            part[1][i] = u.f;
            part[2][i] = u.g;
            part[3][i] = u.o;
            dc[i] = u.c;
        }
        store_gates(r->da, n, at, 4, part, m);
        store(r->dstate, at, dc, m);
    }
}

void SIMD_NAME(gru)(const recurrent_row *r, size_t n)
{
    float part[4][UNITS]; // r, z, a_n, b_n become r, z, n, m
    float h[UNITS];
    size_t m;

    for (size_t at = 0; at < n; at += m) {
        m = units_at(at, n);
        load_gates(r->a, r->b, n, at, 2, part, m);
        load_sum(r->a, NULL, 2 * n + at, part[2], m);
        load_sum(r->b, NULL, 2 * n + at, part[3], m);
        load_sum(r->state, NULL, at, h, m);
        for (size_t i = 0; i < m; i++) {
            const gru_unit u = gru_step(part[0][i], part[1][i], part[2][i], part[3][i], h[i]);

            part[0][i] = u.r;
            part[1][i] = u.z;
            part[2][i] = u.n;
            h[i] = u.h;
        }
        store(r->h, at, h, m);
        store_gates(r->gates, n, at, 4, part, m);
    }
}

void SIMD_NAME(gru_backward)(const recurrent_slope *r, size_t n)
{
    float part[4][UNITS]; // r, z, n, m and then their gradients
    float h[UNITS];
    float dh[UNITS];
    size_t m;

    for (size_t at = 0; at < n; at += m) {
        m = units_at(at, n);
        load_gates(r->gates, NULL, n, at, 4, part, m);
        load_sum(r->state, NULL, at, h, m);
        load_sum(r->dh, r->dy, at, dh, m);
        for (size_t i = 0; i < m; i++) {
            const gru_unit u =
                gru_slope(part[0][i], part[1][i], part[2][i], part[3][i], h[i], dh[i]);

            part[0][i] = u.r;
            part[1][i] = u.z;
            part[2][i] = u.n;
            part[3][i] = u.m;
            dh[i] = u.h;
        }
        store_gates(r->da, n, at, 3, part, m);
        store_gates(r->db, n, at, 2, part, m);
        store(r->db, 2 * n + at, part[3], m);
        store(r->dstate, at, dh, m);
    }
}
