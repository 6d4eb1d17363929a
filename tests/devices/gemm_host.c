/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_host.c - products of matrices in host memory, for tests of the device without a GPU: in
 * place of gemm_lt.c.
 */
#include "tensor/devices/cuda/dnn/gemm.h"

#include "devices/gpu_host.h"
#include "devices/host_elements.h"

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

/* A product in a stream. */
typedef struct multiplication {
    gemm g;
    gemm_data data;
    char *workspace;
} multiplication;

static double element_of(const multiplication *m, int64_t i, int64_t row, int64_t column)
{
    const gemm *g = &m->g;
    const gemm_data *data = &m->data;
    double sum = g->has_bias ? host_get(data->bias, (size_t)column, g->type) : 0;

    if (g->adds)
        sum += host_get(data->d, index_of(i, row, column, g->m, g->n, false), g->out_type);
    for (int64_t k = 0; k < g->k; k++)
        sum += host_get(data->a, index_of(i, row, k, g->m, g->k, g->transposed[0]), g->type) *
               host_get(data->b, index_of(i, k, column, g->k, g->n, g->transposed[1]), g->type);
    return sum;
}

static double sum_of_row(const multiplication *m, int64_t row)
{
    const gemm *g = &m->g;
    double sum = 0;

    for (int64_t k = 0; k < g->k; k++)
        sum += host_get(m->data.a, index_of(0, row, k, g->m, g->k, g->transposed[0]), g->type);
    return sum;
}

static gpu_error multiply(const void *args)
{
    const multiplication *m = args;
    const gemm *g = &m->g;

    m->workspace[GEMM_WORKSPACE_BYTES - 1] = 1;
    for (int64_t row = 0; row < g->m && g->has_sums; row++)
        host_put(m->data.sums, (size_t)row, g->out_type, sum_of_row(m, row));
    for (int64_t i = 0; i < g->batch; i++) {
        for (int64_t row = 0; row < g->m; row++) {
            for (int64_t column = 0; column < g->n; column++)
                host_put(m->data.d, index_of(i, row, column, g->m, g->n, false), g->out_type,
                         element_of(m, i, row, column));
        }
    }
    return 0;
}

/* As cuBLASLt: no sums in float64. */
ls_status gemm_can_run(gemm_engine *e, const gemm *g, const gemm_data *data, bool *out)
{
    LS_UNUSED(e);
    LS_UNUSED(data);
    *out = g->has_sums == 0 || g->type != LS_F64;
    return LS_OK;
}

ls_status gemm_run(gemm_engine *e, const gemm *g, const gemm_data *data, void *workspace,
                   gpu_stream *stream)
{
    const multiplication m = {.g = *g, .data = *data, .workspace = workspace};

    LS_UNUSED(e);
    if (gpu_host_state()->is_lost ||
        gpu_host_queue(stream,
                       &(gpu_host_work){.run = multiply, .args = &m, .args_bytes = sizeof(m)}) != 0)
        return cu_fail(LS_EINTERNAL, "a product of matrices failed to launch");
    return LS_OK;
}
