/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the contract between devices and the core: memory, facts, and kernels by operator.
 *
 * Operators are described, not enumerated in the table: autograd makes an op_call, and device_run()
 * asks the tensor's device for a kernel. Without one cpu_ref runs the operator, on plain layouts in
 * host memory. Built-in devices are one array in device.c; others are modules liblockstep_NAME.so
 * whose only symbol, DEVICE_ENTRY, takes the host table and returns a device_ops.
 *
 * Host devices run an operator at once, on host memory. Stream devices (ls_device.accel is not
 * NULL) queue it in ACCEL_COMPUTE; their tensors are memory that the host must not dereference
 * (base/compute/accel.h), so that tensor_host_elements() is not allowed and device_read(),
 * device_write(), device_copy() and device_fill() are the ways in and out. What a kernel of a
 * stream device needs of the op_call, it copies before it returns: the tensors may be destroyed or
 * reused directly afterwards, which is safe in the order of the queue.
 *
 * tensor/: tensors and devices. autograd and the layers above use tensor.h and device.h; a device
 * implements this contract.
 */
#ifndef LS_TENSOR_DEVICE_H
#define LS_TENSOR_DEVICE_H

#include "tensor/tensor.h"

#include "base/compute/accel.h"
#include "base/rng.h"

#include <stdarg.h>
#include <sys/select.h> /* sigset_t */

/*
 * Operators: operators.inc has their tensors.
 *
 * Autograd has checked shapes, types and devices; kernels do not check again. The floating tensors
 * of a call have one type, except in mixed precision: where activations (x, y, dx, dy, a, b) are
 * BF16 or F16, parameters (w, weight, bias), statistics (mean, variance, inverse, running_*), cell
 * states (c, c') and the gradients of these are F32, and sums are computed in F32: an operator is
 * the F32 one on widened inputs whose results are rounded once (widen.h; kernels may add in another
 * order, and round parameters to the activations' type). Of OP_CROSS_ENTROPY logits and dlogits are
 * activations, loss, dloss and probabilities F32; autograd calls no other loss, nor OP_LOG_SOFTMAX
 * and OP_SOFTMAX, with 16-bit types. [placed] outputs of *_WEIGHTS and *_NORM_BACKWARD are plain
 * and are written, or added to with op_call.accumulate; with N = 0 zeros are written, or nothing is
 * added.
 *
 * Convolutions and batch norm also take sequences: (N,C,T) and weights (O,I,K). Their kernels see
 * them as images (N,C,1,T) and (O,I,1,K), with the attributes of height 1 (sequence.h); so a
 * sequence may be in a layout of images, in which other kernels see it as (N,C,1,T) too, or plain.
 */
typedef enum op_kind {
#define OPERATOR(KIND, ...) OP_##KIND,
#include "tensor/operators.inc"
    OP_COUNT
} op_kind;

