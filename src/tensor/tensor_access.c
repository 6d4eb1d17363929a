/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_access.c - reads, writes, copies and views of the elements of tensors, which it brings
 * into plain layout first. Programs, and all layers above, call it.
 */
#include "tensor/device.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <string.h>

/* tensor_plain() of a const tensor: only its storage changes. */
static ls_status plain_elements(const ls_tensor *t, void **out)
{
    ls_tensor seen = *t;

    return tensor_plain(&seen, out);
}

/* --- in pieces --- */

/* The size of the piece at `at`. */
static size_t piece_bytes(const ls_tensor *t, size_t at)
{
    const size_t left = tensor_bytes(t) - at;

    return left < TENSOR_PIECE_BYTES ? left : TENSOR_PIECE_BYTES;
}

/* Host memory for a piece of a stream device's tensor; NULL for a host device. */
static ls_status make_staging(const ls_tensor *t, void **out)
{
    const size_t bytes = piece_bytes(t, 0);

    *out = NULL;
    if (t->device->accel == NULL || bytes == 0)
        return LS_OK;
    *out = ls_alloc_aligned(64, bytes);
    return *out != NULL
               ? LS_OK
               : ls_fail(LS_ENOMEM, "no memory for %zu bytes of a copy from or to device %s", bytes,
                         t->device->accel->name);
}

static ls_status read_piece(const ls_tensor *t, const char *src, void *staging, size_t bytes,
                            const void **out)
{
    *out = staging == NULL ? src : staging;
    return staging == NULL ? LS_OK : device_read(t->device, staging, src, bytes);
}

ls_status tensor_read_pieces(const ls_tensor *t,
                             ls_status (*fn)(void *arg, const void *piece, size_t bytes), void *arg)
{
    void *data;
    void *staging;
    ls_status st = LS_OK;

    LS_TRY(plain_elements(t, &data));
    LS_TRY(make_staging(t, &staging));
    for (size_t at = 0; at < tensor_bytes(t) && st == LS_OK; at += piece_bytes(t, at)) {
        const size_t bytes = piece_bytes(t, at);
        const void *piece;

        st = read_piece(t, (const char *)data + at, staging, bytes, &piece);
        if (st == LS_OK)
            st = fn(arg, piece, bytes);
    }
    ls_free(staging);
    return st;
}

/* --- hashes --- */

enum { HASH_PART_BYTES = 4096 };

typedef struct hash_state {
    uint64_t hash;
    ls_dtype type;
} hash_state;

typedef union hash_part {
    int16_t of_16[HASH_PART_BYTES / 2];
    int32_t of_32[HASH_PART_BYTES / 4];
    int64_t of_64[HASH_PART_BYTES / 8];
} hash_part;

/* As integers without the sign NaNs are above infinity; all ones stand for all of them. The number
 * of elements is fixed, so that compilers use vectors. */
#define DEFINE_NANS(bits_of, type, without_sign)                                                   \
    static bool has_nans_##bits_of(const type *bits, type infinity)                                \
    {                                                                                              \
        type found = 0;                                                                            \
                                                                                                   \
        for (size_t i = 0; i < HASH_PART_BYTES / sizeof(type); i++)                                \
            found |= (type)((bits[i] & (without_sign)) > infinity);                                \
        return found != 0;                                                                         \
    }                                                                                              \
                                                                                                   \
    static void join_nans_##bits_of(type *bits, type infinity)                                     \
    {                                                                                              \
        for (size_t i = 0; i < HASH_PART_BYTES / sizeof(type); i++)                                \
            bits[i] = (bits[i] & (without_sign)) > infinity ? -1 : bits[i];                        \
    }

DEFINE_NANS(16, int16_t, INT16_MAX)
DEFINE_NANS(32, int32_t, INT32_MAX)
DEFINE_NANS(64, int64_t, INT64_MAX)

