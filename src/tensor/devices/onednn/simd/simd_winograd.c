/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_winograd.c - the loops of Winograd's convolution on tiles of 6x6, or of 6 positions of a
 * line (`dims` 1), 8 channels at a time.
 *
 * A tile of an image, a kernel of s x s and s x s results are polynomials; they are multiplied by
 * their values at six points in each direction (Lavin and Gray, "Fast Algorithms for Convolutional
 * Neural Networks", 2016). The points are 0, A, -A, B, -B and infinity with A B = 1: that saves
 * products, and with 2/3 and 3/2 rounding errors are a third of those of the usual 1 and 2.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define POINTS ((size_t)6)

#define A (2.0F / 3)
#define B (3.0F / 2)

/* The kernel's normalising factors at A and B: 1 over what the other points' distances
 * multiply to. */
#define FACTOR_A (1 / (2 * A * A * (A * A - B * B)))
#define FACTOR_B (1 / (2 * B * B * (B * B - A * A)))

/* --- one direction: vectors `step` apart --- */

/* Six values of an image to its six points. */
SIMD_INLINE void image_to_points(vec_8 *d, size_t step)
{
    const vec_8 d0 = d[0];
    const vec_8 d1 = d[step];
    const vec_8 d2 = d[2 * step];
    const vec_8 d3 = d[3 * step];
    const vec_8 d4 = d[4 * step];
    const vec_8 d5 = d[5 * step];
    const vec_8 even_a = d4 - B * B * d2;
    const vec_8 odd_a = A * d3 - B * d1;
    const vec_8 even_b = d4 - A * A * d2;
    const vec_8 odd_b = B * d3 - A * d1;

    d[0] = d0 - (A * A + B * B) * d2 + d4;
    d[step] = even_a + odd_a;
    d[2 * step] = even_a - odd_a;
    d[3 * step] = even_b + odd_b;
    d[4 * step] = even_b - odd_b;
    d[5 * step] = d1 - (A * A + B * B) * d3 + d5;
}

/* `size` (2 to 5) values of a kernel, in an array of six, to its points. */
SIMD_INLINE void kernel_to_points(vec_8 *k, size_t step, size_t size)
{
    const vec_8 zero = {0};
    const vec_8 k0 = k[0];
    const vec_8 k1 = k[step];
    const vec_8 k2 = size > 2 ? k[2 * step] : zero;
    const vec_8 k3 = size > 3 ? k[3 * step] : zero;
    const vec_8 k4 = size > 4 ? k[4 * step] : zero;
    const vec_8 even_a = FACTOR_A * k0 + FACTOR_A * A * A * k2 + FACTOR_A * A * A * A * A * k4;
    const vec_8 odd_a = FACTOR_A * A * k1 + FACTOR_A * A * A * A * k3;
    const vec_8 even_b = FACTOR_B * k0 + FACTOR_B * B * B * k2 + FACTOR_B * B * B * B * B * k4;
    const vec_8 odd_b = FACTOR_B * B * k1 + FACTOR_B * B * B * B * k3;

    k[5 * step] = size == 2 ? k1 : size == 3 ? k2 : size == 4 ? k3 : k4;
    k[step] = even_a + odd_a;
    k[2 * step] = even_a - odd_a;
    k[3 * step] = even_b + odd_b;
    k[4 * step] = even_b - odd_b;
}

/* Six points to results in the first `size` (2 to 5) elements. */
SIMD_INLINE void points_to_results(vec_8 *p, size_t step, size_t size)
{
    const vec_8 sum_a = p[step] + p[2 * step];
    const vec_8 difference_a = p[step] - p[2 * step];
    const vec_8 sum_b = p[3 * step] + p[4 * step];
    const vec_8 difference_b = p[3 * step] - p[4 * step];
    const vec_8 last = p[5 * step];

    p[0] = p[0] + sum_a + sum_b;
    p[step] = A * difference_a + B * difference_b;
    if (size > 2)
        p[2 * step] = A * A * sum_a + B * B * sum_b;
    if (size > 3)
        p[3 * step] = A * A * A * difference_a + B * B * B * difference_b;
    if (size > 4)
        p[4 * step] = A * A * A * A * sum_a + B * B * B * B * sum_b;
    p[(size - 1) * step] += last;
}

/* --- tiles of images --- */

/* The rows of a square of that size, or of a line. */
SIMD_INLINE size_t rows_of(size_t size, int dims)
{
    return dims == 1 ? 1 : size;
}

/* Reads size x size positions of a plane; positions outside are 0. */
SIMD_INLINE void read_patch(const wino_patch *t, const float *plane, vec_8 *d, size_t size,
                            int dims)
{
    const vec_8 zero = {0};

    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(size, dims); i++) {
        const size_t h = t->top + i; // wraps around above the plane and is then too large as well

        SIMD_UNROLL
        for (size_t j = 0; j < size; j++) {
            const size_t w = t->left + j;

            if (h < t->h && w < t->w)
                load_8(&d[i * POINTS + j], plane + (h * t->w + w) * 8);
            else
                d[i * POINTS + j] = zero;
        }
    }
}

