/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe.h - reads every image of a data set: count, sizes, broken files, mean and standard
 * deviation. `lockstep data` prints them.
 */
#ifndef LS_DATA_DESCRIBE_H
#define LS_DATA_DESCRIBE_H

#include <lockstep/data.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct describe_options {
    int threads; /* 0 means 1 */
    /* Reads headers only: sizes are known, broken pixels, mean and deviation are not. */
    bool is_quick;
    /* Each may be NULL; called by one thread at a time. */
    void (*bad)(void *arg, const char *text);                 /* a broken image: file and reason */
    void (*progress)(void *arg, size_t n_done, size_t n_all); /* every few seconds */
    void *arg;
} describe_options;

typedef struct dataset_facts {
    size_t count;
    size_t n_bad;
    bool is_quick; /* as asked for: n_bad counts broken headers only */
    size_t n_jpeg; /* readable JPEGs */
    size_t n_png;
    size_t n_others; /* as in ls_dataset */
    size_t n_beside;
    size_t n_dangling;
    int width[2]; /* smallest and largest; 0 when no image is readable */
    int height[2];
    size_t *classes; /* samples of each class */
    int n_classes;
    bool has_moments; /* mean and std are set: up to 3 channels, of pixels in 0..1 */
    int n_channels;
    double mean[3];
    double std[3];
} dataset_facts;

/* The set's augmentation as text, every option with its value, or "none". Equal texts mean equal
 * samples. */
void dataset_augment_text(const ls_dataset *d, char *buf, size_t n);

/* Broken images are counted. An error is what stops the scan: no memory, a codec that is not
 * installed, a file that cannot be opened. */
LS_MUST_USE ls_status dataset_describe(const ls_dataset *d, const describe_options *opt,
                                       dataset_facts *out);
void dataset_facts_free(dataset_facts *f);

#endif
