/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd.h - our inner loops: compiled once for each instruction set, selected when the device is
 * opened.
 *
 * All tables are compiled from the same sources without contraction of products and sums, so they
 * give the same bits. The convolutions (conv_*, wino_*, product) are contracted if the processor
 * can, like oneDNN's.
 *
 * `rows` of `lanes` neighbouring floats are contiguous; per-lane arrays have `lanes` entries.
 *
 * tensor/devices/onednn/simd/: loops of the oneDNN device, called by ops/ through the table of this
 * header.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_H

#include "tensor/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The instruction sets that we distinguish. */
typedef enum isa_level {
    ISA_BASELINE,
    ISA_AVX2,
    ISA_AVX512,
    ISA_AVX512_BF16,
    ISA_AMX /* with products of bfloat16, in tiles */
} isa_level;

/* A derivative of a function of two numbers. */
typedef struct binary_term {
    op_binary f;
    int operand;
    float p;
} binary_term;

/* y = (x - mean) * scale + bias + added, then max(0, .) with relu. */
typedef struct bn_lanes {
    const float *mean;
    const float *scale;
    const float *bias;
    bool relu;
} bn_lanes;

/* masked = dy + dy2, which may be NULL, but 0 where a ReLU behind a sum has cut the result. It may
 * be dy, and is the gradient from then on. */
typedef struct bn_mask {
    const void *result;
    const void *dy2;
    void *masked;
} bn_mask;

/* dx = scale * dy + slope * (x - mean) + shift, where dy is 0 if a fused ReLU made y 0. */
typedef struct bn_slopes {
    const float *slope;
    const float *shift;
} bn_slopes;

/* One plane of h * w positions, and windows over it. */
typedef struct pool_plane {
    size_t h;
    size_t w;
    size_t out_h;
    size_t out_w;
    size_t kernel[2];
    size_t stride[2];
    size_t padding[2];
    size_t lanes;
} pool_plane;

/* The part of an averaging window that lies in the plane: h * w positions of `lanes` neighbouring
 * floats, rows `row` floats apart. */
typedef struct avg_window {
    size_t h;
    size_t w;
    size_t row;
    size_t lanes;
    float size; /* the divisor of the sum */
} avg_window;

/* A convolution of a framed image, whose rows are w floats, the padding included; y and dy are o /
 * 8 planes of out_h * out_w positions of 8 channels; weights are (taps, o). A tap is one position
 * of the kernel in one input channel, given by its distance from the first one in the framed image.
 * o is a multiple of 8. */
typedef struct conv_few {
    size_t w;
    size_t o;
    size_t out_h;
    size_t out_w;
    size_t stride[2];
    size_t n_taps;
    const size_t *taps;
} conv_few;

/* Winograd's convolution: the position of a tile in an image of `blocks` planes of h * w positions
 * of as many channels as wino_block says. `top` and `left` wrap around in the padding before the
 * image. Point p of channel c is at points + p * step + c. */
typedef struct wino_patch {
    size_t h;
    size_t w;
    size_t blocks;
    size_t top;
    size_t left;
    size_t side; /* points in a direction: 6, or 4 (images, and 2x2 results) */
    size_t size; /* of results, or of a gradient: 2 or 4 */
    int dims;    /* 2, or 1 for tiles that are lines of 6; then size is 2 */
    size_t step;
} wino_patch;

/* Its kernels: `count` floats, a multiple of 16, of each tap, and as many of each point, which are
 * `step` floats apart. */
typedef struct wino_kernel {
    size_t side; /* 6, or 4 (weights of size 3) */
    size_t size; /* 3, or 5 as in all lines */
    int dims;
    size_t count;
    size_t step;
} wino_kernel;

/* c (+)= a b: row r, term k of a is a[r * a_row + k * a_step]; columns of b and c come in panels of
 * 16 (the last may be 8): row k of panel i is b + i * b_panel + k * b_step. */
typedef struct small_product {
    size_t rows;
    size_t depth;
    size_t columns; /* a multiple of 8 */
    size_t a_row;
    size_t a_step;
    size_t b_panel;
    size_t b_step;
    size_t c_row;
    bool add;
} small_product;

/* y (+)= x w' for few rows of x: x (rows, depth), w (outputs, depth), y (rows, outputs), each
 * without gaps. For dx (+)= dy w dy is as y, dx as x, with at most FEW_ROWS_MOST rows. */
