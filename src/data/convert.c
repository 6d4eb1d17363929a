/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.c - writes the images of a data set as an image folder or in CIFAR's binary format.
 * `lockstep data` calls it. Labels keep their numbers.
 */
#include "data/convert.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "data/images/image_write.h"
#include "data/sample.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CIFAR_SIDE  32
#define CIFAR_BYTES ((size_t)3 * CIFAR_SIDE * CIFAR_SIDE)
#define BATCHES     5 /* files of CIFAR-10's training set */

typedef struct converter {
    const ls_dataset *set;
    const convert_options *opt;
    int side;       /* 0: no resize */
    size_t *chosen; /* indices of the samples to write */
    size_t n_chosen;
    sample_reader reader;
    byte_buffer flat;
    text_buf path;
    text_buf file;
} converter;

/* --- common --- */

/* The first opt->per_class samples of each class, in the set's order. */
static ls_status choose(converter *c)
{
    const ls_dataset *d = c->set;
    const size_t most = c->opt->per_class == 0 ? d->count : c->opt->per_class;
    size_t *taken = ls_calloc((size_t)d->classes, sizeof(*taken));

    c->chosen = ls_calloc(d->count, sizeof(*c->chosen));
    if (taken == NULL || c->chosen == NULL) {
        ls_free(taken);
        return ls_fail(LS_ENOMEM, "no memory for the indices of %zu samples", d->count);
    }
    for (size_t i = 0; i < d->count; i++)
        if (taken[ls_dataset_label(d, i)]++ < most)
            c->chosen[c->n_chosen++] = i;
    ls_free(taken);
    return LS_OK;
}

static ls_status open_converter(converter *c, const ls_dataset *d, const convert_options *opt,
                                int side)
{
    *c = (converter){.set = d, .opt = opt, .side = side};
    if (d->dims[0] != 1 && d->dims[0] != 3)
        return ls_fail(LS_EINVAL, "cannot write images of %lld channels, only of 1 or 3",
                       (long long)d->dims[0]);
    LS_TRY(choose(c));
    if (c->n_chosen == 0)
        return ls_fail(LS_EINVAL, "the data set has no samples");
    return LS_OK;
}

static void close_converter(converter *c)
{
    ls_free(c->chosen);
    sample_reader_free(&c->reader);
    byte_buffer_free(&c->flat);
    text_free(&c->path);
    text_free(&c->file);
}

/* A whole image, resized to c->side. */
static ls_status read_image(converter *c, size_t index, image_view *out)
{
    image_reader *r = &c->reader.image;
    image_box all;

    LS_TRY(c->set->images->open(c->set, index, r));
    all = (image_box){0, 0, r->width, r->height};
    LS_TRY(image_decode(r, &all, 1, 0, out));
    if (c->side == 0)
        return LS_OK;
    LS_TRY(resize_plan(&c->reader.resize, r->width, r->height, c->side, c->side,
                       (int[]){0, 0, c->side, c->side}));
    return resize_run(&c->reader.resize, out, out);
}

static ls_status write_file(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    ls_status st;

    if (fd < 0)
        return ls_fail(LS_EIO, "cannot create %s: %s", path, ls_errno_text(errno));
    st = file_write_all(fd, path, data, bytes);
    file_close(&fd);
    return st;
}

/* --- folders --- */

static ls_status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0)
        return ls_fail(LS_EIO, "cannot create folder %s: %s", path, ls_errno_text(errno));
    return LS_OK;
}

/* "DIR/CLASS": the name of the class, or its number with leading zeros, so that sorting by name
 * keeps the labels. */
static ls_status put_class_path(converter *c, const char *dir, int64_t label)
{
    const char *name = ls_dataset_class_name(c->set, (int)label);
    int digits = 1;

    for (int rest = c->set->classes - 1; rest >= 10; rest /= 10)
        digits++;
    text_free(&c->path);
    if (name != NULL && strchr(name, '/') == NULL && name[0] != '.')
        text_append(&c->path, "%s/%s", dir, name);
    else
        text_append(&c->path, "%s/%0*d", dir, digits, (int)label);
    return text_status(&c->path);
}

static ls_status encode(converter *c, const image_view *v)
{
    const int channels = (int)c->set->dims[0];
    const size_t n = (size_t)v->width * (size_t)v->height;
    flat_image image = {NULL, v->width, v->height, channels};
    uint8_t *to;

    LS_TRY(byte_buffer_reserve(&c->flat, n * (size_t)channels));
    to = c->flat.data;
    image.bytes = to;
    for (int y = 0; y < v->height; y++)
        for (int x = 0; x < v->width; x++)
            for (int k = 0; k < channels; k++)
                *to++ = v->pixels[(size_t)y * v->stride + (size_t)x * 4 + (size_t)k];
    text_free(&c->file);
    return c->opt->jpeg_quality > 0 ? image_write_jpeg(&image, c->opt->jpeg_quality, &c->file)
                                    : image_write_png(&image, &c->file);
}

