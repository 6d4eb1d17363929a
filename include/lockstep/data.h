/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h - data sets, the distributed sampler, and a loader that reads ahead.
 *
 * A broken file is LS_EFORMAT with file and offset; nothing of it is used. Codecs (zlib,
 * libjpeg-turbo, libspng) are loaded when a file needs them; LS_EUNSUPPORTED names the package to
 * install.
 *
 * Threads    A data set may be read by many threads at once; sampler and loader by one.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

/* --- data sets --- */

typedef struct ls_dataset ls_dataset;

/* Images and labels in idx files (http://yann.lecun.com/exdb/mnist), gzipped or plain: images as
 * unsigned bytes (count, height, width) or (count, channels, height, width), labels as unsigned
 * bytes (count). Every size is checked against the file before memory is allocated. Pixels become
 * float32 in 0..1 (byte / 255), as with torchvision's ToTensor. */
LS_API LS_MUST_USE ls_status ls_dataset_open_idx(const char *images, const char *labels,
                                                 ls_dataset **out);

/* The MNIST-format set in folder `dir`: "train" or "t10k", each file with or without .gz. */
LS_API LS_MUST_USE ls_status ls_dataset_open_mnist(const char *dir, const char *split,
                                                   ls_dataset **out);

/* CIFAR-10 or CIFAR-100 in the binary version, found by the file names in `dir` or in its folder
 * cifar-10-batches-bin or cifar-100-binary; split "train" or "test". LS_EFORMAT for an incomplete
 * record or a label out of range. Labels of CIFAR-100 are the fine ones. */
LS_API LS_MUST_USE ls_status ls_dataset_open_cifar(const char *dir, const char *split,
                                                   ls_dataset **out);

/* JPEG and PNG files DIR/CLASS/.../NAME.jpg|jpeg|png, as torchvision's ImageFolder: classes are the
 * folders sorted by name. Files are opened when their sample is read; content decides the format.
 * Images differ in size, so ls_dataset_augment() must set a common one.
 * `like` (may be NULL): a set that must have exactly the same classes, as train/ for val/. */
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

/* Sample i has the same random bytes and label in each epoch and on each rank; they depend on
 * (seed, i) only. `opt` may be NULL. */
LS_API LS_MUST_USE ls_status ls_dataset_open_synthetic(const ls_synthetic_options *opt,
                                                       ls_dataset **out);

LS_API void ls_dataset_close(ls_dataset *d); /* NULL is allowed */
LS_API size_t ls_dataset_count(const ls_dataset *d);
/* Of images; other sets have no classes, labels and sample dimensions (0, -1, NULL). */
LS_API int ls_dataset_classes(const ls_dataset *d); /* idx: largest label + 1 */
/* Borrowed; NULL where the format has no class names. */
LS_API const char *ls_dataset_class_name(const ls_dataset *d, int label);
/* Reads no pixels; -1 for NULL. */
LS_API int64_t ls_dataset_label(const ls_dataset *d, size_t index);
/* Dimensions (C,H,W) of a sample after augmentation; H and W are 0 while sizes differ. */
LS_API const int64_t *ls_dataset_sample_dims(const ls_dataset *d);

/* --- own data --- */

#define LS_MAX_FIELDS 32
/* A value of each sample: a tensor of any type and shape. */
typedef struct ls_field {
    const char *name; /* 1 to 63 bytes; borrowed during the call that takes the field */
    ls_dtype type;
    int n_dims; /* 0: one number */
    /* -1: a length, which differs between samples; a batch has the largest of its rows */
    int64_t dims[LS_MAX_DIMS - 1];
    double padding; /* behind shorter samples of a batch; exact in an integer type */
} ls_field;

/* The fields of its samples; those of images are x, float32 (C,H,W), and y, the label, int64.
 * Borrowed; *n: their number. NULL gives NULL. */