/*
 * OP_BATCH_NORM   attrs.training: the batch's mean and (biased) variance, each (C) of x's type,
 *                 plain, are written to out[1] and out[2] unless these are NULL, and the running
 *                 statistics in[3], in[4] are updated in place (plain):
 *                 r = (1 - momentum) r + momentum * batch, with the unbiased variance. The counter,
 *                 a plain I64 scalar, is incremented with them. N = 0: mean and variance are 0,
 *                 the running ones and the counter do not change. Evaluation: the running ones are
 *                 used, out[1..3] are NULL. added, of x's shape, is added to the result. Then
 *                 attrs.relu: y = max(0, .). x is (N,C,H,W) or (N,C).
 *                 Backward of a call with `added` and a mask: dadded is dy + dy2 where y > 0, or
 *                 NULL if it is not needed, and dx, dweight, dbias are those of dadded as dy; with
 *                 may_reuse_grad dadded may be in the memory of dy. Without a mask the gradient of
 *                 `added` is dy itself: there is no dadded. Other calls have no dy2 either.
 *                 attrs.sync: the batch is that of all ranks. Forward and backward each call sum()
 *                 once, with N = 0 as well, on the values of batch_sync.h; one value per channel
 *                 over all ranks is LS_EINVAL. dweight and dbias are those of this rank.
 * mask, indices   The forward kernel makes them for the backward kernel of the same device. They
 *                 arrive with y's shape and type I32, unplaced, only if a backward may follow
 *                 (mask: only with attrs.relu). cpu_ref places both plain: mask is 1 where the
 *                 result is positive, else 0; indices are h*W+w, within x's plane, of each window's
 *                 first maximum, or of a NaN. Another device may read and make this form, or change
 *                 layout, type and (of indices) dimensions, or let a mask share the memory of the
 *                 result; it then runs the backward itself as well.
 * OP_MAX_POOL2D   A NaN in a window makes the result NaN, as in PyTorch. Padding is never the
 *                 maximum. The last window of an axis may extend past its end (ceil_mode), also in
 *                 OP_AVG_POOL2D.
 * OP_AVG_POOL2D   A window's sum over its size, the padding counted as zeros. attrs.adaptive: no
 *                 kernel, stride or padding; along an axis of H positions, window i of O covers
 *                 [floor(i H / O), ceil((i + 1) H / O)).
 * OP_CROSS_ENTROPY, OP_NLL  A target outside [0, K) is LS_EINVAL with row and value. N = 0: loss 0.
 * OP_DROPOUT      element i (row-major) is 0 where device_drops(&attrs, i), else x / (1 - drop).
 *                 With attrs.drops_rows i is its position in the first dimension.
 * OP_ACTIVATE     attrs.activation, with the numbers attrs.param, of each element. NaN stays NaN.
 * OP_BINARY       attrs.binary of the elements of a and b, each repeated to y's shape along the
 *                 dimensions that it lacks in front or where its size is 1.
 * OP_EXPAND       x repeated to y's shape in the same way.
 * OP_REDUCE       attrs.scale times the sums of x over the positions that one element of y,
 *                 repeated to x's shape in the same way, serves, in one fixed order of the device.
 *                 With attrs.binary other than BINARY_ADD instead of x: x times the derivative of
 *                 that function of a and b, which are repeated to x's shape too, with respect to a
 *                 (attrs.operand 0) or b (1); BINARY_SUB reads neither, BINARY_MUL only the other.
 * OP_SELECT       other, or without it attrs.value, where mask is not 0, else x; with attrs.reverse
 *                 where mask is 0. All are repeated to y's shape as in OP_BINARY.
 * OP_EMBEDDING    y (..., D): row indices[i] of weight (V, D); an index outside [0, V) is LS_EINVAL
 *                 with position and value. Backward: the sums of the rows of dy with each index, in
 *                 the order of the positions; row attrs.begin gets none (-1: there is no such row).
 * OP_EXTREME      y (rows): the largest element of each row of x (rows, n), or with attrs.binary
 *                 BINARY_MINIMUM the smallest; n is at least 1, a NaN is the result. Backward: dy
 *                 shared equally by the elements that are equal to y.
 * OP_CUMSUM       element i of each row of the last dimension is the sum of elements 0 to i, or
 *                 with attrs.reverse of i to the last.
 * OP_PERMUTE      dimension i of y is dimension attrs.order[i] of x.
 * OP_CONCAT       in[0..n_in) along attrs.axis.
 * OP_SLICE        the positions from attrs.begin on along attrs.axis, as many as y has. Backward:
 *                 attrs.value at the others.
 * OP_MATMUL       y (...,M,N), a (...,M,K), b (...,K,N); with attrs.transposed[0] or [1] the last
 *                 two dimensions of a or b are swapped.
 * OP_LAYER_NORM   y = (x - mean) inverse weight + bias for each row of the last dimension; inverse
 *                 is 1 / sqrt(variance + eps) with the biased variance. A missing weight is 1, a
 *                 missing bias 0. mean, inverse: (rows), plain.
 * OP_SOFTMAX      softmax(attrs.scale x) over the last dimension; 0 in a row that is -infinity
 *                 everywhere.
 * OP_ATTENTION    y (...,T,E) = dropped(softmax(scale q k' + mask)) v of q (...,T,D), k (...,S,D)
 *                 and v (...,S,E), whose leading dimensions are equal. The mask is repeated to
 *                 (...,T,S) as in OP_BINARY: numbers that are added, or U8 that is not 0 where a
 *                 key takes no part; with attrs.causal key s takes part for queries t >= s only.
 *                 dropped(): as OP_DROPOUT of the weights (...,T,S); attrs.drop 0: none. norms
 *                 (...,T,2), plain, has the largest score of each query and the sum of exp(score -
 *                 largest); the logarithm of the sum of exp(scores) would cost backward's weights
 *                 digits. Where no key takes part y is 0, and norms are +infinity and 1, so that
 *                 backward's weights are 0. A mask of numbers and norms have the type of
 *                 parameters. No kernel has memory of size T S. A mask gets no gradient.
 * OP_CAST         F32, F64, BF16 or F16 to another one of them; any layout, y's is the device's
 *                 choice. To nearest, ties to even; F64 to 16 bits through F32. Overflow gives
 *                 infinity, NaN stays NaN.
 * OP_LSTM         A step of an LSTM cell, behind its matrix products a and b (N,4H): recurrent.inc.
 *                 h, c, h', c' and y are (N,H); c and c' have the type of parameters. y is h'.
 *                 gates (N,4H): what the backward reads; it computes c' again. da is the gradient
 *                 of a and of b. With lengths (N), each 0 to attrs.limit, else LS_EINVAL with row
 *                 and value, only rows whose length is over attrs.begin have the step: in the
 *                 others h' = h, c' = c, and y and gates are 0. h, y, dh and dy come with lengths
 *                 only.
 * OP_GRU          The same of a GRU cell: a and b (N,3H), gates (N,4H); h and dh come always.
 * OP_FILL         attrs.value to every element of dst: F32, F64, F16 or BF16, plain. It has no
 *                 inputs: device_typed() is dst.
 * OP_CLASS_SUMS   logits (N,K), targets (N), sums (2 + n) plain, n at most OP_MAX_TOP_K. Adds the
 *                 cross-entropy losses of the rows, in float64 and in one fixed order, to sums[0],
 *                 N to sums[1], and for each i < n the number of rows with class_rank() <
 *                 attrs.top_k[i] to sums[2 + i]. A target outside [0, K) is LS_EINVAL with row
 *                 and value.
 * OP_NORMALIZE    x[n,c,h,w] = values[c][pixels[n,c,h,w]]. pixels is (N,C,H,W); values, (C,256) or
 *                 for all channels (1,256), has the float of each byte. values and x are F32,
 *                 values and pixels plain.
 * dloss           is a scalar of the loss's type, plain.
 * OP_SGD, OP_ADAM One step of an optimizer, in place, with the rates of op_call.update: each, and
 *                 1 - dampening, 1 - beta1, 1 - beta2, is rounded once to the type of g. w and the
 *                 state have the type and shape of g. skip is an F32 scalar: unless it is 0,
 *                 nothing changes.
 *     OP_SGD      g += weight_decay w; momentum = first ? g : rate momentum + (1 - dampening) g;
 *                 g = nesterov ? g + rate momentum : momentum; w -= lr g; with update->momentum as
 *                 rate. A term whose factor is 0 is left out; without a rate momentum is NULL.
 *     OP_ADAM     w *= decay_factor; g += added_decay w; mean = beta1 mean + (1 - beta1) g;
 *                 square = beta2 square + (1 - beta2) g g; largest = square <= largest ? largest :
 *                 square; w -= step_size mean / (sqrt(largest, else square) / root_scale + eps).
 *                 A decay_factor of 1 and an added_decay of 0 are left out.
 * OP_SQUARES      element attrs.begin of squares, a vector of F64, is the sum of the squares of g,
 *                 summed in F64 in one fixed order of the device.
 * OP_CLIP_FACTOR  norm is the root of the sum of squares in order of the index; factor is
 *                 attrs.value / (norm + 1e-6), or 1 where that is at least 1. Both are F64 scalars.
 * OP_SCALE_BY     g *= factor, an F64 scalar, rounded once to the type of g.
 * OP_CLAMP        g is clamped to [-attrs.value, attrs.value]; NaN stays NaN.
 * OP_UNSCALE      g *= attrs.scale, rounded once to the type of g; found, an F32 scalar, becomes 1
 *                 if an element of g was not finite, and is not written otherwise. g is F32 or F64.
 * The tensors of OP_SGD to OP_UNSCALE are plain and F32 or F64.
 */