static bool has_nans(const void *part, ls_dtype type)
{
    switch (type) {
    case LS_F16:
        return has_nans_16(part, 0x7C00);
    case LS_BF16:
        return has_nans_16(part, 0x7F80);
    case LS_F32:
        return has_nans_32(part, 0x7F800000);
    case LS_F64:
        return has_nans_64(part, INT64_C(0x7FF0000000000000));
    default:
        return false;
    }
}

static void join_nans(hash_part *part, ls_dtype type)
{
    if (type == LS_F16)
        join_nans_16(part->of_16, 0x7C00);
    else if (type == LS_BF16)
        join_nans_16(part->of_16, 0x7F80);
    else if (type == LS_F32)
        join_nans_32(part->of_32, 0x7F800000);
    else if (type == LS_F64)
        join_nans_64(part->of_64, INT64_C(0x7FF0000000000000));
}

/* Only parts with NaNs, and the last one, are copied. */
static ls_status hash_piece(void *arg, const void *piece, size_t bytes)
{
    const unsigned char *from = piece;
    hash_state *h = arg;
    hash_part copy = {{0}};

    for (size_t at = 0; at < bytes; at += sizeof(copy)) {
        const size_t n = bytes - at < sizeof(copy) ? bytes - at : sizeof(copy);
        const void *part = from + at;

        if (n < sizeof(copy) || has_nans(part, h->type)) {
            memcpy(&copy, part, n);
            join_nans(&copy, h->type);
            part = &copy;
        }
        h->hash = ls_hash_block(part, n, h->hash);
    }
    return LS_OK;
}

ls_status tensor_hash(const ls_tensor *t, uint64_t *hash)
{
    hash_state h = {.hash = *hash};
    ls_status st;

    if (t == NULL)
        return LS_OK;
    h.type = t->dtype;
    st = tensor_read_pieces(t, hash_piece, &h);
    *hash = h.hash;
    return st;
}

/* --- writing --- */

ls_status tensor_write_pieces(ls_tensor *t, void (*fn)(void *arg, void *piece, size_t bytes),
                              void *arg)
{
    void *data;
    void *staging;
    ls_status st = LS_OK;

    LS_TRY(plain_elements(t, &data));
    LS_TRY(make_staging(t, &staging));
    for (size_t at = 0; at < tensor_bytes(t) && st == LS_OK; at += piece_bytes(t, at)) {
        char *dst = (char *)data + at;

        fn(arg, staging == NULL ? dst : staging, piece_bytes(t, at));
        if (staging != NULL)
            st = device_write(t->device, dst, staging, piece_bytes(t, at));
    }
    ls_free(staging);
    tensor_written(t, "new values");
    return st;
}

/* --- the public functions --- */

ls_status ls_tensor_view(ls_tensor *t, int n_dims, const int64_t *dims, ls_tensor **out)
{
    char was[TENSOR_TEXT_BYTES];
    char wanted[TENSOR_TEXT_BYTES];
    ls_tensor *view;
    void *data;

    LS_TRY(LS_GIVEN(t));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(tensor_plain(t, &data));
    LS_TRY(tensor_shape_persistent(t->device, t->dtype, n_dims, dims, &view));
    if (ls_tensor_count(view) != ls_tensor_count(t)) {
        const ls_status st = ls_fail(LS_EINVAL, "tensor: %s cannot be seen as %s",
                                     tensor_dims_text(was, sizeof(was), t),
                                     tensor_dims_text(wanted, sizeof(wanted), view));

        ls_tensor_destroy(view);
        return st;
    }
    tensor_share(view, t);
    *out = view;
    return LS_OK;
}

/* The plain elements in host memory. */
static ls_status host_elements(const ls_tensor *t, void **out)
{
    if (t->device->accel != NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "tensor: the elements are in the memory of device %s; ls_tensor_read() "
                       "copies them",
                       t->device->accel->name);
    return plain_elements(t, out);
}

