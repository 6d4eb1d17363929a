/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn.h - the internals of the oneDNN device: state, layouts, cached primitives and weights,
 * threads, kernels.
 *
 * Activations stay in the layouts that oneDNN's convolutions prefer; a `layout` is an interned
 * description of one and of its elements' type: equal layouts have equal pointers. Kernels are for
 * float32. Some also take 16-bit floats, which they convert in pieces that stay in the cache, and
 * those of oneDNN bfloat16, where the processor has instructions for it (find_kernel).
 * cpu_ref computes float64 and empty tensors; calls with 16-bit floats for which there is no kernel
 * here run between casts (tensor/widen.h), which keep the layout.
 *
 * Threads    A device belongs to one thread at a time; inside a kernel its workers are OpenMP's.
 *
 * tensor/devices/onednn/: a module, opened by tensor/module.c: its state and layouts; ops/ has the
 * kernels, simd/ our own loops.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_DN_H
#define LS_TENSOR_DEVICES_ONEDNN_DN_H

#include "tensor/device.h"
#include "tensor/devices/onednn/conv2d_choice.h"
#include "tensor/devices/onednn/dn_compat.h"
#include "tensor/devices/onednn/simd/simd.h"

typedef struct primitive primitive;

#define PRIMITIVE_BUCKETS 256

struct device_state {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
    bool thread_invariant; /* what adds in an order that depends on threads uses one */
    const simd_table *simd;
    bool has_bf16; /* oneDNN multiplies bfloat16 by instructions of this processor */
    isa_level isa;
    conv2d_set convolutions;
    layout *layouts; /* most recently used first */
    primitive *primitives[PRIMITIVE_BUCKETS];
    size_t n_primitives;
    uint64_t n_lookups; /* of primitives; the clock of their last_use */
    void *scratch;      /* scratchpad of all primitives: the largest that one of them needs */
    size_t scratch_bytes;
    device_watch watch; /* NULL: not watched */
    void *watch_arg;
    char fingerprint[96];
};

/* --- what the library gave us --- */

extern const device_host *dn_host;

