/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idx.c - parses idx files for dataset_idx.c: two zero bytes, the element type, the number of
 * dimensions, each dimension as a big-endian signed 32-bit number, then the elements.
 */
#include "data/formats/idx.h"

#include "base/alloc.h"
#include "data/formats/byte_source.h"

#include <inttypes.h>
#include <stdbool.h>

#define TYPE_U8          0x08
#define MAGIC_BYTES      4
#define MAX_SAMPLE_BYTES (1 << 30)

/* Memory allocated before the content is read: at most LIKELY_RATIO times the size of a gzipped
 * file plus FIRST_BYTES, since images rarely compress further. */
#define FIRST_BYTES  ((size_t)1 << 20)
#define LIKELY_RATIO 16

static const char *type_name(int type)
{
    switch (type) {
    case TYPE_U8:
        return "unsigned bytes";
    case 0x09:
        return "signed bytes";
    case 0x0B:
        return "16-bit integers";
    case 0x0C:
        return "32-bit integers";
    case 0x0D:
        return "float32";
    case 0x0E:
        return "float64";
    default:
        return "unknown";
    }
}

static ls_status read_magic(byte_source *s, int min_dims, int max_dims, int *n_dims)
{
    uint8_t magic[MAGIC_BYTES];

    LS_TRY(byte_source_read(s, magic, sizeof(magic)));
    if (magic[0] != 0 || magic[1] != 0)
        return ls_fail(LS_EFORMAT, "%s: offset 0: %02x%02x%02x%02x is not the start of an idx file",
                       s->path, magic[0], magic[1], magic[2], magic[3]);
    if (magic[2] != TYPE_U8)
        return ls_fail(LS_EFORMAT, "%s: offset 2: type 0x%02x (%s), expected unsigned bytes",
                       s->path, magic[2], type_name(magic[2]));
    if (magic[3] < min_dims || magic[3] > max_dims)
        return ls_fail(LS_EFORMAT, "%s: offset 3: %d dimensions, expected %s", s->path, magic[3],
                       min_dims == 1 ? "1 (labels)" : "3 or 4 (images)");
    *n_dims = magic[3];
    return LS_OK;
}

/* One dimension; only the first, the count, may be 0. */
static ls_status read_dim(byte_source *s, int i, int64_t *dim)
{
    uint8_t b[4];
    int32_t value;

    LS_TRY(byte_source_read(s, b, sizeof(b)));
    value = (int32_t)((uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3]);
    if (value < 0 || (value == 0 && i > 0))
        return ls_fail(LS_EFORMAT, "%s: offset %" PRIu64 ": dimension %d is %" PRId32, s->path,
                       s->offset - sizeof(b), i, value);
    *dim = value;
    return LS_OK;
}

/* Reads all dimensions. Their product must not exceed what the file can hold; that of all but the
 * first, the count, must not exceed MAX_SAMPLE_BYTES. */
static ls_status read_dims(byte_source *s, idx_array *a)
{
    const uint64_t most = byte_source_most(s);
    uint64_t sample_bytes = 1;
    uint64_t bytes;
    bool fits = true;

    for (int i = 0; i < a->n_dims; i++) {
        LS_TRY(read_dim(s, i, &a->dims[i]));
        if (i > 0)
            fits =
                fits && !__builtin_mul_overflow(sample_bytes, (uint64_t)a->dims[i], &sample_bytes);
    }
    if (!fits || sample_bytes > MAX_SAMPLE_BYTES)
        return ls_fail(LS_EFORMAT, "%s: offset %d: a sample has more than %d bytes", s->path,
                       MAGIC_BYTES + 4, MAX_SAMPLE_BYTES);
    bytes = sample_bytes * (uint64_t)a->dims[0]; // below 2^61
    if (bytes > most)
        return ls_fail(LS_EFORMAT,
                       "%s: offset %d: the dimensions need %" PRIu64
                       " bytes, more than a file of %" PRIu64 " can hold",
                       s->path, MAGIC_BYTES, bytes, s->file_bytes);
    a->bytes = (size_t)bytes;
    return LS_OK;
}

/* Bytes to allocate first: all of them where the size of the file makes the header plausible. */
static size_t first_capacity(const byte_source *s, size_t bytes)
{
    const uint64_t plausible =
        s->gz == NULL ? s->file_bytes : s->file_bytes * LIKELY_RATIO + FIRST_BYTES;

    return bytes < plausible ? bytes : (size_t)plausible;
}

static ls_status read_elements(byte_source *s, idx_array *a)
{
    size_t capacity = first_capacity(s, a->bytes);
    size_t done = 0;

    for (;;) {
        uint8_t *grown = ls_realloc(a->data, capacity, 1);

        if (grown == NULL)
            return ls_fail(LS_ENOMEM, "no memory for the %zu bytes of %s", a->bytes, s->path);
        a->data = grown;
        LS_TRY(byte_source_read(s, a->data + done, capacity - done));
        done = capacity;
        if (done == a->bytes)
            return LS_OK;
        capacity = capacity > a->bytes / 2 ? a->bytes : capacity * 2;
    }
}

static ls_status read_all(byte_source *s, int min_dims, int max_dims, idx_array *a)
{
    LS_TRY(read_magic(s, min_dims, max_dims, &a->n_dims));
    LS_TRY(read_dims(s, a));
    LS_TRY(read_elements(s, a));
    return byte_source_end(s);
}

ls_status idx_read(const char *path, int min_dims, int max_dims, idx_array *out)
{
    idx_array a = {0};
    byte_source s;
    ls_status st;

    LS_ASSERT(min_dims >= 1 && max_dims <= IDX_MAX_DIMS);
    LS_TRY(byte_source_open(&s, path));
    st = read_all(&s, min_dims, max_dims, &a);
    byte_source_close(&s);
    if (st == LS_OK)
        *out = a;
    else
        ls_free(a.data);
    return st;
}
