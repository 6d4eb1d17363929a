/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_compat.h - the part of oneDNN's C API that we use, the same for 2.x and 3.x.
 *
 * The differences are in dn_compat_2.c and dn_compat_3.c, of which the build compiles one
 * (dn_compat_version.h is their contract): 2.x fills structs that describe memory and operators,
 * 3.x has handles for the former and makes primitive descriptors at once.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_DN_COMPAT_H
#define LS_TENSOR_DEVICES_ONEDNN_DN_COMPAT_H

#include <lockstep/base.h>

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMPAT_MAX_DIMS 6

/* Type and layout of elements in memory. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t compat_desc;
#else
typedef const dnnl_memory_desc_t *compat_desc;
#endif

/* Descriptors that are freed together; zeroed at first. A list owns the descriptors that functions
 * create in it; NULL from such a function: out of memory. */
typedef struct compat_list {
    struct compat_entry *first;
} compat_list;

void compat_list_free(compat_list *list);

bool compat_desc_equal(compat_desc a, compat_desc b);
compat_desc compat_desc_copy(compat_desc d); /* the caller's; NULL: no memory, or of NULL */
void compat_desc_destroy(compat_desc d);     /* of a copy; NULL is allowed */

/* A primitive descriptor: one implementation of one operator for one problem. Owned by
 * the caller. */
typedef dnnl_primitive_desc_t compat_pd;

/* Row-major. NULL: out of memory, or too many dimensions. Types other than LS_BF16 and LS_F16 are
 * described as float32. */
compat_desc compat_desc_plain(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims);
/* With strides in elements. */
compat_desc compat_desc_strided(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims,
                                const int64_t *strides);
compat_desc compat_desc_any(compat_list *list, ls_dtype type, int n_dims, const int64_t *dims);
/* 4-D only: channels last, or in blocks of 4, 8 or 16. */
compat_desc compat_desc_nhwc(compat_list *list, ls_dtype type, const int64_t *dims);
compat_desc compat_desc_blocked(compat_list *list, ls_dtype type, const int64_t *dims, int block);

size_t compat_desc_bytes(compat_desc d);
ls_dtype compat_desc_type(compat_desc d);
int compat_desc_dims(compat_desc d, int64_t *dims); /* gives the number of dimensions */

typedef enum compat_prop {
    COMPAT_FORWARD,
    COMPAT_BACKWARD_DATA,
    COMPAT_BACKWARD_WEIGHTS
} compat_prop;

/* A convolution (spatial) or an inner product; with COMPAT_BACKWARD_*, src, weights, bias and dst
 * are the gradients. src and dst have one type; weights too, or as gradients float32; bias is
 * float32. */
typedef struct compat_problem {
    bool spatial;
    compat_prop prop;
    compat_desc src;
    compat_desc weights;
    compat_desc bias; /* NULL: none */
    compat_desc dst;
    int64_t stride[2];
    int64_t padding[2];
    int64_t dilation[2]; /* 1: none */
} compat_problem;

/* oneDNN's preferred implementation for the problem; NULL: none. The caller provides
 * its scratchpad. */
compat_pd compat_pd_create(compat_list *list, dnnl_engine_t engine, const compat_problem *problem);

/* Reorders, or with `add` adds to the destination. */
compat_pd compat_pd_reorder(dnnl_engine_t engine, compat_desc from, compat_desc to, bool add);

/* dst = a b for each of a batch: (B,M,K), (B,K,N), (B,M,N). NULL: there is no implementation. */
compat_pd compat_pd_matmul(dnnl_engine_t engine, compat_desc a, compat_desc b, compat_desc dst);

void compat_pd_destroy(compat_pd pd); /* NULL is allowed */

typedef enum compat_role { COMPAT_SRC, COMPAT_WEIGHTS, COMPAT_DST } compat_role;

/* The layout of a role, value or gradient, in this implementation; owned by pd. */
compat_desc compat_pd_desc(compat_pd pd, compat_prop prop, compat_role role);

/* The scratchpad's; NULL: it needs none; owned by pd. */
compat_desc compat_pd_scratch(compat_pd pd);

/* "jit:avx2", "gemm:jit", "ref:any", ... Lives as long as pd. */
const char *compat_pd_name(compat_pd pd);

/* The version, "2.6.3", and the instruction set in use, "avx2". */
void compat_version(char *buf, size_t n);
const char *compat_isa(void);

/* Limits oneDNN to "baseline", "avx2" or "avx512", before its first primitive. False: the limit was
 * decided before, or the processor has less. */
bool compat_set_isa(const char *name);

/* Whether the instruction set in use multiplies bfloat16. */
bool compat_has_bf16(void);

#endif
