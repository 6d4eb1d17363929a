/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset_idx.c - MNIST-format sets. Images and labels stay in memory as the bytes of the files and
 * become floats when a batch is made: a quarter of the memory.
 */
#include "base/alloc.h"
#include "base/text.h"
#include "data/image_set.h"
#include "data/formats/idx.h"

#include <string.h>
#include <unistd.h>

typedef struct idx_dataset {
    ls_dataset common; /* first, so that the two can be cast into each other */
    size_t sample_bytes;
    uint8_t *pixels;
    uint8_t *labels;
} idx_dataset;

static ls_status open_sample(const ls_dataset *self, size_t index, image_reader *r)
{
    const idx_dataset *d = (const idx_dataset *)self;
    const int64_t *dims = self->dims;

    image_open_planes(r, d->pixels + index * d->sample_bytes, (int)dims[0], (int)dims[1],
                      (int)dims[2]);
    return LS_OK;
}

static int64_t label_of(const ls_dataset *self, size_t index)
{
    return ((const idx_dataset *)self)->labels[index];
}

static void close_dataset(ls_dataset *self)
{
    idx_dataset *d = (idx_dataset *)self;

    ls_free(d->pixels);
    ls_free(d->labels);
    ls_free(d);
}

static const image_ops idx_ops = {.open = open_sample, .label = label_of, .close = close_dataset};

static int count_classes(const uint8_t *labels, size_t n)
{
    int classes = 0;

    for (size_t i = 0; i < n; i++)
        classes = labels[i] >= classes ? labels[i] + 1 : classes;
    return classes;
}

/* Takes the pixels: (count, H, W) or (count, C, H, W). */
static void take_images(idx_dataset *d, const idx_array *images)
{
    const int64_t *hw = &images->dims[images->n_dims - 2];

    d->pixels = images->data;
    d->common.count = (size_t)images->dims[0];
    d->common.dims[0] = images->n_dims == 4 ? images->dims[1] : 1;
    d->common.dims[1] = hw[0];
    d->common.dims[2] = hw[1];
    d->sample_bytes = (size_t)(d->common.dims[0] * hw[0] * hw[1]);
}

static ls_status open_both(idx_dataset *d, const char *images, const char *labels)
{
    idx_array array = {0};

    LS_TRY(idx_read(images, 3, 4, &array));
    take_images(d, &array);
    LS_TRY(idx_read(labels, 1, 1, &array));
    d->labels = array.data;
    if (array.bytes != d->common.count)
        return ls_fail(LS_EFORMAT, "%s has %zu images, %s has %zu labels", images, d->common.count,
                       labels, array.bytes);
    d->common.classes = count_classes(d->labels, array.bytes);
    return LS_OK;
}

ls_status ls_dataset_open_idx(const char *images, const char *labels, ls_dataset **out)
{
    idx_dataset *d;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    if (images == NULL || labels == NULL)
        return ls_fail(LS_EINVAL, "an idx data set needs an image file and a label file");
    LS_TRY(LS_NEW(&d, 1, "for the data set %s", images));
    d->common.images = &idx_ops;
    st = open_both(d, images, labels);
    return image_set_finish(&d->common, st, out);
}

/* `path` is memory for a path. */
static ls_status fail_missing(const char *dir, const char *split, const char *kind, text_buf *path)
{
    text_free(path);
    text_append(path, "%s/train/.", dir); // exists only if train is a folder
    LS_TRY(text_status(path));
    if (access(path->data, F_OK) == 0)
        return ls_fail(LS_ENOTFOUND,
                       "%s has neither %s-%s nor %s-%s.gz, but a folder train/: if it has a folder "
                       "of images for each class, run: imagenet %s",
                       dir, split, kind, split, kind, dir);
    return ls_fail(LS_ENOTFOUND, "%s has neither %s-%s nor %s-%s.gz", dir, split, kind, split,
                   kind);
}

/* DIR/SPLIT-KIND as MNIST names it, with a dot as 7-Zip does; in the folders of torchvision, too;
 * each also with .gz. */
static ls_status find_file(const char *dir, const char *split, const char *kind, text_buf *path)
{
    static const char *const folders[] = {"", "raw/", "MNIST/raw/", "FashionMNIST/raw/"};
    static const char *const endings[] = {"-idx", ".idx"};

    for (size_t i = 0; i < LS_COUNT_OF(folders) * LS_COUNT_OF(endings) * 2; i++) {
        text_free(path);
        text_append(path, "%s/%s%s-%.6s%s%s%s", dir, folders[i / 4], split, kind,
                    endings[i / 2 % 2], kind + strlen("images-idx"), i % 2 == 1 ? ".gz" : "");
        LS_TRY(text_status(path));
        if (access(path->data, F_OK) == 0)
            return LS_OK;
    }
    return fail_missing(dir, split, kind, path);
}

ls_status ls_dataset_open_mnist(const char *dir, const char *split, ls_dataset **out)
{
    text_buf images = {0};
    text_buf labels = {0};
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    if (dir == NULL || split == NULL || (!text_equal(split, "train") && !text_equal(split, "t10k")))
        return ls_fail(LS_EINVAL, "MNIST needs a folder and a split, train or t10k (split: %s)",
                       split != NULL ? split : "none");
    st = find_file(dir, split, "images-idx3-ubyte", &images);
    if (st == LS_OK)
        st = find_file(dir, split, "labels-idx1-ubyte", &labels);
    if (st == LS_OK)
        st = ls_dataset_open_idx(images.data, labels.data, out);
    text_free(&images);
    text_free(&labels);
    return st;
}
