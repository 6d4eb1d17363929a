/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset_cifar.c - CIFAR-10 and CIFAR-100 in the binary version: records of one or two label bytes
 * and three planes of 32 x 32, kept in memory as stored.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "data/image_set.h"

#include <string.h>
#include <unistd.h>

#define SIDE           32
#define IMAGE_BYTES    ((size_t)3 * SIDE * SIDE)
#define MAX_FILES      5
#define MAX_FILE_BYTES ((size_t)1 << 30)
#define MAX_NAME_BYTES ((size_t)1 << 16)

/* One of the two sets, as it is published. */
typedef struct layout {
    const char *name;
    const char *folder; /* folder in the published archive */
    const char *train[MAX_FILES];
    const char *test;
    const char *names;  /* one class a line */
    size_t label_bytes; /* per record; the last byte is the label */
    int n_labels[2];    /* each label byte is below this */
} layout;

static const layout layouts[] = {
    {"CIFAR-10",
     "cifar-10-batches-bin",
     {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
      "data_batch_5.bin"},
     "test_batch.bin",
     "batches.meta.txt",
     1,
     {10, 0}},
    {"CIFAR-100",
     "cifar-100-binary",
     {"train.bin"},
     "test.bin",
     "fine_label_names.txt",
     2,
     {20, 100}},
};

typedef struct cifar_file {
    uint8_t *data;
    size_t n_records;
} cifar_file;

typedef struct cifar_dataset {
    ls_dataset common; /* first, so that the two can be cast into each other */
    const layout *layout;
    size_t record_bytes;
    cifar_file files[MAX_FILES];
    int n_files;
    char *names;               /* of all classes, each terminated; NULL: none */
    const char *class_at[100]; /* pointers into `names` */
} cifar_dataset;

/* --- samples --- */

static const uint8_t *record_of(const cifar_dataset *d, size_t index)
{
    int i = 0;

    while (index >= d->files[i].n_records)
        index -= d->files[i++].n_records;
    return d->files[i].data + index * d->record_bytes;
}

static ls_status open_sample(const ls_dataset *self, size_t index, image_reader *r)
{
    const cifar_dataset *d = (const cifar_dataset *)self;

    image_open_planes(r, record_of(d, index) + d->layout->label_bytes, 3, SIDE, SIDE);
    return LS_OK;
}

static int64_t label_of(const ls_dataset *self, size_t index)
{
    const cifar_dataset *d = (const cifar_dataset *)self;

    return record_of(d, index)[d->layout->label_bytes - 1];
}

static const char *class_name(const ls_dataset *self, int label)
{
    return ((const cifar_dataset *)self)->class_at[label];
}

static void close_dataset(ls_dataset *self)
{
    cifar_dataset *d = (cifar_dataset *)self;

    for (int i = 0; i < MAX_FILES; i++)
        ls_free(d->files[i].data);
    ls_free(d->names);
    ls_free(d);
}

static const image_ops cifar_ops = {
    .open = open_sample, .label = label_of, .class_name = class_name, .close = close_dataset};

/* --- files --- */

static ls_status check_labels(const cifar_dataset *d, const char *path, const cifar_file *file)
{
    for (size_t i = 0; i < file->n_records; i++) {
        const uint8_t *labels = file->data + i * d->record_bytes;

        for (size_t k = 0; k < d->layout->label_bytes; k++)
            if (labels[k] >= d->layout->n_labels[k])
                return ls_fail(LS_EFORMAT, "%s: offset %zu: label %d; labels of %s are below %d",
                               path, i * d->record_bytes + k, labels[k], d->layout->name,
                               d->layout->n_labels[k]);
    }
    return LS_OK;
}

static ls_status read_records(cifar_dataset *d, const char *path)
{
    cifar_file *file = &d->files[d->n_files++];
    char *data;
    size_t bytes;
    size_t rest;

    LS_TRY(file_read(path, MAX_FILE_BYTES, &data, &bytes));
    file->data = (uint8_t *)data;
    file->n_records = bytes / d->record_bytes;
    rest = bytes % d->record_bytes;
    if (rest != 0 || bytes == 0)
        return ls_fail(LS_EFORMAT,
                       "%s: offset %zu: the content ends with %zu bytes of a record of %zu", path,
                       bytes - rest, rest, d->record_bytes);
    d->common.count += file->n_records;
    return check_labels(d, path, file);
}

