/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.h - draws mel spectrograms and attention alignments as PNG files, by libspng: time runs
 * to the right, bands or symbols from bottom to top, dark is low and yellow is high.
 */
#ifndef MODELS_SPEECH_PICTURE_H
#define MODELS_SPEECH_PICTURE_H

#include "models/speech/error.h"

enum { PICTURE_MAX_SIDE = 16384 }; /* pixels */

/* An array [columns][rows], with `stride` elements from column to column. Each value is a rectangle
 * of `repeat` (0 means 1) * zoom pixels in width and zoom in height. */
typedef struct picture_panel {
    const float *values;
    size_t columns, rows, stride;
    float low, high; /* what is darkest and brightest; equal ones: those of the values */
    size_t repeat;
} picture_panel;

/* Writes the panels one below the other. LS_EINVAL: no panel, an empty one, or a side of more than
 * PICTURE_MAX_SIDE pixels. LS_EIO: the file cannot be written.
 * LS_ENOMEM. Values that are not finite are drawn as the darkest. */
LS_MUST_USE ls_status picture_write(const char *path, const picture_panel *panels, int n, int zoom,
                                    speech_error *error);

/* The bytes of a picture's file, which the caller frees. LS_EIO: it cannot be read. LS_ENOMEM. */
LS_MUST_USE ls_status picture_read(const char *path, void **png, size_t *bytes,
                                   speech_error *error);

#endif
