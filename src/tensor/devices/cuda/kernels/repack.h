/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repack.h - the kernels that bring weights and images into the form that cuDNN and cuBLASLt read,
 * and gradients back. packed.c launches them.
 *
 * Plain: (n, c, s), row-major. Packed: (n, s, channels), with zeros behind c, or without the plain
 * channels behind `channels`. A weight (K, C, R, S) has n = K, s = R S; an image (N, C, H, W)
 * n = N, s = H W; with c = 1 or s = 1 only the type changes.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_KERNELS_REPACK_H
#define LS_TENSOR_DEVICES_CUDA_KERNELS_REPACK_H

#include "tensor/devices/cuda/kernels/kernel_args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Consecutive elements of one part. */
#define REPACK_BLOCK 2048

#define REPACK_AT_ONCE 8 /* elements that a thread reads before it uses the first */

typedef struct repack_part {
    const void *src;
    void *dst;
    size_t n;
    size_t s;
    uint32_t c;
    uint32_t channels;
    uint32_t first_block; /* of the part's, among those of all parts */
} repack_part;

#define REPACK_PARTS_MOST 64

typedef struct repack_args {
    unsigned n_parts;
    unsigned n_blocks; /* of REPACK_BLOCK elements or the rest of a part, in all parts */
    bool of_f32;       /* the plain side is float32, else it has the kernel's type */
    repack_part parts[REPACK_PARTS_MOST];
} repack_args;

typedef struct unpack_args {
    repack_part part; /* without first_block */
    bool of_f32;      /* as above */
    bool adds;        /* to dst */
} unpack_args;

typedef struct unpack_sum_args {
    unpack_args unpack;
    column_args sum;
} unpack_sum_args;

KERNEL_OF_TYPES(repack)     /* plain -> packed of the kernel's type */
KERNEL_OF_TYPES(unpack)     /* packed of the kernel's type -> plain; the zeros are left out */
KERNEL_OF_TYPES(unpack_sum) /* the same, and column_sum of another array; of columns.cu */

#ifdef __cplusplus
}
#endif

#endif
