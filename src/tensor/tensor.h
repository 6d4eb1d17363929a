/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h - the inside of a tensor, for the layers above that may see it (autograd) and for
 * devices.
 */
#ifndef LS_TENSOR_TENSOR_H
#define LS_TENSOR_TENSOR_H

#include <lockstep/tensor.h>

#include "base/rng.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

typedef struct layout layout; /* a device's own arrangement; owned by it, compared by pointer */
typedef struct packed packed; /* a device's cached copy of a parameter in its own arrangement */

/* Memory with a count of its users. Plain (row-major) when layout is NULL. */
typedef struct storage {
    int n_refs;
    ls_device *device;
    void *data;
    size_t bytes; /* of the block behind data, at least what was asked for */
    const layout *layout;
    uint64_t version;      /* grows with every write, so that derived copies know they are stale */
    const char *writer;    /* static or as long-lived: what wrote last; NULL: not known */
    packed *packed;        /* NULL, or what the device derived from it; freed through the device */
    bool borrowed;         /* ls_tensor_wrap: data is the caller's */
    struct storage *whole; /* of a part (tensor_create_part): what it has a reference to, or NULL */
    bool persistent;       /* made by ls_tensor_create: a parameter, not a step's value */
    struct storage *next_free; /* the pool's */
} storage;

/* What autograd hangs on a tensor: the head of its leaf or tape record. */
typedef struct tensor_extra tensor_extra;
struct tensor_extra {
    void (*drop)(tensor_extra *self); /* called when the tensor is destroyed; NULL if of_tape */
    bool of_tape; /* the tensor belongs to a tape: ls_tensor_destroy() leaves it alone */
};

struct ls_tensor {
    storage *storage; /* NULL: shaped but not placed (an operator's output before its kernel ran,
                         or a value whose memory backward has given back) */
    size_t offset;    /* bytes into the storage; 0 unless the storage is plain */
    ls_device *device;
    ls_dtype dtype;
    int n_dims;
    int64_t dims[LS_MAX_DIMS];
    size_t count;         /* of elements: the product of dims */
    bool persistent;      /* of the pool: made by the public functions, not by an operator */
    tensor_extra *extra;  /* NULL outside of autograd */
    ls_tensor *next_free; /* the pool's */
};

/* A tensor with a shape and no storage yet. */
LS_MUST_USE ls_status tensor_shape(ls_device *device, ls_dtype type, int n_dims,
                                   const int64_t *dims, ls_tensor **out);

/* The same, made by a public function: the pool keeps it apart. */
LS_MUST_USE ls_status tensor_shape_persistent(ls_device *device, ls_dtype type, int n_dims,
                                              const int64_t *dims, ls_tensor **out);

/* tensor_shape() with device, type and shape of `t`. */
LS_MUST_USE ls_status tensor_like(const ls_tensor *t, ls_tensor **out);

/* Gives an unplaced tensor storage of `bytes` in `arrangement` (NULL: plain, `bytes` is then taken
 * from the shape). Memory comes from the device's pool: after warm-up no allocation happens.
 * Contents are undefined. */
LS_MUST_USE ls_status tensor_place(ls_tensor *t, const layout *arrangement, size_t bytes);

/* As ls_tensor_create(), with undefined contents. */
LS_MUST_USE ls_status tensor_create_undefined(ls_device *device, ls_dtype type, int n_dims,
                                              const int64_t *dims, ls_tensor **out);

/* A tensor over the bytes from `offset` of the plain tensor `whole`, whose memory lives as long as
 * the part; aligned for its type and within `whole`. It has a version of its own. Its values are
 * those that the bytes have. */
LS_MUST_USE ls_status tensor_create_part(const ls_tensor *whole, size_t offset, ls_dtype type,
                                         int n_dims, const int64_t *dims, ls_tensor **out);

/* Gives the tensor other dimensions, as many as it has, and new storage with undefined contents. */
LS_MUST_USE ls_status tensor_resize(ls_tensor *t, const int64_t *dims);

/* Makes the unplaced `t` share the storage of `other` (a view, or an in-place result). */
void tensor_share(ls_tensor *t, const ls_tensor *other);

/* Gives the storage back to the pool when this was its last user; the tensor is unplaced again. */
void tensor_release(ls_tensor *t);

/* Brings it into plain layout if it is not; *out points at the first element. The storage is
 * rearranged, so that all tensors over it see the same elements afterwards; the version stays.
 * LS_EINVAL when it is unplaced. */
