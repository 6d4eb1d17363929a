/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_winograd.c - the loops of Winograd's convolution on tiles of 6x6 or 4x4, or of 6 positions
 * of a line (`dims` 1), a block of channels at a time.
 *
 * A tile of an image, a kernel of s x s and s x s results are polynomials; they are multiplied by
 * their values at six or four points in each direction (Lavin and Gray, "Fast Algorithms for
 * Convolutional Neural Networks", 2016). The six are 0, A, -A, B, -B and infinity with A B = 1:
 * that saves products, and with 2/3 and 3/2 rounding errors are a third of those of the usual 1 and
 * 2. The four are 0, 1, -1 and infinity.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define LANES SIMD_LANES_MAX
#define BLOCK ((size_t)LANES)
#define MOST  ((size_t)6) /* points in a direction, and the row of an array of points */

#define A (2.0F / 3)
#define B (3.0F / 2)

/* The kernel's normalising factors at A and B: 1 over what the other points' distances
 * multiply to. */
#define FACTOR_A (1 / (2 * A * A * (A * A - B * B)))
#define FACTOR_B (1 / (2 * B * B * (B * B - A * A)))

/* --- one direction: vectors `step` apart --- */

/* Four values of an image to its four points. */
SIMD_INLINE void image_to_four(V(vec) * d, size_t step)
{
    const V(vec) d1 = d[step];
    const V(vec) d2 = d[2 * step];

    d[0] -= d2;
    d[step] = d2 + d1;
    d[2 * step] = d2 - d1;
    d[3 * step] -= d1;
}

/* Six values to six points. */
SIMD_INLINE void image_to_six(V(vec) * d, size_t step)
{
    const V(vec) d0 = d[0];
    const V(vec) d1 = d[step];
    const V(vec) d2 = d[2 * step];
    const V(vec) d3 = d[3 * step];
    const V(vec) d4 = d[4 * step];
    const V(vec) d5 = d[5 * step];
    const V(vec) even_a = d4 - B * B * d2;
    const V(vec) odd_a = A * d3 - B * d1;
    const V(vec) even_b = d4 - A * A * d2;
    const V(vec) odd_b = B * d3 - A * d1;

    d[0] = d0 - (A * A + B * B) * d2 + d4;
    d[step] = even_a + odd_a;
    d[2 * step] = even_a - odd_a;
    d[3 * step] = even_b + odd_b;
    d[4 * step] = even_b - odd_b;
    d[5 * step] = d1 - (A * A + B * B) * d3 + d5;
}

SIMD_INLINE void image_to_points(V(vec) * d, size_t step, size_t side)
{
    if (side == 4)
        image_to_four(d, step);
    else
        image_to_six(d, step);
}

/* Three values of a kernel to its four points. */
SIMD_INLINE void kernel_to_four(V(vec) * k, size_t step)
{
    const V(vec) even = 0.5F * (k[0] + k[2 * step]);
    const V(vec) odd = 0.5F * k[step];

    k[3 * step] = k[2 * step];
    k[step] = even + odd;
    k[2 * step] = even - odd;
}

/* `size` (2 to 5) values of a kernel to its six points. */
SIMD_INLINE void kernel_to_six(V(vec) * k, size_t step, size_t size)
{
    const V(vec) zero = {0};
    const V(vec) k0 = k[0];
    const V(vec) k1 = k[step];
    const V(vec) k2 = size > 2 ? k[2 * step] : zero;
    const V(vec) k3 = size > 3 ? k[3 * step] : zero;
    const V(vec) k4 = size > 4 ? k[4 * step] : zero;
    const V(vec) even_a = FACTOR_A * k0 + FACTOR_A * A * A * k2 + FACTOR_A * A * A * A * A * k4;
    const V(vec) odd_a = FACTOR_A * A * k1 + FACTOR_A * A * A * A * k3;
    const V(vec) even_b = FACTOR_B * k0 + FACTOR_B * B * B * k2 + FACTOR_B * B * B * B * B * k4;
    const V(vec) odd_b = FACTOR_B * B * k1 + FACTOR_B * B * B * B * k3;

    k[5 * step] = size == 2 ? k1 : size == 3 ? k2 : size == 4 ? k3 : k4;
    k[step] = even_a + odd_a;
    k[2 * step] = even_a - odd_a;
    k[3 * step] = even_b + odd_b;
    k[4 * step] = even_b - odd_b;
}

SIMD_INLINE void kernel_to_points(V(vec) * k, size_t step, size_t size, size_t side)
{
    if (side == 4)
        kernel_to_four(k, step);
    else
        kernel_to_six(k, step, size);
}

/* Four points to two results. */
SIMD_INLINE void results_of_four(V(vec) * p, size_t step)
{
    const V(vec) p1 = p[step];
    const V(vec) p2 = p[2 * step];

    p[0] += p1 + p2;
    p[step] = p1 - p2 + p[3 * step];
}

/* Six points to results in the first `size` (2 to 5) elements. */
SIMD_INLINE void results_of_six(V(vec) * p, size_t step, size_t size)
{
    const V(vec) sum_a = p[step] + p[2 * step];
    const V(vec) difference_a = p[step] - p[2 * step];
    const V(vec) sum_b = p[3 * step] + p[4 * step];
    const V(vec) difference_b = p[3 * step] - p[4 * step];
    const V(vec) last = p[5 * step];

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

SIMD_INLINE void points_to_results(V(vec) * p, size_t step, size_t size, size_t side)
{
    if (side == 4)
        results_of_four(p, step);
    else
        results_of_six(p, step, size);
}

/* --- tiles of images --- */

/* The rows of a square of that size, or of a line. */
SIMD_INLINE size_t rows_of(size_t size, int dims)
{
    return dims == 1 ? 1 : size;
}

/* Reads size x size positions of a plane; positions outside are 0. */
SIMD_INLINE void read_patch(const wino_patch *t, const float *plane, V(vec) * d, size_t size,
                            int dims)
{
    const V(vec) zero = {0};

    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(size, dims); i++) {
        const size_t h = t->top + i; // wraps around above the plane and is then too large as well

        SIMD_UNROLL
        for (size_t j = 0; j < size; j++) {
            const size_t w = t->left + j;

            if (h < t->h && w < t->w)
                V(load)(&d[i * MOST + j], plane + (h * t->w + w) * BLOCK);
            else
                d[i * MOST + j] = zero;
        }
    }
}

/* The same for a patch inside the plane. */
SIMD_INLINE void read_inner_patch(const wino_patch *t, const float *plane, V(vec) * d, size_t size,
                                  int dims)
{
    const float *first = plane + (t->top * t->w + t->left) * BLOCK;

    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(size, dims); i++) {
        SIMD_UNROLL
        for (size_t j = 0; j < size; j++)
            V(load)(&d[i * MOST + j], first + (i * t->w + j) * BLOCK);
    }
}