/* Adds up values[0..n), in place, over all ranks that share a batch. sum NULL: it is not shared.
 * On a stream device the values are in its memory, and sum() queues: ACCEL_COMPUTE waits for it. */
typedef struct op_sync {
    ls_status (*sum)(void *arg, double *values, size_t n);
    void *arg;
} op_sync;

#define OP_MAX_TOP_K 2

/* Functions of two numbers: binary.inc. */
typedef enum op_binary {
    BINARY_ADD,
    BINARY_SUB,
    BINARY_MUL,
    BINARY_DIV,
    BINARY_MAXIMUM,
    BINARY_MINIMUM,
    BINARY_DISTANCE, /* |a - b| */
    BINARY_SQUARE,   /* (a - b)^2 */
    BINARY_SMOOTH    /* smooth L1 with beta = attrs.value > 0 */
} op_binary;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
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
    double drop;            /* of dropout and attention: probability of a 0 */
    uint64_t random; /* of dropout: with an element's number, decides whether it is dropped */
    bool drops_rows;
    ls_activation activation;
    double param[2]; /* of the activation: p of unary.inc */
    op_binary binary;
    int operand; /* of OP_REDUCE */
    int order[LS_MAX_DIMS];
    int axis;
    unsigned axes; /* of sums, for their backward: bits */
    bool reverse;
    int64_t begin;
    int64_t limit; /* of OP_LSTM and OP_GRU */
    bool transposed[2];
    bool causal; /* of attention */
    double scale;
    double value;            /* of OP_CLIP_FACTOR, OP_CLAMP, OP_FILL, OP_SELECT, padding,
                              * and BINARY_SMOOTH */
    int top_k[OP_MAX_TOP_K]; /* of class sums, each at least 1 */
} op_attrs;                  /* all resolved: no zero stands for a default */