/* The same for a patch inside the plane. */
SIMD_INLINE void read_inner_patch(const wino_patch *t, const float *plane, vec_8 *d, size_t size,
                                  int dims)
{
    const float *first = plane + (t->top * t->w + t->left) * 8;

    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(size, dims); i++) {
        SIMD_UNROLL
        for (size_t j = 0; j < size; j++)
            load_8(&d[i * POINTS + j], first + (i * t->w + j) * 8);
    }
}

static inline bool lies_inside(const wino_patch *t, size_t size, int dims)
{
    return t->top < t->h && t->left < t->w && t->top + rows_of(size, dims) <= t->h &&
           t->left + size <= t->w;
}

SIMD_INLINE void store_points(const vec_8 *d, float *points, size_t step, int dims)
{
    SIMD_UNROLL
    for (size_t p = 0; p < rows_of(POINTS, dims) * POINTS; p++)
        store_8(points + p * step, &d[p]);
}

SIMD_INLINE void image_of(const wino_patch *t, const float *image, float *points, int dims)
{
    const bool inside = lies_inside(t, POINTS, dims);

    for (size_t b = 0; b < t->blocks; b++) {
        const float *plane = image + b * t->h * t->w * 8;
        vec_8 d[POINTS * POINTS];

        if (inside)
            read_inner_patch(t, plane, d, POINTS, dims);
        else
            read_patch(t, plane, d, POINTS, dims);
        SIMD_UNROLL
        for (size_t i = 0; i < rows_of(POINTS, dims); i++)
            image_to_points(d + i * POINTS, 1);
        SIMD_UNROLL
        for (size_t j = 0; j < POINTS && dims == 2; j++)
            image_to_points(d + j, POINTS);
        store_points(d, points + b * 8, t->step, dims);
    }
}

void SIMD_NAME(wino_image)(const wino_patch *t, const float *image, float *points)
{
    if (t->dims == 1)
        image_of(t, image, points, 1);
    else
        image_of(t, image, points, 2);
}

SIMD_INLINE void kernel_of(vec_8 *d, size_t size, int dims)
{
    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(size, dims); i++)
        kernel_to_points(d + i * POINTS, 1, size);
    SIMD_UNROLL
    for (size_t j = 0; j < POINTS && dims == 2; j++)
        kernel_to_points(d + j, POINTS, size);
}

SIMD_INLINE void gradient_of(const wino_patch *t, const float *image, float *points, size_t size,
                             int dims)
{
    for (size_t b = 0; b < t->blocks; b++) {
        vec_8 d[POINTS * POINTS];

        vec_8 sum;

        read_patch(t, image + b * t->h * t->w * 8, d, size, dims);
        sum = d[0];
        SIMD_UNROLL
        for (size_t i = 1; i < rows_of(size, dims) * size; i++)
            sum += d[i / size * POINTS + i % size];
        store_8(points + rows_of(POINTS, dims) * POINTS * t->step + b * 8, &sum);
        kernel_of(d, size, dims);
        store_points(d, points + b * 8, t->step, dims);
    }
}

