/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_save.c - writes a list of named tensors without copying it; those of stream devices
 * pass through a small block. Data is in order of descending element size, so that every tensor of
 * a mapped file is aligned; the header keeps the order of the list.
 */
#include "checkpoint/checkpoint.h"

#include "base/alloc.h"
#include "base/compute/half.h"
#include "base/file.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define HEADER_ALIGNMENT 8

static const size_t element_sizes[] = {8, 4, 2, 1};

/* The items to save; float32 tensors as `type`. */
typedef struct save_list {
    const char *path;
    const ls_named *items;
    int n;
    ls_dtype type;
} save_list;

static ls_dtype stored_type(const save_list *l, const ls_named *item)
{
    return item_type(item) == LS_F32 ? l->type : item_type(item);
}

static size_t stored_bytes(const save_list *l, const ls_named *item)
{
    return item_bytes(item) / ls_dtype_size(item_type(item)) * ls_dtype_size(stored_type(l, item));
}

static ls_status check_items(const char *path, const ls_named *items, int n)
{
    byte_map names = {0};
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++) {
        const ls_named *item = &items[i];
        void *known = NULL;

        if (item->name == NULL || (item->tensor == NULL && item->bytes == NULL))
            st = ls_fail(LS_EINVAL, "%s: item %d has no %s", path, i,
                         item->name == NULL ? "name" : "content");
        else
            st = byte_map_set(&names, item->name, strlen(item->name), &names, &known);
        if (st == LS_OK && known != NULL)
            st = ls_fail(LS_EINVAL, "%s: two items are named %s", path, item->name);
    }
    byte_map_free(&names);
    return st;
}

static ls_status plan_data(const save_list *l, uint64_t *begins, uint64_t *total)
{
    size_t at = 0;

    for (size_t k = 0; k < LS_COUNT_OF(element_sizes); k++) {
        for (int i = 0; i < l->n; i++) {
            if (ls_dtype_size(stored_type(l, &l->items[i])) != element_sizes[k])
                continue;
            begins[i] = at;
            LS_TRY(ls_add_size(at, stored_bytes(l, &l->items[i]), &at));
        }
    }
    *total = at;
    return LS_OK;
}

static void put_item(json_writer *w, const save_list *l, const ls_named *item, uint64_t begin)
{
    const int n_dims = item->tensor != NULL ? ls_tensor_n_dims(item->tensor) : 1;

    json_open(w, item->name, '{');
    json_put_string(w, "dtype", safetensors_type_name(stored_type(l, item)));
    json_open(w, "shape", '[');
    for (int i = 0; i < n_dims; i++)
        json_put_int(w, NULL,
                     item->tensor != NULL ? ls_tensor_dim(item->tensor, i)
                                          : (int64_t)item->n_bytes);
    json_close(w, ']');
    json_open(w, "data_offsets", '[');
    json_put_int(w, NULL, (int64_t)begin);
    json_put_int(w, NULL, (int64_t)(begin + stored_bytes(l, item)));
    json_close(w, ']');
    json_close(w, '}');
}

static void put_meta(json_writer *w, const ls_meta *meta, int n)
{
    if (n == 0)
        return;
    json_open(w, SAFETENSORS_META, '{');
    for (int i = 0; i < n; i++)
        json_put_string(w, meta[i].key, meta[i].value);
    json_close(w, '}');
}

/* Parses the new header: names that are not UTF-8 and duplicate keys cannot be read back. */
static ls_status check_header(const char *path, const text_buf *header, uint64_t total,
                              const ls_named *items, int n)
{
    safetensors_index index;
    ls_status st = safetensors_parse(header->data, header->length, total, path, &index);

    if (st != LS_OK)
        return st == LS_EFORMAT ? ls_context(LS_EINVAL, "cannot be saved") : st;
    for (int i = 0; i < n && st == LS_OK; i++) {
        if (safetensors_find(&index, items[i].name) == NULL)
            st = ls_fail(LS_EINVAL, "%s: the name of item %d is not UTF-8", path, i);
    }
    safetensors_free(&index);
    return st;
}

static ls_status make_header(const save_list *l, const ls_meta *meta, int n_meta, text_buf *header)
{
    uint64_t *begins;
    uint64_t total = 0;
    json_writer w;
    ls_status st;

    LS_TRY(LS_NEW(&begins, (size_t)l->n, "for the header of %s", l->path));
    st = plan_data(l, begins, &total);
    json_begin(&w, header);
    json_open(&w, NULL, '{');
    put_meta(&w, meta, n_meta);
    for (int i = 0; i < l->n; i++)
        put_item(&w, l, &l->items[i], begins[i]);
    json_close(&w, '}');
    while (header->length % HEADER_ALIGNMENT != 0 && !header->failed)
        text_append(header, " ");
    ls_free(begins);
    if (st == LS_OK)
        st = text_status(header);
    if (st == LS_OK && header->length > SAFETENSORS_MAX_HEADER)
        st = ls_fail(LS_EINVAL, "%s: a header of %zu bytes exceeds the format's %d", l->path,
                     header->length, SAFETENSORS_MAX_HEADER);
    return st == LS_OK ? check_header(l->path, header, total, l->items, l->n) : st;
}

