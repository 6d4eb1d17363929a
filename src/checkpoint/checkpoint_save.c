/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_save.c - writes a list of named tensors without copying it; those of stream devices
 * pass through a small block. Data is in order of descending element size, so that every tensor of
 * a mapped file is aligned; the header keeps the order of the list. The header is written last,
 * because its digests are computed while the data is written; their size is known before.
 */
#include "checkpoint/checkpoint.h"

#include "base/alloc.h"
#include "base/compute/half.h"
#include "base/file.h"
#include "checkpoint/digest.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

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

/* A header, and where in its text the digits of each digest are: of the items, then its own. */
typedef struct save_header {
    text_buf text;
    size_t *digests;
    uint64_t data_bytes;
} save_header;

static void put_digest(json_writer *w, const char *key, size_t *at)
{
    char zeros[DIGEST_DIGITS + 1];

    memset(zeros, '0', DIGEST_DIGITS);
    zeros[DIGEST_DIGITS] = 0;
    json_put_string(w, key, zeros);
    *at = w->out->length - strlen("\"") - DIGEST_DIGITS;
}

static ls_status put_digests(json_writer *w, const save_list *l, size_t *at)
{
    ls_status st = LS_OK;

    for (int i = 0; i < l->n && st == LS_OK; i++) {
        text_buf key = {0};

        text_append(&key, DIGEST_TENSOR "%s", l->items[i].name);
        st = text_status(&key);
        put_digest(w, text_str(&key), &at[i]);
        text_free(&key);
    }
    put_digest(w, DIGEST_KEY, &at[l->n]);
    return st;
}

static ls_status put_meta(json_writer *w, const save_list *l, const ls_meta *meta, int n,
                          size_t *digests)
{
    ls_status st;

    json_open(w, SAFETENSORS_META, '{');
    for (int i = 0; i < n; i++)
        json_put_string(w, meta[i].key, meta[i].value);
    st = put_digests(w, l, digests);
    json_close(w, '}');
    return st;
}

/* Parses the new header: names that are not UTF-8 and duplicate keys cannot be read back. */
static ls_status check_header(const save_list *l, const save_header *h)
{
    safetensors_index index;
    ls_status st = safetensors_parse(h->text.data, h->text.length, h->data_bytes, l->path, &index);

    if (st != LS_OK)
        return st == LS_EFORMAT ? ls_context(LS_EINVAL, "cannot be saved") : st;
    for (int i = 0; i < l->n && st == LS_OK; i++) {
        if (safetensors_find(&index, l->items[i].name) == NULL)
            st = ls_fail(LS_EINVAL, "%s: the name of item %d is not UTF-8", l->path, i);
    }
    safetensors_free(&index);
    return st;
}

static ls_status put_header(const save_list *l, const ls_meta *meta, int n_meta,
                            const uint64_t *begins, save_header *h)
{
    json_writer w;
    ls_status st;

    json_begin(&w, &h->text);
    json_open(&w, NULL, '{');
    st = put_meta(&w, l, meta, n_meta, h->digests);
    for (int i = 0; i < l->n; i++)
        put_item(&w, l, &l->items[i], begins[i]);
    json_close(&w, '}');
    while (h->text.length % HEADER_ALIGNMENT != 0 && !h->text.failed)
        text_append(&h->text, " ");
    return st == LS_OK ? text_status(&h->text) : st;
}

/* With zeros for digests. */
static ls_status make_header(const save_list *l, const ls_meta *meta, int n_meta, save_header *h)
{
    uint64_t *begins;
    ls_status st;

    LS_TRY(LS_NEW(&h->digests, (size_t)l->n + 1, "for the header of %s", l->path));
    LS_TRY(LS_NEW(&begins, (size_t)l->n, "for the header of %s", l->path));
    st = plan_data(l, begins, &h->data_bytes);
    if (st == LS_OK)
        st = put_header(l, meta, n_meta, begins, h);
    ls_free(begins);
    if (st == LS_OK && h->text.length > SAFETENSORS_MAX_HEADER)
        st = ls_fail(LS_EINVAL, "%s: a header of %zu bytes exceeds the format's %d", l->path,
                     h->text.length, SAFETENSORS_MAX_HEADER);
    return st == LS_OK ? check_header(l, h) : st;
}

static void set_digest(save_header *h, int i, const char digits[DIGEST_DIGITS + 1])
{
    memcpy(h->text.data + h->digests[i], digits, DIGEST_DIGITS);
}

/* Sets the header's own digest, when those of all items are set. */
static ls_status seal_header(const save_list *l, save_header *h)
{
    char digits[DIGEST_DIGITS + 1];
    safetensors_index index;
    ls_status st;

    LS_TRY(safetensors_parse(h->text.data, h->text.length, h->data_bytes, l->path, &index));
    st = digest_of_header(l->path, &index, digits);
    safetensors_free(&index);
    if (st == LS_OK)
        set_digest(h, l->n, digits);
    return st;
}

/* The file, and the digest of the item that is being written. */
typedef struct save_file {
    file_atomic file;
    digest digest;
} save_file;

