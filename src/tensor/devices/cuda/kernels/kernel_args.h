/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_args.h - the device's own kernels and their arguments, for the C files that launch them
 * and the .cu files that define them.
 *
 * Pointers are to device memory. `wide`: all element arrays of the call are aligned to 16 bytes,
 * and so are their rows where a kernel goes by rows. A kernel NAME exists as NAME_f32, NAME_f64,
 * NAME_bf16 and NAME_f16 if it is declared with KERNEL_OF_TYPES; parameters and statistics are
 * float64 for NAME_f64, else float32.
 *
 * tensor/devices/cuda/kernels/: the kernels, which tests also compile as C. ops/ and dnn/ launch
 * them by this header and repack.h.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_KERNELS_KERNEL_ARGS_H
#define LS_TENSOR_DEVICES_CUDA_KERNELS_KERNEL_ARGS_H

#include "tensor/device.h"
#include "tensor/devices/cuda/runtime/failure.h"
#include "tensor/devices/cuda/runtime/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERNEL_OF_TYPES(NAME)                                                                      \
    extern const gpu_kernel NAME##_f32;                                                            \
    extern const gpu_kernel NAME##_f64;                                                            \
    extern const gpu_kernel NAME##_bf16;                                                           \
    extern const gpu_kernel NAME##_f16;

/* The element types of kernels, in the order of typed_kernel(). */
typedef enum kernel_type { KERNEL_F32, KERNEL_F64, KERNEL_BF16, KERNEL_F16 } kernel_type;

#define PACK_BYTES 16 /* of one access of a thread at most */

/* --- pointwise.cu: one thread an element or pack --- */

typedef struct pointwise_args {
    const void *x;
    const void *y;
    const void *more; /* relu_backward: added to y, or NULL */
    void *out;
    size_t count;
    bool wide;
    double value; /* fill: the value; dropout: the factor; mse: its sign; cross entropy: smoothing;
                * binary: op_attrs.value */
    int activation;
    double param[2]; /* of the activation */
    int binary;
    /* dropout: element i is dropped if the upper 53 bits of its hash are below the limit */
    uint64_t random;
    uint64_t drop_limit;
    size_t run;      /* elements that are dropped together */
    size_t channels; /* of NHWC; 0: row-major */
    size_t area;
    /* backward of losses */
    const void *dloss; /* scalar */
    kernel_type dloss_type;
    const int64_t *targets;
    size_t n_rows;
    size_t n_classes;
} pointwise_args;

KERNEL_OF_TYPES(fill)                   /* -> out */
KERNEL_OF_TYPES(relu)                   /* x -> out */
KERNEL_OF_TYPES(relu_backward)          /* x: the result, y: dy, more: dy2? -> dx */
KERNEL_OF_TYPES(binary)                 /* x, y -> out, which may be x */
KERNEL_OF_TYPES(add_relu)               /* x, y -> out */
KERNEL_OF_TYPES(dropout)                /* x -> out */
KERNEL_OF_TYPES(activate)               /* x -> out */
KERNEL_OF_TYPES(activate_backward)      /* x, y: dy -> dx */
KERNEL_OF_TYPES(mse_backward)           /* x: prediction, y: target -> gradient */
KERNEL_OF_TYPES(cross_entropy_backward) /* x: probabilities, REAL -> dlogits */
KERNEL_OF_TYPES(nll_backward)           /* -> dlog_probabilities */

typedef struct cast_args {
    const void *src;
    void *dst;
    size_t count;
    bool wide; /* both are aligned to 4 of their elements */
    kernel_type to;
} cast_args;

KERNEL_OF_TYPES(cast) /* from the type of its name */

/* x (n,s,c) = values[c][pixels (n,c,s)] */
typedef struct normalize_args {
    const uint8_t *pixels;
    const float *values;
    size_t value_step; /* from the values of a channel to those of the next; 0: it has the same */
    float *x;
    size_t count;
    size_t channels;
    size_t area; /* s */
    bool wide;   /* x is aligned */
} normalize_args;

extern const gpu_kernel normalize;

/* --- move.cu: copies between arrangements, by the size of units and not by type --- */

#define MOVE_DIMS 6

/* dst at sum(index[d] * dst_step[d]) = src at sum(index[d] * src_step[d]), in units. */
typedef struct move_args {
    const void *src;
    void *dst;
    size_t count; /* units */
    int n_dims;
    size_t dims[MOVE_DIMS];
    size_t src_step[MOVE_DIMS];
    size_t dst_step[MOVE_DIMS];
} move_args;

