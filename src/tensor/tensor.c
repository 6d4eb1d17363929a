/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.c - shapes, reference-counted storage, views, and conversion to plain layout: the
 * functions of <lockstep/tensor.h>, and those of tensor.h for autograd and devices.
 */
#include "tensor/tensor.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/device.h"
#include "tensor/pool.h"

#include <string.h>

/* --- shapes --- */

/* Checks a shape, whose elements *count gets. */
static ls_status check_shape(const ls_device *device, ls_dtype type, int n_dims,
                             const int64_t *dims, size_t *count)
{
    size_t bytes = ls_dtype_size(type);

    if (device == NULL)
        return ls_fail(LS_EINVAL, "tensor: the device is NULL");
    if (bytes == 0)
        return ls_fail(LS_EINVAL, "tensor: %d is not an ls_dtype", (int)type);
    if (n_dims < 0 || n_dims > LS_MAX_DIMS)
        return ls_fail(LS_EINVAL, "tensor: %d dimensions; 0 to %d are supported", n_dims,
                       LS_MAX_DIMS);
    if (n_dims > 0 && dims == NULL)
        return ls_fail(LS_EINVAL, "tensor: dims is NULL, but n_dims is %d", n_dims);
    *count = 1;
    for (int i = 0; i < n_dims; i++) {
        if (dims[i] < 0)
            return ls_fail(LS_EINVAL, "tensor: dimension %d is %lld; it must be at least 0", i,
                           (long long)dims[i]);
        if (ls_mul_size(bytes, (size_t)dims[i], &bytes) != LS_OK)
            return ls_context(LS_EINVAL, "tensor: size");
        *count *= (size_t)dims[i];
    }
    return LS_OK;
}

static ls_status make_shape(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                            bool persistent, ls_tensor **out)
{
    size_t count;
    ls_tensor *t;

    LS_TRY(check_shape(device, type, n_dims, dims, &count));
    LS_TRY(pool_take_tensor(device, persistent, &t));
    t->dtype = type;
    t->n_dims = n_dims;
    t->count = count;
    if (n_dims > 0)
        memcpy(t->dims, dims, (size_t)n_dims * sizeof(*dims));
    *out = t;
    return LS_OK;
}

ls_status tensor_shape(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                       ls_tensor **out)
{
    return make_shape(device, type, n_dims, dims, false, out);
}

ls_status tensor_like(const ls_tensor *t, ls_tensor **out)
{
    LS_TRY(pool_take_tensor(t->device, false, out));
    (*out)->dtype = t->dtype;
    (*out)->n_dims = t->n_dims;
    (*out)->count = t->count;
    memcpy((*out)->dims, t->dims, sizeof(t->dims));
    return LS_OK;
}

size_t tensor_bytes(const ls_tensor *t)
{
    return t->count * ls_dtype_size(t->dtype);
}

const char *tensor_dims_text(char *buf, size_t n, const ls_tensor *t)
{
    size_t used = 0;

    if (t == NULL)
        return text_format(buf, n, "nothing");
    (void)text_format(buf, n, "(");
    for (int i = 0; i < t->n_dims; i++) {
        used = strlen(buf);
        (void)text_format(buf + used, n - used, i == 0 ? "%lld" : ", %lld", (long long)t->dims[i]);
    }
    used = strlen(buf);
    (void)text_format(buf + used, n - used, ")");
    return buf;
}

const char *tensor_text(char *buf, size_t n, const ls_tensor *t)
{
    size_t used;

    (void)tensor_dims_text(buf, n, t);
    if (t == NULL)
        return buf;
    used = strlen(buf);
    (void)text_format(buf + used, n - used, " %s", ls_dtype_name(t->dtype));
    return buf;
}

/* --- storage --- */

ls_status tensor_place(ls_tensor *t, const layout *arrangement, size_t bytes)
{
    LS_ASSERT(t->storage == NULL);
    LS_TRY(pool_take(t->device, arrangement == NULL ? tensor_bytes(t) : bytes, false, &t->storage));
    t->storage->layout = arrangement;
    t->offset = 0;
    return LS_OK;
}

