/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_lt.c - products of matrices with cuBLASLt: the only file that includes it. Descriptors and
 * the algorithm are made once for each shape; cuda_linear.c calls it.
 *
 * cuBLASLt stores matrices by columns. A row-major matrix read by columns is its transpose, so
 * that d = op(a) op(b) is computed as d' = op(b)' op(a)', with b as the first operand.
 */
#include "tensor/devices/cuda/dnn/gemm.h"

#include <cublasLt.h>

#include <string.h>

/* Shapes that are remembered at most; past it all are forgotten. */
#define PRODUCTS_MOST 512

/* Alignment of pointers that the library distinguishes here. */
#define ALIGNMENT 16

typedef struct product {
    struct product *next;
    gemm shape;
    int alignment; /* of all pointers: at most ALIGNMENT */
    bool can_run;  /* there is an algorithm */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first;
    cublasLtMatrixLayout_t second;
    cublasLtMatrixLayout_t result;
    cublasLtMatmulAlgo_t algorithm;
} product;

struct gemm_engine {
    cublasLtHandle_t handle;
    bool tf32;
    product *products; /* the most recently used first */
    int n_products;
};

static ls_status check(cublasStatus_t status, const char *did)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return LS_OK;
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        return cu_fail(LS_ENOMEM, "cuBLASLt could not %s: %s", did,
                       cublasLtGetStatusString(status));
    return cu_fail(status == CUBLAS_STATUS_NOT_SUPPORTED ? LS_EUNSUPPORTED : LS_EINTERNAL,
                   "cuBLASLt could not %s: %s", did, cublasLtGetStatusString(status));
}

ls_status gemm_open(bool tf32, gemm_engine **out)
{
    gemm_engine *e = cu_host->alloc(1, sizeof(*e));
    ls_status st;

    if (e == NULL)
        return cu_fail(LS_ENOMEM, "no memory for products of matrices");
    e->tf32 = tf32;
    st = check(cublasLtCreate(&e->handle), "start on this card");
    if (st != LS_OK) {
        e->handle = NULL;
        gemm_close(e);
        return st;
    }
    *out = e;
    return LS_OK;
}

static void destroy_product(product *p)
{
    if (p->operation != NULL)
        (void)cublasLtMatmulDescDestroy(p->operation);
    if (p->first != NULL)
        (void)cublasLtMatrixLayoutDestroy(p->first);
    if (p->second != NULL)
        (void)cublasLtMatrixLayoutDestroy(p->second);
    if (p->result != NULL)
        (void)cublasLtMatrixLayoutDestroy(p->result);
    cu_host->free(p);
}

static void forget_products(gemm_engine *e)
{
    while (e->products != NULL) {
        product *p = e->products;

        e->products = p->next;
        destroy_product(p);
    }
    e->n_products = 0;
}

void gemm_close(gemm_engine *e)
{
    if (e == NULL)
        return;
    forget_products(e);
    if (e->handle != NULL)
        (void)cublasLtDestroy(e->handle);
    cu_host->free(e);
}

/* --- descriptions --- */

static cudaDataType_t type_of(int32_t type)
{
    switch (type) {
    case LS_F64:
        return CUDA_R_64F;
    case LS_F16:
        return CUDA_R_16F;
    case LS_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_type(const gemm_engine *e, const gemm *g)
{
    if (g->type == LS_F64)
        return CUBLAS_COMPUTE_64F;
    return g->type == LS_F32 && e->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* A matrix of the library, by columns: `rows` x `columns`, stored without gaps. */
static ls_status describe_matrix(const gemm *g, int32_t type, int64_t rows, int64_t columns,
                                 cublasLtMatrixLayout_t *out)
{
    const int32_t batch = (int32_t)g->batch;
    const int64_t step = rows * columns;
    cublasStatus_t st;

    st = cublasLtMatrixLayoutCreate(out, type_of(type), (uint64_t)rows, (uint64_t)columns, rows);
    if (st != CUBLAS_STATUS_SUCCESS)
        *out = NULL;
    if (st == CUBLAS_STATUS_SUCCESS && batch > 1)
        st = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                              sizeof(batch));
    if (st == CUBLAS_STATUS_SUCCESS && batch > 1)
        st = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &step, sizeof(step));
    return check(st, "describe a matrix");
}

static ls_status describe_matrices(const gemm *g, product *p)
{
    const bool a = g->transposed[0] != 0;
    const bool b = g->transposed[1] != 0;

    LS_TRY(describe_matrix(g, g->type, b ? g->k : g->n, b ? g->n : g->k, &p->first));
    LS_TRY(describe_matrix(g, g->type, a ? g->m : g->k, a ? g->k : g->m, &p->second));
    return describe_matrix(g, g->out_type, g->n, g->m, &p->result);
}

static cublasStatus_t set_operation(product *p, cublasLtMatmulDescAttributes_t name,
                                    const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(p->operation, name, value, bytes);
}

static ls_status describe_operation(const gemm_engine *e, const gemm *g, product *p)
{
    const cublasOperation_t first = g->transposed[1] ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = g->transposed[0] ? CUBLAS_OP_T : CUBLAS_OP_N;
    // The second operand of the library is our a.
    const cublasLtEpilogue_t epilogue = g->has_bias   ? CUBLASLT_EPILOGUE_BIAS
                                        : g->has_sums ? CUBLASLT_EPILOGUE_BGRADB
                                                      : CUBLASLT_EPILOGUE_DEFAULT;
    cublasStatus_t st;

    st = cublasLtMatmulDescCreate(&p->operation, compute_type(e, g),
                                  g->type == LS_F64 ? CUDA_R_64F : CUDA_R_32F);
    if (st != CUBLAS_STATUS_SUCCESS)
        p->operation = NULL;
    if (st == CUBLAS_STATUS_SUCCESS)
        st = set_operation(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = set_operation(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    return check(st, "describe a product of matrices");
}

/* --- algorithms --- */

static cublasStatus_t set_preference(cublasLtMatmulPreference_t p,
                                     cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                     size_t bytes)
{
    return cublasLtMatmulPreferenceSetAttribute(p, name, value, bytes);
}

/* Partial sums are in the type of the computation, not in that of the result. */
static cublasStatus_t set_preferences(cublasLtMatmulPreference_t preference, uint32_t alignment)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = GEMM_WORKSPACE_BYTES;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t st;

    st = set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                        sizeof(workspace));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                            sizeof(reductions));
    for (size_t i = 0; i < LS_COUNT_OF(alignments) && st == CUBLAS_STATUS_SUCCESS; i++)
        st = set_preference(preference, alignments[i], &alignment, sizeof(alignment));
    return st;
}

