/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.h - the interface of a data set: a count, labels, and images that can be opened. sample.c
 * makes samples of them.
 */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/data.h>

#include "base/status.h"
#include "data/images/image.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct dataset_ops {
    /* required: opens the image of sample `index` < count; any number of threads at once, each with
     * its own reader */
    ls_status (*open)(const ls_dataset *self, size_t index, image_reader *r);
    /* required */
    int64_t (*label)(const ls_dataset *self, size_t index);
    /* optional: NULL where classes have no names */
    const char *(*class_name)(const ls_dataset *self, int label);
    /* required: frees it */
    void (*close)(ls_dataset *self);
} dataset_ops;

/* The first member of every kind of data set. */
struct ls_dataset {
    const dataset_ops *ops;
    size_t count;
    int classes;
    int64_t dims[3]; /* C, H, W of its images; H and W are 0 where they differ */
    size_t n_others; /* files in the folder that are not images */

    atomic_int n_loaders; /* loaders in use: while there are any, augmentation cannot change */
    bool is_augmented;
    ls_augment augment;
    int64_t sample_dims[3];
    float values[3][256]; /* float of a byte, for each channel */
};

/* Adds `change` (+1 or -1) to the number of loaders. */
void dataset_count_loader(const ls_dataset *d, int change);

/* Ends the opening of a set: *out, without augmentation, or closes it when `st` is a failure. */
LS_MUST_USE ls_status dataset_finish(ls_dataset *d, ls_status st, ls_dataset **out);

#endif