#define FEW_ROWS_MOST 32
typedef struct few_rows {
    size_t rows;
    size_t depth;
    size_t outputs;
    bool add;
} few_rows;

/* The elements of a tensor that become 0: element i if the upper 53 bits of ls_hash3(random, i,
 * 0) are below `threshold`. A run of elements begins at index `first`, with distance `step`. */
typedef struct drop_run {
    uint64_t random;
    uint64_t threshold;
    uint64_t first;
    uint64_t step;
    float scale; /* of the others */
} drop_run;

/* A row of layer norm. */
typedef struct norm_row {
    float mean;
    float inverse; /* 1 / sqrt(variance + eps) */
    float mean_g;  /* backward: means of g and of g xhat */
    float mean_g_xhat;
} norm_row;

/* A row of a step of an LSTM or a GRU cell of n units: recurrent.inc, whose gates are n elements
 * apart. */
typedef struct recurrent_row {
    const float *a;
    const float *b;
    const float *state; /* LSTM: c, GRU: h */
    float *h;
    float *c;     /* LSTM: behind the step */
    float *gates; /* may be NULL */
} recurrent_row;

/* Its backward. */
typedef struct recurrent_slope {
    const float *gates;
    const float *state;
    const float *dh; /* these may be NULL, for zeros */
    const float *dy;
    const float *dc; /* LSTM */
    float *da;
    float *db;     /* GRU */
    float *dstate; /* may be NULL */
} recurrent_slope;

