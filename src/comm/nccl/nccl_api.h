/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_api.h - the functions of NCCL that the backend calls, found by name in libnccl.so.2 or
 * librccl.so.1, and declarations of their types, so that the module is built without nccl.h.
 * tests/comm/test_nccl_types.c compares them with nccl.h where that is installed.
 */
#ifndef LS_COMM_NCCL_API_H
#define LS_COMM_NCCL_API_H

#include "comm/backend.h"

#include <limits.h>

#define NCCL_OLDEST         21400 /* 2.14: communicators that do not block */
#define NCCL_MAGIC          0xcafebeef
#define NCCL_UNDEF          INT_MIN
#define NCCL_SCALAR_ON_HOST 1 /* ncclScalarHostImmediate */

typedef struct nccl_comm nccl_comm; /* struct ncclComm; opaque */

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

/* ncclResult_t; later versions add values. */
typedef enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7
} nccl_result;

/* ncclDataType_t */
typedef enum nccl_type {
    NCCL_INT8 = 0,
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_INT64 = 4,
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_BFLOAT16 = 9
} nccl_type;

/* ncclRedOp_t; NCCL numbers operators that it creates after these. */
typedef enum nccl_op {
    NCCL_SUM = 0,
    NCCL_PROD = 1,
    NCCL_MAX = 2,
    NCCL_MIN = 3,
    NCCL_AVG = 4
} nccl_op;

/* ncclConfig_t as of 2.14, and one member of later versions where 2.14 has padding. */
typedef struct nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
} nccl_config;

typedef struct nccl_api {
    int (*get_version)(int *version);
    int (*get_unique_id)(nccl_id *id);
    int (*init_rank)(nccl_comm **comm, int n, nccl_id id, int rank, nccl_config *config);
    int (*finalize)(nccl_comm *comm);
    int (*destroy)(nccl_comm *comm);
    int (*abort)(nccl_comm *comm);
    int (*get_async_error)(nccl_comm *comm, int *error);
    const char *(*error_string)(int result);
    const char *(*last_error)(nccl_comm *comm);
    int (*all_reduce)(const void *src, void *dst, size_t count, int type, int op, nccl_comm *comm,
                      void *stream);
    int (*reduce)(const void *src, void *dst, size_t count, int type, int op, int root,
                  nccl_comm *comm, void *stream);
    int (*broadcast)(const void *src, void *dst, size_t count, int type, int root, nccl_comm *comm,
                     void *stream);
    int (*all_gather)(const void *src, void *dst, size_t count, int type, nccl_comm *comm,
                      void *stream);
    int (*reduce_scatter)(const void *src, void *dst, size_t count, int type, int op,
                          nccl_comm *comm, void *stream);
    int (*send)(const void *src, size_t count, int type, int peer, nccl_comm *comm, void *stream);
    int (*recv)(void *dst, size_t count, int type, int peer, nccl_comm *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*create_scaled_sum)(int *op, void *scalar, int type, int residence, nccl_comm *comm);
    int (*destroy_op)(int op, nccl_comm *comm);
    /* of NCCL 2.19; NULL: the library has none */
    int (*register_memory)(nccl_comm *comm, void *start, size_t bytes, void **handle);
    int (*deregister_memory)(nccl_comm *comm, void *handle);
    const char *file; /* the name of the loaded library */
    int version;
} nccl_api;

/* Loads the library, once a process: LOCKSTEP_NCCL_LIBRARY, libnccl.so.2, librccl.so.1, the first
 * that is set or found. LS_EUNSUPPORTED says what is missing: a library, a function, a GPU. */
LS_MUST_USE ls_status nccl_load(const comm_host *host, const nccl_api **out);

/* "NCCL 2.28.9 could not ...: unhandled system error: no socket interface found: unset ...". `comm`
 * may be NULL. */
void nccl_explain(const nccl_api *api, nccl_comm *comm, int result, const char *what, char *buf,
                  size_t n);

#endif
