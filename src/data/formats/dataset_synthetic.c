/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset_synthetic.c - random bytes as images, for runs without files and for measuring speed.
 * Sample i is the same in each epoch and on each rank.
 */
#include "base/alloc.h"
#include "base/options.h"
#include "base/rng.h"
#include "data/image_set.h"

#include <string.h>

#define IMAGE_STREAM 0x73796EU /* separate these uses of (seed, index) from others */
#define LABEL_STREAM 0x6C6162U
#define IMAGENET     1281167
#define MAX_CLASSES  (1 << 24)

typedef struct synthetic_dataset {
    ls_dataset common; /* first, so that the two can be cast into each other */
    uint64_t seed;
} synthetic_dataset;

static ls_status open_sample(const ls_dataset *self, size_t index, image_reader *r)
{
    const uint64_t seed = ((const synthetic_dataset *)self)->seed;
    const int64_t *dims = self->dims;
    const size_t bytes = (size_t)(dims[0] * dims[1] * dims[2]);
    ls_rng rng;

    LS_TRY(byte_buffer_reserve(&r->file, bytes));
    ls_rng_seed(&rng, ls_hash3(seed, index, IMAGE_STREAM));
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = ls_rng_next(&rng);
        const size_t left = bytes - i;

        for (size_t k = 0; k < sizeof(word) && k < left; k++)
            r->file.data[i + k] = (uint8_t)(word >> (8 * k));
    }
    image_open_planes(r, r->file.data, (int)dims[0], (int)dims[1], (int)dims[2]);
    return LS_OK;
}

static int64_t label_of(const ls_dataset *self, size_t index)
{
    const uint64_t seed = ((const synthetic_dataset *)self)->seed;

    return (int64_t)(ls_hash3(seed, index, LABEL_STREAM) % (uint64_t)self->classes);
}

static void close_dataset(ls_dataset *self)
{
    ls_free((synthetic_dataset *)self);
}

static const image_ops synthetic_ops = {
    .open = open_sample, .label = label_of, .close = close_dataset};

static int value_or(int value, int default_value)
{
    return value == 0 ? default_value : value;
}

static ls_status check_options(const ls_synthetic_options *o)
{
    if (o->classes < 0 || o->classes > MAX_CLASSES)
        return ls_fail(LS_EINVAL, "synthetic data: %d classes is outside 1 to %d", o->classes,
                       MAX_CLASSES);
    if (o->channels < 0 || o->height < 0 || o->width < 0 || o->channels > 64 || o->height > 16384 ||
        o->width > 16384)
        return ls_fail(LS_EINVAL,
                       "synthetic data: %d channels of %d x %d exceed 64 of 16384 x 16384",
                       o->channels, o->width, o->height);
    return LS_OK;
}

ls_status ls_dataset_open_synthetic(const ls_synthetic_options *opt, ls_dataset **out)
{
    ls_synthetic_options o;
    synthetic_dataset *d;
    int height;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_context(OPTIONS_COPY(ls_synthetic_options, opt, &o), "synthetic data"));
    LS_TRY(check_options(&o));
    height = value_or(o.height, 224);
    LS_TRY(LS_NEW(&d, 1, "for synthetic data"));
    d->common.images = &synthetic_ops;
    d->common.count = o.count == 0 ? IMAGENET : o.count;
    d->common.classes = value_or(o.classes, 1000);
    d->common.dims[0] = value_or(o.channels, 3);
    d->common.dims[1] = height;
    d->common.dims[2] = value_or(o.width, height);
    d->seed = o.seed;
    return image_set_finish(&d->common, LS_OK, out);
}
