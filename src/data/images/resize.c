/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resize.c - plans the weights of a resize and runs its two passes, for sample.c and convert.c.
 * The arithmetic is that of Pillow 13 (src/libImaging/Resample.c, the 8-bit path with its triangle
 * filter), step by step, because results must be equal bit by bit.
 */
#include "data/images/resize.h"

#include "base/alloc.h"

#include <string.h>

/* Half the width of the triangle, in source pixels. */
static double support_of(const resize_axis *a)
{
    const double scale = (double)a->in / a->out;

    return scale < 1.0 ? 1.0 : scale;
}

static double center_of(const resize_axis *a, int at)
{
    return (at + 0.5) * ((double)a->in / a->out);
}

/* The source pixels of result pixel `at`: low ... high - 1. */
static void source_range(const resize_axis *a, int at, int *low, int *high)
{
    const double support = support_of(a);
    const double center = center_of(a, at);

    *low = (int)(center - support + 0.5);
    *high = (int)(center + support + 0.5);
    *low = *low < 0 ? 0 : *low;
    *high = *high > a->in ? a->in : *high;
}

/* Weights of the source pixels low ... high - 1, which add up to 1. */
static void compute_weights(const resize_axis *a, int at, int low, int high, double *weights)
{
    const double shrink = 1.0 / support_of(a);
    const double center = center_of(a, at);
    double sum = 0.0;

    for (int i = 0; i < high - low; i++) {
        const double distance = (i + low - center + 0.5) * shrink;
        const double away = distance < 0.0 ? -distance : distance;

        weights[i] = away < 1.0 ? 1.0 - away : 0.0;
        sum += weights[i];
    }
    for (int i = 0; i < high - low && sum != 0.0; i++)
        weights[i] /= sum;
}

/* Writes n weights after `skip` zero weights. */
static void split_weights(const double *weights, int skip, int n, resize_weight *out)
{
    for (int i = 0; i < n; i++) {
        const int fixed = (int)(0.5 + weights[i] * (1 << RESIZE_BITS));
        const int at = skip + i;

        out[at / 2].high[at % 2] = (int16_t)(fixed >> RESIZE_LOW);
        out[at / 2].low[at % 2] = (int16_t)(fixed & ((1 << RESIZE_LOW) - 1));
    }
}

/* Weights a pixel, made even. At most one pixel behind the needed part of the source is read, with
 * a weight of 0. */
static size_t count_taps(const resize_axis *a)
{
    const double support = support_of(a);
    const int whole = (int)support;
    const int most = 2 * (whole + (whole < support ? 1 : 0)) + 1;
    const int n = most < a->end - a->first ? most : a->end - a->first;

    return ((size_t)n + 1) & ~(size_t)1;
}

static ls_status plan_weights(resize_axis *a, byte_buffer *sums)
{
    const size_t pairs = a->n_taps / 2;
    resize_weight *weights;
    int *starts;

    LS_TRY(byte_buffer_reserve(sums, (a->n_taps + 2) * sizeof(double)));
    LS_TRY(byte_buffer_reserve(&a->starts, (size_t)a->count * sizeof(int)));
    LS_TRY(byte_buffer_reserve(&a->weights, (size_t)a->count * pairs * sizeof(*weights)));
    starts = (int *)(void *)a->starts.data;
    weights = (resize_weight *)(void *)a->weights.data;
    memset(weights, 0, (size_t)a->count * pairs * sizeof(*weights));
    for (int i = 0; i < a->count; i++) {
        double *exact = (double *)(void *)sums->data;
        const int last = a->end - (int)a->n_taps;
        int low;
        int high;

        source_range(a, a->from + i, &low, &high);
        compute_weights(a, a->from + i, low, high, exact);
        starts[i] = low < last ? low : last > a->first ? last : a->first;
        split_weights(exact, low - starts[i], high - low, weights + (size_t)i * pairs);
        starts[i] -= a->first;
    }
    return LS_OK;
}

