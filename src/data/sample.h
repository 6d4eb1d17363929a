/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h - makes samples of a data set's images: opened, cropped, resized, flipped, normalized.
 */
#ifndef LS_DATA_SAMPLE_H
#define LS_DATA_SAMPLE_H

#include "data/dataset.h"
#include "data/images/resize.h"

/* Decoder and resizer of one thread. Zero-initialise. */
typedef struct sample_reader {
    image_reader image;
    resizer resize;
} sample_reader;

/* Pixels (C*H*W) and label of sample `index`. `draw` is the index that seeds the augmentation.
 * LS_EFORMAT when the file is broken. */
LS_MUST_USE ls_status sample_read(const ls_dataset *d, size_t index, size_t draw, uint64_t epoch,
                                  sample_reader *s, float *x, int64_t *y);

void sample_reader_free(sample_reader *s);

#endif