/* One class name a line; missing ones stay NULL. */
static void take_names(cifar_dataset *d, char *text)
{
    char *line = text;

    d->names = text;
    for (int i = 0; i < d->common.classes && *line != 0; i++) {
        char *end = line + strcspn(line, "\r\n");
        char *next = end + strspn(end, "\r\n");

        *end = 0;
        text_printable(line, (size_t)(end - line) + 1, line);
        if (*line != 0)
            d->class_at[i] = line;
        line = next;
    }
}

/* Class names are optional: a missing file is not an error. */
static void read_names(cifar_dataset *d, const char *dir)
{
    char saved_error[LS_ERROR_BYTES];
    text_buf path = {0};
    char *text;
    size_t bytes;

    ls_error_save(saved_error);
    text_append(&path, "%s/%s", dir, d->layout->names);
    if (text_status(&path) == LS_OK &&
        file_read_text(path.data, MAX_NAME_BYTES, &text, &bytes) == LS_OK)
        take_names(d, text);
    ls_error_restore(saved_error);
    text_free(&path);
}

static ls_status read_one(cifar_dataset *d, const char *dir, const char *name)
{
    text_buf path = {0};
    ls_status st;

    text_append(&path, "%s/%s", dir, name);
    st = text_status(&path);
    if (st == LS_OK)
        st = read_records(d, path.data);
    text_free(&path);
    return st;
}

static ls_status read_split(cifar_dataset *d, const char *dir, bool is_train)
{
    d->record_bytes = d->layout->label_bytes + IMAGE_BYTES;
    d->common.classes = d->layout->n_labels[d->layout->label_bytes - 1];
    d->common.dims[0] = 3;
    d->common.dims[1] = SIDE;
    d->common.dims[2] = SIDE;
    if (!is_train)
        return read_one(d, dir, d->layout->test);
    for (int i = 0; i < MAX_FILES && d->layout->train[i] != NULL; i++)
        LS_TRY(read_one(d, dir, d->layout->train[i]));
    return LS_OK;
}

/* --- finding the files --- */

static bool exists(const char *dir, const char *folder, const char *name)
{
    text_buf path = {0};
    bool found;

    text_append(&path, "%s/%s%s%s", dir, folder, *folder != 0 ? "/" : "", name);
    found = text_status(&path) == LS_OK && access(path.data, F_OK) == 0;
    text_free(&path);
    return found;
}

static bool has_layout(const layout *l, const char *dir, const char *folder)
{
    return exists(dir, folder, l->train[0]) || exists(dir, folder, l->test);
}

/* Finds out which set is in `dir`, or in the folder of its archive below `dir`. */
static ls_status find_layout(const char *dir, const layout **out, text_buf *folder)
{
    for (size_t i = 0; i < LS_COUNT_OF(layouts); i++) {
        const layout *l = &layouts[i];
        const bool is_here = has_layout(l, dir, "");

        if (!is_here && !has_layout(l, dir, l->folder))
            continue;
        *out = l;
        text_append(folder, is_here ? "%s" : "%s/%s", dir, l->folder);
        return text_status(folder);
    }
    if (exists(dir, "", "data_batch_1") || exists(dir, "cifar-10-batches-py", "data_batch_1"))
        return ls_fail(LS_ENOTFOUND,
                       "%s holds the Python version of CIFAR-10; download the binary version "
                       "(cifar-10-binary.tar.gz)",
                       dir);
    return ls_fail(LS_ENOTFOUND,
                   "%s has neither CIFAR-10 (data_batch_1.bin ... test_batch.bin) nor CIFAR-100 "
                   "(train.bin, test.bin)",
                   dir);
}

static ls_status open_found(const layout *l, const char *dir, bool is_train, ls_dataset **out)
{
    cifar_dataset *d;
    ls_status st;

    LS_TRY(LS_NEW(&d, 1, "for the data set %s", dir));
    d->common.images = &cifar_ops;
    d->layout = l;
    st = read_split(d, dir, is_train);
    if (st == LS_OK)
        read_names(d, dir);
    return image_set_finish(&d->common, st, out);
}

ls_status ls_dataset_open_cifar(const char *dir, const char *split, ls_dataset **out)
{
    const layout *l = NULL;
    text_buf folder = {0};
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    if (dir == NULL || split == NULL || (!text_equal(split, "train") && !text_equal(split, "test")))
        return ls_fail(LS_EINVAL, "CIFAR needs a folder and a split, train or test (split: %s)",
                       split != NULL ? split : "none");
    st = find_layout(dir, &l, &folder);
    if (st == LS_OK)
        st = open_found(l, folder.data, text_equal(split, "train"), out);
    text_free(&folder);
    return st;
}