/* The rates of OP_SGD and OP_ADAM. */
typedef struct op_update {
    double lr; /* SGD */
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov;
    bool first;   /* the momentum buffer begins as the gradient */
    double beta1; /* Adam */
    double beta2;
    double eps;
    double step_size;    /* lr / (1 - beta1^t) */
    double root_scale;   /* sqrt(1 - beta2^t) */
    double added_decay;  /* 0 for AdamW */
    double decay_factor; /* 1 for Adam */
} op_update;

#define OP_MAX_TENSORS 16

typedef struct op_call {
    op_kind op;
    op_attrs attrs;
    /* in[1], a gradient, is not read afterwards: a kernel may place out[0] in its memory, or the
     * dadded of OP_BATCH_NORM_BACKWARD */
    bool may_reuse_grad;
    bool accumulate; /* the [placed] outputs of weight gradients are added to, not overwritten */
    int n_in;
    int n_out;
    ls_tensor *in[OP_MAX_TENSORS];  /* NULL: optional and absent */
    ls_tensor *out[OP_MAX_TENSORS]; /* NULL: not needed, a kernel skips that work */
    const op_update *update;        /* of OP_SGD and OP_ADAM; valid until the kernel returns */
} op_call;

/* The tensor whose type decides about the kernel: the first input, or the result without inputs and
 * where the first one is float32 also for 16-bit activations. */
static inline const ls_tensor *device_typed(const op_call *call)
{
    const bool is_result = call->in[0] == NULL || call->op == OP_CROSS_ENTROPY_BACKWARD;

    return is_result ? call->out[0] : call->in[0];
}

typedef struct device_state device_state; /* each device's own */

/* Runs one operator to its end (host devices) or queues it (stream devices). device_run()
 * increments the versions of outputs. After a failure the caller releases the outputs that the
 * kernel placed. */
typedef ls_status (*kernel_fn)(device_state *self, const op_call *call);

/* A copy of elements from one layout into another, which is not part of an operator's work. */
typedef struct device_move {
    bool of_parameter; /* weights, or a gradient of weights */
    int n_dims;
    const int64_t *dims;
    size_t bytes;
} device_move;

typedef void (*device_watch)(void *arg, const device_move *m);

