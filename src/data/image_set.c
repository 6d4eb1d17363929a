/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_set.c - data sets of images: their fields x and y, augmentation, classes, and the table
 * that maps a byte to its normalized float. sample.c reads the samples.
 */
#include "data/image_set.h"

#include "base/text.h"
#include "data/augment.h"
#include "data/describe.h"
#include "data/sample.h"

#include <inttypes.h>
#include <string.h>

static ls_status read_sample(const ls_dataset *self, const sample_call *call, sample_reader *r,
                             void *const *values)
{
    if (call->as_bytes)
        return sample_read_bytes(self, call->index, call->draw, call->epoch, r, values[0],
                                 values[1]);
    return sample_read(self, call->index, call->draw, call->epoch, r, values[0], values[1]);
}

static void close_images(ls_dataset *self)
{
    self->images->close(self);
}

static const dataset_ops image_set_ops = {.read = read_sample, .close = close_images};

/* byte / 255, then (x - mean) / std: in float32 and in the order of torchvision. */
static void fill_values(ls_dataset *d)
{
    const bool normalize = d->is_augmented && d->augment.normalize;

    for (int c = 0; c < 3; c++) {
        const bool has_channel = normalize && c < d->sample_dims[0];
        const float mean = has_channel ? d->augment.mean[c] : 0.0F;
        const float std = has_channel ? d->augment.std[c] : 1.0F;

        for (int i = 0; i < 256; i++)
            d->values[c][i] = ((float)i / 255.0F - mean) / std;
    }
}

/* Sets what follows from augmentation and the size of the images. */
static void describe_samples(ls_dataset *d)
{
    d->ops = &image_set_ops;
    d->fields = d->image_fields;
    d->n_fields = LS_COUNT_OF(d->image_fields);
    d->image_fields[0] = (ls_field){.name = "x", .type = LS_F32, .n_dims = 3};
    memcpy(d->image_fields[0].dims, d->sample_dims, sizeof(d->sample_dims));
    d->image_fields[1] = (ls_field){.name = "y", .type = LS_I64};
    fill_values(d);
}

static void clear_augmentation(ls_dataset *d)
{
    d->is_augmented = false;
    memcpy(d->sample_dims, d->dims, sizeof(d->dims));
    describe_samples(d);
}

ls_status image_set_finish(ls_dataset *d, ls_status st, ls_dataset **out)
{
    clear_augmentation(d);
    if (st != LS_OK) {
        ls_dataset_close(d);
        return st;
    }
    *out = d;
    return LS_OK;
}

ls_status ls_dataset_augment(ls_dataset *d, const ls_augment *augment)
{
    LS_TRY(LS_GIVEN(d));
    if (d->images == NULL)
        return ls_fail(LS_EINVAL, "augmentation: the data set has no images");
    if (atomic_load_explicit(&d->n_loaders, memory_order_relaxed) > 0)
        return ls_fail(LS_EINVAL, "augmentation: a loader is using the data set: call "
                                  "ls_dataset_augment() before ls_loader_create()");
    if (augment == NULL) {
        clear_augmentation(d);
        return LS_OK;
    }
    if (d->dims[1] > IMAGE_MAX_SIDE || d->dims[2] > IMAGE_MAX_SIDE)
        return ls_fail(LS_EINVAL, "augmentation: images of %lld x %lld exceed %d pixels a side",
                       (long long)d->dims[2], (long long)d->dims[1], IMAGE_MAX_SIDE);
    LS_TRY(augment_check(augment, d->dims, &d->augment));
    d->is_augmented = true;
    augment_dims(&d->augment, d->dims, d->sample_dims);
    describe_samples(d);
    return LS_OK;
}

void dataset_augment_text(const ls_dataset *d, char *buf, size_t n)
{
    const ls_augment *a = &d->augment;

    if (!d->is_augmented) {
        text_format(buf, n, "none");
        return;
    }
    text_format(buf, n,
                "crop %d to %d x %d, resize %d, pad %d, scale %.9g to %.9g, ratio %.9g to %.9g, "
                "flip %d, channels %d, normalize %d (mean %.9g %.9g %.9g, std %.9g %.9g %.9g), "
                "seed %" PRIu64 ", full decode %d",
                (int)a->crop, a->width, a->height, a->resize, a->pad, a->scale_min, a->scale_max,
                a->ratio_min, a->ratio_max, a->flip, a->channels, a->normalize, (double)a->mean[0],
                (double)a->mean[1], (double)a->mean[2], (double)a->std[0], (double)a->std[1],
                (double)a->std[2], a->seed, a->full_decode);
}

int ls_dataset_classes(const ls_dataset *d)
{
    return d == NULL ? 0 : d->classes;
}

const char *ls_dataset_class_name(const ls_dataset *d, int label)
{
    if (d == NULL || d->images == NULL || d->images->class_name == NULL || label < 0 ||
        label >= d->classes)
        return NULL;
    return d->images->class_name(d, label);
}

int64_t ls_dataset_label(const ls_dataset *d, size_t index)
{
    if (d == NULL || d->images == NULL)
        return -1;
    LS_ASSERT(index < d->count);
    return d->images->label(d, index);
}

const int64_t *ls_dataset_sample_dims(const ls_dataset *d)
{
    return d == NULL || d->images == NULL ? NULL : d->sample_dims;
}