static inline bool lies_inside(const wino_patch *t, size_t size, int dims)
{
    return t->top < t->h && t->left < t->w && t->top + rows_of(size, dims) <= t->h &&
           t->left + size <= t->w;
}

SIMD_INLINE void store_points(const V(vec) * d, float *points, size_t step, size_t side, int dims)
{
    SIMD_UNROLL
    for (size_t p = 0; p < rows_of(side, dims) * side; p++)
        V(store)(points + p * step, &d[p / side * MOST + p % side]);
}

SIMD_INLINE void image_of(const wino_patch *t, const float *image, float *points, size_t side,
                          int dims)
{
    const bool inside = lies_inside(t, side, dims);

    for (size_t b = 0; b < t->blocks; b++) {
        const float *plane = image + b * t->h * t->w * BLOCK;
        V(vec) d[MOST * MOST];

        if (inside)
            read_inner_patch(t, plane, d, side, dims);
        else
            read_patch(t, plane, d, side, dims);
        SIMD_UNROLL
        for (size_t i = 0; i < rows_of(side, dims); i++)
            image_to_points(d + i * MOST, 1, side);
        SIMD_UNROLL
        for (size_t j = 0; j < side && dims == 2; j++)
            image_to_points(d + j, MOST, side);
        store_points(d, points + b * BLOCK, t->step, side, dims);
    }
}

void SIMD_NAME(wino_image)(const wino_patch *t, const float *image, float *points)
{
    if (t->dims == 1)
        image_of(t, image, points, 6, 1);
    else if (t->side == 4)
        image_of(t, image, points, 4, 2);
    else
        image_of(t, image, points, 6, 2);
}

SIMD_INLINE void kernel_of(V(vec) * d, size_t size, size_t side, int dims)
{
    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(size, dims); i++)
        kernel_to_points(d + i * MOST, 1, size, side);
    SIMD_UNROLL
    for (size_t j = 0; j < side && dims == 2; j++)
        kernel_to_points(d + j, MOST, size, side);
}