static ls_status check_count(const ls_tensor *t, size_t count)
{
    char text[TENSOR_TEXT_BYTES];

    if (count == ls_tensor_count(t))
        return LS_OK;
    return ls_fail(LS_EINVAL, "tensor: %zu elements for %s, which has %zu", count,
                   tensor_text(text, sizeof(text), t), ls_tensor_count(t));
}

ls_status ls_tensor_read(const ls_tensor *t, void *dst, size_t count)
{
    void *data;

    LS_TRY(LS_GIVEN(t));
    LS_TRY(check_count(t, count));
    if (count > 0)
        LS_TRY(LS_GIVEN(dst));
    LS_TRY(plain_elements(t, &data));
    return device_read(t->device, dst, data, tensor_bytes(t));
}

ls_status ls_tensor_write(ls_tensor *t, const void *src, size_t count)
{
    void *data;

    LS_TRY(LS_GIVEN(t));
    LS_TRY(check_count(t, count));
    if (count > 0)
        LS_TRY(LS_GIVEN(src));
    LS_TRY(plain_elements(t, &data));
    LS_TRY(device_write(t->device, data, src, tensor_bytes(t)));
    tensor_written(t, "ls_tensor_write()");
    return LS_OK;
}

const void *ls_tensor_data_const(const ls_tensor *t)
{
    void *data;

    return t != NULL && host_elements(t, &data) == LS_OK ? data : NULL;
}

void *ls_tensor_data(ls_tensor *t)
{
    void *data;

    if (t == NULL || host_elements(t, &data) != LS_OK)
        return NULL;
    tensor_written(t, "ls_tensor_data()");
    return data;
}

const void *ls_tensor_address_const(const ls_tensor *t)
{
    void *address = NULL;

    return t != NULL && plain_elements(t, &address) == LS_OK ? address : NULL;
}

void *ls_tensor_address(ls_tensor *t)
{
    void *address;

    if (t == NULL || plain_elements(t, &address) != LS_OK)
        return NULL;
    tensor_written(t, "ls_tensor_address()");
    return address;
}

/* Copies to a tensor of another device: directly if one is in host memory, else through a block. */
static ls_status copy_between(ls_tensor *dst, const ls_tensor *src)
{
    const size_t bytes = tensor_bytes(src);
    void *from;
    void *through;
    ls_status st;

    LS_TRY(plain_elements(src, &from));
    if (src->device->accel == NULL)
        return ls_tensor_write(dst, from, ls_tensor_count(dst));
    through = ls_alloc_aligned(64, bytes == 0 ? 1 : bytes);
    if (through == NULL)
        return ls_fail(LS_ENOMEM, "tensor: no memory for %zu bytes of a copy", bytes);
    st = ls_tensor_read(src, through, ls_tensor_count(src));
    if (st == LS_OK)
        st = ls_tensor_write(dst, through, ls_tensor_count(dst));
    ls_free(through);
    return st;
}

ls_status ls_tensor_copy(ls_tensor *dst, const ls_tensor *src)
{
    char to[TENSOR_TEXT_BYTES];
    char from[TENSOR_TEXT_BYTES];
    ls_tensor seen;
    op_call call = {.op = OP_COPY, .n_in = 1, .n_out = 1};
    void *data;

    LS_TRY(LS_GIVEN(dst));
    LS_TRY(LS_GIVEN(src));
    seen = *src;
    if (dst->dtype != src->dtype || !tensor_same_shape(dst, src))
        return ls_fail(LS_EINVAL, "tensor: %s cannot be copied into %s",
                       tensor_text(from, sizeof(from), src), tensor_text(to, sizeof(to), dst));
    if (src->storage == NULL || dst->storage == NULL)
        return plain_elements(src->storage == NULL ? src : dst, &data);
    if (dst->device != src->device)
        return copy_between(dst, src);
    call.in[0] = &seen;
    call.out[0] = dst;
    return device_run(dst->device, &call);
}
