/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h - the inside of a tensor, for the layers above that may see it (autograd) and for devices.
 */
#ifndef LS_TENSOR_TENSOR_H
#define LS_TENSOR_TENSOR_H

#include <lockstep/tensor.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct layout
    layout; /* a device's own arrangement; owned by that device, compared by pointer */
typedef struct packed packed; /* a device's cached copy of a parameter in its own arrangement */

/* Memory with a count of its users. Plain (row-major) when layout is NULL. */
typedef struct storage {
    int n_refs;
    ls_device *device;
    void *data;
    size_t bytes; /* of the block behind data */
    const layout *layout;
    uint64_t
        version;    /* grows with every write, so that copies derived from it know they are stale */
    packed *packed; /* NULL, or what the device derived from it; freed through the device */
    bool borrowed;  /* ls_tensor_wrap: data is the caller's */
} storage;

struct ls_tensor {
    storage
        *storage; /* NULL: shaped but not placed yet (an operator's output before its kernel ran) */
    size_t offset; /* bytes into the storage; 0 unless the storage is plain */
    ls_device *device;
    ls_dtype dtype;
    int n_dims;
    int64_t dims[LS_MAX_DIMS];
    void *autograd; /* autograd's: leaf or tape record; NULL outside */
};

/* A tensor with a shape and no storage yet. */
LS_MUST_USE ls_status tensor_shape(ls_device *device, ls_dtype type, int n_dims,
                                   const int64_t *dims, ls_tensor **out);

/* Gives an unplaced tensor storage of `bytes` in `arrangement` (NULL: plain, bytes computed). Memory comes from the
 * device's pool: after warm-up no allocation happens. Contents are undefined. */
LS_MUST_USE ls_status tensor_place(ls_tensor *t, const layout *arrangement, size_t bytes);

/* Makes `t` share the storage of `other` (an in-place result or a view). */
void tensor_share(ls_tensor *t, const ls_tensor *other);

/* Gives the storage back to the pool when this was its last user; the tensor is unplaced again. */
void tensor_release(ls_tensor *t);

/* Brings it into plain layout if it is not; *out points at the first element. */
LS_MUST_USE ls_status tensor_plain(ls_tensor *t, void **out);

void tensor_written(ls_tensor *t); /* bumps the version */

bool tensor_is_plain(const ls_tensor *t);
bool tensor_same_shape(const ls_tensor *a, const ls_tensor *b);
size_t tensor_bytes(const ls_tensor *t); /* elements * element size: of the plain form */
/* "(100, 1, 28, 28) float32", into buf, which it returns; "nothing" for NULL. */
const char *tensor_text(char *buf, size_t n, const ls_tensor *t);

#endif