static ls_status plan_axis(resize_axis *a, byte_buffer *sums, int in, int out, int from, int count)
{
    int ignored;

    a->in = in;
    a->out = out;
    a->from = from;
    a->count = count;
    if (in == out) {
        a->first = from;
        a->end = from + count;
        return LS_OK;
    }
    source_range(a, from, &a->first, &ignored);
    source_range(a, from + count - 1, &ignored, &a->end);
    a->n_taps = count_taps(a);
    return plan_weights(a, sums);
}

ls_status resize_plan(resizer *r, int in_w, int in_h, int out_w, int out_h, const int window[4])
{
    LS_ASSERT(in_w > 0 && in_h > 0 && window[2] > 0 && window[3] > 0);
    LS_ASSERT(window[0] >= 0 && window[2] <= out_w - window[0]);
    LS_ASSERT(window[1] >= 0 && window[3] <= out_h - window[1]);
    LS_TRY(plan_axis(&r->x, &r->sums, in_w, out_w, window[0], window[2]));
    return plan_axis(&r->y, &r->sums, in_h, out_h, window[1], window[3]);
}

static ls_status resize_horizontally(resizer *r, image_view *image)
{
    const resize_axis *a = &r->x;
    const size_t stride = (size_t)a->count * 4;

    if (a->in == a->out)
        return LS_OK;
    LS_TRY(byte_buffer_reserve(&r->horizontal, stride * (size_t)image->height));
    for (int y = 0; y < image->height; y++)
        resize_row_horizontal(image->pixels + (size_t)y * image->stride,
                              (const int *)(const void *)a->starts.data,
                              (const resize_weight *)(const void *)a->weights.data, a->n_taps / 2,
                              r->horizontal.data + (size_t)y * stride, (size_t)a->count);
    *image = (image_view){r->horizontal.data, stride, a->count, image->height};
    return LS_OK;
}

static ls_status resize_vertically(resizer *r, image_view *image)
{
    const resize_axis *a = &r->y;
    const size_t stride = (size_t)image->width * 4;
    const int *starts = (const int *)(const void *)a->starts.data;
    const resize_weight *weights = (const resize_weight *)(const void *)a->weights.data;

    if (a->in == a->out)
        return LS_OK;
    LS_TRY(byte_buffer_reserve(&r->vertical, stride * (size_t)a->count));
    for (int y = 0; y < a->count; y++) {
        const size_t left = (size_t)(image->height - starts[y]);
        const size_t n_rows = left < a->n_taps ? left : a->n_taps;

        resize_rows_vertical(image->pixels + (size_t)starts[y] * image->stride, image->stride,
                             n_rows, weights + (size_t)y * a->n_taps / 2,
                             r->vertical.data + (size_t)y * stride, stride);
    }
    *image = (image_view){r->vertical.data, stride, image->width, a->count};
    return LS_OK;
}

/* Pillow 13 runs the vertical pass first where the height shrinks by more than twice as many pixels
 * as the width; older versions always ran the horizontal pass first. The first pass is rounded, so
 * the order changes the result. */
static bool is_vertical_first(const resizer *r)
{
    const int less_high = r->y.in - r->y.out;

    return less_high > 0 && less_high > 2 * (r->x.in - r->x.out);
}

ls_status resize_run(resizer *r, const image_view *source, image_view *out)
{
    image_view image = *source;

    LS_ASSERT(source->width == r->x.end - r->x.first && source->height == r->y.end - r->y.first);
    if (is_vertical_first(r)) {
        LS_TRY(resize_vertically(r, &image));
        LS_TRY(resize_horizontally(r, &image));
    } else {
        LS_TRY(resize_horizontally(r, &image));
        LS_TRY(resize_vertically(r, &image));
    }
    *out = image;
    return LS_OK;
}

void resizer_free(resizer *r)
{
    byte_buffer_free(&r->x.starts);
    byte_buffer_free(&r->x.weights);
    byte_buffer_free(&r->y.starts);
    byte_buffer_free(&r->y.weights);
    byte_buffer_free(&r->sums);
    byte_buffer_free(&r->horizontal);
    byte_buffer_free(&r->vertical);
}
