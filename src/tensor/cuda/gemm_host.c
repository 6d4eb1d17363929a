/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_host.c - products of matrices in host memory, for tests of the device without a GPU: in
 * place of gemm_lt.c.
 */
#include "tensor/cuda/gemm.h"

#include "tensor/cuda/gpu_host.h"
#include "tensor/cuda/host_elements.h"

struct gemm_engine {
    bool tf32;
};

ls_status gemm_open(bool tf32, gemm_engine **out)
{
    *out = cu_host->alloc(1, sizeof(**out));
    if (*out == NULL)
        return cu_fail(LS_ENOMEM, "no memory for products of matrices");
    (*out)->tf32 = tf32;
    return LS_OK;
}

void gemm_close(gemm_engine *e)
{
    cu_host->free(e);
}

/* Element (row, column) of matrix `i` of op(x), which has `rows` and `columns`. */
static size_t index_of(int64_t i, int64_t row, int64_t column, int64_t rows, int64_t columns,
                       bool is_transposed)
{
    return (size_t)(i * rows * columns +
                    (is_transposed ? column * rows + row : row * columns + column));
}

ls_status gemm_run(gemm_engine *e, const gemm *g, const void *a, const void *b, const void *bias,
                   void *d, void *workspace, gpu_stream *stream)
{
    LS_UNUSED(e);
    LS_UNUSED(stream);
    if (gpu_host_state()->is_lost)
        return cu_fail(LS_EINTERNAL, "a product of matrices failed to launch");
    ((char *)workspace)[GEMM_WORKSPACE_BYTES - 1] = 1;
    for (int64_t i = 0; i < g->batch; i++) {
        for (int64_t row = 0; row < g->m; row++) {
            for (int64_t column = 0; column < g->n; column++) {
                const size_t at = index_of(i, row, column, g->m, g->n, false);
                double sum = g->has_bias ? host_get(bias, (size_t)column, g->type) : 0;

                sum += g->adds ? host_get(d, at, g->out_type) : 0;
                for (int64_t k = 0; k < g->k; k++)
                    sum +=
                        host_get(a, index_of(i, row, k, g->m, g->k, g->transposed[0]), g->type) *
                        host_get(b, index_of(i, k, column, g->k, g->n, g->transposed[1]), g->type);
                host_put(d, at, g->out_type, sum);
            }
        }
    }
    return LS_OK;
}
