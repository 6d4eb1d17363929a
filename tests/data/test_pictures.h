/* SPDX-License-Identifier: Apache-2.0 */
/* test_pictures.h - small pictures as files, made when they are needed. Failures fail the test. */
#ifndef TESTS_DATA_TEST_PICTURES_H
#define TESTS_DATA_TEST_PICTURES_H

#include "data/images/image_write.h"

/* A soft picture with an edge, which `seed` moves; channels 1 or 3. Its bytes are free()d by the
 * caller. */
flat_image picture_make(int width, int height, int channels, int seed);

/* Appends it as a file's content: PNG with quality 0. */
void picture_encode(int width, int height, int channels, int seed, int quality, text_buf *out);

/* Writes it to a file. */
void picture_write(const char *path, int width, int height, int seed, int quality);

#endif
