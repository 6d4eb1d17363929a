/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_api.h - the functions of NCCL that the backend calls, found by name in libnccl.so.2 or
 * librccl.so.1, and declarations of their types, so that the module is built without nccl.h.
 * tests/comm/test_nccl_types.c compares them with nccl.h where that is installed.
 */
#ifndef LS_COMM_BACKENDS_NCCL_NCCL_API_H
#define LS_COMM_BACKENDS_NCCL_NCCL_API_H

#include "comm/backends/backend.h"

#include <limits.h>

#define NCCL_OLDEST         21400 /* 2.14: communicators that do not block */
#define NCCL_CTAS           21700 /* 2.17: a configuration with numbers of CTAs */
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
    NCCL_IN_PROGRESS = 7,
    NCCL_TIMEOUT = 8
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

/* The first members of ncclConfig_t; `version` says which of them are set: 2.14 ends with blocking,
 * and ignores the others. */
typedef struct nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
} nccl_config;

/* NCCL's functions: member of nccl_api, NCCL's name, result, arguments. */
/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(get_version, "ncclGetVersion", int, (int *version))                                          \
    X(get_unique_id, "ncclGetUniqueId", int, (nccl_id *id))                                        \
    X(init_rank, "ncclCommInitRankConfig", int,                                                    \
      (nccl_comm **comm, int n, nccl_id id, int rank, nccl_config *config))                        \
    X(finalize, "ncclCommFinalize", int, (nccl_comm *comm))                                        \
    X(destroy, "ncclCommDestroy", int, (nccl_comm *comm))                                          \
    X(abort, "ncclCommAbort", int, (nccl_comm *comm))                                              \
    X(get_async_error, "ncclCommGetAsyncError", int, (nccl_comm *comm, int *error))                \
    X(error_string, "ncclGetErrorString", const char *, (int result))                              \
    X(last_error, "ncclGetLastError", const char *, (nccl_comm *comm))                             \
    X(all_reduce, "ncclAllReduce", int,                                                            \
      (const void *src, void *dst, size_t count, int type, int op, nccl_comm *comm, void *stream)) \
    X(reduce, "ncclReduce", int,                                                                   \
      (const void *src, void *dst, size_t count, int type, int op, int root, nccl_comm *comm,      \
       void *stream))                                                                              \
    X(broadcast, "ncclBroadcast", int,                                                             \
      (const void *src, void *dst, size_t count, int type, int root, nccl_comm *comm,              \
       void *stream))                                                                              \
    X(all_gather, "ncclAllGather", int,                                                            \
      (const void *src, void *dst, size_t count, int type, nccl_comm *comm, void *stream))         \
    X(reduce_scatter, "ncclReduceScatter", int,                                                    \
      (const void *src, void *dst, size_t count, int type, int op, nccl_comm *comm, void *stream)) \
    X(send, "ncclSend", int,                                                                       \
      (const void *src, size_t count, int type, int peer, nccl_comm *comm, void *stream))          \
    X(recv, "ncclRecv", int,                                                                       \
      (void *dst, size_t count, int type, int peer, nccl_comm *comm, void *stream))                \
    X(group_start, "ncclGroupStart", int, (void))                                                  \
    X(group_end, "ncclGroupEnd", int, (void))                                                      \
    X(create_scaled_sum, "ncclRedOpCreatePreMulSum", int,                                          \
      (int *op, void *scalar, int type, int residence, nccl_comm *comm))                           \
    X(destroy_op, "ncclRedOpDestroy", int, (int op, nccl_comm *comm))

/* Of NCCL 2.19; NULL: the library has none. ncclMemAlloc() allocates on the calling thread's
 * card. */
#define NCCL_LATER_FUNCTIONS(X)                                                                    \
    X(register_memory, "ncclCommRegister", int,                                                    \
      (nccl_comm *comm, void *start, size_t bytes, void **handle))                                 \
    X(deregister_memory, "ncclCommDeregister", int, (nccl_comm *comm, void *handle))               \
    X(alloc_memory, "ncclMemAlloc", int, (void **out, size_t bytes))                               \
    X(free_memory, "ncclMemFree", int, (void *start))

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name and parameters cannot be in parentheses
#define NCCL_MEMBER(member_, name_, result_, arguments_) result_ (*member_) arguments_;
/* clang-format on */

typedef struct nccl_api {
    NCCL_FUNCTIONS(NCCL_MEMBER)
    NCCL_LATER_FUNCTIONS(NCCL_MEMBER)
    const char *file; /* the name of the loaded library */
    int version;
} nccl_api;

/* Loads the library, once a process: LOCKSTEP_NCCL_LIBRARY, libnccl.so.2, librccl.so.1, the first
 * that is set or found. LS_EUNSUPPORTED says what is missing: a library, a function, a GPU. */
LS_MUST_USE ls_status nccl_load(const comm_host *host, const nccl_api **out);

/* The library that is loaded. */
const nccl_api *nccl_loaded(void);

/* "NCCL 2.28.9 could not ...: unhandled system error: no socket interface found: unset ...". `comm`
 * may be NULL. */
void nccl_explain(const nccl_api *api, nccl_comm *comm, int result, const char *what, char *buf,
                  size_t n);

#endif
