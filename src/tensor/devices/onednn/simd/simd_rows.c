/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_rows.c - loops over rows for losses, softmax, attention and layer norm. Sums have as many
 * parts as the widest processor has lanes, element i in part i mod PARTS, so every processor adds
 * in the same order.
 */
#include "tensor/devices/onednn/simd/simd_exp.h"
#include "tensor/devices/onednn/simd/simd_isa.h"

#include <math.h>

enum { PARTS = 16 };

void SIMD_NAME(exp_below)(const float *x, float top, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float t = x[i] - top;

        out[i] = t < EXP_LEAST ? 0.0F : exp_of(t);
    }
}

/* Rows are short, so that sums of float are near enough. */
float SIMD_NAME(exp_sum)(const float *x, float top, float *out, size_t n)
{
    float part[PARTS] = {0};

    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++) {
            const float t = x[i + k] - top;
            const float e = t < EXP_LEAST ? 0.0F : exp_of(t);

            out[i + k] = e;
            part[k] += e;
        }
    }
    SIMD_NAME(exp_below)(x + n - n % PARTS, top, out + n - n % PARTS, n % PARTS);
    for (size_t i = n - n % PARTS; i < n; i++)
        part[i % PARTS] += out[i];
    for (size_t half = PARTS / 2; half > 0; half /= 2) {
        for (size_t k = 0; k < half; k++)
            part[k] += part[k + half];
    }
    return part[0];
}

float SIMD_NAME(largest)(const float *x, size_t n)
{
    float part[PARTS];

    for (size_t k = 0; k < PARTS; k++)
        part[k] = -INFINITY;
    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++)
            part[k] = x[i + k] > part[k] ? x[i + k] : part[k];
    }
    for (size_t k = 0; k < n % PARTS; k++) {
        const float last = x[n - n % PARTS + k];

        part[k] = last > part[k] ? last : part[k];
    }
    for (size_t k = 1; k < PARTS; k++)
        part[0] = part[k] > part[0] ? part[k] : part[0];
    return part[0];
}

static double sum_of_parts(double *part)
{
    for (size_t half = PARTS / 2; half > 0; half /= 2) {
        for (size_t k = 0; k < half; k++)
            part[k] += part[k + half];
    }
    return part[0];
}

double SIMD_NAME(sum)(const float *x, size_t n)
{
    double part[PARTS] = {0};

    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++)
            part[k] += (double)x[i + k];
    }
    for (size_t k = 0; k < n % PARTS; k++)
        part[k] += (double)x[n - n % PARTS + k];
    return sum_of_parts(part);
}

double SIMD_NAME(dot)(const float *x, const float *y, size_t n)
{
    double part[PARTS] = {0};

    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++)
            part[k] += (double)x[i + k] * (double)y[i + k];
    }
    for (size_t i = n - n % PARTS; i < n; i++)
        part[i % PARTS] += (double)x[i] * (double)y[i];
    return sum_of_parts(part);
}

double SIMD_NAME(spread)(const float *x, float mean, size_t n)
{
    double part[PARTS] = {0};

    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++) {
            const double distance = (double)(x[i + k] - mean);

            part[k] += distance * distance;
        }
    }
    for (size_t i = n - n % PARTS; i < n; i++)
        part[i % PARTS] += (double)(x[i] - mean) * (double)(x[i] - mean);
    return sum_of_parts(part);
}

void SIMD_NAME(shift)(const float *x, float a, float b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] - a - b;
}

void SIMD_NAME(shift_scale)(const float *x, float a, float b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - a) * b;
}

void SIMD_NAME(log_softmax_dx)(const float *y, const float *dy, float sum, float *dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = dy[i] - (y[i] < EXP_LEAST ? 0.0F : exp_of(y[i])) * sum;
}

void SIMD_NAME(norm_apply)(const norm_row *r, const float *x, const float *weight,
                           const float *bias, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - r->mean) * r->inverse * weight[i] + bias[i];
}

void SIMD_NAME(norm_slopes)(const norm_row *r, const float *x, const float *dy, const float *weight,
                            float *xhat, float *g, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        xhat[i] = (x[i] - r->mean) * r->inverse;
        g[i] = dy[i] * weight[i];
    }
}

void SIMD_NAME(norm_dx)(const norm_row *r, const float *xhat, const float *g, float *dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = r->inverse * (g[i] - r->mean_g - xhat[i] * r->mean_g_xhat);
}

void SIMD_NAME(norm_sums)(const norm_row *r, const float *x, const float *dy, double *dweight,
                          double *dbias, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dweight[i] += (double)(dy[i] * ((x[i] - r->mean) * r->inverse));
        dbias[i] += (double)dy[i];
    }
}

void SIMD_NAME(softmax_dx)(const float *y, const float *dy, float sum, float scale, float *dx,
                           size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = scale * y[i] * (dy[i] - sum);
}