/* What a stream device does and holds: for progress lines, tests and benchmarks. */
typedef struct device_usage {
    uint64_t n_launches; /* of kernels, since the device was opened */
    uint64_t n_graph_launches;
    uint64_t n_graphs_made; /* instantiated; the other launches have updated one of these */
    size_t used_bytes;      /* of the card's memory, by all processes */
    size_t total_bytes;
    int busy_percent; /* share of the last moments in which a kernel ran; -1: not known */
} device_usage;

#define DEVICE_ABI 23

/* What a device is opened with. */
typedef struct device_settings {
    struct ls_device *device; /* that is opened: for the host table, from the first operator on */
    int threads;              /* at least 1 */
    const char *convolutions; /* of LOCKSTEP_CONVOLUTIONS */
    int index;                /* N of "cuda:N"; -1: the card of this rank */
    int local_rank;           /* of the ranks on this machine; 0 without a launcher */
    bool share_gpu;           /* ranks may share a card: local_rank modulo the cards */
    bool autotune;            /* of LOCKSTEP_AUTOTUNE */
    bool deterministic;       /* of LOCKSTEP_DETERMINISTIC */
    const char *tf32;         /* of LOCKSTEP_TF32 */
    bool graphs;              /* operators are launched as CUDA graphs */
    bool thread_invariant;    /* bits do not depend on `threads` */
    const char *cpu_isa;      /* "baseline", "avx2", "avx512"; NULL: the processor's best */
} device_settings;

typedef struct device_ops {
    uint32_t abi; /* DEVICE_ABI */
    const char *name;
    /* optional: whether open() would find what it needs. Runs in a process of its own: it may load
     * and start what does not survive a fork. NULL: yes. */
    ls_status (*probe)(const device_settings *settings);
    /* optional, likewise in a process of its own: the number of cards that can be used. NULL: none,
     * it is the processor */
    ls_status (*count)(int *out);
    /* required */
    ls_status (*open)(const device_settings *settings, device_state **out);
    /* required */
    void (*close)(device_state *self);
    /* required: the text of ls_device_fingerprint */
    const char *(*fingerprint)(device_state *self);
    /* required: memory that kernels of this device read and write, aligned to at least 64 bytes;
     * NULL: out of memory. (Wrapped and viewed tensors are only aligned for their type.) */
    void *(*alloc)(device_state *self, size_t bytes);
    void (*free)(device_state *self, void *block, size_t bytes);
    /* required: a kernel for this call (shapes, types, layouts, attributes may decide); NULL:
     * cpu_ref runs it. OP_COPY must exist for every pair of layouts of which one is not plain. */
    kernel_fn (*find_kernel)(device_state *self, const op_call *call);
    /* optional: frees the copies of storage.packed; a stream device in the order of its queue */
    void (*free_packed)(device_state *self, packed *p);
    /* optional: a storage that was placed under this layout no longer refers to it */
    void (*drop_layout)(device_state *self, const layout *l);
    /* optional: the accelerator of a stream device; NULL for host devices */
    accel *(*accelerator)(device_state *self);
    /* optional: runs several operators of one kind, in any order: calls that do not overlap (the
     * updates of all parameters in few launches), but that may share inputs, `squares` (with one
     * element each) and `found`. Types may differ between calls. NULL: they run one by one. */
    ls_status (*run_many)(device_state *self, const op_call *calls, int n);
    /* optional: why operators on activations of that 16-bit type are slower than on float32 here;
     * static. NULL: they are not */
    const char *(*slow_type)(device_state *self, ls_dtype type);
    /* optional: what device_get_usage() gives; NULL: it is not known */
    ls_status (*usage)(device_state *self, device_usage *out);
    /* optional: calls `fn` for each move from now on, in the thread that runs operators; NULL ends
     * that. For tests of where layouts change. */
    void (*watch)(device_state *self, device_watch fn, void *arg);
    /* whether open() obeys device_settings.graphs */
    bool has_graphs;
} device_ops;

