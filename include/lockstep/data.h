/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h - data sets, the distributed sampler, and a loader that reads ahead.
 *
 * A broken file is LS_EFORMAT naming file and offset; nothing of it is used. Codecs (zlib, libjpeg-turbo, libspng) are loaded when a file
 * needs them: LS_EUNSUPPORTED names the package where one is missing.
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

/* CIFAR-10 or CIFAR-100 in the binary version, told by the file names in `dir` (or in its folder cifar-10-batches-bin or
 * cifar-100-binary); split "train" or "test". A length that is no whole number of records and a label out of range are LS_EFORMAT. Labels of
 * CIFAR-100 are the fine ones. */
LS_API LS_MUST_USE ls_status ls_dataset_open_cifar(const char *dir, const char *split,
                                                   ls_dataset **out);

/* JPEG and PNG files DIR/CLASS/.../NAME.jpg|jpeg|png as torchvision's ImageFolder takes them: classes are the folders sorted by name. Files
 * are opened when their sample is read, and judged by content; images differ in size, so ls_dataset_augment() must give them one.
 * `like` (may be NULL): a set whose classes this one must have, all of them and no other, as val/ those of train/. */
LS_API LS_MUST_USE ls_status ls_dataset_open_folder(const char *dir, const ls_dataset *like,
                                                    ls_dataset **out);

/* Random images that need no file; every field but `size` may be 0. */
typedef struct ls_synthetic_options {
    size_t size;  /* sizeof(ls_synthetic_options) */
    size_t count; /* 0 means 1281167, the length of ImageNet's training set */
    int classes;  /* 0 means 1000 */
    int channels; /* 0 means 3 */
    int height;   /* 0 means 224 */
    int width;    /* 0 means height */
    uint64_t seed;
} ls_synthetic_options;

/* Sample i has the same random bytes and label in each epoch and on each rank; (seed, i) decide them. `opt` may be NULL. */
LS_API LS_MUST_USE ls_status ls_dataset_open_synthetic(const ls_synthetic_options *opt,
                                                       ls_dataset **out);

LS_API void ls_dataset_close(ls_dataset *d); /* NULL is allowed */

LS_API size_t ls_dataset_count(const ls_dataset *d);
LS_API int ls_dataset_classes(const ls_dataset *d); /* idx: largest label + 1 */
/* Borrowed; NULL where the format has no names. */
LS_API const char *ls_dataset_class_name(const ls_dataset *d, int label);
/* Reads no pixels; -1 for NULL. */
LS_API int64_t ls_dataset_label(const ls_dataset *d, size_t index);
/* Shape of one sample, as it comes out of the augmentation: 3 dimensions (C,H,W); H and W are 0 while images differ in size. */
LS_API const int64_t *ls_dataset_sample_dims(const ls_dataset *d);

/* --- augmentation: what is done to every image of a set --- */

typedef enum ls_crop {
    LS_CROP_NONE = 0,       /* the whole image, resized to height x width where these are given */
    LS_CROP_RANDOM_RESIZED, /* torchvision's RandomResizedCrop((height, width), scale, ratio) */
    LS_CROP_PADDED,         /* RandomCrop((height, width), padding=pad, pad_if_needed=True) */
    LS_CROP_CENTER          /* Resize(resize), then CenterCrop((height, width)) */
} ls_crop;

/*
 * Zero-initialise, or begin with one of the two below. Resizing is the bilinear one with antialias
 * of Pillow 13, bit by bit on the same decoded pixels (docs/data.md: how older ones differ). What
 * is random depends on (seed, epoch, index of the sample) alone.
 */
typedef struct ls_augment {
    size_t size; /* sizeof(ls_augment) */
    ls_crop crop;
    int height;       /* of what comes out; LS_CROP_NONE: 0 means as the images are */
    int width;        /* 0 means height */
    int resize;       /* LS_CROP_CENTER: length of the shorter side; 0: as it is */
    int pad;          /* LS_CROP_PADDED: zero pixels on each side */
    double scale_min; /* LS_CROP_RANDOM_RESIZED: share of the image's area; 0 means 0.08 */
    double scale_max; /* 0 means 1 */
    double ratio_min; /* width / height; 0 means 3/4 */
    double ratio_max; /* 0 means 4/3 */
    int flip;         /* mirrors left and right one time in two */
    int channels;     /* 3: a grey image becomes three equal planes; 0: as it is */
    int normalize;    /* (x - mean) / std, a value a channel, with x in 0..1; 3 channels at most */
    float mean[3];
    float std[3];
    uint64_t seed;
    int full_decode; /* 1: a JPEG is decoded at its full size for a random resized crop, too; 0: at 1/2, 1/4 or 1/8 where the
                        crop stays at least as large as what comes out */
} ls_augment;

/* ImageNet's: training (train = 1) random resized crop and flip; evaluation a shorter side of image_size * 256 / 224 and the centre. */
LS_API void ls_augment_imagenet(int train, int image_size, ls_augment *out);
/* CIFAR's, at 32x32: training pads 4, crops and flips; evaluation takes the image as it is. */
LS_API void ls_augment_cifar(int train, ls_augment *out);

/* From now on samples are given so, and ls_dataset_sample_dims() tells their shape; replaces what was set before, NULL takes it away.
 * LS_EINVAL says what does not fit the set, or that a loader reads it: no loader of the set may
 * exist. */
LS_API LS_MUST_USE ls_status ls_dataset_augment(ls_dataset *d, const ls_augment *augment);

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
    size_t skip; /* the first samples of each epoch's order, which no rank gets; at most count */
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

/* What to do with a broken file among many (its content, not its absence). Each is named by a warning, up to 20 of a loader. */
typedef enum ls_bad_images {
    LS_BAD_IMAGES_FAIL = 0, /* ls_loader_next() fails with its name and what is wrong */
    LS_BAD_IMAGES_REPLACE, /* training: the next readable sample of the set stands in, batches keep their shape */
    LS_BAD_IMAGES_LEAVE_OUT /* evaluation: the batch has a row less, no sample counts twice; one without rows is passed over */
} ls_bad_images;

typedef struct ls_loader_options {
    size_t size; /* sizeof(ls_loader_options) */
    ls_device *device;
    const ls_dataset *dataset; /* borrowed, as the sampler */
    ls_sampler *sampler;
    int batch_size; /* rows of a batch; the last one of an epoch may have fewer */
    int drop_last;  /* leave a short last batch out */
    int threads;    /* that read ahead; 0 means 1, negative: none, read in ls_loader_next */
    int prefetch;   /* batches ready in advance; 0 means 2 */
    ls_bad_images bad_images;
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

/* Broken samples in the batches that ls_loader_next() has given so far, of all epochs. */
LS_API uint64_t ls_loader_bad_images(const ls_loader *l);

LS_END_DECLS

#endif
