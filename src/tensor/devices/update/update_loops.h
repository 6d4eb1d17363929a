/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update_loops.h - the loops over the elements of parameters and gradients: SGD, Adam, clipping and
 * gradient scaling, for cpu_ref's kernels. The same source is compiled for several instruction
 * sets; compilers may not contract or reorder (LockstepFlags.cmake), so all give the same bits.
 *
 * tensor/devices/update/: loops over parameters for cpu_ref, once for each instruction set.
 */
#ifndef LS_TENSOR_DEVICES_UPDATE_UPDATE_LOOPS_H
#define LS_TENSOR_DEVICES_UPDATE_UPDATE_LOOPS_H

#include "tensor/device.h"

#define UPDATE_MAX_STATE 3

/* One parameter's arrays: of one type, not overlapping. */
typedef struct update_arrays {
    size_t count;
    void *value;
    const void *grad;
    /* SGD: the momentum buffer, if there is a momentum. Adam: mean, square, and the largest square
     * so far or NULL. */
    void *state[UPDATE_MAX_STATE];
} update_arrays;

/* The functions for one element type. */
typedef struct update_loops {
    void (*sgd)(const update_arrays *a, const op_update *u);
    void (*adam)(const update_arrays *a, const op_update *u);
    double (*sum_of_squares)(const void *values, size_t count); /* in one fixed order */
    void (*scale)(void *values, size_t count, double factor);
    void (*clamp)(void *values, size_t count, double limit); /* NaN stays NaN */
    bool (*scale_finite)(void *values, size_t count,
                         double factor); /* false: some are not finite */
} update_loops;

typedef struct update_isa {
    const char *name; /* instruction set */
    update_loops f32;
    update_loops f64;
} update_isa;

/* The i-th instruction set that this processor can run, best first; NULL past the last. */
const update_isa *update_isa_at(int i);

extern const update_isa update_isa_baseline;
extern const update_isa update_isa_avx2;    /* x86-64 only */
extern const update_isa update_isa_avx512f; /* x86-64 only */

#endif