LS_MUST_USE ls_status tensor_plain(ls_tensor *t, void **out);

/* The first element of a placed tensor in plain layout, without asking the device: an address for
 * kernels and copies of the tensor's device, which on a stream device the host must not
 * dereference. */
void *tensor_elements(const ls_tensor *t);

/* tensor_elements() for code that dereferences it: asserts that the device is a host device. */
void *tensor_host_elements(const ls_tensor *t);

/* The most that the functions below pass to `fn` at once. */
#define TENSOR_PIECE_BYTES ((size_t)16 << 20)

/* Passes the elements, row-major, to `fn` in pieces of host memory: on a host device the tensor's
 * own, on a stream device copies. Ends with fn's first failure. */
LS_MUST_USE ls_status tensor_read_pieces(
    const ls_tensor *t, ls_status (*fn)(void *arg, const void *piece, size_t bytes), void *arg);

/* Continues *hash with the elements, whose NaN all count as one value: they differ in bits that no
 * operator defines. NULL: nothing. Blocks until the device has computed them. */
LS_MUST_USE ls_status tensor_hash(const ls_tensor *t, uint64_t *hash);

/* Lets `fn` write all elements, in the same way. Marks the tensor as written. */
LS_MUST_USE ls_status tensor_write_pieces(ls_tensor *t,
                                          void (*fn)(void *arg, void *piece, size_t bytes),
                                          void *arg);

/* Sets the elements of a floating-point tensor, row-major, to the numbers that `next` gives. The
 * same numbers give the same bits on every device. `next` is called for some hundred at once. */
LS_MUST_USE ls_status tensor_draw(ls_tensor *t, void (*next)(void *arg, double *out, size_t n),
                                  void *arg);

/* mean + scale times a number in [-1, 1), or a standard normal one: `next` of tensor_draw(). */
typedef struct random_source {
    ls_rng *rng;
    double mean;
    double scale;
} random_source;
void random_uniform(void *source, double *out, size_t n);
void random_normal(void *source, double *out, size_t n);

/* Sets all bytes of a placed plain tensor to 0, in the order of its device's operators. */
LS_MUST_USE ls_status tensor_zero(ls_tensor *t);

/* Writes `value` as one element to `out`, which is aligned for any type. LS_EINVAL when an integer
 * type does not have it exactly. */
LS_MUST_USE ls_status tensor_encode(double value, ls_dtype type, void *out);

/* The element at `element`, which is aligned for its type; int64 beyond 2^53 is rounded. */
double tensor_decode(const void *element, ls_dtype type);

/* The text that ls_tensor_print() prints, without the last line end. */
LS_MUST_USE ls_status tensor_append_elements(const ls_tensor *t, text_buf *out);

/* Bumps the version, and notes the writer for messages: a name that stays valid. NULL and unplaced
 * tensors are allowed. */
static inline void tensor_written(ls_tensor *t, const char *writer)
{
    if (t == NULL || t->storage == NULL)
        return;
    t->storage->version++;
    t->storage->writer = writer;
}

/* Whether the elements are floats of 16 bits; false for NULL. */
static inline bool tensor_is_half(const ls_tensor *t)
{
    return t != NULL && (t->dtype == LS_BF16 || t->dtype == LS_F16);
}

/* Whether the elements are floats of any size; false for NULL. */
static inline bool tensor_is_floating(const ls_tensor *t)
{
    return t != NULL && (t->dtype == LS_F32 || t->dtype == LS_F64 || tensor_is_half(t));
}

static inline bool tensor_same_shape(const ls_tensor *a, const ls_tensor *b)
{
    bool is_same = a->n_dims == b->n_dims;

    for (int d = 0; is_same && d < a->n_dims; d++)
        is_same = a->dims[d] == b->dims[d];
    return is_same;
}

bool tensor_is_plain(const ls_tensor *t); /* placed, row-major */
size_t tensor_bytes(const ls_tensor *t);  /* elements * element size: of the plain form */

static inline size_t item_bytes(const ls_named *item)
{
    return item->tensor != NULL ? tensor_bytes(item->tensor) : item->n_bytes;
}

/* "(100, 1, 28, 28) float32", into buf, which it returns; "nothing" for NULL. */
const char *tensor_text(char *buf, size_t n, const ls_tensor *t);
/* "(100, 1, 28, 28)" alone. */
const char *tensor_dims_text(char *buf, size_t n, const ls_tensor *t);
#define TENSOR_TEXT_BYTES 160 /* holds any tensor_text() */

#endif