SIMD_INLINE void gradient_of(const wino_patch *t, const float *image, float *points, size_t size,
                             int dims)
{
    for (size_t b = 0; b < t->blocks; b++) {
        V(vec) d[MOST * MOST];

        V(vec) sum;

        read_patch(t, image + b * t->h * t->w * BLOCK, d, size, dims);
        sum = d[0];
        SIMD_UNROLL
        for (size_t i = 1; i < rows_of(size, dims) * size; i++)
            sum += d[i / size * MOST + i % size];
        V(store)(points + rows_of(6, dims) * 6 * t->step + b * BLOCK, &sum);
        kernel_of(d, size, 6, dims);
        store_points(d, points + b * BLOCK, t->step, 6, dims);
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

SIMD_INLINE void results_from(V(vec) * d, size_t size, size_t side, int dims)
{
    SIMD_UNROLL
    for (size_t i = 0; i < rows_of(side, dims); i++)
        points_to_results(d + i * MOST, 1, size, side);
    SIMD_UNROLL
    for (size_t j = 0; j < size && dims == 2; j++)
        points_to_results(d + j, MOST, size, side);
}

SIMD_INLINE void load_points(V(vec) * d, const float *points, size_t step, size_t side, int dims)
{
    SIMD_UNROLL
    for (size_t p = 0; p < rows_of(side, dims) * side; p++)
        V(load)(&d[p / side * MOST + p % side], points + p * step);
}

SIMD_INLINE void results_of(const wino_patch *t, const float *points, const float *bias,
                            float *image, size_t size, size_t side, int dims)
{
    for (size_t b = 0; b < t->blocks; b++) {
        float *plane = image + b * t->h * t->w * BLOCK;
        V(vec) d[MOST * MOST];
        V(vec) shift;

        load_points(d, points + b * BLOCK, t->step, side, dims);
        results_from(d, size, side, dims);
        V(load)(&shift, bias + b * BLOCK);
        for (size_t i = 0; i < rows_of(size, dims) && t->top + i < t->h; i++) {
            for (size_t j = 0; j < size && t->left + j < t->w; j++) {
                const V(vec) v = d[i * MOST + j] + shift;

                V(store)(plane + ((t->top + i) * t->w + t->left + j) * BLOCK, &v);
            }
        }
    }
}

void SIMD_NAME(wino_results)(const wino_patch *t, const float *points, const float *bias,
                             float *image)
{
    if (t->dims == 1)
        results_of(t, points, bias, image, 2, 6, 1);
    else if (t->side == 4)
        results_of(t, points, bias, image, 2, 4, 2);
    else if (t->size == 2)
        results_of(t, points, bias, image, 2, 6, 2);
    else
        results_of(t, points, bias, image, 4, 6, 2);
}

/* --- kernels --- */

SIMD_INLINE void weights_of(const wino_kernel *k, const float *taps, float *points, size_t size,
                            size_t side, int dims)
{
    for (size_t i = 0; i < k->count; i += BLOCK) {
        V(vec) d[MOST * MOST];

        SIMD_UNROLL
        for (size_t t = 0; t < rows_of(size, dims) * size; t++)
            V(load)(&d[t / size * MOST + t % size], taps + t * k->count + i);
        kernel_of(d, size, side, dims);
        store_points(d, points + i, k->step, side, dims);
    }
}

void SIMD_NAME(wino_weights)(const wino_kernel *k, const float *taps, float *points)
{
    if (k->dims == 1)
        weights_of(k, taps, points, 5, 6, 1);
    else if (k->side == 4)
        weights_of(k, taps, points, 3, 4, 2);
    else if (k->size == 3)
        weights_of(k, taps, points, 3, 6, 2);
    else
        weights_of(k, taps, points, 5, 6, 2);
}

SIMD_INLINE void taps_of(const wino_kernel *k, const float *points, float *taps, size_t size,
                         int dims)
{
    for (size_t i = 0; i < k->count; i += BLOCK) {
        V(vec) d[MOST * MOST];

        load_points(d, points + i, k->step, 6, dims);
        results_from(d, size, 6, dims);
        SIMD_UNROLL
        for (size_t t = 0; t < rows_of(size, dims) * size; t++)
            V(store)(taps + t * k->count + i, &d[t / size * MOST + t % size]);
    }
}

void SIMD_NAME(wino_taps)(const wino_kernel *k, const float *points, float *taps)
{
    if (k->dims == 1)
        taps_of(k, points, taps, 5, 1);
    else if (k->size == 3)
        taps_of(k, points, taps, 3, 2);
    else
        taps_of(k, points, taps, 5, 2);
}