static ls_status write_images(converter *c, const char *dir)
{
    for (size_t i = 0; i < c->n_chosen; i++) {
        image_view view;

        LS_TRY(read_image(c, c->chosen[i], &view));
        LS_TRY(encode(c, &view));
        LS_TRY(put_class_path(c, dir, ls_dataset_label(c->set, c->chosen[i])));
        text_append(&c->path, "/%07zu.%s", c->chosen[i], c->opt->jpeg_quality > 0 ? "jpg" : "png");
        LS_TRY(text_status(&c->path));
        LS_TRY(write_file(c->path.data, c->file.data, c->file.length));
    }
    return LS_OK;
}

static ls_status write_folder(converter *c, const char *dir)
{
    LS_TRY(make_folder(dir));
    for (int label = 0; label < c->set->classes; label++) {
        LS_TRY(put_class_path(c, dir, label));
        LS_TRY(make_folder(c->path.data));
    }
    return write_images(c, dir);
}

ls_status convert_to_folder(const ls_dataset *d, const convert_options *opt, const char *dir,
                            size_t *n_written)
{
    converter c;
    ls_status st = open_converter(&c, d, opt, opt->side);

    if (st == LS_OK)
        st = write_folder(&c, dir);
    *n_written = c.n_chosen;
    close_converter(&c);
    return st;
}

/* --- CIFAR --- */

static ls_status put_record(converter *c, size_t index, size_t label_bytes, uint8_t *to)
{
    image_view v;

    LS_TRY(read_image(c, index, &v));
    memset(to, 0, label_bytes);
    to[label_bytes - 1] = (uint8_t)ls_dataset_label(c->set, index);
    to += label_bytes;
    for (size_t k = 0; k < 3; k++)
        for (size_t y = 0; y < CIFAR_SIDE; y++)
            for (size_t x = 0; x < CIFAR_SIDE; x++)
                *to++ = v.pixels[y * v.stride + 4 * x + k];
    return LS_OK;
}

/* Writes the chosen samples first ... end - 1 into one file. */
static ls_status write_batch(converter *c, const char *dir, const char *name, size_t first,
                             size_t end)
{
    const size_t label_bytes = c->set->classes > 10 ? 2 : 1;
    const size_t record = label_bytes + CIFAR_BYTES;
    uint8_t *data = ls_calloc(end - first, record);
    ls_status st = LS_OK;

    if (data == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu records", end - first);
    for (size_t i = first; i < end && st == LS_OK; i++)
        st = put_record(c, c->chosen[i], label_bytes, data + (i - first) * record);
    text_free(&c->path);
    text_append(&c->path, "%s/%s", dir, name);
    if (st == LS_OK)
        st = text_status(&c->path);
    if (st == LS_OK)
        st = file_replace(c->path.data, data, (end - first) * record);
    ls_free(data);
    return st;
}

static ls_status write_names(converter *c, const char *dir)
{
    text_buf names = {0};
    ls_status st;

    for (int i = 0; i < c->set->classes; i++) {
        const char *name = ls_dataset_class_name(c->set, i);

        if (name != NULL)
            text_append(&names, "%s\n", name);
        else
            text_append(&names, "%d\n", i);
    }
    text_free(&c->path);
    text_append(&c->path, "%s/%s", dir,
                c->set->classes > 10 ? "fine_label_names.txt" : "batches.meta.txt");
    st = text_status(&names);
    if (st == LS_OK)
        st = text_status(&c->path);
    if (st == LS_OK)
        st = file_replace(c->path.data, names.data, names.length);
    text_free(&names);
    return st;
}

static ls_status write_split(converter *c, const char *dir, bool is_train)
{
    if (c->set->classes > 100)
        return ls_fail(LS_EINVAL, "%d classes: CIFAR's formats hold at most 100", c->set->classes);
    LS_TRY(write_names(c, dir));
    if (c->set->classes > 10)
        return write_batch(c, dir, is_train ? "train.bin" : "test.bin", 0, c->n_chosen);
    if (!is_train)
        return write_batch(c, dir, "test_batch.bin", 0, c->n_chosen);
    if (c->n_chosen < BATCHES)
        return ls_fail(LS_EINVAL, "too few samples (%zu) for the %d files of CIFAR-10", c->n_chosen,
                       BATCHES);
    for (size_t i = 0; i < BATCHES; i++) {
        char name[32];

        text_format(name, sizeof(name), "data_batch_%zu.bin", i + 1);
        LS_TRY(
            write_batch(c, dir, name, c->n_chosen * i / BATCHES, c->n_chosen * (i + 1) / BATCHES));
    }
    return LS_OK;
}

ls_status convert_to_cifar(const ls_dataset *d, const convert_options *opt, const char *dir,
                           bool is_train, size_t *n_written)
{
    converter c;
    ls_status st = open_converter(&c, d, opt, CIFAR_SIDE);

    if (st == LS_OK)
        st = write_split(&c, dir, is_train);
    *n_written = c.n_chosen;
    close_converter(&c);
    return st;
}