enum { CHUNK_ELEMENTS = 2048 };

/* LS_EINVAL for a finite value that overflows fp16. */
static ls_status round_chunk(const float *src, uint16_t *dst, size_t n, ls_dtype type)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = type == LS_BF16 ? ls_f32_to_bf16(src[i]) : ls_f32_to_f16(src[i]);
        if (type == LS_F16 && isfinite(src[i]) && !isfinite(ls_f16_to_f32(dst[i])))
            return ls_fail(LS_EINVAL, "the value %g is too large for fp16; save it as bf16",
                           (double)src[i]);
    }
    return LS_OK;
}

static ls_status write_rounded(const file_atomic *f, const float *data, size_t n, ls_dtype type)
{
    uint16_t halves[CHUNK_ELEMENTS];

    while (n > 0) {
        const size_t part = n < CHUNK_ELEMENTS ? n : CHUNK_ELEMENTS;

        LS_TRY(round_chunk(data, halves, part, type));
        LS_TRY(file_write_all(f->fd, f->tmp, halves, part * sizeof(halves[0])));
        data += part;
        n -= part;
    }
    return LS_OK;
}

/* Where the pieces of a tensor go. */
typedef struct item_file {
    const file_atomic *file;
    ls_dtype type; /* stored */
    bool rounds;   /* float32 to `type` */
} item_file;

static ls_status write_piece(void *arg, const void *piece, size_t bytes)
{
    const item_file *to = arg;

    if (to->rounds)
        return write_rounded(to->file, piece, bytes / sizeof(float), to->type);
    return file_write_all(to->file->fd, to->file->tmp, piece, bytes);
}

static ls_status write_item(const file_atomic *f, const save_list *l, const ls_named *item)
{
    item_file to = {.file = f, .type = stored_type(l, item)};

    if (item->tensor == NULL)
        return file_write_all(f->fd, f->tmp, item->bytes, item->n_bytes);
    to.rounds = to.type != item_type(item);
    return ls_context(tensor_read_pieces(item->tensor, write_piece, &to), "%s", item->name);
}

static ls_status write_data(const file_atomic *f, const save_list *l)
{
    for (size_t k = 0; k < LS_COUNT_OF(element_sizes); k++) {
        for (int i = 0; i < l->n; i++) {
            if (ls_dtype_size(stored_type(l, &l->items[i])) == element_sizes[k])
                LS_TRY(write_item(f, l, &l->items[i]));
        }
    }
    return LS_OK;
}

static ls_status write_file(const save_list *l, const text_buf *header)
{
    uint8_t length[SAFETENSORS_LENGTH_BYTES];
    file_atomic f;
    ls_status st;

    for (size_t i = 0; i < sizeof(length); i++)
        length[i] = (uint8_t)((uint64_t)header->length >> (8 * i));
    LS_TRY(file_atomic_begin(&f, l->path));
    st = file_write_all(f.fd, f.tmp, length, sizeof(length));
    if (st == LS_OK)
        st = file_write_all(f.fd, f.tmp, header->data, header->length);
    if (st == LS_OK)
        st = write_data(&f, l);
    if (st == LS_OK)
        return file_atomic_commit(&f);
    file_atomic_cancel(&f);
    return st;
}

ls_status ls_checkpoint_save_as(const char *path, const ls_named *items, int n_items,
                                const ls_meta *meta, int n_meta, ls_dtype type)
{
    const save_list list = {path, items, n_items, type};
    text_buf header = {0};
    ls_status st;

    if (path == NULL || n_items < 0 || n_meta < 0 || (n_items > 0 && items == NULL) ||
        (n_meta > 0 && meta == NULL))
        return ls_fail(LS_EINVAL, "a checkpoint needs a path and lists");
    if (type != LS_F32 && type != LS_F16 && type != LS_BF16)
        return ls_fail(LS_EINVAL, "%s: float32 tensors are saved as float32, fp16 or bf16", path);
    for (int i = 0; i < n_meta; i++) {
        if (meta[i].key == NULL || meta[i].value == NULL)
            return ls_fail(LS_EINVAL, "%s: metadata pair %d is not complete", path, i);
    }
    LS_TRY(check_items(path, items, n_items));
    st = make_header(&list, meta, n_meta, &header);
    if (st == LS_OK)
        st = write_file(&list, &header);
    text_free(&header);
    return st;
}

ls_status ls_checkpoint_save(const char *path, const ls_named *items, int n_items,
                             const ls_meta *meta, int n_meta)
{
    return ls_checkpoint_save_as(path, items, n_items, meta, n_meta, LS_F32);
}
