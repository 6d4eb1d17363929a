/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.h - what a data set is to its readers: a count, labels, and images that can be opened. sample.c makes samples of them.
 */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/data.h>

#include "base/status.h"
#include "data/images/image.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct dataset_ops {
    /* required: opens the image of sample `index` < count; called by many threads at once, each with its own reader */
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
    size_t n_others; /* files beside those of the set, which are not read */

    atomic_int n_loaders; /* that read it now: samples keep their shape while there are any */
    bool is_augmented;
    ls_augment augment;
    int64_t sample_dims[3];
    float values
        [3]
        [256]; /* what a byte becomes, for each channel: rounded once, and quicker than dividing */
};

/* Counts the loaders of the set, which is theirs to read only: +1 or -1. */
void dataset_count_loader(const ls_dataset *d, int more);

/* The last act of opening: samples are the images as they are. */
void dataset_ready(ls_dataset *d);

#endif
