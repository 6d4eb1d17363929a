/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.c - parses the header of a safetensors file, one JSON object: {"NAME": {"dtype":
 * "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"KEY": "VALUE", ...}}.
 * checkpoint.c opens files with it, checkpoint_save.c checks what it writes.
 */
#include "checkpoint/safetensors.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 64

// Files may hold tensors of types that ls_dtype lacks; only loading these fails.
static const safetensors_type types[] = {
    {"F32", 4, LS_F32, 'f'}, {"F16", 2, LS_F16, 'f'}, {"BF16", 2, LS_BF16, 'f'},
    {"F64", 8, LS_F64, 'f'}, {"U8", 1, LS_U8, 'u'},   {"I64", 8, LS_I64, 'i'},
    {"I32", 4, LS_I32, 'i'}, {"I8", 1, LS_I8, 'i'},   {"BOOL", 1, -1, 'u'},
    {"I16", 2, -1, 'i'},     {"U16", 2, -1, 'u'},     {"U32", 4, -1, 'u'},
    {"U64", 8, -1, 'u'},     {"F8_E5M2", 1, -1, 0},   {"F8_E4M3", 1, -1, 0},
    {"F8_E8M0", 1, -1, 0},   {"C64", 8, -1, 0},
};

const char *safetensors_type_name(ls_dtype type)
{
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        if (types[i].type == (int)type)
            return types[i].name;
    }
    return NULL;
}

const char *safetensors_entry_text(char *buf, size_t n, const safetensors_entry *e)
{
    const bool is_ours = e->type->type >= 0;
    size_t length = 1;

    (void)text_format(buf, n, "(");
    for (int i = 0; i < e->n_dims && length + 1 < n; i++) {
        (void)text_format(buf + length, n - length, i > 0 ? ", %" PRId64 : "%" PRId64, e->dims[i]);
        length += strlen(buf + length);
    }
    (void)text_format(buf + length, n - length, ") %s",
                      is_ours ? ls_dtype_name((ls_dtype)e->type->type) : e->type->name);
    return buf;
}

static ls_status fail_entry(const char *path, const char *name, const char *text)
{
    char shown[SAFETENSORS_NAME_BYTES];

    text_printable(shown, sizeof(shown), name);
    return ls_fail(LS_EFORMAT, "%s: header at offset %d: entry \"%s\": %s", path,
                   SAFETENSORS_LENGTH_BYTES, shown, text);
}

/* --- one entry --- */

static ls_status parse_type(const char *path, const json_value *v, safetensors_entry *e)
{
    const char *name = json_as_string(json_get(v, "dtype"), NULL);
    char text[SAFETENSORS_NAME_BYTES];
    char shown[32];

    if (name == NULL)
        return fail_entry(path, e->name, "it has no dtype");
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        if (text_equal(name, types[i].name)) {
            e->type = &types[i];
            return LS_OK;
        }
    }
    text_printable(shown, sizeof(shown), name);
    return fail_entry(path, e->name, text_format(text, sizeof(text), "unknown dtype %s", shown));
}

/* A number of the header that must not be negative. */
static bool get_size(const json_value *v, int64_t *out)
{
    *out = json_as_int(v, -1);
    return *out >= 0;
}

/* Reads the shape into `dims`, which is large enough. */
static ls_status parse_shape(const char *path, const json_value *v, safetensors_entry *e,
                             int64_t *dims)
{
    const json_value *shape = json_get(v, "shape");

    if (json_kind_of(shape) != JSON_IS_ARRAY || json_size(shape) > MAX_DIMS)
        return fail_entry(path, e->name, "its shape is not a list of at most 64 numbers");
    e->n_dims = (int)json_size(shape);
    e->dims = dims;
    for (int i = 0; i < e->n_dims; i++) {
        if (!get_size(json_at(shape, (size_t)i), &dims[i]))
            return fail_entry(path, e->name, "its shape holds values that are not sizes");
    }
    return LS_OK;
}

static ls_status parse_offsets(const char *path, const json_value *v, safetensors_entry *e)
{
    const json_value *offsets = json_get(v, "data_offsets");
    int64_t begin;
    int64_t end;

    if (json_kind_of(offsets) != JSON_IS_ARRAY || json_size(offsets) != 2 ||
        !get_size(json_at(offsets, 0), &begin) || !get_size(json_at(offsets, 1), &end) ||
        begin > end)
        return fail_entry(path, e->name, "its data_offsets are not a begin and an end");
    e->begin = (uint64_t)begin;
    e->end = (uint64_t)end;
    return LS_OK;
}

/* The bytes between the offsets must be those of the shape. */
static ls_status check_size(const char *path, const safetensors_entry *e)
{
    char shape[SAFETENSORS_TEXT_BYTES];
    char text[SAFETENSORS_TEXT_BYTES + 64];
    uint64_t bytes = e->type->bytes;
    bool fits = true;
    bool is_empty = false;

    for (int i = 0; i < e->n_dims; i++) {
        is_empty = is_empty || e->dims[i] == 0;
        fits = fits && !__builtin_mul_overflow(bytes, (uint64_t)e->dims[i], &bytes);
    }
    if (is_empty ? e->begin == e->end : fits && bytes == e->end - e->begin)
        return LS_OK;
    return fail_entry(path, e->name,
                      text_format(text, sizeof(text), "%" PRIu64 " bytes for %s", e->end - e->begin,
                                  safetensors_entry_text(shape, sizeof(shape), e)));
}