extern const gpu_kernel move_1, move_2, move_4, move_8, move_16; /* bytes of a unit */

/* n matrices of `rows` x `columns` units become `columns` x `rows`. */
typedef struct transpose_args {
    const void *src;
    void *dst;
    size_t n;
    size_t rows;
    size_t columns;
    size_t src_step; /* units from one matrix to the next */
    size_t dst_step;
} transpose_args;

extern const gpu_kernel transpose_1, transpose_2, transpose_4, transpose_8;

#define TRANSPOSE_SIDE 64 /* of the square that a block moves */

/* Element i of the result has index (i0, i1, ...) over dims, and that of input k is at the sum of
 * index[d] * step[k][d]. */
typedef struct broadcast_args {
    const void *in[3]; /* the function: a, b; its slope: x, a, b, those that it reads */
    void *out;
    kernel_type out_type; /* of broadcast_slope */
    size_t count;
    int binary;
    int operand;
    double value;
    int n_dims;
    size_t dims[MOVE_DIMS];
    size_t step[3][MOVE_DIMS];
} broadcast_args;

KERNEL_OF_TYPES(broadcast)       /* a, b -> out */
KERNEL_OF_TYPES(broadcast_slope) /* x, a, b -> out */
/* x, other or `value`, mask of bytes -> out; operand 1: where the mask is 0 */
KERNEL_OF_TYPES(broadcast_select)

/* --- columns.cu: sums over the rows of matrices, and what follows from them --- */

#define COLUMN_SUMS 2 /* sums of a column at most */

/*
 * n matrices of `rows` x `columns`, one behind the other. A block takes a tile of `lanes` threads'
 * columns, each of which takes a pack of columns (`wide`) or one, and a part of the rows.
 * own_sum_split() fills it.
 */
typedef struct column_split {
    size_t n;
    size_t rows;
    size_t columns;
    bool wide;
    unsigned lanes; /* a power of two */
    unsigned tiles; /* of a matrix */
    unsigned splits;
    double *partial;   /* n * splits * COLUMN_SUMS * columns */
    unsigned *tickets; /* one for each tile of each matrix, all 0; unused with one split */
} column_split;

/* A kernel uses the members that its comment names. Batch norm's matrix has a column for each
 * channel, layer norm's one for each element of a row. */
typedef struct column_args {
    column_split by;    /* of sums */
    column_split apply; /* of what batch norm applies to the rows; `partial` and so on are unused */
    const void *x;
    const void *y;
    const void *weight;
    const void *bias;
    const void *mean;
    const void *variance; /* layer norm: the inverse deviation */
    const void *cut;      /* batch norm's result, which its ReLU has cut; NULL without one */
    const void *added;    /* to batch norm's result, before the ReLU; NULL for nothing */
    /* Backward of batch norm with both: y is what norm_backward_sums writes first to y_out: dy +
     * more, or 0 where the ReLU has cut `sum`; cut is NULL. Else these are NULL. */
    void *y_out;
    const void *dy;
    const void *more; /* NULL for nothing */
    const void *sum;
    void *out[2];
    void *running[2]; /* mean and variance, updated */
    int64_t *counter; /* may be NULL; incremented with them */
    void *result;
    double *shared; /* the values of batch_sync.h */
    double momentum;
    double eps;
    bool relu;
    bool accumulate;      /* out[] is added to */
    kernel_type out_type; /* of column_sum and mse */
    double scale;         /* of column_sum: a factor of the sums */
    op_failure *failure;
    int op; /* the op_kind, for the failure */
} column_args;

KERNEL_OF_TYPES(column_sum)   /* x, y? -> out[0]: the sums of x, or of x y */
KERNEL_OF_TYPES(mse)          /* x, y -> out[0]: the mean squared difference */
KERNEL_OF_TYPES(norm_moments) /* x -> out: mean, variance; running; or -> shared */

KERNEL_OF_TYPES(norm_from_shared) /* shared -> out: mean, variance; running; failure */
KERNEL_OF_TYPES(norm_apply)       /* x, added, weight, bias, mean, variance -> result */
/* x, y: dy, or y_out, dy, more, sum; cut, mean, variance -> out: dweight, dbias; shared */
KERNEL_OF_TYPES(norm_backward_sums)
KERNEL_OF_TYPES(norm_backward_data) /* x, y: dy, cut, weight, mean, variance, shared -> result */
KERNEL_OF_TYPES(norm_train)         /* norm_moments, then norm_apply */
KERNEL_OF_TYPES(norm_backward)      /* norm_backward_sums, then norm_backward_data */
/* x, y: dy, mean, variance: inverse -> out: dweight, dbias */
KERNEL_OF_TYPES(layer_norm_backward_sums)

