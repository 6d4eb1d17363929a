/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - what a device is: memory, a few facts, and kernels found by operator.
 *
 * Operators are described, not enumerated in the table: autograd makes an op_call, device_run() asks the
 * tensor's device for a kernel, and without one falls back to cpu_ref (host memory) on plain layouts.
 * Built-in devices stand in one array in device.c; others are modules liblockstep_NAME.so whose one entry
 * symbol DEVICE_ENTRY gets a host table and gives a device_ops.
 */
#ifndef LS_TENSOR_DEVICE_H
#define LS_TENSOR_DEVICE_H

#include "tensor/tensor.h"

#include <lockstep/log.h>

#include "base/rng.h"

#include <stdarg.h>

/*
 * Operators. in -> out; every out tensor has its shape and is unplaced (the kernel calls tensor_place with the
 * layout it likes) unless marked [placed]. N may be 0. `?` = may be NULL.
 *
 * The caller (autograd) has checked shapes, types and devices: a kernel may trust them. All floating tensors of a call have
 * one type. [placed] outputs of *_WEIGHTS and *_NORM_BACKWARD are plain and are written, or added to
 * with op_call.accumulate; with N = 0 that means zeros are written, or nothing is added.
 */
typedef enum op_kind {
    OP_COPY,                    /* src -> dst[placed]: any layouts, same type and shape */
    OP_ADD_INTO,                /* src -> dst[placed]: dst += src, any layouts */
    OP_CONV2D,                  /* x, w, b? -> y */
    OP_CONV2D_BACKWARD_DATA,    /* dy, w -> dx                      (dx has x's shape) */
    OP_CONV2D_BACKWARD_WEIGHTS, /* x, dy -> dw[placed], db?[placed] */
    OP_BATCH_NORM, /* x, weight, bias, running_mean, running_var -> y, mean?, variance?, where? */
    OP_BATCH_NORM_BACKWARD, /* x, dy, weight, bias, mean, variance, where? -> dx?, dweight[placed], dbias[placed] */
    OP_RELU,                 /* x -> y */
    OP_RELU_BACKWARD,        /* y, dy -> dx */
    OP_ADD,                  /* a, b -> y */
    OP_ADD_RELU,             /* a, b -> y                            (backward: OP_RELU_BACKWARD) */
    OP_MAX_POOL2D,           /* x -> y, where? */
    OP_MAX_POOL2D_BACKWARD,  /* dy, where -> dx                      (dx has x's shape) */
    OP_AVG_POOL2D,           /* x -> y */
    OP_AVG_POOL2D_BACKWARD,  /* dy -> dx                             (dx has x's shape) */
    OP_LINEAR,               /* x, w, b? -> y */
    OP_LINEAR_BACKWARD_DATA, /* dy, w -> dx */
    OP_LINEAR_BACKWARD_WEIGHTS, /* x, dy -> dw[placed], db?[placed] */
    OP_CROSS_ENTROPY,           /* logits, targets (int64) -> loss (scalar), probabilities? */
    OP_CROSS_ENTROPY_BACKWARD,  /* probabilities, targets, dloss -> dlogits */
    OP_LOG_SOFTMAX,             /* x -> y */
    OP_LOG_SOFTMAX_BACKWARD,    /* y, dy -> dx */
    OP_NLL,                     /* log_probabilities, targets (int64) -> loss (scalar) */
    OP_NLL_BACKWARD,            /* log_probabilities, targets, dloss -> dlog_probabilities */
    OP_DROPOUT,                 /* x -> y; as its own backward: dy -> dx */
    OP_MSE,                     /* prediction, target -> loss */
    OP_MSE_BACKWARD,            /* prediction, target, dloss -> dprediction?, dtarget? */
    OP_ACTIVATE,                /* x -> y */
    OP_ACTIVATE_BACKWARD,       /* x, dy -> dx */
    OP_BROADCAST,               /* b, a? -> y                        (a has y's shape) */
    OP_BROADCAST_BACKWARD,      /* dy, a? -> db                      (db has b's shape) */
    OP_PERMUTE,                 /* x -> y */
    OP_CONCAT,                  /* x1, x2?, ... -> y */
    OP_SLICE,                   /* x -> y */
    OP_SLICE_BACKWARD,          /* dy -> dx                          (dx has x's shape) */
    OP_MATMUL,                  /* a, b -> y */
    OP_LAYER_NORM,              /* x, weight, bias -> y, mean?, inverse? */
    /* x, dy, weight, mean, inverse -> dx?, dweight[placed], dbias[placed] */
    OP_LAYER_NORM_BACKWARD,
    OP_SOFTMAX,          /* x -> y */
    OP_SOFTMAX_BACKWARD, /* y, dy -> dx */
    OP_COUNT
} op_kind;