void SIMD_NAME(wino_gradient)(const wino_patch *t, const float *image, float *points)
{
    if (t->dims == 1)
        gradient_of(t, image, points, 2, 1);
    else if (t->size == 2)
        gradient_of(t, image, points, 2, 2);
    else
        gradient_of(t, image, points, 4, 2);
}

SIMD_INLINE void results_from(vec_8 *d, size_t size, int dims)
{
    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(POINTS, dims); i++)
        points_to_results(d + i * POINTS, 1, size);
    SIMD_UNROLL
    for (size_t j = 0; j < size && dims == 2; j++)
        points_to_results(d + j, POINTS, size);
}

SIMD_INLINE void load_points(vec_8 *d, const float *points, size_t step, int dims)
{
    SIMD_UNROLL
    for (size_t p = 0; p < rows_of(POINTS, dims) * POINTS; p++)
        load_8(&d[p], points + p * step);
}

SIMD_INLINE void results_of(const wino_patch *t, const float *points, const float *bias,
                            float *image, size_t size, int dims)
{
    for (size_t b = 0; b < t->blocks; b++) {
        float *plane = image + b * t->h * t->w * 8;
        vec_8 d[POINTS * POINTS];
        vec_8 shift;

        load_points(d, points + b * 8, t->step, dims);
        results_from(d, size, dims);
        load_8(&shift, bias + b * 8);
        for (size_t i = 0; i < rows_of(size, dims) && t->top + i < t->h; i++) {
            for (size_t j = 0; j < size && t->left + j < t->w; j++) {
                const vec_8 v = d[i * POINTS + j] + shift;

                store_8(plane + ((t->top + i) * t->w + t->left + j) * 8, &v);
            }
        }
    }
}

void SIMD_NAME(wino_results)(const wino_patch *t, const float *points, const float *bias,
                             float *image)
{
    if (t->dims == 1)
        results_of(t, points, bias, image, 2, 1);
    else if (t->size == 2)
        results_of(t, points, bias, image, 2, 2);
    else
        results_of(t, points, bias, image, 4, 2);
}

/* --- kernels: `count` floats of each tap and point --- */

SIMD_INLINE void weights_of(const float *taps, float *points, size_t count, size_t size, int dims)
{
    for (size_t i = 0; i < count; i += 8) {
        vec_8 d[POINTS * POINTS];

        SIMD_UNROLL
        for (size_t k = 0; k < rows_of(size, dims) * size; k++)
            load_8(&d[k / size * POINTS + k % size], taps + k * count + i);
        kernel_of(d, size, dims);
        store_points(d, points + i, count, dims);
    }
}

void SIMD_NAME(wino_weights)(const float *taps, size_t size, int dims, size_t count, float *points)
{
    if (dims == 1)
        weights_of(taps, points, count, 5, 1);
    else if (size == 3)
        weights_of(taps, points, count, 3, 2);
    else
        weights_of(taps, points, count, 5, 2);
}

SIMD_INLINE void taps_of(const float *points, float *taps, size_t count, size_t size, int dims)
{
    for (size_t i = 0; i < count; i += 8) {
        vec_8 d[POINTS * POINTS];

        load_points(d, points + i, count, dims);
        results_from(d, size, dims);
        SIMD_UNROLL
        for (size_t k = 0; k < rows_of(size, dims) * size; k++)
            store_8(taps + k * count + i, &d[k / size * POINTS + k % size]);
    }
}

void SIMD_NAME(wino_taps)(const float *points, size_t size, int dims, size_t count, float *taps)
{
    if (dims == 1)
        taps_of(points, taps, count, 5, 1);
    else if (size == 3)
        taps_of(points, taps, count, 3, 2);
    else
        taps_of(points, taps, count, 5, 2);
}
