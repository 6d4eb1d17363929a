/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_cases.h - one list of operator calls, and a way to run one on any device: forward, then every
 * kernel of its backward. A device conforms when each result is near enough to cpu_ref's in
 * float64.
 */
#ifndef TESTS_TENSOR_OP_CASES_H
#define TESTS_TENSOR_OP_CASES_H

#include "tensor/device.h"

typedef struct op_case {
    const char *name;
    op_kind op; /* the forward operator */
    int n_dims;
    int64_t x[4]; /* shape of the first input */
    int64_t out;  /* conv2d, linear: output channels or features; adaptive pool: height and width;
                    slice: positions; embedding: indices; attention: columns of v; class sums:
                    values of k; normalize: rows of the values; layer norm: 1 without
                    weight, 2 without bias, 3 without both */
    int n_other;  /* binary (0: as x), expand (its input), concat, matmul, attention: dimensions of
                     the second input; operators on parameters: of the second parameter */
    int64_t other[4];
    int n_mask; /* attention: dimensions of the mask */
    int64_t mask[4];
    bool mask_bytes;  /* else numbers */
    bool no_bias;     /* select: a number instead of a second tensor */
    bool adds;        /* batch norm: another tensor to the result, before the ReLU */
    bool ceil_mode;   /* pools */
    bool unaligned;   /* elements begin one element behind the beginning of their memory */
    bool arranged;    /* images and sequences (3 dimensions) are as the device's pools leave them */
    bool ties;        /* inputs from {-1, -0.5, 0, 0.5, 1}, so that many are equal and some are 0 */
    double scale;     /* of the first input; 0 means 1 */
    double shift;     /* of activations' input, which is in (-scale, scale) + shift */
    ls_dtype exact;   /* LS_F16, LS_BF16: all inputs are exact in this type; else in float32 */
    int n_state;      /* adam: 2, or 3 with the largest square */
    op_update update; /* sgd, adam */
    op_attrs attrs;   /* 0 in stride, dilation, groups means 1; pool: stride 0 is the kernel */
} op_case;

extern const op_case op_cases[];
extern const int n_op_cases;

#define OP_MAX_RESULTS 16

/* One tensor that a case gave, as doubles, row-major. */
typedef struct op_result {
    const char *name; /* "y", "dx", "dweight", "dweight added", "running_mean", ... */
    double *values;
    size_t count;
    double k; /* terms in the sum of one value, at least 1: the tolerance is 4 sqrt(k) eps */
} op_result;

typedef struct op_results {
    int n;
    op_result r[OP_MAX_RESULTS];
} op_results;

/*
 * Runs case `c` on `device` in `type`: float32, float64, or float16 or bfloat16, in mixed precision
 * with parameters and statistics in float32. Inputs depend on the case alone, so that results of
 * different devices and types can be compared. Weight gradients are written over NaN, then added to
 * known values. op_results_free() frees what *out holds, also after a failure.
 */
LS_MUST_USE ls_status op_case_run(ls_device *device, const op_case *c, ls_dtype type,
                                  op_results *out);
void op_results_free(op_results *r);

/* Whether the case's operators exist in mixed precision. */
bool op_case_mixes(const op_case *c);

/* Whether the case is for loops that end late and indices that become large; each takes long. */
bool op_case_is_large(const op_case *c);

/* The largest of |got - want| / (4 sqrt(k) eps (|want| + scale of the result)) with the result's
 * root mean square as scale: at most 1 is near enough. NaN equals NaN. `eps` is that of the type
 * which `got` was computed in. */
double op_result_error(const op_result *got, const op_result *want, double eps);

/* The length of the difference relative to that of `want`, as vectors. Equal infinities and NaN in
 * both do not differ; other values that are not finite give NaN or infinity. */
double op_result_distance(const op_result *got, const op_result *want);

#endif