/*
 * OP_BATCH_NORM   attrs.training: the batch's mean and (biased) variance, each (C) of x's type, plain, go to out[1] and
 *                 out[2] where these are wanted, and the running statistics in[3], in[4] are moved (plain, written in
 *                 place): r = (1 - momentum) r + momentum * batch, with the unbiased variance. N = 0: mean and variance are
 *                 written as 0, the running ones stay. Evaluation: the running ones are used, out[1..3] are NULL.
 *                 attrs.relu: y = max(0, .). x is (N,C,H,W) or (N,C).
 *                 attrs.sync: the batch is that of all ranks. Forward and backward each call sum() once, with N = 0 as well, on
 *                 what batch_sync.h says; one value per channel over all ranks is LS_EINVAL. dweight and dbias are this rank's alone.
 * where           is made by the forward kernel for the backward kernel of the same device. It arrives with y's shape and
 *                 type I32, unplaced, only where a backward may follow (batch norm: only with attrs.relu). cpu_ref's max pool
 *                 places it plain: the index h*W+w, within x's plane, of each window's first maximum, or of a NaN where
 *                 there is one; cpu_ref's batch norm places it plain: 1 where the result is positive, else 0. A device may read and
 *                 make that form, or place its own under a layout of its own (it may also change dtype and dims); whose
 *                 forward makes its own also has the backward, and gives no kernel for another's.
 * OP_MAX_POOL2D   NaN in a window makes the result NaN, as PyTorch. padding never wins. The last
 *                 window of an axis may reach over its end (ceil_mode), so may OP_AVG_POOL2D's.
 * OP_AVG_POOL2D   A window's sum over the size it has, the padding counted as zeros. attrs.adaptive: no kernel, stride or padding;
 *                 along an axis of H positions, window i of O covers [floor(i H / O), ceil((i + 1) H / O)).
 * OP_CROSS_ENTROPY, OP_NLL  a target outside [0, K) is LS_EINVAL naming row and value. N = 0 gives loss 0.
 * OP_DROPOUT      element i (row-major) is 0 where device_drops(&attrs, i), else x / (1 - drop).
 *                 With attrs.drops_rows i is its position in the first dimension.
 * OP_ACTIVATE     attrs.activation of each element. NaN stays NaN.
 * OP_BROADCAST    y = b, or with a b + a, or with attrs.multiplies b * a, where b is repeated along
 *                 dimensions that it lacks in front or where its size is 1. Backward: the sums of
 *                 dy, or with a of dy * a, over the positions that one element of b serves.
 * OP_PERMUTE      dimension i of y is dimension attrs.order[i] of x.
 * OP_CONCAT       in[0..n_in) along attrs.axis.
 * OP_SLICE        the positions from attrs.begin on along attrs.axis, as many as y has. Backward:
 *                 0 at the others.
 * OP_MATMUL       y (...,M,N), a (...,M,K), b (...,K,N); a or b has its last two dimensions swapped
 *                 where attrs.transposed[0] or [1] says so.
 * OP_LAYER_NORM   y = (x - mean) inverse weight + bias for each row of the last dimension; inverse
 *                 is 1 / sqrt(variance + eps) with the biased variance. mean, inverse: (rows), plain.
 * OP_SOFTMAX      softmax(attrs.scale x) over the last dimension.
 * dloss           is a scalar of the loss's type, plain.
 */

/* Adds values[0..n) up, in place, over all ranks that share a batch; sum is NULL where nobody shares. */
typedef struct op_sync {
    ls_status (*sum)(void *arg, double *values, size_t n);
    void *arg;
} op_sync;

typedef struct op_attrs {
    int stride[2];
    int padding[2];
    int dilation[2];
    int groups;
    int kernel[2];
    double momentum;
    double eps;
    bool relu;
    bool training;
    op_sync sync; /* of batch norm and its backward, in training */
    bool adaptive;
    double label_smoothing; /* of cross entropy and its backward */
    double drop;            /* of dropout: probability of a 0 */
    uint64_t random; /* of dropout: with an element's number, decides whether it is dropped */
    bool drops_rows;
    ls_activation activation;
    bool multiplies;
    int order[LS_MAX_DIMS];
    int axis;
    int64_t begin;
    bool transposed[2];
    double scale;
} op_attrs; /* all resolved: no zero stands for a default */

#define OP_MAX_TENSORS 8

typedef struct op_call {
    op_kind op;
    op_attrs attrs;
    bool
        may_reuse_grad; /* nobody reads in[1], a gradient, afterwards: a kernel may make out[0] in its memory */
    bool accumulate; /* the [placed] outputs of weight gradients are added to, not overwritten */
    int n_in;
    int n_out;
    ls_tensor *in[OP_MAX_TENSORS];  /* NULL where optional and absent */
    ls_tensor *out[OP_MAX_TENSORS]; /* NULL where not wanted: a kernel skips that work */
} op_call;