/* Sets the error text. */
void dn_note(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* Sets the error text; the value is `status`. A macro: the compiler sees that it is not LS_OK. */
#define dn_fail(status, ...) (dn_note((status), __VA_ARGS__), (status))

/* --- layouts --- */

typedef enum layout_kind {
    LAYOUT_PLAIN,   /* row-major; tensors say NULL for it */
    LAYOUT_NHWC,    /* (N, H, W, C) */
    LAYOUT_BLOCKED, /* (N, C/b, H, W, b), the channels padded with zeros */
    LAYOUT_OTHER    /* opaque, only oneDNN reads it */
} layout_kind;

struct layout {
    layout *next;
    int n_users; /* storages, packed weights and primitives that refer to it */
    compat_desc desc;
    size_t bytes;
    ls_dtype type; /* LS_F32, LS_BF16, LS_F16 */
    layout_kind kind;
    int block; /* of LAYOUT_BLOCKED */
    int n_dims;
    int64_t dims[COMPAT_MAX_DIMS];
};

/*
 * The interned layout of `desc`; NULL without memory, or for NULL. A layout without users is freed
 * after LAYOUTS_IDLE_MOST look-ups of others, more than a kernel does.
 */
const layout *layout_intern(device_state *self, compat_desc desc);

/* Row-major float32. NULL without memory. */
const layout *layout_plain(device_state *self, int n_dims, const int64_t *dims);

/* The same of another type. NULL without memory. */
const layout *layout_plain_as(device_state *self, ls_dtype type, int n_dims, const int64_t *dims);

/* (N,C,H,W) with the channels in blocks, float32. NULL without memory. */
const layout *layout_blocked(device_state *self, int block, const int64_t *dims);

/* (N,C,H,W) of this type in the layout that most convolutions use. NULL without memory. */
const layout *layout_of_images(device_state *self, ls_dtype type, const int64_t *dims);

/* The layout of that kind and type for other dimensions; LAYOUT_OTHER gives plain. NULL without
 * memory. */
const layout *layout_like(device_state *self, const layout *like, int n_dims, const int64_t *dims);

/* The same layout of elements of another type; LAYOUT_OTHER gives plain, NULL NULL. NULL without
 * memory. */
const layout *layout_as(device_state *self, const layout *like, ls_dtype type);

/* The layout of a placed tensor, plain or not. NULL without memory. */
const layout *layout_of(device_state *self, const ls_tensor *t);

/* One user more (`by` = 1) or less (-1); NULL is allowed. */
void layout_use(const layout *l, int by);

/* Gives an unplaced tensor storage in that layout (NULL: LS_ENOMEM), of `bytes` if the elements are
 * not floats. The storage becomes a user of the layout. */
LS_MUST_USE ls_status layout_place(ls_tensor *t, const layout *l);
LS_MUST_USE ls_status layout_place_bytes(ls_tensor *t, const layout *l, size_t bytes);

/* Places `out`, one of the call's, in layout `l`, in the memory of in[1] if that has this layout
 * and may be reused. */
LS_MUST_USE ls_status layout_place_over(device_state *self, const op_call *call, ls_tensor *out,
                                        const layout *l);

/* The elements of `t` in layout `want`: its own, or a copy in *temporary, which the caller destroys
 * with dn_host->tensor_destroy(), also after a failure. */
LS_MUST_USE ls_status layout_arrange(device_state *self, ls_tensor *t, const layout *want,
                                     ls_tensor **temporary, void **out);
/* The same for the layout of images. */
LS_MUST_USE ls_status layout_arrange_image(device_state *self, ls_tensor *t, ls_tensor **temporary,
                                           void **out);

enum {
    REORDER_ADDS = 1,     /* to the elements of dst */
    REORDER_PARAMETER = 2 /* for the watch function: weights, or a gradient of weights */
};

/* Copies between two layouts of equal dimensions. Their types are equal, or with has_bf16 float32
 * and bfloat16. */
LS_MUST_USE ls_status layout_reorder(device_state *self, const layout *from, const void *src,
                                     const layout *to, void *dst, unsigned how);

void layout_free_all(device_state *self);

/*
 * A tensor of (N,C,H,W) or (N,C) as our kernels read it: n images of `blocks` planes of h * w
 * positions of `inner` neighbouring channels. Plain is blocks = C, inner = 1; channels last is
 * blocks = 1, inner = C.
 */
typedef struct grid {
    size_t n;
    size_t c;
    size_t blocks;
    size_t inner;
    size_t h;
    size_t w;
} grid;

/* False for LAYOUT_OTHER. */
bool grid_of(const ls_tensor *t, grid *out);

/* The same; brings a tensor of LAYOUT_OTHER into plain layout first. */
LS_MUST_USE ls_status grid_walkable(ls_tensor *t, grid *out);

/* The first element in memory, any layout; NULL for NULL. */
void *dn_data(const ls_tensor *t);

/* The number of elements of the layout, its padding included. */
size_t layout_elements(const layout *l);

/* Of an element: float32 or a 16-bit float. */
static inline size_t float_bytes(ls_dtype type)
{
    return type == LS_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Conversions of elements of a type from and to float32; NULL for float32 itself. */
typedef struct converter {
    void (*widen)(const uint16_t *from, float *to, size_t n);
    void (*narrow)(const float *from, uint16_t *to, size_t n);
} converter;

converter converter_of(const device_state *self, ls_dtype type);

/* Elements [at, at + n) as float32: in place, or widened into `buffer`. */
const float *convert_in(const converter *c, const void *elements, size_t at, float *buffer,
                        size_t n);
/* Where a kernel writes elements from `at` on as float32: in place, or `buffer`, which
 * convert_out() then rounds. */
float *convert_begin(const converter *c, void *elements, size_t at, float *buffer);
void convert_out(const converter *c, const float *buffer, void *elements, size_t at, size_t n);

/* Work on the planes of an image: two planes for each thread, as float32. */
typedef struct plane_buffers {
    converter c; /* of the elements */
    ls_tensor *memory;
    float *floats; /* NULL for float32 */
    size_t in;     /* floats of the first plane */
    size_t both;
} plane_buffers;

/* Buffers for planes of `in` elements of the type of `like` that are read, and of `out` that are
 * written. The caller destroys b->memory. */
LS_MUST_USE ls_status plane_buffers_make(const device_state *self, const ls_tensor *like, size_t in,
                                         size_t out, plane_buffers *b);

/* convert_in() and convert_begin() in the buffers of the thread. */
const float *plane_read(const plane_buffers *b, size_t thread, const void *elements, size_t at,
                        size_t n);
float *plane_begin(const plane_buffers *b, size_t thread, void *elements, size_t at);

/* Converts n elements between two floating types, of which at least one is float32. */
void cast_elements(const device_state *self, ls_dtype from, const void *src, ls_dtype to, void *dst,
                   size_t n);

/* --- primitives, cached by problem --- */

/* Seven batch shapes of a ResNet-152, which needs 132 for each. Past it the least recently used
 * primitive is destroyed. */
#define PRIMITIVES_MOST 1024

/* Maximum number of layouts without users. */
#define LAYOUTS_IDLE_MOST 256

typedef enum primitive_kind {
    PRIMITIVE_CONV2D = 1,
    PRIMITIVE_LINEAR,
    PRIMITIVE_REORDER,
    PRIMITIVE_PERMUTE,
    PRIMITIVE_MATMUL
} primitive_kind;

/* The key of the cache. Zeroed before it is filled: all bytes are compared. */
typedef struct primitive_key {
    int32_t kind;
    int32_t prop; /* compat_prop; of a reorder: whether it adds; of a matmul: the result's type */
    int32_t type; /* ls_dtype of activations; 0 for those of reorders */
    int32_t has_bias;
    int32_t groups;
    int32_t stride[2];
    int32_t padding[2];
    int32_t dilation[2];
    int64_t src[4];
    int64_t weights[4];
    const layout *layouts[2]; /* of the inputs */
} primitive_key;

#define PRIMITIVE_MAX_ARGS 4

struct primitive {
    primitive *next;
    uint64_t last_use;
    primitive_key key;
    dnnl_primitive_t handle;
    const layout *src; /* the layouts of its arguments */
    const layout *weights;
    const layout *dst;
    int n_args;
    dnnl_exec_arg_t args[PRIMITIVE_MAX_ARGS + 1]; /* the scratchpad is the last */
    void *data[PRIMITIVE_MAX_ARGS];               /* the current pointer of each argument */
    size_t scratch_bytes;
    void *scratch;
};

/* NULL when there is none yet. */
primitive *primitive_find(device_state *self, const primitive_key *key);

/* An argument of a primitive: DNNL_ARG_* and its layout. */
typedef struct primitive_arg {
    int id;
    const layout *layout;
} primitive_arg;

/* Creates a primitive of pd, which it takes (NULL: LS_EUNSUPPORTED), and caches it under `key`.
 * Primitives that the running kernel has found stay valid. */
LS_MUST_USE ls_status primitive_add(device_state *self, const primitive_key *key, compat_pd pd_take,
                                    const primitive_arg *args, int n_args, primitive **out);

/* Runs it on data[i], one for each argument in order. */
LS_MUST_USE ls_status primitive_run(device_state *self, primitive *p, void *const *data);

void primitive_free_all(device_state *self);

/* The convolution or inner product for `key`, created at first use. Compares the implementations
 * for the inputs' layouts and for those that oneDNN prefers, and takes the faster family. */
LS_MUST_USE ls_status primitive_for(device_state *self, const primitive_key *key, primitive **out);

/* Products of `batch` pairs of matrices, (M,K) (K,N), each of which lies transposed in memory where
 * it is swapped. */
typedef struct matmul_shape {
    ls_dtype type;
    ls_dtype out; /* of the result */
    int64_t batch;
    int64_t m;
    int64_t n;
    int64_t k;
    bool a_swapped;
    bool b_swapped;
} matmul_shape;

/* The product, created at first use; its data are a, b and the result. */
LS_MUST_USE ls_status matmul_for(device_state *self, const matmul_shape *shape, primitive **out);

/* --- weights --- */

/* The elements of a float32 parameter in layout and type of `want`: its own; a copy cached with its
 * storage and updated after writes; or, with so many `uses` of each element that a new copy costs
 * next to nothing, one in *temporary, which the caller destroys. */
LS_MUST_USE ls_status packed_weights(device_state *self, ls_tensor *weights, const layout *want,
                                     size_t uses, ls_tensor **temporary, void **out);

void packed_free(device_state *self, packed *p);

/* The memory for a gradient in layout `l`: that of the placed, plain `gradient`, or a temporary. */
LS_MUST_USE ls_status gradient_begin(device_state *self, const op_call *call, ls_tensor *gradient,
                                     const layout *l, ls_tensor **temporary, void **out);

/* Copies or adds the temporary of gradient_begin(), if there is one, to `gradient`. */
LS_MUST_USE ls_status gradient_end(device_state *self, const op_call *call, ls_tensor *gradient,
                                   const layout *l, ls_tensor *temporary);

/* Memory of n floats, valid until *temporary is destroyed, which a failure leaves NULL. */
LS_MUST_USE ls_status dn_floats(ls_device *device, size_t n, ls_tensor **temporary, float **out);

/* --- threads --- */

/* Work on [begin, end) of a range, by thread number `thread` of those that share it. */
typedef void (*range_fn)(void *arg, size_t begin, size_t end, size_t thread);

/* Splits [0, n) among the device's threads; one thread does small work (cost: elements read or
 * written for one of n). */
void threads_for(const device_state *self, size_t n, size_t cost, range_fn fn, void *arg);

/* Of a sum whose order of additions depends on the number of threads. */
int threads_adding(const device_state *self);

/* Ends the waiting threads, so that the process may fork after the device is closed. */
void threads_end(const device_state *self);

/* Between these two, oneDNN uses the device's thread count, or for primitives that add (`adds`)
 * threads_adding(); _leave takes the result of _enter. */
int threads_enter(const device_state *self, bool adds);
void threads_leave(int before);

/* Between these two the calling thread receives no signal, nor do the workers that start there, as
 * long as they live. For calls of oneDNN: in long sums of products versions up to 3.11 point the
 * stack register at a workspace in the heap (oneDNN's issue 4845), and the kernel would write the
 * frame of a signal there. */
void signals_block(sigset_t *before);
void signals_restore(const sigset_t *before);

/* --- the kernels --- */

/* The dropout of these attributes, from element 0 on. */
drop_run drop_run_of(const op_attrs *a);

/* Whether a permute copies rows, of elements of any type. */
bool permute_keeps_rows(const op_call *call);

/* Whether a byte can hold the indices of this window's positions. */
bool max_pool_fits(const op_call *call);

/* OP_BINARY of equal shapes, in any layout and type. */
ls_status dn_binary_alike(device_state *self, const op_call *call);

/* Whether `part` is repeated only along leading and trailing dimensions of `whole`, not between
 * them. */
bool planes_fit(const ls_tensor *whole, const ls_tensor *part);

/* If it is: y = whole + part or whole * part, and the sums of x, or with `factor` of x * factor,
 * times `scale`, in sums' shape. */
ls_status planes_apply(device_state *self, ls_tensor *whole, ls_tensor *part, bool multiplies,
                       ls_tensor *y);
ls_status planes_sum(device_state *self, ls_tensor *x, ls_tensor *factor, double scale,
                     ls_tensor *sums);

/* Attention in bfloat16 on AMX, without a mask: whether the call fits, and its kernels. */
bool attention_fits_tiles(const device_state *self, const op_call *call);
ls_status attention_tiles(device_state *self, const op_call *call);
ls_status attention_tiles_backward(device_state *self, const op_call *call);

/* Convolutions of images with few channels. */
ls_status conv2d_few(device_state *self, const op_call *call);
ls_status conv2d_few_backward_weights(device_state *self, const op_call *call);

/* A kernel's weights as matrices, one for each of its n taps. */
typedef struct tap_weights {
    size_t in;
    size_t out;
    size_t n;
    bool rotated; /* for dx: `in` is the weights' O, and the taps are in reverse order */
} tap_weights;

size_t taps_panels(size_t channels);      /* of 16 channels */
size_t taps_floats(const tap_weights *k); /* of one tap */

/* weights: plain (O,C,KH,KW); taps: (tap, panel of 16 outputs, input, 16), padded with zeros, of
 * the panels [begin, end). */
void taps_arrange(const simd_table *simd, const tap_weights *k, const float *weights, size_t begin,
                  size_t end, float *taps);

/* Convolutions of many images to few positions. */
ls_status conv2d_rows(device_state *self, const op_call *call);
ls_status conv2d_rows_backward_data(device_state *self, const op_call *call);
ls_status conv2d_rows_backward_weights(device_state *self, const op_call *call);

/* Convolutions by Winograd's algorithm. */
ls_status conv2d_winograd(device_state *self, const op_call *call);
ls_status conv2d_winograd_backward_data(device_state *self, const op_call *call);
ls_status conv2d_winograd_backward_weights(device_state *self, const op_call *call);

/* Gradients of convolutions by products of matrices, of bfloat16 with channels last. */
ls_status conv2d_product_backward_data(device_state *self, const op_call *call);
ls_status conv2d_product_backward_weights(device_state *self, const op_call *call);

/* Gradients of 1x1 convolutions in bfloat16, of images in blocks of 16 channels. */
ls_status conv2d_pairs_backward_data(device_state *self, const op_call *call);
ls_status conv2d_pairs_backward_weights(device_state *self, const op_call *call);

/* The kernels: dn_copy(), dn_conv2d(), ... Those of is_plain() in dn_device.c find their inputs in
 * plain layout, and their outputs placed so. */
#define OPERATOR(KIND, name, ...) ls_status dn_##name(device_state *self, const op_call *call);
#define STEP_OPERATOR(...)
#include "tensor/operators.inc"

#endif