LS_API const ls_field *ls_dataset_fields(const ls_dataset *d, int *n);
/* The first length of the field in each sample, ls_dataset_count() numbers, borrowed. `name` NULL:
 * the first field that has a -1. LS_EINVAL when the set has no such field. */
LS_API LS_MUST_USE ls_status ls_dataset_lengths(const ls_dataset *d, const char *name,
                                                const int64_t **out);

/* An array of `count` samples, one behind the other, row-major. */
typedef struct ls_array {
    ls_field field; /* without lengths */
    const void *data;
} ls_array;

/* A set of `count` samples in memory: sample i is element i of each of the n arrays. The memory is
 * borrowed until the set is closed. LS_EINVAL names the invalid field. */
LS_API LS_MUST_USE ls_status ls_dataset_from_arrays(const ls_array *arrays, int n, size_t count,
                                                    ls_dataset **out);

/* The sample that a callback reads. */
typedef struct ls_sample_request {
    size_t index;
    uint64_t epoch;
    /* for random choices, as those of an augmentation: depends on the sampler's seed, the epoch and
     * the sample only, so that a resumed run repeats them */
    uint64_t seed;
    const int64_t *lengths; /* of the sample, as the `lengths` callback gave them; NULL: none */
} ls_sample_request;

/* A batch in host memory, before it is used or copied to the device. */
typedef struct ls_host_batch {
    int64_t rows;
    const size_t *indices; /* (rows): the sample of each row */
    uint64_t epoch;
    uint64_t seed; /* for random choices, as in ls_sample_request; differs between batches */
    int n_fields;
    const ls_field *fields;        /* with the sizes of this batch instead of -1 */
    void *const *values;           /* of each field (rows, dims...), row-major, padded */
    const int64_t *const *lengths; /* of each field (rows); NULL for a field without lengths */
} ls_host_batch;

/* Writes the lengths of sample `index`: a number >= 0 for each -1, in the fields' order. */
typedef ls_status (*ls_dataset_lengths_fn)(void *arg, size_t index, int64_t *lengths);

/* Writes a sample: values[i] is the memory of field i, row-major, of the sample's own sizes,
 * without padding. Called by several threads at once. */
typedef ls_status (*ls_dataset_read_fn)(void *arg, const ls_sample_request *request,
                                        void *const *values);

/* May change the values of a batch, as to mix rows or to compute one field from others. Called
 * after all rows are read, by several threads at once for different batches. */
typedef ls_status (*ls_dataset_collate_fn)(void *arg, const ls_host_batch *batch);

/* Frees what `arg` refers to. */
typedef void (*ls_dataset_close_fn)(void *arg);

/*
 * Own data: callbacks that describe and read samples. A callback that returns another status than
 * LS_OK makes the call fail that waits for it, with that status, the sample's number, and the error
 * text that the callback left in its thread, as that of a failed function of this library or of
 * ls_train_refuse(). LS_EFORMAT from `read` means a broken sample, for
 * ls_loader_options.bad_images. Callbacks must not use tensors or the loader.
 */
typedef struct ls_dataset_callbacks {
    size_t size; /* sizeof(ls_dataset_callbacks) */
    size_t count;
    const ls_field *fields; /* x and y of ls_batch are the first two */
    int n_fields;
    /* needed with a -1 in a field; ls_dataset_create() calls it once for each sample */
    ls_dataset_lengths_fn lengths;
    ls_dataset_read_fn read;
    ls_dataset_collate_fn collate; /* NULL: none */
    ls_dataset_close_fn close;     /* NULL: none; ls_dataset_close() calls it */
    void *arg;                     /* of the four functions */
} ls_dataset_callbacks;

/* LS_EINVAL names the field, and the sample, of an invalid size. A failure calls `close`, except
 * when an argument is NULL or callbacks->size is not set. Blocks while it asks for lengths. */
LS_API LS_MUST_USE ls_status ls_dataset_create(const ls_dataset_callbacks *callbacks,
                                               ls_dataset **out);