/* The functions of the core that a module may call. */
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
    ls_status (*tensor_plain)(ls_tensor *t, void **out);
    void (*accel_register)(accel *a);
    void (*accel_unregister)(accel *a);
    const char *(*op_name)(op_kind op);
    ls_status (*file_read)(const char *path, size_t max_bytes, char **out, size_t *out_bytes);
    ls_status (*file_replace)(const char *path, const void *data, size_t bytes);
    ls_status (*device_alloc)(ls_device *device, size_t bytes, void **out);
    void (*block_signals)(sigset_t *before); /* base/thread.h */
} device_host;

/* A module's entry symbol: `lockstep_device`; returns NULL when the host's abi is another. */
#define DEVICE_ENTRY "lockstep_device"
typedef const device_ops *(*device_entry_fn)(const device_host *host);

struct ls_device {
    struct op_profile *profile; /* op_profile.h: records what device_run() runs; NULL: nothing */
    const device_ops *ops;
    device_state *state;
    accel *accel;             /* NULL: a host device */
    void *module;             /* dlopen handle, NULL for built-in ones */
    struct tensor_pool *pool; /* freed blocks by size: a step allocates nothing after warm-up */
    int threads;              /* device_settings */
    size_t n_users;           /* tapes and models, also those without tensors of the device */
    uint64_t n_backwards;     /* autograd's: numbers the backwards of all tapes on this device */
    op_call *calls;           /* of device_calls() */
    int n_calls;
    struct test_flip *flip; /* test_flip.h, a test hook: makes results wrong; NULL: nothing */
};

/* Runs the operator with a kernel of `device`; if it has none, brings all tensors of the call into
 * plain layout and runs cpu_ref's kernel. */
LS_MUST_USE ls_status device_run(ls_device *device, const op_call *call);
typedef ls_status (*device_run_fn)(ls_device *device, const op_call *call);

/* Runs calls of one kind, as device_run() of each; what they may share: device_ops.run_many. */
LS_MUST_USE ls_status device_run_many(ls_device *device, const op_call *calls, int n);

/* Memory for n calls of device_run_many(), valid until the next call of this function; allocates
 * only if n is larger than ever before. The contents are undefined. */
LS_MUST_USE ls_status device_calls(ls_device *device, int n, op_call **out);

/* Copies bytes between plain tensor memory of the device and host memory, and blocks until it is
 * done: after the operators that are queued, and with their failures. */
LS_MUST_USE ls_status device_read(ls_device *device, void *host, const void *src, size_t bytes);
LS_MUST_USE ls_status device_write(ls_device *device, void *dst, const void *host, size_t bytes);

/* Copies or sets plain tensor memory of the device, in the order of its operators. */
LS_MUST_USE ls_status device_copy(ls_device *device, void *dst, const void *src, size_t bytes);
LS_MUST_USE ls_status device_fill(ls_device *device, void *dst, int byte, size_t bytes);

/* Memory of a stream device beside its tensors, as for a workspace, which accel_free() frees. Where
 * it is needed, the pool of tensors frees the blocks that none uses. LS_ENOMEM: the text names what
 * holds the memory. */
LS_MUST_USE ls_status device_alloc(ls_device *device, size_t bytes, void **out);

/* Blocks until all queued operators are done. `what`: as of accel_event_wait(). */
LS_MUST_USE ls_status device_synchronize(ls_device *device, const char *what);

/* Whether ls_device_open() could open a device with these options. Asks in a process of its own, so
 * that this one may fork afterwards. LS_EINVAL, LS_EUNSUPPORTED: the text has the reason and the
 * available devices. */
LS_MUST_USE ls_status device_check(const ls_device_options *options);

/* device_ops.slow_type. */
const char *device_slow_type(const ls_device *device, ls_dtype type);

/* LS_EUNSUPPORTED where the device does not know it. Waits for no operator. */
LS_MUST_USE ls_status device_get_usage(const ls_device *device, device_usage *out);

/* "conv2d_backward_weights", ...: for messages and tests. */
const char *device_op_name(op_kind op);

/* Whether dropout makes element (or row) `i` 0: the same on every device. */
static inline bool device_drops(const op_attrs *a, size_t i)
{
    return (double)(ls_hash3(a->random, i, 0) >> 11) * 0x1p-53 < a->drop;
}

extern const device_ops cpu_ref_device_ops;

#endif