static ls_status parse_entry(const char *path, const json_value *v, safetensors_entry *e,
                             int64_t *dims)
{
    if (json_kind_of(v) != JSON_IS_OBJECT)
        return fail_entry(path, e->name, "it is not an object");
    LS_TRY(parse_type(path, v, e));
    LS_TRY(parse_shape(path, v, e, dims));
    LS_TRY(parse_offsets(path, v, e));
    return check_size(path, e);
}

/* --- all entries --- */

/* Where one entry's data lies. */
typedef struct extent {
    uint64_t begin;
    uint64_t end;
    const char *name;
} extent;

static int compare_extents(const void *left, const void *right)
{
    const extent *a = left;
    const extent *b = right;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* In the order of their data, each entry must begin where the one before ended. */
static ls_status check_cover(const char *path, const extent *sorted, int n, uint64_t data_bytes)
{
    char text[SAFETENSORS_NAME_BYTES];
    uint64_t at = 0;

    for (int i = 0; i < n; i++) {
        const extent *e = &sorted[i];

        if (e->end > data_bytes)
            return fail_entry(path, e->name,
                              text_format(text, sizeof(text),
                                          "it ends at %" PRIu64 ", the data has %" PRIu64 " bytes",
                                          e->end, data_bytes));
        if (e->begin != at)
            return fail_entry(
                path, e->name,
                text_format(text, sizeof(text), "it begins at %" PRIu64 ", %s %" PRIu64, e->begin,
                            e->begin < at ? "inside the one that ends at" : "leaving a hole from",
                            at));
        at = e->end;
    }
    if (at != data_bytes)
        return ls_fail(LS_EFORMAT, "%s: the entries cover %" PRIu64 " bytes, the data has %" PRIu64,
                       path, at, data_bytes);
    return LS_OK;
}

static ls_status check_data(const char *path, const safetensors_index *index, uint64_t data_bytes)
{
    const size_t n = (size_t)index->n_entries;
    extent *extents = ls_calloc(n, sizeof(*extents));
    ls_status st;

    if (extents == NULL)
        return ls_fail(LS_ENOMEM, "%s: no memory for %zu entries", path, n);
    for (size_t i = 0; i < n; i++) {
        const safetensors_entry *e = &index->entries[i];

        extents[i] = (extent){.begin = e->begin, .end = e->end, .name = e->name};
    }
    qsort(extents, n, sizeof(*extents), compare_extents);
    st = check_cover(path, extents, index->n_entries, data_bytes);
    ls_free(extents);
    return st;
}

static ls_status check_meta(const char *path, const json_value *meta)
{
    void *cursor = NULL;
    const char *key;
    json_value *value;

    if (json_kind_of(meta) == JSON_IS_NULL) // some writers' way to have none
        return LS_OK;
    if (json_kind_of(meta) != JSON_IS_OBJECT)
        return fail_entry(path, SAFETENSORS_META, "it is not an object");
    while (json_next(meta, &cursor, &key, &value)) {
        if (json_kind_of(value) != JSON_IS_STRING)
            return fail_entry(path, SAFETENSORS_META, "it holds values that are not strings");
    }
    return LS_OK;
}

static ls_status allocate_entries(const char *path, safetensors_index *index)
{
    size_t n_dims = 0;
    void *cursor = NULL;
    const char *name;
    json_value *v;

    while (json_next(index->root, &cursor, &name, &v))
        n_dims += json_size(json_get(v, "shape"));
    index->entries = ls_calloc(json_size(index->root), sizeof(*index->entries));
    index->dims = ls_calloc(n_dims, sizeof(*index->dims));
    if (index->entries == NULL || index->dims == NULL)
        return ls_fail(LS_ENOMEM, "%s: no memory for %zu entries", path, json_size(index->root));
    return LS_OK;
}

static ls_status parse_entries(const char *path, safetensors_index *index)
{
    int64_t *dims = index->dims;
    void *cursor = NULL;
    const char *name;
    json_value *v;

    while (json_next(index->root, &cursor, &name, &v)) {
        safetensors_entry *e = &index->entries[index->n_entries];

        if (text_equal(name, SAFETENSORS_META)) {
            LS_TRY(check_meta(path, v));
            continue;
        }
        e->name = name;
        LS_TRY(parse_entry(path, v, e, dims));
        dims += e->n_dims;
        LS_TRY(byte_map_set(&index->by_name, name, strlen(name), e, NULL));
        index->n_entries++;
    }
    return LS_OK;
}

static ls_status parse_header(const char *header, size_t bytes, uint64_t data_bytes,
                              const char *path, safetensors_index *index)
{
    // The format allows padding at the end only.
    if (bytes == 0 || header[0] != '{')
        return ls_fail(LS_EFORMAT, "%s: offset %d: the header does not begin with {", path,
                       SAFETENSORS_LENGTH_BYTES);
    LS_TRY(ls_context(json_parse(header, bytes, path, &index->root), "header at offset %d",
                      SAFETENSORS_LENGTH_BYTES));
    LS_TRY(allocate_entries(path, index));
    LS_TRY(parse_entries(path, index));
    return check_data(path, index, data_bytes);
}

ls_status safetensors_parse(const char *header, size_t bytes, uint64_t data_bytes, const char *path,
                            safetensors_index *out)
{
    safetensors_index index = {0};
    const ls_status st = parse_header(header, bytes, data_bytes, path, &index);

    if (st == LS_OK)
        *out = index;
    else
        safetensors_free(&index);
    return st;
}

void safetensors_free(safetensors_index *index)
{
    byte_map_free(&index->by_name);
    ls_free(index->entries);
    ls_free(index->dims);
    json_free(index->root);
    memset(index, 0, sizeof(*index));
}

const safetensors_entry *safetensors_find(const safetensors_index *index, const char *name)
{
    return byte_map_get(&index->by_name, name, strlen(name));
}