/* --- augmentation --- */

typedef enum ls_crop {
    LS_CROP_NONE = 0,       /* the whole image, resized to height x width where these are given */
    LS_CROP_RANDOM_RESIZED, /* torchvision's RandomResizedCrop((height, width), scale, ratio) */
    LS_CROP_PADDED,         /* RandomCrop((height, width), padding=pad, pad_if_needed=True) */
    LS_CROP_CENTER          /* Resize(resize), then CenterCrop((height, width)) */
} ls_crop;

/*
 * Zero-initialise, or start from one of the two presets below. Resizing is Pillow 13's bilinear
 * filter with antialias, with equal bits on equal decoded pixels (docs/data.md: how older versions
 * differ). Random choices depend on (seed, epoch, index of the sample) only.
 */
typedef struct ls_augment {
    size_t size; /* sizeof(ls_augment) */
    ls_crop crop;
    int height;       /* of a sample; LS_CROP_NONE: 0 keeps the size of the images */
    int width;        /* 0 means height */
    int resize;       /* LS_CROP_CENTER: length of the shorter side; 0: no resize */
    int pad;          /* LS_CROP_PADDED: zero pixels on each side */
    double scale_min; /* LS_CROP_RANDOM_RESIZED: fraction of the image's area; 0 means 0.08 */
    double scale_max; /* 0 means 1 */
    double ratio_min; /* width / height; 0 means 3/4 */
    double ratio_max; /* 0 means 4/3 */
    int flip;         /* horizontal flip with probability 0.5 */
    int channels;     /* 3: grey images become three equal planes; 0: unchanged */
    int normalize;    /* (x - mean) / std per channel, with x in 0..1; at most 3 channels */
    float mean[3];
    float std[3];
    uint64_t seed;
    /* 1: decodes JPEGs at full size for random resized crops, too. 0: at 1/2, 1/4 or 1/8 where the
     * crop stays at least as large as the sample. */
    int full_decode;
} ls_augment;

/* ImageNet: training (train = 1) uses a random resized crop and flips; evaluation resizes the
 * shorter side to image_size * 256 / 224 and crops the centre. */
LS_API void ls_augment_imagenet(int train, int image_size, ls_augment *out);
/* CIFAR, at 32x32: training pads by 4, crops and flips; evaluation uses the whole image. */
LS_API void ls_augment_cifar(int train, ls_augment *out);

/* Sets the augmentation of all samples and their dimensions; NULL removes it. LS_EINVAL when an
 * option is invalid for the set, or while a loader of the set exists. */
LS_API LS_MUST_USE ls_status ls_dataset_augment(ls_dataset *d, const ls_augment *augment);

/* --- which samples a rank sees, in which order --- */

typedef enum ls_sampler_mode {
    /* Repeats up to world_size - 1 samples, the first of the epoch, so that all ranks have equally
     * many: torch DistributedSampler's default. */
    LS_SAMPLER_PAD = 0,
    LS_SAMPLER_DROP_LAST, /* drops the tail so that all ranks have equally many */
    LS_SAMPLER_UNEVEN     /* every sample exactly once; counts differ by at most 1 */
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
    size_t skip; /* samples to skip at the start of each epoch's order; at most count */
    /* Buckets by length: samples of similar length follow each other in groups of `bucket_rows`,
     * the rows of a batch of all ranks together. The groups have a random order; without shuffling
     * all samples are sorted. NULL, 0: no buckets. */
    const int64_t *lengths; /* of the `count` samples; borrowed until destroyed */
    size_t bucket_rows;
} ls_sampler_options;

LS_API LS_MUST_USE ls_status ls_sampler_create(const ls_sampler_options *opt, ls_sampler **out);
LS_API void ls_sampler_destroy(ls_sampler *s); /* NULL is allowed */

/* Sets the order of epoch `epoch`, which depends on (seed, epoch) only, with buckets also on
 * lengths and bucket_rows; initially epoch 0. The loader calls it. */
