/* SPDX-License-Identifier: Apache-2.0 */
/* test_pictures.c - draws small pictures and writes them as PNG or JPEG files. */
#include "data/test_pictures.h"

#include "base/unit.h"

#include "data/temp_files.h"

#include <stdlib.h>

flat_image picture_make(int width, int height, int channels, int seed)
{
    uint8_t *bytes = malloc((size_t)width * (size_t)height * (size_t)channels);
    uint8_t *p = bytes;

    assert_non_null(bytes);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++)
                *p++ = (uint8_t)(x > width / 2 + seed % 5 ? 30 + 40 * c + y
                                                          : 3 * x + 2 * y * (c + 1) + 17 * seed);
    return (flat_image){bytes, width, height, channels};
}

void picture_encode(int width, int height, int channels, int seed, int quality, text_buf *out)
{
    const flat_image image = picture_make(width, height, channels, seed);

    if (quality == 0)
        assert_ok(image_write_png(&image, out));
    else
        assert_ok(image_write_jpeg(&image, quality, out));
    free((void *)(uintptr_t)image.bytes);
}

void picture_write(const char *path, int width, int height, int seed, int quality)
{
    text_buf file = {0};

    picture_encode(width, height, 3, seed, quality, &file);
    temp_write(path, file.data, file.length);
    text_free(&file);
}
