/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_face.h - the part of oneDNN's C API that we use, without what changed between 2.x and 3.x.
 *
 * What changed is in dn_face_2.c and dn_face_3.c, of which the build takes one (dn_face_version.h is their contract): 2.x fills
 * structs that describe memory and operators, 3.x has handles for the former and makes primitive descriptors at once.
 */
#ifndef LS_TENSOR_ONEDNN_DN_FACE_H
#define LS_TENSOR_ONEDNN_DN_FACE_H

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FACE_MAX_DIMS 6

/* How elements lie in memory; all are float32. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t face_desc;
#else
typedef const dnnl_memory_desc_t *face_desc;
#endif

/* Descriptions that are freed together; begins zeroed. Those that a function makes "in" a list
 * belong to it; NULL from such a function: no memory. */
typedef struct face_list {
    struct face_entry *first;
} face_list;

void face_list_free(face_list *list);

bool face_desc_equal(face_desc a, face_desc b);
face_desc face_desc_copy(face_desc d); /* the caller's; NULL: no memory, or of NULL */
void face_desc_destroy(face_desc d);   /* of a copy; NULL is allowed */

/* A primitive descriptor: one implementation of one operator for one problem. Owned by who got it. */
typedef dnnl_primitive_desc_t face_pd;

/* Row-major, or "whatever the implementation likes best". NULL: no memory, or not that many dimensions. */
face_desc face_desc_plain(face_list *list, int n_dims, const int64_t *dims);
/* With the distance, in elements, of two positions of each dimension. */
face_desc face_desc_strided(face_list *list, int n_dims, const int64_t *dims,
                            const int64_t *strides);
face_desc face_desc_any(face_list *list, int n_dims, const int64_t *dims);
/* 4-D only: channels last, or in blocks of 4, 8 or 16. */
face_desc face_desc_nhwc(face_list *list, const int64_t *dims);
face_desc face_desc_blocked(face_list *list, const int64_t *dims, int block);

size_t face_desc_bytes(face_desc d);
int face_desc_dims(face_desc d, int64_t *dims); /* gives the number of dimensions */

typedef enum face_prop { FACE_FORWARD, FACE_BACKWARD_DATA, FACE_BACKWARD_WEIGHTS } face_prop;

/* A convolution (spatial) or an inner product; with FACE_BACKWARD_*, src, weights, bias and dst are the gradients. */
typedef struct face_problem {
    bool spatial;
    face_prop prop;
    face_desc src;
    face_desc weights;
    face_desc bias; /* NULL: none */
    face_desc dst;
    int64_t stride[2];
    int64_t padding[2];
    int64_t dilation[2]; /* 1: none */
} face_problem;

/* The implementation that oneDNN likes best for the problem; NULL when it has none. Its scratchpad is the caller's. */
face_pd face_pd_create(face_list *list, dnnl_engine_t engine, const face_problem *problem);

/* Rearranges, or with `add` adds to what is there. */
face_pd face_pd_reorder(dnnl_engine_t engine, face_desc from, face_desc to, bool add);

/* dst = a b for each of a batch: (B,M,K), (B,K,N), (B,M,N). NULL: there is no implementation. */
face_pd face_pd_matmul(dnnl_engine_t engine, face_desc a, face_desc b, face_desc dst);

void face_pd_destroy(face_pd pd); /* NULL is allowed */

typedef enum face_role { FACE_SRC, FACE_WEIGHTS, FACE_DST } face_role;

/* What the implementation expects in a role, be it the value or its gradient; pd's. */
face_desc face_pd_desc(face_pd pd, face_prop prop, face_role role);

/* Its scratchpad's; NULL when it needs none; pd's. */
face_desc face_pd_scratch(face_pd pd);

/* "jit:avx2", "gemm:jit", "ref:any", ... Lives as long as pd. */
const char *face_pd_name(face_pd pd);

/* "2.6.3", and what it may use of this processor: "avx2". */
void face_version(char *buf, size_t n);
const char *face_isa(void);

#endif