typedef struct simd_table {
    const char *isa;
    isa_level level;

    /* Conversions with the bits of base/compute/half.h. */
    void (*widen_bf16)(const uint16_t *from, float *to, size_t n);
    void (*narrow_bf16)(const float *from, uint16_t *to, size_t n);
    void (*widen_f16)(const uint16_t *from, float *to, size_t n);
    void (*narrow_f16)(const float *from, uint16_t *to, size_t n);

    /* NaN stays NaN in both; the derivative at 0 is 0. */
    void (*relu)(const float *x, float *y, size_t n);
    void (*relu_backward)(const float *y, const float *dy, float *dx, size_t n);
    void (*add)(const float *a, const float *b, float *y, size_t n);      /* y may be a or b */
    void (*add_relu)(const float *a, const float *b, float *y, size_t n); /* likewise */
    /* binary.inc; y and d may be an input */
    void (*binary)(op_binary f, float p, const float *a, const float *b, float *y, size_t n);
    void (*binary_slope)(const binary_term *t, const float *dy, const float *a, const float *b,
                         float *d, size_t n);
    void (*accumulate)(const float *x, double *sums, size_t n); /* sums[i] += x[i] */

    /* Of float32, or with bf16 of bfloat16. Mean, and sum of squared distances from it, of each
     * lane. rows > 0. */
    void (*bn_moments)(const void *x, bool bf16, size_t rows, size_t lanes, float *mean,
                       float *squares);
    /* added: NULL for zeros */
    void (*bn_apply)(const void *x, const void *added, void *y, bool bf16, size_t rows,
                     size_t lanes, const bn_lanes *p);
    /* Sums of dy and of dy * (x - mean), dy masked by m or, where that is NULL, as in bn_slopes. */
    void (*bn_sums)(const void *x, const void *dy, const bn_mask *m, bool bf16, size_t rows,
                    size_t lanes, const bn_lanes *p, float *sum_dy, float *sum_dy_x);
    void (*bn_dx)(const void *x, const void *dy, void *dx, bool bf16, size_t rows, size_t lanes,
                  const bn_lanes *p, const bn_slopes *s);

    /* indices (may be NULL): kh * KW + kw of each window's first maximum, or last NaN; a window has
     * at most 256 positions. */
    void (*pool_max)(const pool_plane *p, const float *x, float *y, uint8_t *indices);
    void (*pool_max_backward)(const pool_plane *p, const float *dy, const uint8_t *indices,
                              float *dx);

    /* x and dx point at the window's first position; the backward adds. */
    void (*pool_mean)(const avg_window *k, const float *x, float *y);
    void (*pool_mean_backward)(const avg_window *k, const float *dy, float *dx);

    /* One image. The backward adds to dw and db. */
    void (*conv_few_forward)(const conv_few *s, const float *image, const float *w,
                             const float *bias, float *y);
    void (*conv_few_backward)(const conv_few *s, const float *image, const float *dy, float *dw,
                              float *db);

    /* A tile of an image to its points; a tile of a gradient likewise, as a kernel, with its sum as
     * one more; points to results. wino_block: channels of a plane. */
    size_t wino_block;
    void (*wino_image)(const wino_patch *t, const float *image, float *points);
    void (*wino_gradient)(const wino_patch *t, const float *image, float *points);
    void (*wino_results)(const wino_patch *t, const float *points, const float *bias, float *image);
    /* (taps, count) to (points, count), and back. */
    void (*wino_weights)(const wino_kernel *k, const float *taps, float *points);
    void (*wino_taps)(const wino_kernel *k, const float *points, float *taps);
    void (*product)(const small_product *m, const float *a, const float *b, float *c);
    /* x as dots() takes it: `depth` times dots_width(rows) floats. */
    size_t (*dots_width)(size_t rows);
    void (*dots_pack)(const few_rows *m, const float *x, float *columns);
    /* Of the outputs [begin, end). */
    void (*dots)(const few_rows *m, const float *x, const float *w, float *y, size_t begin,
                 size_t end);
    /* Of the columns [begin, end). */
    void (*dots_dx)(const few_rows *m, const float *dy, const float *w, float *dx, size_t begin,
                    size_t end);

    /* out = exp(x - top), 0 where that is below the smallest normal number; exp_sum() returns the
     * sum. out may be x. */
    void (*exp_below)(const float *x, float top, float *out, size_t n);
    float (*exp_sum)(const float *x, float top, float *out, size_t n);

    /* largest() ignores NaNs, and is -INFINITY without elements. */
    float (*largest)(const float *x, size_t n);
    double (*sum)(const float *x, size_t n);
    void (*shift)(const float *x, float a, float b, float *y, size_t n);       /* y = (x - a) - b */
    void (*shift_scale)(const float *x, float a, float b, float *y, size_t n); /* y = (x - a) * b */
    /* dx = dy - exp(y) * sum, where y <= 0 */
    void (*log_softmax_dx)(const float *y, const float *dy, float sum, float *dx, size_t n);

    void (*dropout)(const drop_run *r, const float *x, float *y, size_t n);

    void (*activate)(ls_activation f, const float *p, const float *x, float *y, size_t n);
    /* dx may be dy. */
    void (*activate_backward)(ls_activation f, const float *p, const float *x, const float *dy,
                              float *dx, size_t n);

    double (*dot)(const float *x, const float *y, size_t n);
    double (*spread)(const float *x, float mean, size_t n); /* sum of squared distances */

    /* One row of layer norm: y; xhat and g = dy weight; dx of these; the terms of dweight
     * and dbias. */
    void (*norm_apply)(const norm_row *r, const float *x, const float *weight, const float *bias,
                       float *y, size_t n);
    void (*norm_slopes)(const norm_row *r, const float *x, const float *dy, const float *weight,
                        float *xhat, float *g, size_t n);
    void (*norm_dx)(const norm_row *r, const float *xhat, const float *g, float *dx, size_t n);
    void (*norm_sums)(const norm_row *r, const float *x, const float *dy, double *dweight,
                      double *dbias, size_t n);

    /* dx = scale y (dy - sum); dx may be dy */
    void (*softmax_dx)(const float *y, const float *dy, float sum, float scale, float *dx,
                       size_t n);

    /* Column c of x becomes row c of `to`; rows are `row` and `to_row` elements apart. */
    void (*transpose)(const float *x, size_t row, size_t n_rows, size_t n_columns, float *to,
                      ptrdiff_t to_row);

    void (*lstm)(const recurrent_row *r, size_t n);
    void (*lstm_backward)(const recurrent_slope *r, size_t n);
    void (*gru)(const recurrent_row *r, size_t n);
    void (*gru_backward)(const recurrent_slope *r, size_t n);
} simd_table;

/* The i-th best table that this processor can use; NULL past the last. */
const simd_table *simd_table_at(int i);

/* The best of them that needs no more than this level. */
const simd_table *simd_table_for(isa_level most);

#endif
