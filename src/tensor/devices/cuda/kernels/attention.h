/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - which keys of a query take part, for attention.cu and attention_tiles.cu. */
#ifndef LS_TENSOR_DEVICES_CUDA_KERNELS_ATTENTION_H
#define LS_TENSOR_DEVICES_CUDA_KERNELS_ATTENTION_H

#include "tensor/devices/cuda/kernels/kernel.h"

#define LOG2_E 1.4426950408889634

/* Whether key s takes part for query t, as far as the order and bytes of the mask decide. `at`: the
 * position of the mask. */
KERNEL_FN bool takes_part(const attention_args *a, size_t t, size_t s, size_t at)
{
    if (t >= a->queries || s >= a->keys || (a->causal && s > t))
        return false;
    return !a->mask_bytes || ((const uint8_t *)a->mask)[at] == 0;
}

/* The position of the mask of query 0 and key 0. */
KERNEL_FN size_t mask_first(const attention_args *a, size_t i)
{
    size_t at = 0;

    for (int d = a->n_leading - 1; d >= 0; d--) {
        const size_t rest = divide(i, a->leading[d]);

        at += (i - rest * a->leading[d]) * a->mask_leading[d];
        i = rest;
    }
    return at;
}

#endif
