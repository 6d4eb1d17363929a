/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.c - shapes and reference-counted storage of tensors. device.c runs operators on them,
 * tensor_access.c reads and writes their elements.
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

ls_status tensor_shape_persistent(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out)
{
    return make_shape(device, type, n_dims, dims, true, out);
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

/* --- the public functions --- */

ls_status tensor_create_undefined(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                                  ls_tensor **out)
{
    ls_tensor *t;
    ls_status st;

    LS_TRY(tensor_shape_persistent(device, type, n_dims, dims, &t));
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
    LS_TRY(tensor_shape_persistent(device, type, n_dims, dims, &t));
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

    LS_TRY(tensor_shape_persistent(whole->device, type, n_dims, dims, &t));
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