LS_API LS_MUST_USE ls_status ls_sampler_set_epoch(ls_sampler *s, uint64_t epoch);

LS_API size_t ls_sampler_count(const ls_sampler *s); /* samples of this rank */
/* Index into the data set of this rank's i-th sample, i < ls_sampler_count(). */
LS_API size_t ls_sampler_index(const ls_sampler *s, size_t i);

/* --- batches --- */

typedef struct ls_loader ls_loader;

/* What the loader does with a broken (not a missing) file, and with LS_EFORMAT from a callback.
 * A warning names each of the first 20 of a data set, once in a process. */
typedef enum ls_bad_images {
    LS_BAD_IMAGES_FAIL = 0, /* ls_loader_next() fails with the file and the reason */
    /* For training: the next readable sample that fits replaces it; batches keep their size. */
    LS_BAD_IMAGES_REPLACE,
    /* For evaluation: a batch has fewer rows, and none counts twice. One without is skipped. */
    LS_BAD_IMAGES_LEAVE_OUT
} ls_bad_images;

typedef struct ls_loader_options {
    size_t size; /* sizeof(ls_loader_options) */
    ls_device *device;
    const ls_dataset *dataset; /* borrowed, as the sampler */
    ls_sampler *sampler;
    int batch_size; /* rows of a batch; the last one of an epoch may have fewer */
    int drop_last;  /* drop a short last batch */
    /* that read ahead; negative: ls_loader_next() reads itself; 0 means 1, but negative for small
     * batches of ls_dataset_from_arrays() */
    int threads;
    int prefetch; /* batches ready in advance; 0 means 2 */
    ls_bad_images bad_images;
} ls_loader_options;

/* Valid until the next call on the loader. Images: x (rows, C, H, W) float32 and y (rows) int64. */
typedef struct ls_batch {
    ls_tensor *x; /* field 0 */
    ls_tensor *y; /* field 1; NULL: there is none */
    int64_t rows; /* 0 at the end of this rank's epoch */
    int n_fields;
    ls_tensor *const *fields; /* (rows, dims...), padded */
    ls_tensor *const
        *lengths; /* of each field, int64 (rows): its first length; NULL: it has none */
    const int64_t *const *host_lengths; /* the same numbers in host memory */
    const size_t *indices;              /* (rows), in host memory: the sample of each row */
    const ls_field *about;              /* the fields of the data set */
} ls_batch;

/* A field of the batch by name, its lengths as int64 (rows) tensor, and the same numbers in host
 * memory. Borrowed, as the batch. NULL, with an error text that lists the fields, for another name;
 * the last two also for a field without lengths. */
LS_API ls_tensor *ls_batch_field(const ls_batch *batch, const char *name);
LS_API ls_tensor *ls_batch_lengths(const ls_batch *batch, const char *name);
LS_API const int64_t *ls_batch_host_lengths(const ls_batch *batch, const char *name);

LS_API LS_MUST_USE ls_status ls_loader_create(const ls_loader_options *opt, ls_loader **out);
LS_API void ls_loader_destroy(ls_loader *l); /* NULL is allowed; joins its threads */

/* Starts epoch `epoch` at batch `first_batch` (0, except when resuming). */
LS_API LS_MUST_USE ls_status ls_loader_start(ls_loader *l, uint64_t epoch, size_t first_batch);

/* The next batch. Blocks until it is ready. At the end of the epoch, and in all later calls, rows
 * is 0 and the fields have 0 rows. Batches do not depend on the number of threads. */
LS_API LS_MUST_USE ls_status ls_loader_next(ls_loader *l, ls_batch *out);

LS_API size_t ls_loader_batches(const ls_loader *l); /* of this rank in one epoch */

/* Broken samples in the batches that ls_loader_next() has returned, in all epochs. */
LS_API uint64_t ls_loader_bad_images(const ls_loader *l);

LS_END_DECLS

#endif