/* --- rows.cu: one block a row --- */

#define ROW_PACKS 4 /* that a thread reads at a time */

typedef struct row_args {
    const void *x;
    const void *dy; /* backward */
    void *y;        /* or dx */
    size_t n_rows;
    size_t columns;
    bool wide;    /* softmax: `x` is aligned, and so is the end of its memory */
    double scale; /* softmax; extremes: 1, or -1 for the smallest */
    bool reverse; /* cumsum */
    double eps;
    const void *weight;
    const void *bias;
    void *mean; /* layer norm: may be NULL; backward reads it; extremes' backward: the extremes */
    void *inverse;
} row_args;

KERNEL_OF_TYPES(softmax)
KERNEL_OF_TYPES(softmax_backward) /* x: the result */
KERNEL_OF_TYPES(log_softmax)
KERNEL_OF_TYPES(log_softmax_backward) /* x: the result */
KERNEL_OF_TYPES(layer_norm)
KERNEL_OF_TYPES(layer_norm_backward)
KERNEL_OF_TYPES(extreme)
KERNEL_OF_TYPES(extreme_backward)
KERNEL_OF_TYPES(cumsum) /* one thread a row */

/* Embeddings: a thread for a pack of the result; backward: a block for each index. */
typedef struct embedding_args {
    const void *x; /* the weight; backward: dy */
    const int64_t *indices;
    void *y; /* backward: the gradient, in the type of parameters, which is added to */
    size_t n;
    size_t columns;
    bool wide;
    int64_t n_rows; /* of the weight */
    int64_t ignored;
    op_failure *failure;
    int op;
} embedding_args;

KERNEL_OF_TYPES(embedding)
KERNEL_OF_TYPES(embedding_backward)

#define LOSS_TOP_K  2
#define LOSS_VALUES (1 + LOSS_TOP_K) /* of a row: its loss, and whether it counts for each top_k */

typedef struct loss_args {
    const void *x;
    const int64_t *targets;
    void *probabilities; /* may be NULL */
    void *loss;
    kernel_type loss_type;
    size_t n_rows;
    size_t n_classes;
    bool wide; /* x and the probabilities are aligned, and so is the end of x's memory */
    double smoothing;
    double *row_values; /* n_rows * LOSS_VALUES */
    unsigned *ticket;   /* 0 */
    op_failure *failure;
    int op; /* the op_kind, for the failure */
    /* class_sums */
    double *sums;
    int n_top;
    int top_k[LOSS_TOP_K];
} loss_args;

KERNEL_OF_TYPES(cross_entropy)
KERNEL_OF_TYPES(class_sums)
KERNEL_OF_TYPES(nll) /* of one block */

/* --- attention.cu: a block for a few queries, or keys, of one attention --- */

#define ATTENTION_ROWS   8   /* of a block */
#define ATTENTION_OTHERS 64  /* keys (queries) that these are compared with at a time */
#define ATTENTION_WIDTH  256 /* columns of the result; wider results are divided among blocks */

typedef struct attention_args {
    const void *q;
    const void *k;
    const void *v;
    const void *mask; /* NULL; numbers in the type of parameters, or bytes */
    bool mask_bytes;
    bool causal;
    size_t n;
    size_t queries;
    size_t keys;
    size_t width;  /* of q and k */
    size_t values; /* of v */
    bool wide;     /* attention_totals: rows of dy and y are aligned packs */
    int n_leading; /* dimensions of n, and the steps of the mask along them */
    size_t leading[MOVE_DIMS];
    size_t mask_leading[MOVE_DIMS];
    size_t mask_row;
    size_t mask_column;
    double scale;
    uint64_t random;
    uint64_t drop_limit;
    double kept; /* what dropout multiplies the other weights with */
    void *y;
    void *norms; /* forward: may be NULL */
    /* backward */
    const void *dy;
    void *totals; /* of each query: log2(sum(exp(scores))), sum(dy y) */
    void *dq;     /* NULL where they are not needed */
    void *dk;
    void *dv;
} attention_args;

KERNEL_OF_TYPES(attention)         /* -> y, norms */
KERNEL_OF_TYPES(attention_totals)  /* dy, y, norms -> totals; a thread for each query */
KERNEL_OF_TYPES(attention_queries) /* -> dq */
KERNEL_OF_TYPES(attention_keys)    /* -> dk, dv */

