/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resize.c - compares resizing with its definition, computed pixel by pixel. Compiled twice:
 * with SSE2 and with the plain loops.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "data/images/resize.h"

#include <math.h>
#include <stdlib.h>

#define MOST 400

static uint8_t source[(MOST * MOST + 16) * 4];

/* All sizes begin with random bytes. */
static image_view make_source(int width, int height)
{
    ls_rng rng;

    ls_rng_seed(&rng, (uint64_t)width * 1000 + (uint64_t)height);
    for (size_t i = 0; i < (size_t)width * (size_t)height * 4; i++)
        source[i] = (uint8_t)ls_rng_next(&rng);
    return (image_view){source, (size_t)width * 4, width, height};
}

/* One line of `in` bytes with a step in between, at position `at` of `out`: weights of a triangle,
 * 22 bits each, a rounded sum. */
static uint8_t resized(const uint8_t *bytes, size_t step, int in, int out, int at)
{
    const double scale = (double)in / out;
    const double half = fmax(scale, 1.0);
    const double center = (at + 0.5) * scale;
    const int low = (int)fmax(0.0, trunc(center - half + 0.5));
    const int high = (int)fmin(in, trunc(center + half + 0.5));
    double total = 0.0;
    int64_t sum = (int64_t)1 << 21;

    if (in == out)
        return bytes[(size_t)at * step];
    for (int i = low; i < high; i++)
        total += fmax(0.0, 1.0 - fabs((i - center + 0.5) * (1.0 / half)));
    for (int i = low; i < high; i++) {
        const double weight = fmax(0.0, 1.0 - fabs((i - center + 0.5) * (1.0 / half))) / total;

        sum += (int64_t)(0.5 + weight * (1 << 22)) * bytes[(size_t)i * step];
    }
    sum >>= 22;
    return (uint8_t)(sum > 255 ? 255 : sum);
}

/* Pixel (x, y), channel c: the horizontal pass first, or the vertical one where the height shrinks
 * by more than twice what the width shrinks by. */
static uint8_t expected(const image_view *v, int out_w, int out_h, int x, int y, size_t c)
{
    const int less_high = v->height - out_h;
    uint8_t line[MOST];

    if (less_high > 0 && less_high > 2 * (v->width - out_w)) {
        for (int column = 0; column < v->width; column++)
            line[column] =
                resized(v->pixels + (size_t)column * 4 + c, v->stride, v->height, out_h, y);
        return resized(line, 1, v->width, out_w, x);
    }
    for (int row = 0; row < v->height; row++)
        line[row] = resized(v->pixels + (size_t)row * v->stride + c, 4, v->width, out_w, x);
    return resized(line, 1, v->height, out_h, y);
}

/* The part of `v` that the plan needs. */
static image_view needed(const resizer *r, const image_view *v)
{
    return (image_view){v->pixels + (size_t)r->y.first * v->stride + (size_t)r->x.first * 4,
                        v->stride, r->x.end - r->x.first, r->y.end - r->y.first};
}

static void assert_resizes(int in_w, int in_h, int out_w, int out_h, const int window[4])
{
    const image_view v = make_source(in_w, in_h);
    resizer r = {0};
    image_view part;
    image_view out;

    assert_ok(resize_plan(&r, in_w, in_h, out_w, out_h, window));
    part = needed(&r, &v);
    assert_ok(resize_run(&r, &part, &out));
    assert_int_equal(out.width, window[2]);
    assert_int_equal(out.height, window[3]);
    // Three columns of the window and all of its rows show enough, at a bearable price.
    for (int y = 0; y < window[3]; y++) {
        const int columns[3] = {0, window[2] / 2, window[2] - 1};

        for (int i = 0; i < 3; i++)
            for (size_t c = 0; c < 4; c++)
                assert_int_equal(
                    out.pixels[(size_t)y * out.stride + 4 * (size_t)columns[i] + c],
                    expected(&v, out_w, out_h, window[0] + columns[i], window[1] + y, c));
    }
    resizer_free(&r);
}

