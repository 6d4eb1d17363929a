/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h - devices, and tensors: small values over reference-counted storage.
 *
 * A tensor has a shape (0 to LS_MAX_DIMS dimensions, row-major as seen from outside), a type and a
 * device. Inside, a device may keep it in a layout of its own; everything here hides that.
 *
 * Ownership  The caller of _create, _wrap and _view owns the tensor and destroys it; the storage
 *            lives until its last tensor is gone. Tensors that a tape gives belong to the tape.
 * Threads    A device and all tensors on it are used by one thread at a time.
 */
#ifndef LOCKSTEP_TENSOR_H
#define LOCKSTEP_TENSOR_H

#include <lockstep/base.h>

LS_BEGIN_DECLS

#define LS_MAX_DIMS 6
typedef struct ls_device ls_device;
typedef struct ls_tensor ls_tensor;

/* --- devices --- */

/* How to open a device. Every field but `size` may be 0, which means the default. */
typedef struct ls_device_options {
    size_t size; /* sizeof(ls_device_options) */
    /* "cpu" (oneDNN where its module is found, else plain C, with a warning), "onednn", "cpu_ref",
     * "cuda" (the card with the number of this rank on its machine), "cuda:N", "auto" (a card if
     * one can be used, else the processor); default LOCKSTEP_DEVICE, else "cpu" */
    const char *name;
    /* compute threads; default LOCKSTEP_THREADS, else usable cores / local ranks */
    int threads;
    int share_gpu; /* 1: ranks may share a card, when a machine has fewer cards than ranks */
    /* 1: a CUDA device launches the operators between two waits as one CUDA graph, with the same
     * results; LS_EUNSUPPORTED on other devices. 0: LOCKSTEP_CUDA_GRAPH, which they ignore */
    int cuda_graph;
    /* 1: the same bits with any number of threads. Products and convolutions of the device onednn
     * then use one thread each, as their sums depend on it */
    int thread_invariant;
    /* "baseline" (SSE4.1), "avx2", "avx512", "avx512_bf16" or "amx": the processor device uses no
     * later instructions, so that machines that have these give the same bits; NULL: the best. The
     * first device of a process decides; LS_EUNSUPPORTED: the processor lacks them, or that one has
     * others */
    const char *cpu_isa;
} ls_device_options;

/* Opens a device; `opt` may be NULL. LS_EUNSUPPORTED: the text has the reason and the devices. */
LS_API LS_MUST_USE ls_status ls_device_open(const ls_device_options *opt, ls_device **out);

/* *n: the cards of this machine that ls_device_open() would choose from with these options; 0: the
 * device is the processor, as "auto" is where there is no card. `opt` may be NULL. Asks in a child
 * process, so that this one can start ranks afterwards; blocks until that has ended. Any thread.
 * LS_EUNSUPPORTED as of ls_device_open(). */
LS_API LS_MUST_USE ls_status ls_device_count(const ls_device_options *opt, int *n);

/* Closes the device. LS_EINVAL while tensors, tapes or models of the device exist: the text has
 * their number, and the device stays open. NULL is allowed. */
LS_API ls_status ls_device_close(ls_device *device);

/* "onednn", "cpu_ref", ... Static. */
LS_API const char *ls_device_name(const ls_device *device);

/* What decides the bits of a result besides the inputs: library, version, instruction set, threads,
 * as "onednn 2.6.3 avx2 1 thread". Valid until the device is closed. Checkpoints record it. */
LS_API const char *ls_device_fingerprint(const ls_device *device);

/*
 * Stream devices (GPUs) queue operators and run them later, in their order; functions of tensors
 * wait where they need to. A program needs the next three only to time work or to use the device's
 * memory itself.
 */

/* The queue that the device's operators run in, as a communication operation can wait for; NULL for
 * devices whose operators run at once. Valid until the device is closed. */
LS_API ls_queue *ls_device_queue(ls_device *device);

/* Blocks until all queued work of the device is done, and returns its first failure. LS_OK at once
 * for devices whose operators run at once. */
LS_API LS_MUST_USE ls_status ls_device_synchronize(ls_device *device);

/* Bytes of the device's memory: unused, and all. LS_EUNSUPPORTED if it uses host memory. */
LS_API LS_MUST_USE ls_status ls_device_memory(ls_device *device, size_t *free_bytes,
                                              size_t *total_bytes);

/* Functions of one number, with the derivatives that PyTorch gives them at their corners. */
typedef enum ls_activation {
    LS_ACT_RELU6 = 1,   /* min(max(0, x), 6) */
    LS_ACT_SIGMOID,     /* 1 / (1 + exp(-x)) */
    LS_ACT_SILU,        /* x * sigmoid(x) */
    LS_ACT_HARDSIGMOID, /* min(max(0, x + 3), 6) / 6 */
    LS_ACT_HARDSWISH,   /* x * hardsigmoid(x) */
    LS_ACT_GELU,        /* x * (1 + erf(x / sqrt(2))) / 2 */
    LS_ACT_GELU_TANH,   /* x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 */
    LS_ACT_EXP,
    LS_ACT_LOG,
    LS_ACT_SQRT,
    LS_ACT_RSQRT, /* 1 / sqrt(x) */
    LS_ACT_TANH,
    LS_ACT_ABS,
    LS_ACT_SQUARE,
    LS_ACT_RECIPROCAL, /* 1 / x */
    LS_ACT_SIN,
    LS_ACT_COS,
    LS_ACT_LEAKY_RELU, /* x over 0, else 0.01 * x */
    LS_ACT_ELU,        /* x over 0, else exp(x) - 1 */
    LS_ACT_SOFTPLUS,   /* log(1 + exp(x)); x over 20 */
    /* with numbers of the caller: ls_clamp(), ls_pow(), ls_scale() */
    LS_ACT_CLAMP,
    LS_ACT_POW,
    LS_ACT_LINEAR
} ls_activation;

