/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_linear.c - linear layers and products of matrices by cuBLASLt, row-major. */
#include "tensor/devices/cuda/dnn/cuda_math.h"
#include "tensor/devices/cuda/dnn/plan_file.h"

#include <string.h>

/* A product of matrices of one type, without a batch. */
static gemm product_of(ls_dtype type, int64_t m, int64_t n, int64_t k)
{
    gemm g;

    memset(&g, 0, sizeof(g)); // a key: padding too
    g.type = (int32_t)type;
    g.out_type = (int32_t)type;
    g.m = m;
    g.n = n;
    g.k = k;
    g.batch = 1;
    return g;
}

/* With the engine and its workspace. */
static ls_status multiply(device_state *self, gemm_engine *engine, const gemm *g,
                          const gemm_data *data, void *workspace)
{
    const graph_node node = {.kind = GRAPH_PRODUCT, .code = plan_hash(g, sizeof(*g), 0)};
    ls_status queued;
    ls_status st;

    self->n_launches++;
    LS_TRY(cuda_accel_begin(self->accel, &node));
    st = gemm_run(engine, g, data, workspace, cu_stream(self));
    queued = cuda_accel_end(self->accel, 0, "cuBLASLt");
    return queued == LS_OK ? cuda_accel_check_library(self->accel, st, "cuBLASLt") : queued;
}

/* A product over k = 0 is 0. */
static void run(own_operands *o, const gemm *g, const gemm_data *data)
{
    gemm_engine *engine;
    void *workspace;

    if (o->status != LS_OK || g->m == 0 || g->n == 0 || g->batch == 0)
        return;
    if (g->k == 0) {
        own_zero(o, data->d,
                 (size_t)(g->batch * g->m * g->n) * own_element_bytes((ls_dtype)g->out_type));
        return;
    }
    o->status = cuda_math_gemm(o->self, &engine);
    if (o->status == LS_OK)
        o->status = cu_workspace(o->self, GEMM_WORKSPACE_BYTES, &workspace);
    if (o->status == LS_OK)
        o->status = multiply(o->self, engine, g, data, workspace);
}

/* Whether the product can give the sums, too. */
static bool can_sum(own_operands *o, const gemm *g, const gemm_data *data)
{
    gemm_engine *engine;
    bool can_run = false;

    if (o->status == LS_OK)
        o->status = cuda_math_gemm(o->self, &engine);
    if (o->status == LS_OK)
        o->status = cuda_accel_check_library(o->self->accel,
                                             gemm_can_run(engine, g, data, &can_run), "cuBLASLt");
    return can_run;
}

/* A parameter in the type of the activations, row-major. */
static void *parameter_operand(own_operands *o, ls_tensor *t, ls_dtype type)
{
    const pack_form form = {.type = type, .n = (int64_t)t->count, .c = 1, .s = 1, .channels = 1};

    return packed_parameter(o, t, &form);
}

/* --- linear layers: x (N,I), w (O,I), y (N,O) --- */

/* y = x w' + b */
void cuda_linear(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    ls_tensor *w = call->in[1];
    ls_tensor *bias = call->in[2];
    gemm g = product_of(x->dtype, x->dims[0], w->dims[0], x->dims[1]);
    gemm_data data = {.a = own_operand(o, x, false), .b = parameter_operand(o, w, x->dtype)};

    g.transposed[1] = 1;
    g.has_bias = bias != NULL;
    if (bias != NULL)
        data.bias = parameter_operand(o, bias, x->dtype);
    data.d = own_output(o, call->out[0], false);
    run(o, &g, &data);
}

/* dx = dy w */
void cuda_linear_backward_data(own_operands *o, const op_call *call)
{
    const ls_tensor *dy = call->in[0];
    ls_tensor *w = call->in[1];
    const gemm g = product_of(dy->dtype, dy->dims[0], w->dims[1], w->dims[0]);
    gemm_data data = {.a = own_operand(o, dy, false), .b = parameter_operand(o, w, dy->dtype)};

    data.d = own_output(o, call->out[0], false);
    run(o, &g, &data);
}

void cuda_weight_gradients(own_operands *o, const op_call *call, const void *x, const void *dy,
                           int64_t n)
{
    const ls_dtype type = call->in[0]->dtype;
    const ls_tensor *dw = call->out[0];
    const ls_tensor *dbias = call->out[1];
    gemm g = product_of(type, dw->dims[0], dw->dims[1], n);
    const gemm_data data = {.a = dy, .b = x, .sums = own_data(dbias), .d = own_data(dw)};

    g.out_type = (int32_t)dw->dtype;
    g.transposed[0] = 1;
    g.adds = call->accumulate;
    // In which order cuBLASLt sums is not documented: not in deterministic mode.
    g.has_sums =
        dbias != NULL && !call->accumulate && !o->self->is_deterministic && g.m > 0 && g.n > 0;
    g.has_sums = g.has_sums && can_sum(o, &g, &data);
    run(o, &g, &data);
    if (dbias != NULL && !g.has_sums) {
        const column_args sums =
            own_bias_sums(o, call, dy, own_type(type), (size_t)n, (size_t)dw->dims[0]);

        own_launch_sums(o, &sums, own_type(type));
    }
}

void cuda_linear_backward_weights(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];

    if (x->dims[0] == 0)
        cuda_no_gradients(o, call);
    else
        cuda_weight_gradients(o, call, own_operand(o, x, false), own_operand(o, call->in[1], false),
                              x->dims[0]);
}

/* --- products --- */

void cuda_matmul(own_operands *o, const op_call *call)
{
    ls_tensor *y = call->out[0];
    const ls_tensor *a = call->in[0];
    const bool *transposed = call->attrs.transposed;
    const int rows = y->n_dims - 2;
    const int columns = y->n_dims - 1;
    gemm g = product_of(y->dtype, y->dims[rows], y->dims[columns],
                        a->dims[transposed[0] ? rows : columns]);
    gemm_data data = {.a = own_operand(o, a, false), .b = own_operand(o, call->in[1], false)};

    for (int i = 0; i < 2; i++)
        g.transposed[i] = transposed[i];
    for (int i = 0; i < rows; i++)
        g.batch *= y->dims[i];
    data.d = own_output(o, y, false);
    run(o, &g, &data);
}
