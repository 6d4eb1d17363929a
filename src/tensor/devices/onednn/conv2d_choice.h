/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv2d_choice.h - which kernel runs a convolution. Pure: the instruction set is an argument, so
 * tests cover every processor.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_CONV2D_CHOICE_H
#define LS_TENSOR_DEVICES_ONEDNN_CONV2D_CHOICE_H

#include "tensor/device.h"
#include "tensor/devices/onednn/simd/simd.h"

/* Of an instruction set's name in a fingerprint: "sse41", "avx2_vnni", "avx512_core", ... */
isa_level isa_level_of(const char *name);

typedef enum conv2d_kernel {
    CONV2D_ONEDNN,
    CONV2D_FEW,      /* few input channels */
    CONV2D_ROWS,     /* few positions in the output */
    CONV2D_WINOGRAD, /* 3x3, 5x5 and 1x5 kernels with stride 1 */
    CONV2D_PRODUCT,  /* gradients in bfloat16, of images with channels last */
    CONV2D_PAIRS,    /* gradients of 1x1 kernels in bfloat16, of images in blocks */
    CONV2D_KERNELS
} conv2d_kernel;

const char *conv2d_kernel_name(conv2d_kernel kernel);

typedef enum conv2d_direction {
    CONV2D_FORWARD,
    CONV2D_BACKWARD_DATA,
    CONV2D_BACKWARD_WEIGHTS
} conv2d_direction;

/* Bit k: CONV2D_k may be chosen. */
typedef unsigned conv2d_set;

/* Behind the kernels: the layout that is taken, whatever conv2d_channels_last() would choose. */
#define CONV2D_BLOCKED       (1U << CONV2D_KERNELS)
#define CONV2D_CHANNELS_LAST (2U << CONV2D_KERNELS)

/*
 * Reads LOCKSTEP_CONVOLUTIONS, names of kernels and layouts separated by commas. False: a name is
 * unknown; it begins at *bad. "onednn" is always in the set.
 */
bool conv2d_set_parse(const char *text, conv2d_set *out, const char **bad);

/* The bounds of CONV2D_FEW: input channels, and weights of one output channel. */
#define CONV2D_FEW_CHANNELS 4
#define CONV2D_FEW_TAPS     256
/* The bound of CONV2D_ROWS: taps of the kernel. */
#define CONV2D_ROWS_TAPS 25

/* Of CONV2D_WINOGRAD: points of a tile in each direction, for a kernel of that size. */
int64_t conv2d_winograd_side(conv2d_direction direction, int64_t kernel);

/* The bound of CONV2D_PRODUCT: elements of the matrix of columns, where it is not x itself. */
#define CONV2D_PRODUCT_COLUMNS ((int64_t)16 << 20)

/* Whether each output position reads one position of x: a 1x1 kernel without padding. */
bool conv2d_is_pointwise(const op_attrs *a);

/* The kernel for this problem of that type. x, w, y: dimensions of the forward's tensors. */
conv2d_kernel conv2d_choose(isa_level isa, conv2d_set allowed, ls_dtype type,
                            conv2d_direction direction, const op_attrs *a, const int64_t *x,
                            const int64_t *w, const int64_t *y);

/* Whether oneDNN's convolutions of this type get their images with the channels of a pixel side by
 * side (NHWC), instead of in blocks of 8 or 16 channels; so do all operators up to the pooling. */
bool conv2d_channels_last(isa_level isa, conv2d_set allowed, ls_dtype type);

/* Else: channels of a block, 8 or 16, as oneDNN's convolutions prefer. */
int conv2d_block(isa_level isa);

#endif