typedef struct device_state device_state; /* each device's own */

/* Runs one operator to its end (host devices) or queues it (stream devices). The versions of placed outputs are
 * bumped by device_run(). On failure outputs it placed are released by the caller. */
typedef ls_status (*kernel_fn)(device_state *self, const op_call *call);

/* Elements brought from one layout into another beside an operator's work. */
typedef struct device_move {
    bool of_parameter; /* weights, or a gradient of weights */
    int n_dims;
    const int64_t *dims;
    size_t bytes;
} device_move;

typedef void (*device_watch)(void *arg, const device_move *m);

#define DEVICE_ABI 5

/* What a device is opened with. */
typedef struct device_settings {
    int threads;              /* at least 1 */
    const char *convolutions; /* of LOCKSTEP_CONVOLUTIONS */
} device_settings;

typedef struct device_ops {
    uint32_t abi; /* DEVICE_ABI */
    const char *name;
    /* required */
    ls_status (*open)(const device_settings *settings, device_state **out);
    /* required */
    void (*close)(device_state *self);
    /* required: the text of ls_device_fingerprint */
    const char *(*fingerprint)(device_state *self);
    /* required: memory that kernels of this device read and write, aligned to 64 bytes at least; NULL: none left. (Wrapped and
     * viewed tensors are only aligned for their type.) */
    void *(*alloc)(device_state *self, size_t bytes);
    void (*free)(device_state *self, void *block, size_t bytes);
    /* required: a kernel for this call (shapes, types, layouts, attributes may decide), or NULL for "cpu_ref, please".
     * OP_COPY must exist for every pair of layouts of which one is not plain. */
    kernel_fn (*find_kernel)(device_state *self, const op_call *call);
    /* optional: frees what storage.packed holds */
    void (*free_packed)(device_state *self, packed *p);
    /* optional: a storage that was placed under this layout no longer refers to it */
    void (*drop_layout)(device_state *self, const layout *l);
    /* optional: waits for queued work; NULL for devices that run at once */
    ls_status (*synchronize)(device_state *self);
    /* optional: tells `fn` each move from now on, from the thread that runs operators; NULL ends it. For tests that pin down where
     * layouts change. */
    void (*watch)(device_state *self, device_watch fn, void *arg);
} device_ops;

/* What a module gets instead of our internal symbols. */
typedef struct device_host {
    uint32_t abi;
    ls_status (*vfail)(ls_status status, const char *format, va_list args);
    void *(*alloc)(size_t count, size_t size); /* zeroed */
    void *(*alloc_aligned)(size_t alignment, size_t bytes);
    void (*free)(void *block); /* both kinds; NULL is allowed */
    ls_status (*tensor_shape)(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                              ls_tensor **out);
    void (*tensor_destroy)(ls_tensor *t);
    ls_status (*tensor_place)(ls_tensor *t, const layout *arrangement, size_t bytes);
    void (*tensor_share)(ls_tensor *t, const ls_tensor *other);
    void (*tensor_release)(ls_tensor *t);
    ls_status (*tensor_plain)(ls_tensor *t, void **out);
    void (*tensor_written)(ls_tensor *t);
    void (*log)(ls_log_level level, const char *component, const char *format, ...);
} device_host;

/* A module's entry symbol: `lockstep_device`; gives NULL when the host's abi does not fit. */
#define DEVICE_ENTRY "lockstep_device"
typedef const device_ops *(*device_entry_fn)(const device_host *host);

struct ls_device {
    const device_ops *ops;
    device_state *state;
    void *module; /* dlopen handle, NULL for built-in ones */
    struct tensor_pool
        *pool;            /* freed blocks by size, so that a step allocates nothing after warm-up */
    size_t n_users;       /* tapes and models, which hold no tensor of it for some time */
    uint64_t n_backwards; /* autograd's: numbers the backwards of all tapes on this device */
};

/* Runs the operator on `device`; without a kernel of its own, cpu_ref's after bringing all tensors of the call into plain layout. */
LS_MUST_USE ls_status device_run(ls_device *device, const op_call *call);

/* "conv2d backward weights", ...: for messages and tests. */
/* Whether there is a device `name` (NULL, "": that of LOCKSTEP_DEVICE) that ls_device_open() could
 * open. Loads nothing. LS_EINVAL, LS_EUNSUPPORTED: the text says which devices there are. */
LS_MUST_USE ls_status device_check(const char *name);

const char *device_op_name(op_kind op);

/* Whether dropout makes element (or row) `i` 0: the same on every device. */
static inline bool device_drops(const op_attrs *a, size_t i)
{
    return (double)(ls_hash3(a->random, i, 0) >> 11) * 0x1p-53 < a->drop;
}

extern const device_ops cpu_ref_device_ops;

#endif
