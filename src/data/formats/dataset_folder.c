/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * dataset_folder.c - image folders, DIR/CLASS/.../NAME.jpg|jpeg|png. Only the names stay in
 * memory, in one block (50 MB for ImageNet); files are opened when their sample is read.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "data/image_set.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define MAX_DEPTH   16 /* of folders in a class: symbolic links can form loops */
#define MAX_CLASSES (1 << 20)

typedef struct folder_sample {
    uint64_t name; /* offset in `names` of its path below DIR */
    uint32_t label;
} folder_sample;

typedef struct folder_dataset {
    ls_dataset common; /* first, so that the two can be cast into each other */
    char *dir;
    text_buf names; /* of classes, then of files, each terminated */
    uint64_t *class_names;
    folder_sample *samples;
    size_t capacity;
} folder_dataset;

/* --- samples --- */

static ls_status open_sample(const ls_dataset *self, size_t index, image_reader *r)
{
    const folder_dataset *d = (const folder_dataset *)self;

    text_format(r->path, sizeof(r->path), "%s/%s", d->dir, d->names.data + d->samples[index].name);
    return image_open_file(r, r->path);
}

static int64_t label_of(const ls_dataset *self, size_t index)
{
    return ((const folder_dataset *)self)->samples[index].label;
}

static const char *class_name(const ls_dataset *self, int label)
{
    const folder_dataset *d = (const folder_dataset *)self;

    return d->names.data + d->class_names[label];
}

static void close_dataset(ls_dataset *self)
{
    folder_dataset *d = (folder_dataset *)self;

    ls_free(d->dir);
    text_free(&d->names);
    ls_free(d->class_names);
    ls_free(d->samples);
    ls_free(d);
}

static const image_ops folder_ops = {
    .open = open_sample, .label = label_of, .class_name = class_name, .close = close_dataset};

/* --- listing a folder --- */

/* The entries of one folder that do not begin with a dot, sorted byte by byte. */
typedef struct listing {
    text_buf text; /* kind_of() it, then the name, each terminated */
    uint64_t *at;
    size_t n;
    size_t capacity;
} listing;

static void listing_free(listing *l)
{
    text_free(&l->text);
    ls_free(l->at);
}

/* Grows *items when it is full. On failure *items is unchanged. */
static ls_status grow(void **items, size_t n, size_t *capacity, size_t size)
{
    const size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *grown;

    if (n < *capacity)
        return LS_OK;
    grown = ls_realloc(*items, wanted, size);
    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the names of %zu files", wanted);
    *items = grown;
    *capacity = wanted;
    return LS_OK;
}

/* 'd', 'f', 'l' for a link that cannot be followed, or 0 for what is neither folder nor file. */
static char kind_of(const char *dir, const struct dirent *entry)
{
    char path[4096];
    struct stat info;

    if (entry->d_type == DT_DIR)
        return 'd';
    if (entry->d_type == DT_REG)
        return 'f';
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return 0;
    text_format(path, sizeof(path), "%s/%s", dir, entry->d_name);
    if (stat(path, &info) != 0)
        return 'l';
    if (S_ISDIR(info.st_mode))
        return 'd';
    if (S_ISREG(info.st_mode))
        return 'f';
    return 0;
}

static ls_status list_entry(listing *l, const char *dir, const struct dirent *entry)
{
    const char kind = kind_of(dir, entry);
    void *at = l->at;

    if (entry->d_name[0] == '.' || kind == 0)
        return LS_OK;
    LS_TRY(grow(&at, l->n, &l->capacity, sizeof(*l->at)));
    l->at = at;
    l->at[l->n++] = l->text.length;
    text_append(&l->text, "%c%s", kind, entry->d_name);
    text_append_bytes(&l->text, "", 1);
    return text_status(&l->text);
}

static int compare_names(const void *a, const void *b, void *text)
{
    const char *base = text;

    return strcmp(base + *(const uint64_t *)a + 1, base + *(const uint64_t *)b + 1);
}

static ls_status list_folder(const char *dir, listing *l)
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    ls_status st = LS_OK;

    if (folder == NULL)
        return ls_fail(errno == ENOENT ? LS_ENOTFOUND : LS_EIO, "cannot open folder %s: %s", dir,
                       ls_errno_text(errno));
    errno = 0;
    while (st == LS_OK && (entry = file_next_entry(folder)) != NULL) {
        st = list_entry(l, dir, entry);
        errno = 0;
    }
    if (st == LS_OK && errno != 0)
        st = ls_fail(LS_EIO, "cannot read folder %s: %s", dir, ls_errno_text(errno));
    (void)closedir(folder);
    if (st == LS_OK && l->n > 1)
        qsort_r(l->at, l->n, sizeof(*l->at), compare_names, l->text.data);
    return st;
}

/* --- making the set --- */

static bool is_image_name(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL && (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0 ||
                           strcasecmp(dot, ".png") == 0);
}

static ls_status add_file(folder_dataset *d, const char *below, const char *name)
{
    void *samples = d->samples;

    if (!is_image_name(name)) {
        d->common.n_others++;
        return LS_OK;
    }
    if (strlen(d->dir) + strlen(below) + strlen(name) + 3 > sizeof(((image_reader *)0)->path))
        return ls_fail(LS_EINVAL, "%s/%s/%s: the path is too long", d->dir, below, name);
    LS_TRY(grow(&samples, d->common.count, &d->capacity, sizeof(*d->samples)));
    d->samples = samples;
    d->samples[d->common.count++] =
        (folder_sample){d->names.length, (uint32_t)d->common.classes - 1};
    text_append(&d->names, "%s/%s", below, name);
    text_append_bytes(&d->names, "", 1);
    return text_status(&d->names);
}

