/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_face.h - the part of oneDNN's C API that we use, without what changed between 2.x and 3.x.
 *
 * Descriptions of operators differ most: 2.x fills a struct and makes a primitive descriptor of it, 3.x makes the
 * descriptor at once. Only dn_face.c sees that; a port to 3.x is a second body for its functions.
 */
#ifndef LS_TENSOR_ONEDNN_DN_FACE_H
#define LS_TENSOR_ONEDNN_DN_FACE_H

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FACE_MAX_DIMS 6

/* How elements lie in memory; all are float32. Plain data, copied by value. */
typedef dnnl_memory_desc_t face_desc;

/* A primitive descriptor: one implementation of one operator for one problem. Owned by who got it. */
typedef dnnl_primitive_desc_t face_pd;

/* Row-major, or "whatever the implementation likes best". */
bool face_desc_plain(face_desc *d, int n_dims, const int64_t *dims);
bool face_desc_any(face_desc *d, int n_dims, const int64_t *dims);
/* 4-D only: channels last, or in blocks of 4, 8 or 16. */
bool face_desc_nhwc(face_desc *d, const int64_t *dims);
bool face_desc_blocked(face_desc *d, const int64_t *dims, int block);

bool face_desc_equal(const face_desc *a, const face_desc *b);
size_t face_desc_bytes(const face_desc *d);
int face_desc_dims(const face_desc *d, int64_t *dims); /* gives the number of dimensions */

typedef enum face_prop { FACE_FORWARD, FACE_BACKWARD_DATA, FACE_BACKWARD_WEIGHTS } face_prop;

/* A convolution (spatial) or an inner product; with FACE_BACKWARD_*, src, weights, bias and dst are the gradients. */
typedef struct face_problem {
    bool spatial;
    face_prop prop;
    face_desc src;
    face_desc weights;
    face_desc bias; /* only with has_bias */
    face_desc dst;
    bool has_bias;
    int64_t stride[2];
    int64_t padding[2];
    int64_t dilation[2]; /* 1: none */
} face_problem;

/* The implementation that oneDNN likes best for the problem; NULL when it has none. Its scratchpad is the caller's. */
face_pd face_pd_create(dnnl_engine_t engine, const face_problem *problem);

/* Rearranges, or with `add` adds to what is there. */
face_pd face_pd_reorder(dnnl_engine_t engine, const face_desc *from, const face_desc *to, bool add);

void face_pd_destroy(face_pd pd); /* NULL is allowed */

typedef enum face_role { FACE_SRC, FACE_WEIGHTS, FACE_DST, FACE_SCRATCH } face_role;

/* What the implementation expects in a role, be it the value or its gradient. */
void face_pd_desc(face_pd pd, face_prop prop, face_role role, face_desc *out);

/* "jit:avx2", "gemm:jit", "ref:any", ... Lives as long as pd. */
const char *face_pd_name(face_pd pd);

/* "2.6.3", and what it may use of this processor: "avx2". */
void face_version(char *buf, size_t n);
const char *face_isa(void);

#endif