ls_status tensor_resize(ls_tensor *t, const int64_t *dims)
{
    size_t count;

    LS_TRY(check_shape(t->device, t->dtype, t->n_dims, dims, &count));
    if (t->extra != NULL)
        t->extra->drop(t->extra);
    t->extra = NULL;
    tensor_release(t);
    t->count = count;
    memcpy(t->dims, dims, (size_t)t->n_dims * sizeof(*dims));
    return tensor_place(t, NULL, 0);
}

void tensor_share(ls_tensor *t, const ls_tensor *other)
{
    LS_ASSERT(t->storage == NULL && other->storage != NULL);
    t->storage = other->storage;
    t->offset = other->offset;
    t->storage->n_refs++;
}

void tensor_release(ls_tensor *t)
{
    storage *s = t->storage;

    if (s == NULL)
        return;
    t->storage = NULL;
    t->offset = 0;
    s->n_refs--;
    if (s->n_refs == 0)
        pool_give(s);
}

bool tensor_is_plain(const ls_tensor *t)
{
    return t->storage != NULL && t->storage->layout == NULL;
}

void *tensor_elements(const ls_tensor *t)
{
    LS_ASSERT(tensor_is_plain(t));
    return (char *)t->storage->data + t->offset;
}

void *tensor_host_elements(const ls_tensor *t)
{
    LS_ASSERT(t->device->accel == NULL);
    return tensor_elements(t);
}

ls_status tensor_zero(ls_tensor *t)
{
    tensor_written(t, "filling with zeros");
    return device_fill(t->device, tensor_elements(t), 0, tensor_bytes(t));
}

/* Swaps the memory of `a` and `b`, but not their users, versions and packed copies. */
static void swap_memory(storage *a, storage *b)
{
    const storage was = *a;

    a->data = b->data;
    a->bytes = b->bytes;
    a->layout = b->layout;
    b->data = was.data;
    b->bytes = was.bytes;
    b->layout = was.layout;
}

/* Brings the storage of `t` into plain layout: the device fills a plain copy, and the two swap
 * their memory. */
static ls_status make_plain(const ls_tensor *t)
{
    ls_tensor src = *t;
    ls_tensor *copy;
    op_call call = {.op = OP_COPY, .n_in = 1, .n_out = 1};
    ls_status st;

    LS_ASSERT(t->offset == 0 && !t->storage->borrowed);
    LS_TRY(tensor_like(t, &copy));
    st = tensor_place(copy, NULL, 0);
    if (st == LS_OK) {
        call.in[0] = &src;
        call.out[0] = copy;
        st = device_run(t->device, &call);
    }
    if (st == LS_OK)
        swap_memory(t->storage, copy->storage);
    ls_tensor_destroy(copy);
    return st;
}

/* tensor_plain() of a const tensor: only its storage changes. */
static ls_status plain_elements(const ls_tensor *t, void **out)
{
    char text[TENSOR_TEXT_BYTES];

    if (t->storage == NULL)
        return ls_fail(
            LS_EINVAL,
            "tensor: the memory of %s was released by backward; ls_tape_keep() retains it",
            tensor_text(text, sizeof(text), t));
    if (t->storage->layout != NULL)
        LS_TRY(make_plain(t));
    *out = tensor_elements(t);
    return LS_OK;
}

ls_status tensor_plain(ls_tensor *t, void **out)
{
    return plain_elements(t, out);
}

/* --- host access in pieces --- */

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

ls_status tensor_create_undefined(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out)
{
    ls_tensor *t;
    ls_status st;

    LS_TRY(make_shape(device, type, n_dims, dims, true, &t));
    st = pool_take(device, tensor_bytes(t), true, &t->storage);
    if (st != LS_OK) {
        ls_tensor_destroy(t);
        return st;
    }
    *out = t;
    return LS_OK;
}

