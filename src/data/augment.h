/* SPDX-License-Identifier: Apache-2.0 */
/* augment.h - chooses crop, scale and flip of a sample from options and a seed. Reads no pixels. */
#ifndef LS_DATA_AUGMENT_H
#define LS_DATA_AUGMENT_H

#include <lockstep/data.h>

#include "base/rng.h"
#include "base/status.h"
#include "data/images/image.h"

#include <stdbool.h>

/*
 * The box `source` of the image is resized to scaled_width x scaled_height. Pixel (x, y) of the
 * sample is pixel (left + x, top + y) of the resized box, or zero outside it; then the sample is
 * flipped.
 */
typedef struct augment_plan {
    image_box source;
    int scaled_width;
    int scaled_height;
    int left;
    int top;
    int width; /* of the sample */
    int height;
    bool flip;
    /* Factor by which a JPEG is decoded smaller: 1, 2, 4 or 8. `source` is in full-size pixels. */
    int shrink;
} augment_plan;

/* Copies the options with every default filled in. LS_EINVAL names the invalid field. `dims` (C, H,
 * W) are those of the set's images; H and W may be 0. */
LS_MUST_USE ls_status augment_check(const ls_augment *given, const int64_t dims[3],
                                    ls_augment *out);

/* Dimensions of a sample of images of `dims`; `a` has been checked. */
void augment_dims(const ls_augment *a, const int64_t dims[3], int64_t out[3]);

void augment_seed(const ls_augment *a, uint64_t epoch, size_t index, ls_rng *rng);

/* Chooses the plan of an image of width x height. */
void augment_choose(const ls_augment *a, int width, int height, ls_rng *rng, augment_plan *out);

#endif