static void all_sizes_follow_the_definition(void **state)
{
    static const int sizes[][4] = {
        {1, 1, 1, 1},     {1, 1, 5, 4},         {7, 5, 1, 1},       {28, 28, 32, 32},
        {60, 44, 60, 44}, {60, 44, 60, 20},     {60, 44, 25, 44},   {301, 203, 224, 96},
        {400, 3, 17, 9},  {3, 400, 9, 17},      {97, 101, 131, 50}, {400, 400, 3, 2},
        {33, 31, 16, 62}, {301, 203, 311, 109}, {60, 44, 55, 33},   {60, 44, 55, 34}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++)
        assert_resizes(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                       (int[]){0, 0, sizes[i][2], sizes[i][3]});
}

static void a_part_equals_the_same_pixels_of_the_whole(void **state)
{
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 1);
    for (int i = 0; i < 40; i++) {
        const int in_w = 1 + (int)ls_rng_below(&rng, 120);
        const int in_h = 1 + (int)ls_rng_below(&rng, 120);
        const int out_w = 1 + (int)ls_rng_below(&rng, 120);
        const int out_h = 1 + (int)ls_rng_below(&rng, 120);
        const int w = 1 + (int)ls_rng_below(&rng, (uint64_t)out_w);
        const int h = 1 + (int)ls_rng_below(&rng, (uint64_t)out_h);

        assert_resizes(in_w, in_h, out_w, out_h,
                       (int[]){(int)ls_rng_below(&rng, (uint64_t)(out_w - w) + 1),
                               (int)ls_rng_below(&rng, (uint64_t)(out_h - h) + 1), w, h});
    }
}

static void a_uniform_image_stays_uniform(void **state)
{
    resizer r = {0};
    image_view out;
    const image_view v = {source, (size_t)MOST * 4, MOST, MOST};

    LS_UNUSED(state);
    memset(source, 255, sizeof(source));
    for (int out_size = 1; out_size < 500; out_size += 83) {
        assert_ok(
            resize_plan(&r, MOST, MOST, out_size, out_size, (int[]){0, 0, out_size, out_size}));
        assert_ok(resize_run(&r, &v, &out));
        for (size_t i = 0; i < (size_t)out_size * (size_t)out_size * 4; i++)
            assert_int_equal(out.pixels[i], 255);
    }
    resizer_free(&r);
}

/* The largest side there is, onto one pixel: no sum overflows. */
static void the_longest_row_does_not_overflow(void **state)
{
    const size_t n = 65535;
    uint8_t *row = calloc(n + 8, 4);
    const image_view v = {row, n * 4, (int)n, 1};
    resizer r = {0};
    image_view out;

    LS_UNUSED(state);
    assert_non_null(row);
    memset(row, 255, n * 4);
    assert_ok(resize_plan(&r, (int)n, 1, 1, 1, (int[]){0, 0, 1, 1}));
    assert_ok(resize_run(&r, &v, &out));
    assert_in_range(out.pixels[0], 254, 255);
    resizer_free(&r);
    free(row);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    const image_view v = make_source(20, 20);
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    do {
        resizer r = {0};
        image_view out;

        ls_alloc_fail_at(++n);
        st = resize_plan(&r, 20, 20, 9, 9, (int[]){0, 0, 9, 9});
        if (st == LS_OK)
            st = resize_run(&r, &v, &out);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        resizer_free(&r);
    } while (st != LS_OK);
    assert_int_equal(n, 8); // two for each axis, sums, two results, and none
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_follow_the_definition),
        cmocka_unit_test(a_part_equals_the_same_pixels_of_the_whole),
        cmocka_unit_test(a_uniform_image_stays_uniform),
        cmocka_unit_test(the_longest_row_does_not_overflow),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