ls_status ls_tensor_create(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                           ls_tensor **out)
{
    ls_tensor *t;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(tensor_create_undefined(device, type, n_dims, dims, &t));
    st = tensor_zero(t);
    if (st != LS_OK) {
        ls_tensor_destroy(t);
        return st;
    }
    *out = t;
    return LS_OK;
}

static ls_status check_wrapped(const ls_tensor *t, const void *data)
{
    const accel *of = accel_of(data);

    if (data == NULL && tensor_bytes(t) > 0)
        return ls_fail(LS_EINVAL, "tensor: NULL cannot be wrapped");
    if ((uintptr_t)data % ls_dtype_size(t->dtype) != 0)
        return ls_fail(LS_EINVAL, "tensor: %p is not aligned for %s", data,
                       ls_dtype_name(t->dtype));
    if (tensor_bytes(t) > 0 && of != t->device->accel)
        return ls_fail(LS_EINVAL,
                       "tensor: %p is memory of %s, not of device %s; ls_tensor_write() copies "
                       "host memory to a device",
                       data, of == NULL ? "the host" : of->name,
                       t->device->accel == NULL ? t->device->ops->name : t->device->accel->name);
    return LS_OK;
}

ls_status ls_tensor_wrap(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                         void *data, ls_tensor **out)
{
    ls_tensor *t;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(make_shape(device, type, n_dims, dims, true, &t));
    st = check_wrapped(t, data);
    if (st == LS_OK)
        st = pool_take_borrowed(device, data, tensor_bytes(t), &t->storage);
    if (st != LS_OK) {
        ls_tensor_destroy(t);
        return st;
    }
    *out = t;
    return LS_OK;
}

ls_status tensor_create_part(const ls_tensor *whole, size_t offset, ls_dtype type, int n_dims,
                             const int64_t *dims, ls_tensor **out)
{
    char *data = (char *)tensor_elements(whole) + offset;
    ls_tensor *t;
    ls_status st;

    LS_TRY(make_shape(whole->device, type, n_dims, dims, true, &t));
    LS_ASSERT(offset <= tensor_bytes(whole) && tensor_bytes(t) <= tensor_bytes(whole) - offset);
    st = pool_take_borrowed(t->device, data, tensor_bytes(t), &t->storage);
    if (st != LS_OK) {
        ls_tensor_destroy(t);
        return st;
    }
    t->storage->whole = whole->storage;
    whole->storage->n_refs++;
    *out = t;
    return LS_OK;
}

ls_status ls_tensor_view(ls_tensor *t, int n_dims, const int64_t *dims, ls_tensor **out)
{
    char was[TENSOR_TEXT_BYTES];
    char wanted[TENSOR_TEXT_BYTES];
    ls_tensor *view;
    void *data;

    LS_TRY(LS_GIVEN(t));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(tensor_plain(t, &data));
    LS_TRY(make_shape(t->device, t->dtype, n_dims, dims, true, &view));
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

void ls_tensor_destroy(ls_tensor *t)
{
    if (t == NULL || (t->extra != NULL && t->extra->of_tape))
        return;
    if (t->extra != NULL)
        t->extra->drop(t->extra);
    t->extra = NULL;
    tensor_release(t);
    pool_give_tensor(t);
}

int ls_tensor_n_dims(const ls_tensor *t)
{
    return t == NULL ? 0 : t->n_dims;
}

int64_t ls_tensor_dim(const ls_tensor *t, int i)
{
    int at;

    if (t == NULL)
        return 0;
    at = i < 0 ? t->n_dims + i : i;
    return at >= 0 && at < t->n_dims ? t->dims[at] : 1;
}

const int64_t *ls_tensor_dims(const ls_tensor *t)
{
    return t == NULL ? NULL : t->dims;
}

size_t ls_tensor_count(const ls_tensor *t)
{
    return t == NULL ? 0 : t->count;
}

ls_dtype ls_tensor_dtype(const ls_tensor *t)
{
    return t == NULL ? (ls_dtype)LS_DTYPE_COUNT : t->dtype;
}

ls_device *ls_tensor_device(const ls_tensor *t)
{
    return t == NULL ? NULL : t->device;
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