/* --- tensors --- */

/* A tensor of zeros; dims has n_dims entries, each >= 0 (with a 0 the tensor is empty). */
LS_API LS_MUST_USE ls_status ls_tensor_create(ls_device *device, ls_dtype type, int n_dims,
                                              const int64_t *dims, ls_tensor **out);

/* A tensor over the caller's row-major memory, aligned for its type: host memory, or for a stream
 * device memory of that device (LS_EINVAL otherwise). The memory must stay valid until the last
 * tensor over it is destroyed. */
LS_API LS_MUST_USE ls_status ls_tensor_wrap(ls_device *device, ls_dtype type, int n_dims,
                                            const int64_t *dims, void *data, ls_tensor **out);

/* The same elements in another shape, in the same storage: a write to one tensor changes both. A
 * tape does not connect the two: in operators use ls_reshape. */
LS_API LS_MUST_USE ls_status ls_tensor_view(ls_tensor *t, int n_dims, const int64_t *dims,
                                            ls_tensor **out);

LS_API void ls_tensor_destroy(ls_tensor *t); /* NULL is allowed */

LS_API int ls_tensor_n_dims(const ls_tensor *t);
/* Size of dimension i; i < 0 counts from the end. 1 for dimensions that it does not have. */
LS_API int64_t ls_tensor_dim(const ls_tensor *t, int i);
LS_API const int64_t *ls_tensor_dims(const ls_tensor *t);
LS_API size_t ls_tensor_count(const ls_tensor *t); /* elements */
/* LS_DTYPE_COUNT, which is not a type, for NULL. */
LS_API ls_dtype ls_tensor_dtype(const ls_tensor *t);
LS_API ls_device *ls_tensor_device(const ls_tensor *t);

/* Copies all elements, row-major, out of or into the tensor; `count` must equal ls_tensor_count().
 * With count 0 the memory may be NULL. */
LS_API LS_MUST_USE ls_status ls_tensor_read(const ls_tensor *t, void *dst, size_t count);
LS_API LS_MUST_USE ls_status ls_tensor_write(ls_tensor *t, const void *src, size_t count);

/* The element of a tensor with one element, as item() of PyTorch: int64 beyond 2^53 is rounded.
 * LS_EINVAL for another number of elements. Blocks until the device has computed it. */
LS_API LS_MUST_USE ls_status ls_item(const ls_tensor *t, double *out);

/* Sets every element to `value`, rounded to the tensor's type. LS_EINVAL for integer types that do
 * not have the value exactly; LS_ENOMEM. */
LS_API LS_MUST_USE ls_status ls_tensor_fill(ls_tensor *t, double value);

/* Random elements, uniform from low to high, or normal; rounded to the tensor's type. The seed
 * alone decides them: the same bits on every device. LS_EINVAL: an integer type, or numbers that
 * are not finite, a `high` below low, a `std` below 0. Blocks until they are written. */
LS_API LS_MUST_USE ls_status ls_tensor_uniform(ls_tensor *t, double low, double high,
                                               uint64_t seed);
LS_API LS_MUST_USE ls_status ls_tensor_normal(ls_tensor *t, double mean, double std, uint64_t seed);

/* Prints the elements to standard output, with the text of print() of a NumPy array and its
 * defaults: 8 digits (also without dimensions), and of more than 1000 elements the first and last 3
 * of each dimension. All types. LS_ENOMEM; LS_EIO when they cannot be written. Blocks until the
 * device has computed them. */
LS_API LS_MUST_USE ls_status ls_tensor_print(const ls_tensor *t);

/* The elements in row-major host memory; a tensor in another layout is rearranged first.
 * LS_EUNSUPPORTED for a tensor of a stream device, which ls_tensor_read() copies. The
 * pointer is valid until an operator uses the tensor, or the tensor is destroyed. NULL on failure
 * (ls_last_error). Through _const the caller only reads; the other marks the tensor as written. */
LS_API const void *ls_tensor_data_const(const ls_tensor *t);
LS_API void *ls_tensor_data(ls_tensor *t);

/* The address of the elements, row-major, in the memory of the tensor's device, for collectives and
 * for kernels of the program; marks the tensor as written. As ls_tensor_data() on host devices; on
 * a stream device the host must not dereference it, and work in another queue than
 * ls_device_queue() waits for that queue first. NULL on failure (ls_last_error). */
LS_API void *ls_tensor_address(ls_tensor *t);
/* The same for memory that is only read; does not mark the tensor as written. */
LS_API const void *ls_tensor_address_const(const ls_tensor *t);

/* dst = src, element by element; shapes and types must be equal, devices may differ. */
LS_API LS_MUST_USE ls_status ls_tensor_copy(ls_tensor *dst, const ls_tensor *src);

/* --- named lists: how models, optimizers and samplers pass their state to checkpoints --- */

/* A named tensor, or (tensor == NULL) named plain bytes. All pointers are borrowed. */
typedef struct ls_named {
    const char *name;
    ls_tensor *tensor;
    void *bytes;
    size_t n_bytes;
} ls_named;

LS_END_DECLS

#endif
