/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sgd_kernel.h - the update loops of SGD. One source is compiled for several instruction sets; since
 * no compiler may contract or reorder (see LockstepFlags.cmake), all give the same bits.
 */
#ifndef LS_OPTIM_SGD_KERNEL_H
#define LS_OPTIM_SGD_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

/* One parameter's update; the three arrays are of one type and do not overlap. */
typedef struct sgd_update {
    void *value;
    const void *grad;
    void *momentum; /* NULL when momentum_rate is 0 */
    size_t count;
    bool first; /* the momentum buffer becomes the gradient */
    bool nesterov;
    double lr;
    double momentum_rate;
    double dampening;
    double weight_decay;
} sgd_update;

typedef void (*sgd_update_fn)(const sgd_update *u);

typedef struct sgd_kernels {
    const char *name; /* instruction set */
    sgd_update_fn f32;
    sgd_update_fn f64;
} sgd_kernels;

/* The i-th set of kernels that this processor can run, best first; NULL past the last. */
const sgd_kernels *sgd_kernels_at(int i);

extern const sgd_kernels sgd_kernels_baseline;
extern const sgd_kernels sgd_kernels_avx2;    /* x86-64 only */
extern const sgd_kernels sgd_kernels_avx512f; /* x86-64 only */

#endif
