/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.h - what a data set is to the loader: a count, one shape, and a way to read a sample.
 */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/data.h>

#include "base/status.h"

typedef struct dataset_ops {
    /* required: pixels (C*H*W) and label of sample `index` < count; called by many threads at once */
    ls_status (*read)(const ls_dataset *self, size_t index, float *x, int64_t *y);
    /* required: frees it */
    void (*close)(ls_dataset *self);
} dataset_ops;

/* The first member of every kind of data set. */
struct ls_dataset {
    const dataset_ops *ops;
    size_t count;
    int classes;
    int64_t dims[3]; /* C, H, W */
};

#endif