/* Adds the files of DIR/below, then those of its folders, in the order of os.walk(). */
static ls_status add_folder(folder_dataset *d, const char *below, int depth);

// NOLINTNEXTLINE(misc-no-recursion): as add_folder()
static ls_status add_entries(folder_dataset *d, const char *below, int depth, bool are_folders,
                             const listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const char *entry = l->text.data + l->at[i];
        text_buf path = {0};
        ls_status st;

        if ((*entry == 'd') != are_folders)
            continue;
        if (!are_folders) {
            LS_TRY(add_file(d, below, entry + 1));
            continue;
        }
        text_append(&path, "%s/%s", below, entry + 1);
        st = text_status(&path);
        if (st == LS_OK)
            st = add_folder(d, path.data, depth + 1);
        text_free(&path);
        LS_TRY(st);
    }
    return LS_OK;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as folders are, at most MAX_DEPTH
static ls_status add_folder(folder_dataset *d, const char *below, int depth)
{
    text_buf path = {0};
    listing l = {0};
    ls_status st;

    if (depth > MAX_DEPTH)
        return ls_fail(LS_EINVAL, "%s/%s: folders are nested more than %d deep (a link loop?)",
                       d->dir, below, MAX_DEPTH);
    text_append(&path, "%s/%s", d->dir, below);
    st = text_status(&path);
    if (st == LS_OK)
        st = list_folder(path.data, &l);
    if (st == LS_OK)
        st = add_entries(d, below, depth, false, &l);
    if (st == LS_OK)
        st = add_entries(d, below, depth, true, &l);
    listing_free(&l);
    text_free(&path);
    return st;
}

static ls_status fail_empty(const folder_dataset *d, const char *name, size_t n_others)
{
    return ls_fail(LS_EFORMAT, "%s/%s has no .jpg, .jpeg or .png file (%zu other files)", d->dir,
                   name, n_others);
}

static ls_status add_class(folder_dataset *d, const char *name)
{
    const size_t before = d->common.count;
    const size_t others = d->common.n_others;

    if (d->common.classes == MAX_CLASSES)
        return ls_fail(LS_EINVAL, "%s has more than %d folders", d->dir, MAX_CLASSES);
    d->class_names[d->common.classes++] = d->names.length;
    text_append(&d->names, "%s", name);
    text_append_bytes(&d->names, "", 1);
    LS_TRY(text_status(&d->names));
    LS_TRY(add_folder(d, name, 1));
    return d->common.count > before ? LS_OK : fail_empty(d, name, d->common.n_others - others);
}

static ls_status add_classes(folder_dataset *d, const listing *l)
{
    ls_dataset *set = &d->common;

    LS_TRY(LS_NEW(&d->class_names, l->n, "for the names of %zu classes", l->n));
    for (size_t i = 0; i < l->n; i++) {
        const char *entry = l->text.data + l->at[i];

        set->n_beside += *entry == 'f';
        set->n_dangling += *entry == 'l';
        if (*entry == 'd')
            LS_TRY(add_class(d, entry + 1));
    }
    if (set->classes == 0)
        return ls_fail(LS_EFORMAT,
                       "%s has no class folders (%zu files, %zu dangling links): put the images of "
                       "each class into %s/CLASS/NAME.jpg",
                       d->dir, set->n_beside, set->n_dangling, d->dir);
    return LS_OK;
}

/* Both sets must have the same classes, so that equal labels mean equal classes. Both are
 * sorted. */
static ls_status check_like(const folder_dataset *d, const ls_dataset *like)
{
    if (like->images != &folder_ops)
        return ls_fail(LS_EINVAL, "%s: `like` is not an image folder", d->dir);
    for (int i = 0; i < like->classes || i < d->common.classes; i++) {
        const char *expected = ls_dataset_class_name(like, i);
        const char *found = ls_dataset_class_name(&d->common, i);
        const int order = expected == NULL ? -1 : found == NULL ? 1 : strcmp(found, expected);

        if (order > 0)
            return ls_fail(LS_EFORMAT, "%s has no class %s, which the other set has", d->dir,
                           expected);
        if (order < 0)
            return ls_fail(LS_EFORMAT, "%s has a class %s, which the other set does not have",
                           d->dir, found);
    }
    return LS_OK;
}

static ls_status fill_dataset(folder_dataset *d, const ls_dataset *like)
{
    listing l = {0};
    ls_status st;

    if (d->dir == NULL)
        return ls_fail(LS_ENOMEM, "no memory for an image folder");
    d->common.dims[0] = 3;
    st = list_folder(d->dir, &l);
    if (st == LS_OK)
        st = add_classes(d, &l);
    listing_free(&l);
    return st == LS_OK && like != NULL ? check_like(d, like) : st;
}

ls_status ls_dataset_open_folder(const char *dir, const ls_dataset *like, ls_dataset **out)
{
    folder_dataset *d;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    if (dir == NULL)
        return ls_fail(LS_EINVAL, "the path of the image folder is NULL");
    LS_TRY(LS_NEW(&d, 1, "for an image folder"));
    d->common.images = &folder_ops;
    d->dir = ls_strdup(dir);
    st = fill_dataset(d, like);
    return image_set_finish(&d->common, st, out);
}
