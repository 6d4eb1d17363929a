/* SPDX-License-Identifier: Apache-2.0 */
/*
 * augment.h - from options and randomness to which pixels of an image become which of a sample; no pixel is touched here.
 */
#ifndef LS_DATA_AUGMENT_H
#define LS_DATA_AUGMENT_H

#include <lockstep/data.h>

#include "base/rng.h"
#include "base/status.h"
#include "data/images/image.h"

#include <stdbool.h>

/*
 * `source` of the image is resized to scaled_width x scaled_height. Pixel (x, y) of the sample is pixel (left + x, top + y) of that,
 * zero where there is none, and mirrored at last.
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
    int shrink; /* 1, or how much smaller a JPEG may be decoded; `source` is of the full image */
} augment_plan;

/* Copies the options with every default filled in. LS_EINVAL names what cannot be. `dims` are those of the set's own samples;
 * H and W may be 0. */
LS_MUST_USE ls_status augment_check(const ls_augment *given, const int64_t dims[3],
                                    ls_augment *out);

/* The shape of what comes out for images of `dims`; `a` has been checked. */
void augment_dims(const ls_augment *a, const int64_t dims[3], int64_t out[3]);

/* The randomness of one sample. */
void augment_seed(const ls_augment *a, uint64_t epoch, size_t index, ls_rng *rng);

/* What to do with an image of width x height. */
void augment_choose(const ls_augment *a, int width, int height, ls_rng *rng, augment_plan *out);

#endif
