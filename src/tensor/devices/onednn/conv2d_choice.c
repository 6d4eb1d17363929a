/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv2d_choice.c - which kernel runs a convolution: one of ours where it is faster than oneDNN's,
 * else oneDNN's. dn_conv2d.c calls it; bench/kernels measures the kernels.
 */
#include "tensor/devices/onednn/conv2d_choice.h"

#include <string.h>

isa_level isa_level_of(const char *name)
{
    if (strncmp(name, "avx512_core_amx", 15) == 0)
        return ISA_AMX;
    if (strcmp(name, "avx512_core_bf16") == 0 || strcmp(name, "avx512_core_fp16") == 0)
        return ISA_AVX512_BF16;
    if (strncmp(name, "avx512", 6) == 0)
        return ISA_AVX512;
    return strncmp(name, "avx2", 4) == 0 ? ISA_AVX2 : ISA_BASELINE;
}

/* Of the bits of a conv2d_set. */
static const char *const names[CONV2D_KERNELS + 2] = {
    [CONV2D_ONEDNN] = "onednn",   [CONV2D_FEW] = "few",
    [CONV2D_ROWS] = "rows",       [CONV2D_WINOGRAD] = "winograd",
    [CONV2D_PRODUCT] = "product", [CONV2D_PAIRS] = "pairs",
    [CONV2D_KERNELS] = "blocked", [CONV2D_KERNELS + 1] = "channels_last",
};

const char *conv2d_kernel_name(conv2d_kernel kernel)
{
    return names[kernel];
}

static conv2d_set set_of(const char *name, size_t length)
{
    for (unsigned i = 0; i < LS_COUNT_OF(names); i++) {
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return 1U << i;
    }
    return 0;
}

bool conv2d_set_parse(const char *text, conv2d_set *out, const char **bad)
{
    *out = 1U << CONV2D_ONEDNN;
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        const conv2d_set one = set_of(at, length);

        *bad = at;
        if (one == 0)
            return false;
        *out |= one;
        at += length;
        if (*at == '\0')
            return true;
    }
}

/* --- few input channels --- */

/*
 * oneDNN 2.6 has no vectorised gradient for them below AVX-512 and falls back to one that is
 * hundreds of times slower, or fills the channels up to 8.
 */
static bool few_fits(isa_level isa, conv2d_direction direction, const op_attrs *a, const int64_t *x,
                     const int64_t *y)
{
    return isa < ISA_AVX512 && direction != CONV2D_BACKWARD_DATA && a->groups == 1 &&
           x[1] <= CONV2D_FEW_CHANNELS && y[1] % 8 == 0 &&
           x[1] * a->kernel[0] * a->kernel[1] <= CONV2D_FEW_TAPS;
}

/* --- few output positions --- */

#define ROWS_POSITIONS 4
#define ROWS_IMAGES    8

static bool channels_fit(const int64_t *x, const int64_t *y, int block)
{
    return x[1] % block == 0 && y[1] % block == 0 && x[1] >= 16 && y[1] >= 16;
}

/* oneDNN works on one image at a time, which does not pay for reading the weights. */
static bool rows_fits(const op_attrs *a, const int64_t *x, const int64_t *w, const int64_t *y)
{
    return a->groups == 1 && x[0] >= ROWS_IMAGES && channels_fit(x, y, 8) &&
           y[2] * y[3] <= ROWS_POSITIONS && w[2] * w[3] <= CONV2D_ROWS_TAPS;
}

/* --- Winograd's algorithm --- */

/* Whether tiles of side x side points need at most 3/5 of the products, wasted positions
 * included. */
static bool tiles_pay(int64_t out_h, int64_t out_w, int64_t kernel, int64_t side)
{
    const int64_t size = side + 1 - kernel;
    const int64_t tiles = ((out_h + size - 1) / size) * ((out_w + size - 1) / size);

    return tiles * side * side * 5 <= out_h * out_w * kernel * kernel * 3;
}

/* Whether lines of 6 points need at most two thirds of the products. Fewer positions do not pay for
 * transforming the weights. */
#define LINE_POSITIONS 1024

static bool lines_pay(const int64_t *y)
{
    const int64_t tiles = (y[3] + 1) / 2;

    return tiles * 6 * 3 <= y[3] * 5 * 2 && y[0] * y[2] * y[3] >= LINE_POSITIONS;
}

/*
 * Tiles of 4x4 results for 3x3 kernels double a plain sum's rounding error. Backward that is all it
 * does; forward it would take twice as many activations across the zero of a ReLU, each of which
 * changes gradients by far more than rounding does. So forward has tiles of 2x2, whose error is
 * that of a plain sum (docs/environment.md). Lines are for backward only: forward they took the
 * largest error of Tacotron2's gradients from 1.4 to 1.7 of the bound that parity_tacotron2 allows,
 * with PyTorch 2.15.
 */
