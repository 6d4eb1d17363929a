/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.h - the interface of a data set: a count, fields with their lengths, and a function that
 * reads a sample. The loader uses nothing else. image_set.h has what sets of images add.
 *
 * data/: data sets and samples, behind <lockstep/data.h>; cli also uses describe.h and convert.h,
 * train broken.h.
 */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/data.h>

#include "base/status.h"
#include "data/broken.h"
#include "data/images/image.h"

#include <stdatomic.h>
#include <stdbool.h>

#define DATASET_MAX_LENGTHS (LS_MAX_FIELDS * (LS_MAX_DIMS - 1))

typedef struct sample_reader sample_reader; /* sample.h */

/* What is read. */
typedef struct sample_call {
    size_t index;
    size_t draw; /* the sample whose random choices are used: `index`, unless that replaces it */
    uint64_t epoch;
    uint64_t seed;          /* of the epoch */
    const int64_t *lengths; /* of the sample; NULL: it has none */
    bool as_bytes;          /* images: x before normalization, one byte an element */
} sample_call;

/* The seed of random choices for sample or batch `at`. */
uint64_t dataset_draw_seed(uint64_t epoch_seed, size_t at, bool is_batch);

typedef struct dataset_ops {
    /* required: writes the sample's fields, row-major in their own sizes; any number of threads at
     * once, each with its own reader */
    ls_status (*read)(const ls_dataset *self, const sample_call *call, sample_reader *r,
                      void *const *values);
    /* optional */
    ls_status (*collate)(const ls_dataset *self, const ls_host_batch *batch);
    /* required: frees it */
    void (*close)(ls_dataset *self);
} dataset_ops;

/* Images behind a set: image_set.c makes samples of them. */
typedef struct image_ops {
    /* required: opens the image of sample `index` < count; any number of threads at once, each with
     * its own reader */
    ls_status (*open)(const ls_dataset *self, size_t index, image_reader *r);
    /* required */
    int64_t (*label)(const ls_dataset *self, size_t index);
    /* optional: NULL where classes have no names */
    const char *(*class_name)(const ls_dataset *self, int label);
    /* required: frees it */
    void (*close)(ls_dataset *self);
} image_ops;

/* The first member of every kind of data set. */
struct ls_dataset {
    const dataset_ops *ops;
    size_t count;
    const ls_field *fields;
    int n_fields;
    int n_lengths;          /* dimensions of all fields that are -1 */
    const int64_t *lengths; /* (n_lengths, count) */
    bool is_in_memory;      /* reading a sample is a copy */

    /* 1 + each sample that a warning has named as broken, 0: none; last, whether there was the
     * warning that further ones are only counted. Relaxed: they order nothing else. */
    atomic_size_t named[DATASET_NAMED];
    atomic_int n_loaders; /* loaders in use: while there are any, augmentation cannot change */

    // Images only.
    const image_ops *images; /* NULL: other data */
    ls_field image_fields[2];
    int classes;
    int64_t dims[3];   /* C, H, W of its images; H and W are 0 where they differ */
    size_t n_others;   /* files in class folders that are not named as images */
    size_t n_beside;   /* files beside the class folders */
    size_t n_dangling; /* links beside the class folders whose target cannot be examined */
    bool is_augmented;
    ls_augment augment;
    int64_t sample_dims[3];
    float values[3][256]; /* float of a byte, for each channel */
};

/* Adds `change` (+1 or -1) to the number of loaders. */
void dataset_count_loader(const ls_dataset *d, int change);

/* Index in `lengths` of the first length of the field; -1: it has none. */
int dataset_first_length(const ls_dataset *d, int field);

/* The lengths of a sample, d->n_lengths numbers. */
void dataset_lengths_of(const ls_dataset *d, size_t index, int64_t *out);

#endif
