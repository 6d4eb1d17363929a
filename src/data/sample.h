/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h - makes samples of a data set's images: opened, cropped, resized, flipped, normalized.
 *
 * All steps but the last work on bytes. Normalization is a table: element i of a sample is
 * sample_values(d, c)[byte i], c the channel. So a device can do it, with the same bits.
 */
#ifndef LS_DATA_SAMPLE_H
#define LS_DATA_SAMPLE_H

#include "data/dataset.h"
#include "data/images/resize.h"

/* Decoder and resizer of one thread. Zero-initialise. */
struct sample_reader {
    image_reader image;
    resizer resize;
};

/* Pixels (C*H*W) and label of sample `index`. `draw` is the index that seeds the augmentation.
 * LS_EFORMAT when the file is broken. */
LS_MUST_USE ls_status sample_read(const ls_dataset *d, size_t index, size_t draw, uint64_t epoch,
                                  sample_reader *s, float *x, int64_t *y);

/* The same before normalization, one byte an element. */
LS_MUST_USE ls_status sample_read_bytes(const ls_dataset *d, size_t index, size_t draw,
                                        uint64_t epoch, sample_reader *s, uint8_t *x, int64_t *y);

/* The float of each of the 256 bytes, for a channel. Channels behind the third are not normalized;
 * then no channel is. */
const float *sample_values(const ls_dataset *d, int channel);

void sample_reader_free(sample_reader *s);

#endif