static ls_status put_bytes(save_file *f, const void *src, size_t bytes)
{
    ls_status st;

    digest_start(&f->digest, src, bytes);
    st = file_write_all(f->file.fd, f->file.tmp, src, bytes);
    digest_wait(&f->digest);
    return st;
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

static ls_status write_rounded(save_file *f, const float *data, size_t n, ls_dtype type)
{
    uint16_t halves[CHUNK_ELEMENTS];

    while (n > 0) {
        const size_t part = n < CHUNK_ELEMENTS ? n : CHUNK_ELEMENTS;

        LS_TRY(round_chunk(data, halves, part, type));
        LS_TRY(put_bytes(f, halves, part * sizeof(halves[0])));
        data += part;
        n -= part;
    }
    return LS_OK;
}

/* Where the pieces of a tensor go. */
typedef struct item_file {
    save_file *file;
    ls_dtype type; /* stored */
    bool rounds;   /* float32 to `type` */
} item_file;

static ls_status write_piece(void *arg, const void *piece, size_t bytes)
{
    const item_file *to = arg;

    if (to->rounds)
        return write_rounded(to->file, piece, bytes / sizeof(float), to->type);
    return put_bytes(to->file, piece, bytes);
}

static ls_status write_item(save_file *f, const save_list *l, const ls_named *item)
{
    item_file to = {.file = f, .type = stored_type(l, item)};

    if (item->tensor == NULL)
        return put_bytes(f, item->bytes, item->n_bytes);
    to.rounds = to.type != item_type(item);
    return ls_context(tensor_read_pieces(item->tensor, write_piece, &to), "%s", item->name);
}

static ls_status write_data(save_file *f, const save_list *l, save_header *h)
{
    char digits[DIGEST_DIGITS + 1];

    for (size_t k = 0; k < LS_COUNT_OF(element_sizes); k++) {
        for (int i = 0; i < l->n; i++) {
            if (ls_dtype_size(stored_type(l, &l->items[i])) != element_sizes[k])
                continue;
            digest_begin(&f->digest);
            LS_TRY(write_item(f, l, &l->items[i]));
            digest_end(&f->digest, digits);
            set_digest(h, i, digits);
        }
    }
    return LS_OK;
}

static ls_status seek(const file_atomic *f, size_t at)
{
    return lseek(f->fd, (off_t)at, SEEK_SET) >= 0 ? LS_OK
                                                  : ls_fail_errno("cannot write %s", f->tmp);
}

static ls_status write_parts(save_file *f, const save_list *l, save_header *h)
{
    const file_atomic *file = &f->file;
    uint8_t length[SAFETENSORS_LENGTH_BYTES];

    for (size_t i = 0; i < sizeof(length); i++)
        length[i] = (uint8_t)((uint64_t)h->text.length >> (8 * i));
    LS_TRY(seek(file, sizeof(length) + h->text.length));
    LS_TRY(write_data(f, l, h));
    LS_TRY(seal_header(l, h));
    LS_TRY(seek(file, 0));
    LS_TRY(file_write_all(file->fd, file->tmp, length, sizeof(length)));
    return file_write_all(file->fd, file->tmp, h->text.data, h->text.length);
}

static ls_status write_file(const save_list *l, save_header *h)
{
    save_file f;
    ls_status st;

    LS_TRY(file_atomic_begin(&f.file, l->path));
    st = write_parts(&f, l, h);
    if (st == LS_OK)
        return file_atomic_commit(&f.file);
    file_atomic_cancel(&f.file);
    return st;
}

static ls_status check_meta(const char *path, const ls_meta *meta, int n)
{
    for (int i = 0; i < n; i++) {
        if (meta[i].key == NULL || meta[i].value == NULL)
            return ls_fail(LS_EINVAL, "%s: metadata pair %d is not complete", path, i);
        if (text_starts(meta[i].key, DIGEST_KEY))
            return ls_fail(LS_EINVAL, "%s: the metadata key %s is reserved for digests", path,
                           meta[i].key);
    }
    return LS_OK;
}

ls_status ls_checkpoint_save_as(const char *path, const ls_named *items, int n_items,
                                const ls_meta *meta, int n_meta, ls_dtype type)
{
    const save_list list = {path, items, n_items, type};
    save_header header = {.digests = NULL};
    ls_status st;

    if (path == NULL || n_items < 0 || n_meta < 0 || (n_items > 0 && items == NULL) ||
        (n_meta > 0 && meta == NULL))
        return ls_fail(LS_EINVAL, "a checkpoint needs a path and lists");
    if (type != LS_F32 && type != LS_F16 && type != LS_BF16)
        return ls_fail(LS_EINVAL, "%s: float32 tensors are saved as float32, fp16 or bf16", path);
    LS_TRY(check_meta(path, meta, n_meta));
    LS_TRY(check_items(path, items, n_items));
    st = make_header(&list, meta, n_meta, &header);
    if (st == LS_OK)
        st = write_file(&list, &header);
    text_free(&header.text);
    ls_free(header.digests);
    return st;
}

ls_status ls_checkpoint_save(const char *path, const ls_named *items, int n_items,
                             const ls_meta *meta, int n_meta)
{
    return ls_checkpoint_save_as(path, items, n_items, meta, n_meta, LS_F32);
}
