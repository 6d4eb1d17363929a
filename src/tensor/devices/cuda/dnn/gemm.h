/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.h - products of matrices, row-major: d = op(a) op(b) + bias + beta d, or with the sums of
 * op(a) beside the product, which are bias gradients. gemm_lt.c runs them with cuBLASLt,
 * tests/devices/gemm_host.c with loops in host memory for tests. cuda_linear.c calls it.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_GEMM_H
#define LS_TENSOR_DEVICES_CUDA_DNN_GEMM_H

#include "tensor/devices/cuda/runtime/cuda_internal.h"

/* A batch of products. All bytes are defined: it is a key. */
typedef struct gemm {
    int32_t type;     /* of a, b and bias: an ls_dtype */
    int32_t out_type; /* of d */
    int32_t transposed[2];
    int32_t has_bias; /* of n elements, the same for each row of d */
    int32_t has_sums; /* m elements of out_type: each row of op(a), summed; without has_bias */
    int32_t adds;     /* beta is 1, else 0; the sums are never added to */
    int64_t m;        /* rows of d and op(a) */
    int64_t n;        /* columns of d and op(b) */
    int64_t k;        /* at least 1 */
    int64_t batch;    /* matrices, one behind the other */
} gemm;

LS_MUST_USE ls_status gemm_open(bool tf32, gemm_engine **out);
void gemm_close(gemm_engine *e); /* NULL is allowed */

/* Its memory; bias and sums are NULL where it has none. */
typedef struct gemm_data {
    const void *a;
    const void *b;
    const void *bias;
    void *sums;
    void *d;
} gemm_data;

/* *out: whether the library has an algorithm for a product whose sizes are at least 1, in memory of
 * this alignment. Without sums it has one for every product that the device's kernels ask for. */
LS_MUST_USE ls_status gemm_can_run(gemm_engine *e, const gemm *g, const gemm_data *data, bool *out);

/* Queues a product that gemm_can_run(). The workspace has GEMM_WORKSPACE_BYTES. */
#define GEMM_WORKSPACE_BYTES ((size_t)32 << 20)
LS_MUST_USE ls_status gemm_run(gemm_engine *e, const gemm *g, const gemm_data *data,
                               void *workspace, gpu_stream *stream);

#endif
