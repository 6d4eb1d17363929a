/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_types.c - the declarations of nccl_api.h agree with NCCL's header: values, layouts, and
 * the types of functions. Built where nccl.h is installed; the checks are those of the compiler,
 * and one of the layout that a newer NCCL reads.
 */
#include "base/unit.h"
#include "comm/backends/nccl/nccl_api.h"

#include <nccl.h>
#include <string.h>

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)

SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
SAME(NCCL_TIMEOUT, ncclTimeout);
#endif
SAME(NCCL_INT8, ncclInt8);
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_INT32, ncclInt32);
SAME(NCCL_INT64, ncclInt64);
SAME(NCCL_FLOAT16, ncclFloat16);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_FLOAT64, ncclFloat64);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
SAME(NCCL_BFLOAT16, ncclBfloat16); // in earlier headers only with CUDA's C++ types
#endif
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_PROD, ncclProd);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_AVG, ncclAvg);
SAME(NCCL_SCALAR_ON_HOST, ncclScalarHostImmediate);
SAME(sizeof(nccl_id), sizeof(ncclUniqueId));
SAME(sizeof(int), sizeof(ncclResult_t));
SAME(sizeof(int), sizeof(ncclDataType_t));
SAME(sizeof(int), sizeof(ncclRedOp_t));
SAME(sizeof(int), sizeof(ncclScalarResidence_t));
SAME(offsetof(nccl_config, size), offsetof(ncclConfig_t, size));
SAME(offsetof(nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(nccl_config, blocking), offsetof(ncclConfig_t, blocking));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
SAME(NCCL_UNDEF, NCCL_CONFIG_UNDEF_INT);
SAME(offsetof(nccl_config, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
SAME(offsetof(nccl_config, min_ctas), offsetof(ncclConfig_t, minCTAs));
SAME(offsetof(nccl_config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
#endif
SAME(NCCL_CTAS, NCCL_VERSION(2, 17, 0));
SAME(NCCL_OLDEST, NCCL_VERSION(2, 14, 0));

/* The parameters of NCCL's functions, with its names for what nccl_api.h calls int and void *. */
#define IS(function, type) _Static_assert(_Generic(&(function), type : 1, default : 0), #function)

typedef ncclResult_t R;
typedef ncclComm_t C;
typedef cudaStream_t S;
typedef ncclDataType_t T;
typedef ncclRedOp_t O;

IS(ncclGetVersion, R (*)(int *));
IS(ncclGetUniqueId, R (*)(ncclUniqueId *));
IS(ncclCommInitRankConfig, R (*)(C *, int, ncclUniqueId, int, ncclConfig_t *));
IS(ncclCommFinalize, R (*)(C));
IS(ncclCommDestroy, R (*)(C));
IS(ncclCommAbort, R (*)(C));
IS(ncclCommGetAsyncError, R (*)(C, R *));
IS(ncclGetErrorString, const char *(*)(R));
IS(ncclGetLastError, const char *(*)(C));
IS(ncclAllReduce, R (*)(const void *, void *, size_t, T, O, C, S));
IS(ncclReduce, R (*)(const void *, void *, size_t, T, O, int, C, S));
IS(ncclBroadcast, R (*)(const void *, void *, size_t, T, int, C, S));
IS(ncclAllGather, R (*)(const void *, void *, size_t, T, C, S));
IS(ncclReduceScatter, R (*)(const void *, void *, size_t, T, O, C, S));
IS(ncclSend, R (*)(const void *, size_t, T, int, C, S));
IS(ncclRecv, R (*)(void *, size_t, T, int, C, S));
IS(ncclGroupStart, R (*)(void));
IS(ncclGroupEnd, R (*)(void));
IS(ncclRedOpCreatePreMulSum, R (*)(O *, void *, T, ncclScalarResidence_t, C));
IS(ncclRedOpDestroy, R (*)(O, C));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
IS(ncclCommRegister, R (*)(C, void *, size_t, void **));
IS(ncclCommDeregister, R (*)(C, void *));
IS(ncclMemAlloc, R (*)(void **, size_t));
IS(ncclMemFree, R (*)(void *));
#endif

/* What the module passes: the first members of NCCL's default, with another size and version. */
static void a_configuration_is_read_as_it_was_written(void **state)
{
    const nccl_config ours = {.size = sizeof(ours),
                              .magic = NCCL_MAGIC,
                              .version = NCCL_CTAS,
                              .blocking = 0,
                              .cga_cluster_size = NCCL_UNDEF,
                              .min_ctas = NCCL_UNDEF,
                              .max_ctas = 16};
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    const ncclConfig_t defaults = NCCL_CONFIG_INITIALIZER;

    LS_UNUSED(state);
    // as NCCL copies it: no more than its own members
    memcpy(&theirs, &ours, sizeof(ours) < sizeof(theirs) ? sizeof(ours) : sizeof(theirs));
    assert_int_equal(theirs.magic, defaults.magic);
    assert_int_equal(theirs.blocking, 0);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
    assert_int_equal(theirs.cgaClusterSize, defaults.cgaClusterSize);
    assert_int_equal(theirs.minCTAs, defaults.minCTAs);
    assert_int_equal(theirs.maxCTAs, 16);
    assert_ptr_equal(theirs.netName, defaults.netName);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_configuration_is_read_as_it_was_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
