/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim_kernel.h - the loops over elements: updates of SGD and Adam, and clipping. The same source
 * is compiled for several instruction sets; compilers may not contract or reorder
 * (LockstepFlags.cmake), so all give the same bits.
 */
#ifndef LS_OPTIM_OPTIM_KERNEL_H
#define LS_OPTIM_OPTIM_KERNEL_H

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

/* As above; the arrays are of one type and do not overlap. */
typedef struct adam_update {
    void *value;
    const void *grad;
    void *mean;        /* exp_avg */
    void *square;      /* exp_avg_sq */
    void *most_square; /* max_exp_avg_sq; NULL without amsgrad */
    size_t count;
    double beta1;
    double beta2;
    double eps;
    double step_size;    /* lr / (1 - beta1^t) */
    double root_scale;   /* sqrt(1 - beta2^t) */
    double added_decay;  /* Adam: times the value, added to the gradient */
    double decay_factor; /* AdamW: the value is first multiplied with it; 1 for Adam */
} adam_update;

/* A gradient's elements. */
typedef struct grad_range {
    void *values;
    size_t count;
} grad_range;

/* The functions for one element type. */
typedef struct optim_loops {
    void (*sgd)(const sgd_update *u);
    void (*adam)(const adam_update *u);
    double (*sum_of_squares)(const grad_range *g); /* in float64, in one fixed order */
    void (*scale)(const grad_range *g, double factor);
    void (*clamp)(const grad_range *g, double limit); /* clamps to [-limit, limit]; NaN stays NaN */
} optim_loops;

typedef struct optim_kernels {
    const char *name; /* instruction set */
    optim_loops f32;
    optim_loops f64;
} optim_kernels;

/* The i-th set of kernels that this processor can run, best first; NULL past the last. */
const optim_kernels *optim_kernels_at(int i);

extern const optim_kernels optim_kernels_baseline;
extern const optim_kernels optim_kernels_avx2;    /* x86-64 only */
extern const optim_kernels optim_kernels_avx512f; /* x86-64 only */

#endif