/* p->can_run says whether there is one. */
static ls_status choose_algorithm(const gemm_engine *e, product *p)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    cublasStatus_t st = cublasLtMatmulPreferenceCreate(&preference);
    int n = 0;

    if (st != CUBLAS_STATUS_SUCCESS)
        return check(st, "choose an algorithm");
    st = set_preferences(preference, (uint32_t)p->alignment);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulAlgoGetHeuristic(e->handle, p->operation, p->first, p->second, p->result,
                                            p->result, preference, 1, &best, &n);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = n == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : best.state;
    p->can_run = st == CUBLAS_STATUS_SUCCESS;
    if (st == CUBLAS_STATUS_NOT_SUPPORTED ||
        (st == CUBLAS_STATUS_INVALID_VALUE && p->shape.has_sums))
        return LS_OK;
    p->algorithm = best.algo;
    return check(st, "find an algorithm for a product of matrices");
}

/* What the library calls the bias: also that whose gradient the sums are. */
static ls_status set_bias(const gemm *g, const gemm_data *data, product *p)
{
    const void *bias = g->has_sums ? data->sums : data->bias;

    if (!g->has_bias && !g->has_sums)
        return LS_OK;
    return check(set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
                 "set a bias");
}

static ls_status create_product(gemm_engine *e, const gemm *g, int alignment, const gemm_data *data,
                                product **out)
{
    product *p = cu_host->alloc(1, sizeof(*p));
    ls_status st;

    if (p == NULL)
        return cu_fail(LS_ENOMEM, "no memory for a product of matrices");
    p->shape = *g;
    p->alignment = alignment;
    st = describe_matrices(g, p);
    if (st == LS_OK)
        st = describe_operation(e, g, p);
    if (st == LS_OK)
        st = set_bias(g, data, p); // the heuristic takes its alignment from the address
    if (st == LS_OK)
        st = choose_algorithm(e, p);
    if (st != LS_OK) {
        destroy_product(p);
        return st;
    }
    if (e->n_products == PRODUCTS_MOST)
        forget_products(e);
    p->next = e->products;
    e->products = p;
    e->n_products++;
    *out = p;
    return LS_OK;
}

static int alignment_of(const void *const *pointers, int n)
{
    uintptr_t bits = ALIGNMENT;

    for (int i = 0; i < n; i++)
        bits |= (uintptr_t)pointers[i];
    return (int)(bits & ~(bits - 1)); // the lowest bit that is set
}

/* The product of that shape, which becomes the first. */
static ls_status find_product(gemm_engine *e, const gemm *g, const gemm_data *data, product **out)
{
    const void *const sums = g->has_sums ? data->sums : NULL;
    const int alignment =
        alignment_of((const void *const[]){data->a, data->b, data->bias, sums, data->d}, 5);

    for (product **at = &e->products; *at != NULL; at = &(*at)->next) {
        product *p = *at;

        // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): shapes begin as zeros
        if (p->alignment != alignment || memcmp(&p->shape, g, sizeof(*g)) != 0)
            continue;
        *at = p->next;
        p->next = e->products;
        e->products = p;
        *out = p;
        return LS_OK;
    }
    return create_product(e, g, alignment, data, out);
}

ls_status gemm_can_run(gemm_engine *e, const gemm *g, const gemm_data *data, bool *out)
{
    product *p;

    LS_TRY(find_product(e, g, data, &p));
    *out = p->can_run;
    return LS_OK;
}

ls_status gemm_run(gemm_engine *e, const gemm *g, const gemm_data *data, void *workspace,
                   gpu_stream *stream)
{
    const float scales[2] = {0, 1};
    const double wide_scales[2] = {0, 1};
    const bool is_wide = g->type == LS_F64;
    product *p;

    LS_TRY(find_product(e, g, data, &p));
    if (!p->can_run)
        return check(CUBLAS_STATUS_NOT_SUPPORTED, "find an algorithm for a product of matrices");
    LS_TRY(set_bias(g, data, p));
    return check(cublasLtMatmul(e->handle, p->operation,
                                is_wide ? (const void *)&wide_scales[1] : &scales[1], data->b,
                                p->first, data->a, p->second,
                                is_wide ? (const void *)&wide_scales[g->adds] : &scales[g->adds],
                                data->d, p->result, data->d, p->result, &p->algorithm, workspace,
                                GEMM_WORKSPACE_BYTES, (cudaStream_t)stream),
                 "multiply matrices");
}
