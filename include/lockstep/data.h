/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h - data sets, the distributed sampler, and a loader that reads ahead.
 *
 * A broken file is LS_EFORMAT naming file and offset; nothing of it is used.
 * Threads    A data set may be read by many threads at once; sampler and loader by one.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

/* --- data sets --- */

typedef struct ls_dataset ls_dataset;

/* Images and labels in idx files (http://yann.lecun.com/exdb/mnist), gzipped or plain: unsigned bytes
 * (count, height, width) or (count, channels, height, width), labels unsigned bytes (count). Every count and length is checked against the
 * file before memory is taken. Pixels are given as float32 in 0..1 (byte / 255), as torchvision's ToTensor. */
LS_API LS_MUST_USE ls_status ls_dataset_open_idx(const char *images, const char *labels,
                                                 ls_dataset **out);

/* The MNIST-format set in folder `dir`: "train" or "t10k", each file with or without .gz. */
LS_API LS_MUST_USE ls_status ls_dataset_open_mnist(const char *dir, const char *split,
                                                   ls_dataset **out);

LS_API void ls_dataset_close(ls_dataset *d); /* NULL is allowed */

LS_API size_t ls_dataset_count(const ls_dataset *d);
LS_API int ls_dataset_classes(const ls_dataset *d); /* largest label + 1 */
/* Shape of one sample: 3 dimensions (C,H,W). */
LS_API const int64_t *ls_dataset_sample_dims(const ls_dataset *d);

/* --- which samples a rank sees, in which order --- */

typedef enum ls_sampler_mode {
    LS_SAMPLER_PAD =
        0, /* torch DistributedSampler's default: repeats samples so that all ranks have as many */
    LS_SAMPLER_DROP_LAST, /* leaves out the tail so that all ranks have as many */
    LS_SAMPLER_UNEVEN     /* every sample exactly once; lengths differ by at most 1 */
} ls_sampler_mode;

typedef struct ls_sampler ls_sampler;

typedef struct ls_sampler_options {
    size_t size;  /* sizeof(ls_sampler_options) */
    size_t count; /* samples of the data set */
    int rank;
    int world_size; /* 0 means 1 */
    uint64_t seed;
    int no_shuffle;
    ls_sampler_mode mode;
} ls_sampler_options;

LS_API LS_MUST_USE ls_status ls_sampler_create(const ls_sampler_options *opt, ls_sampler **out);
LS_API void ls_sampler_destroy(ls_sampler *s); /* NULL is allowed */

/* Fixes the order of epoch `epoch`, which (seed, epoch) alone decide; epoch 0 at first. Nothing to forget: the
 * loader calls it. */
LS_API LS_MUST_USE ls_status ls_sampler_set_epoch(ls_sampler *s, uint64_t epoch);

LS_API size_t ls_sampler_count(const ls_sampler *s); /* samples of this rank */
/* Index into the data set of this rank's i-th sample, i < ls_sampler_count(). */
LS_API size_t ls_sampler_index(const ls_sampler *s, size_t i);

/* --- batches --- */

typedef struct ls_loader ls_loader;

typedef struct ls_loader_options {
    size_t size; /* sizeof(ls_loader_options) */
    ls_device *device;
    const ls_dataset *dataset; /* borrowed, as the sampler */
    ls_sampler *sampler;
    int batch_size; /* rows of a batch; the last one of an epoch may have fewer */
    int drop_last;  /* leave a short last batch out */
    int threads;    /* that read ahead; 0 means 1, negative: none, read in ls_loader_next */
    int prefetch;   /* batches ready in advance; 0 means 2 */
} ls_loader_options;

/* x (rows, C, H, W) float32 and y (rows) int64, valid until the next call on the loader. */
typedef struct ls_batch {
    ls_tensor *x;
    ls_tensor *y;
    int64_t rows; /* 0: this rank has no more data in this epoch */
} ls_batch;

LS_API LS_MUST_USE ls_status ls_loader_create(const ls_loader_options *opt, ls_loader **out);
LS_API void ls_loader_destroy(ls_loader *l); /* NULL is allowed; joins its threads */

/* Begins epoch `epoch` at its `first_batch`-th batch (0; other values when resuming). */
LS_API LS_MUST_USE ls_status ls_loader_start(ls_loader *l, uint64_t epoch, size_t first_batch);

/* The next batch; at the end of the epoch rows is 0 (x and y then have 0 rows), as often as asked.
 * Blocks until it is ready. The number of threads never changes what a batch holds. */
LS_API LS_MUST_USE ls_status ls_loader_next(ls_loader *l, ls_batch *out);

LS_API size_t ls_loader_batches(const ls_loader *l); /* of this rank in one epoch */

LS_END_DECLS

#endif
