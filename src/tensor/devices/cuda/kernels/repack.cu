/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repack.cu - copies weights, images and gradients between row-major form and the form with the
 * channels last: several tensors in one launch, one element a thread. packed.c launches them.
 */
#include "tensor/devices/cuda/kernels/repack.h"

#include "tensor/devices/cuda/kernels/kernel.h"

/* Block `block` of the parts: its part, and elements of that. */
KERNEL_FN const repack_part *find_part(const repack_args *a, unsigned block)
{
    unsigned i = a->n_parts - 1;

    while (a->parts[i].first_block > block)
        i--;
    return &a->parts[i];
}

KERNEL_FN size_t end_of(size_t first, size_t count)
{
    return count - first < REPACK_BLOCK ? count : first + REPACK_BLOCK;
}

#define KERNEL_FILE "tensor/devices/cuda/kernels/repack.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