int64_t conv2d_winograd_side(conv2d_direction direction, int64_t kernel)
{
    return direction == CONV2D_FORWARD && kernel == 3 ? 4 : 6;
}

static bool winograd_fits(isa_level isa, conv2d_direction direction, const op_attrs *a,
                          const int64_t *x, const int64_t *w, const int64_t *y)
{
    const bool is_square = w[2] == w[3] && (w[2] == 5 || w[2] == 3);
    const int64_t side = conv2d_winograd_side(direction, w[2]);
    const bool is_line = w[2] == 1 && w[3] == 5 && direction != CONV2D_FORWARD;
    const bool is_dense = a->stride[0] == 1 && a->stride[1] == 1 && a->dilation[0] == 1 &&
                          a->dilation[1] == 1 && a->groups == 1;

    return is_dense && a->padding[0] < w[2] && a->padding[1] < w[3] &&
           channels_fit(x, y, conv2d_block(isa)) &&
           ((is_square && tiles_pay(y[2], y[3], w[2], side)) || (is_line && lines_pay(y)));
}

/* --- products of matrices --- */

/* Of positions; a tile of AMX has 16. */
#define LINE_SHORT 8

bool conv2d_is_pointwise(const op_attrs *a)
{
    return a->kernel[0] == 1 && a->kernel[1] == 1 && a->padding[0] == 0 && a->padding[1] == 0;
}

/* oneDNN's gradients of 1x1 kernels on AMX are slower than its product of the same matrices; so are
 * those of weights with few positions in a line, or with a stride, although the columns must be
 * copied (bench/kernels --precision bf16). */
static bool product_fits(conv2d_direction direction, const op_attrs *a, const int64_t *x,
                         const int64_t *w, const int64_t *y)
{
    const bool has_stride = a->stride[0] != 1 || a->stride[1] != 1;

    if (a->groups != 1 || !channels_fit(x, y, 8) || direction == CONV2D_FORWARD)
        return false;
    if (conv2d_is_pointwise(a))
        return true;
    return direction == CONV2D_BACKWARD_WEIGHTS && (has_stride || y[3] <= LINE_SHORT) &&
           y[0] * y[2] * y[3] * w[2] * w[3] * x[1] <= CONV2D_PRODUCT_COLUMNS;
}

/* --- products of pairs --- */

/* oneDNN's gradients of 1x1 kernels by AVX512_BF16 reach two thirds of its product's rate, some a
 * quarter. */
static bool pairs_fits(isa_level isa, conv2d_direction direction, const op_attrs *a,
                       const int64_t *x, const int64_t *y)
{
    return isa == ISA_AVX512_BF16 && direction != CONV2D_FORWARD && a->groups == 1 &&
           conv2d_is_pointwise(a) && channels_fit(x, y, 16);
}

conv2d_kernel conv2d_choose(isa_level isa, conv2d_set allowed, ls_dtype type,
                            conv2d_direction direction, const op_attrs *a, const int64_t *x,
                            const int64_t *w, const int64_t *y)
{
    const bool channels_last = conv2d_channels_last(isa, allowed, type);

    if (type == LS_BF16 && (allowed >> CONV2D_PRODUCT & 1) != 0 && channels_last &&
        product_fits(direction, a, x, w, y))
        return CONV2D_PRODUCT;
    if (type == LS_BF16 && (allowed >> CONV2D_PAIRS & 1) != 0 && !channels_last &&
        pairs_fits(isa, direction, a, x, y))
        return CONV2D_PAIRS;
    if (type != LS_F32)
        return CONV2D_ONEDNN;
    if ((allowed >> CONV2D_FEW & 1) != 0 && few_fits(isa, direction, a, x, y))
        return CONV2D_FEW;
    if ((allowed >> CONV2D_ROWS & 1) != 0 && rows_fits(a, x, w, y))
        return CONV2D_ROWS;
    if ((allowed >> CONV2D_WINOGRAD & 1) != 0 && winograd_fits(isa, direction, a, x, w, y))
        return CONV2D_WINOGRAD;
    return CONV2D_ONEDNN;
}

/* --- layouts --- */

int conv2d_block(isa_level isa)
{
    return isa < ISA_AVX512 ? 8 : 16;
}

/* oneDNN's convolutions on AMX are for channels last: in blocks it takes those of AVX512_BF16. */
bool conv2d_channels_last(isa_level isa, conv2d_set allowed, ls_dtype type)
{
    if ((allowed & (CONV2D_BLOCKED | CONV2D_CHANNELS_LAST)) != 0)
        return (allowed & CONV2D_CHANNELS_LAST) != 0;
    return type == LS_BF16 && isa >= ISA_AMX;
}