/* --- attention_tiles.cu: the same on tensor cores (sm_80 and later), in blocks of 16 rows for each
 * warp. NAME_DEPTH_TYPE: width and values are at most DEPTH and multiples of 8, all arrays are
 * aligned to 16 bytes, a mask is of bytes, and blocks of 64 rows are less than 2^31. --- */

#define TILE_THREADS 128 /* of a block */
#define TILE_ROWS    (TILE_THREADS / 2)

#define KERNEL_OF_TILES(NAME)                                                                      \
    extern const gpu_kernel NAME##_64_bf16;                                                        \
    extern const gpu_kernel NAME##_64_f16;                                                         \
    extern const gpu_kernel NAME##_96_bf16;                                                        \
    extern const gpu_kernel NAME##_96_f16;                                                         \
    extern const gpu_kernel NAME##_128_bf16;                                                       \
    extern const gpu_kernel NAME##_128_f16;

KERNEL_OF_TILES(attention)
KERNEL_OF_TILES(attention_queries)
KERNEL_OF_TILES(attention_keys)

/* --- pool.cu: NHWC --- */

typedef struct pool_args {
    const void *x; /* backward: dy */
    void *y;       /* backward: dx */
    void *indices; /* within the window; one byte, or an int32 for windows of over 256 positions */
    bool small_indices;
    /* backward of max pooling: dy is row-major */
    bool is_plain;
    bool wide; /* threads take packs of channels */
    bool adaptive;
    size_t n;
    int h;
    int w;
    int out_h;
    int out_w;
    int channels;
    int kernel[2];
    int stride[2];
    int padding[2];
} pool_args;

KERNEL_OF_TYPES(max_pool)
KERNEL_OF_TYPES(max_pool_backward)
KERNEL_OF_TYPES(avg_pool)
KERNEL_OF_TYPES(avg_pool_backward)

/* --- recurrent.cu: one thread a unit of a row --- */

/* The tensors of an op_call; NULL where it has none. Cell states are of the type of parameters. */
typedef struct recurrent_args {
    const void *in[6];
    void *out[4];
    const int64_t *lengths;
    int64_t position;
    int64_t limit; /* of the lengths */
    size_t n_rows;
    size_t units; /* of a row */
    op_failure *failure;
    int op;
} recurrent_args;

KERNEL_OF_TYPES(lstm)
KERNEL_OF_TYPES(lstm_backward)
KERNEL_OF_TYPES(gru)
KERNEL_OF_TYPES(gru_backward)

/* --- update.cu: many arrays in one launch --- */

#define UPDATE_ARRAYS 81   /* of a launch at most: as many as its arguments hold */
#define UPDATE_CHUNK  8192 /* elements that a block takes at a time */

/* A parameter, or a gradient alone: as `grad`, or as `value` where it changes. */
typedef struct update_array {
    void *value;
    const void *grad;
    void *state[3];
    uint32_t first_chunk; /* chunks of the arrays before it */
    uint32_t tail;        /* elements of its last chunk, 1 to UPDATE_CHUNK; 0: it has no element */
} update_array;

typedef struct update_args {
    op_update rates;
    double value;         /* clamp: the limit; unscale: the factor */
    const float *skip;    /* NULL, or a scalar: unless it is 0, nothing changes */
    const double *factor; /* scale_by */
    float *found;         /* unscale: becomes 1 if an element is not finite */
    double *partial;      /* squares: one for each chunk; state[0] is where the sum is written */
    unsigned *ticket;     /* 0 */
    size_t n_chunks;
    int n;
    update_array arrays[UPDATE_ARRAYS];
} update_args;

/* These are float32 and float64 alone. */
#define KERNEL_OF_PARAMETERS(NAME)                                                                 \
    extern const gpu_kernel NAME##_f32;                                                            \
    extern const gpu_kernel NAME##_f64;

KERNEL_OF_PARAMETERS(update_sgd)  /* grad -> value, state: momentum? */
KERNEL_OF_PARAMETERS(update_adam) /* grad -> value, state: mean, square, largest? */
KERNEL_OF_PARAMETERS(squares)     /* grad -> state[0] */
KERNEL_OF_PARAMETERS(scale_by)    /* value */
KERNEL_OF_PARAMETERS(clamp)       /* value */
KERNEL_OF_PARAMETERS(unscale)     /* value -> value, found */

typedef struct clip_factor_args {
    const double *squares;
    size_t n;
    double limit;
    double *norm;
    double *factor;
} clip_factor_args;

extern const gpu_kernel clip_factor;

#ifdef __cplusplus
}
#endif

#endif
