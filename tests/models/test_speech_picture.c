/* SPDX-License-Identifier: Apache-2.0 */
/* test_speech_picture.c - tests pictures of spectrograms: pixels of written PNGs, and refusals. */
#include "base/unit.h"

#include "data/temp_files.h"
#include "models/speech/picture.h"

#include <math.h>
#include <spng.h>
#include <stdlib.h>

enum { CHANNELS = 3 };

static const unsigned char dark[CHANNELS] = {68, 1, 84}, bright[CHANNELS] = {253, 231, 37};
static const unsigned char middle[CHANNELS] = {33, 145, 140}, white[CHANNELS] = {255, 255, 255};
static temp_folder folder;
static char path[TEMP_PATH_BYTES];
static speech_error error;

static int make_folder(void **state)
{
    (void)state;
    temp_folder_create(&folder);
    (void)temp_path(&folder, "a.png", path);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

/* The pixels of the file, which the caller frees. */
static unsigned char *read_picture(uint32_t width, uint32_t height)
{
    spng_ctx *ctx = spng_ctx_new(0);
    struct spng_ihdr header;
    unsigned char *file, *pixels;
    size_t bytes;

    file = temp_read(path, &bytes);
    assert_int_equal(spng_set_png_buffer(ctx, file, bytes), 0);
    assert_int_equal(spng_get_ihdr(ctx, &header), 0);
    assert_int_equal(header.width, width);
    assert_int_equal(header.height, height);
    pixels = malloc((size_t)width * height * CHANNELS);
    assert_non_null(pixels);
    assert_int_equal(
        spng_decode_image(ctx, pixels, (size_t)width * height * CHANNELS, SPNG_FMT_RGB8, 0), 0);
    spng_ctx_free(ctx);
    free(file);
    return pixels;
}

static void expect_pixel(const unsigned char *pixels, size_t width, size_t x, size_t y,
                         const unsigned char want[CHANNELS])
{
    assert_memory_equal(pixels + (y * width + x) * CHANNELS, want, CHANNELS);
}

static void time_runs_right_and_bands_run_up(void **state)
{
    /* Two columns of three rows, with a stride of four; then one column of one row. */
    static const float values[] = {0, 0.5F, 1, 9, 1, NAN, 0, 9};
    const picture_panel panels[] = {{values, 2, 3, 4, 0, 1, 0}, {values + 1, 1, 1, 1, 0, 1, 1}};
    enum { WIDTH = 4, HEIGHT = 6 + 4 + 2 };
    unsigned char *pixels;

    (void)state;
    assert_int_equal(picture_write(path, panels, 2, 2, &error), LS_OK);
    pixels = read_picture(WIDTH, HEIGHT);
    for (size_t i = 0; i < 2; i++) {
        expect_pixel(pixels, WIDTH, i, 4 + i, dark);
        expect_pixel(pixels, WIDTH, i, 2 + i, middle);
        expect_pixel(pixels, WIDTH, i, i, bright);
        expect_pixel(pixels, WIDTH, 2 + i, 4 + i, bright);
        expect_pixel(pixels, WIDTH, 2 + i, 2 + i, dark); // NaN
        expect_pixel(pixels, WIDTH, 2 + i, i, dark);
        expect_pixel(pixels, WIDTH, i, 10 + i, middle);
        expect_pixel(pixels, WIDTH, 2 + i, 10 + i, white);
    }
    for (size_t y = 6; y < 10; y++)
        expect_pixel(pixels, WIDTH, 0, y, white);
    free(pixels);
}

static void range_of_the_values_is_the_default(void **state)
{
    static const float values[] = {-7, -5, -3};
    const picture_panel panel = {values, 3, 1, 1, 0, 0, 0};
    unsigned char *pixels;

    (void)state;
    assert_int_equal(picture_write(path, &panel, 1, 1, &error), LS_OK);
    pixels = read_picture(3, 1);
    expect_pixel(pixels, 3, 0, 0, dark);
    expect_pixel(pixels, 3, 1, 0, middle);
    expect_pixel(pixels, 3, 2, 0, bright);
    free(pixels);
}

static void columns_are_repeated(void **state)
{
    static const float values[] = {0, 0.5F, 1};
    const picture_panel panel = {values, 3, 1, 1, 0, 1, 2};
    enum { ZOOM = 2, WIDE = 4, WIDTH = 3 * WIDE };
    unsigned char *pixels;

    (void)state;
    assert_int_equal(picture_write(path, &panel, 1, ZOOM, &error), LS_OK);
    pixels = read_picture(WIDTH, ZOOM);
    for (size_t x = 0; x < WIDTH; x++)
        expect_pixel(pixels, WIDTH, x, x % ZOOM, x < WIDE ? dark : x < 2 * WIDE ? middle : bright);
    free(pixels);
}

static void impossible_pictures_are_refused(void **state)
{
    static const float value = 1;
    picture_panel panel = {&value, 0, 1, 1, 0, 1, 0};

    (void)state;
    assert_int_equal(picture_write(path, &panel, 1, 1, &error), LS_EINVAL);
    panel.columns = (size_t)PICTURE_MAX_SIDE / 2 + 1;
    assert_int_equal(picture_write(path, &panel, 1, 2, &error), LS_EINVAL);
    assert_int_equal(picture_write(path, &panel, 0, 1, &error), LS_EINVAL);
    panel.columns = 2;
    panel.repeat = (size_t)PICTURE_MAX_SIDE / 2 + 1;
    assert_int_equal(picture_write(path, &panel, 1, 1, &error), LS_EINVAL);
    panel.repeat = SIZE_MAX / 2 + 1;
    assert_int_equal(picture_write(path, &panel, 1, 1, &error), LS_EINVAL);
    panel.columns = panel.repeat = 1;
    assert_int_equal(picture_write(path, &panel, 1, 0, &error), LS_EINVAL);
    (void)temp_path(&folder, "absent/a.png", path);
    assert_int_equal(picture_write(path, &panel, 1, 1, &error), LS_EIO);
    assert_non_null(strstr(error.text, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(time_runs_right_and_bands_run_up, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(range_of_the_values_is_the_default, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(columns_are_repeated, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(impossible_pictures_are_refused, make_folder,
                                        remove_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
