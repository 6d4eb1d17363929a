/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe.h - looks at every image of a data set: how many, how large, which are broken, which mean and standard deviation.
 */
#ifndef LS_DATA_DESCRIBE_H
#define LS_DATA_DESCRIBE_H

#include <lockstep/data.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct describe_options {
    int threads; /* 0 means 1 */
    bool
        is_quick; /* sizes by the files' beginnings alone: what is broken behind goes unseen, mean and deviation unknown */
    /* Each may be NULL; called by one thread at a time. */
    void (*bad)(void *arg, const char *text); /* a broken image: its file, and what is wrong */
    void (*progress)(void *arg, size_t n_done, size_t n_all); /* every few seconds */
    void *arg;
} describe_options;

typedef struct dataset_facts {
    size_t count;
    size_t n_bad;
    bool is_quick; /* as asked for: there may be more broken ones */
    size_t n_jpeg; /* of those that are not broken, as the next */
    size_t n_png;
    size_t n_others; /* files beside those of the set, which are not read */
    int width[2];    /* least and most; 0 when no image is whole */
    int height[2];
    size_t *classes; /* samples of each class */
    int n_classes;
    bool has_moments; /* for up to 3 channels, of x in 0..1 over all pixels of the whole images */
    int n_channels;
    double mean[3];
    double std[3];
} dataset_facts;

/* How the set's samples are augmented, every option with its value; "none". For comparing and
 * for messages. */
void dataset_augment_text(const ls_dataset *d, char *buf, size_t n);

/* Only what stops everything is an error: no memory, a codec that is not installed, a file that cannot be opened. */
LS_MUST_USE ls_status dataset_describe(const ls_dataset *d, const describe_options *opt,
                                       dataset_facts *out);
void dataset_facts_free(dataset_facts *f);

#endif
