/* SPDX-License-Identifier: Apache-2.0 */
/* dn_linear.c - linear layers as oneDNN's inner products; inputs and outputs are plain. */
#include "tensor/onednn/dn.h"

#include <string.h>

/* x: (N,I), w: (O,I); only their dimensions count. */
static primitive_key key_of(compat_prop prop, ls_dtype type, const ls_tensor *x, const ls_tensor *w,
                            bool has_bias)
{
    primitive_key key;

    memset(&key, 0, sizeof(key));
    key.kind = PRIMITIVE_LINEAR;
    key.prop = prop;
    key.type = type;
    key.groups = 1;
    key.has_bias = has_bias;
    memcpy(key.src, x->dims, 2 * sizeof(key.src[0]));
    memcpy(key.weights, w->dims, 2 * sizeof(key.weights[0]));
    return key;
}

/* --- few rows --- */

/* Where dot products were faster than oneDNN 2.6 with AVX2: tried were 4 to 64 rows, 256 to 1536
 * columns. */
#define COLUMNS_PER_ROW 32
#define COLUMNS_LEAST   256

typedef struct rows_work {
    const simd_table *simd;
    few_rows shape;
    const float *x;
    const float *w;
    const float *bias; /* or NULL */
    float *y;
    const float *dy; /* backward */
    float *dx;
} rows_work;

static void rows_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;

    LS_UNUSED(thread);
    for (size_t r = 0; r < k->shape.rows && k->bias != NULL; r++)
        memcpy(k->y + r * k->shape.outputs + begin, k->bias + begin, (end - begin) * sizeof(*k->y));
    k->simd->dots(&k->shape, k->x, k->w, k->y, begin, end);
}

/* x is (N,I). oneDNN's other products, with AVX-512, have weights in panels, which need a copy of
 * them, and were not faster. */
static bool is_few_rows(const ls_tensor *x, const ls_tensor *w)
{
    return x->dtype == LS_F32 && x->dims[0] <= FEW_ROWS_MOST && w->dims[0] > 0 &&
           x->dims[1] >= COLUMNS_LEAST && x->dims[0] * COLUMNS_PER_ROW <= x->dims[1];
}

static few_rows shape_of(const ls_tensor *x, const ls_tensor *w)
{
    return (few_rows){
        .rows = (size_t)x->dims[0], .depth = (size_t)w->dims[1], .outputs = (size_t)w->dims[0]};
}

static ls_status run_few_rows(device_state *self, const op_call *call)
{
    rows_work k = {.simd = self->simd, .shape = shape_of(call->in[0], call->in[1])};
    void *data[3] = {NULL, NULL, NULL};
    ls_tensor *temporary = NULL;
    float *columns;

    for (int i = 0; i < 3; i++)
        if (call->in[i] != NULL)
            LS_TRY(dn_host->tensor_plain(call->in[i], &data[i]));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    LS_TRY(dn_floats(call->out[0]->device, k.shape.depth * self->simd->dots_width(k.shape.rows),
                     &temporary, &columns));
    self->simd->dots_pack(&k.shape, data[0], columns);
    k.x = columns;
    k.w = data[1];
    k.bias = data[2];
    k.shape.add = k.bias != NULL;
    k.y = dn_data(call->out[0]);
    threads_for(self, k.shape.outputs, k.shape.rows * k.shape.depth, rows_range, &k);
    dn_host->tensor_destroy(temporary);
    return LS_OK;
}

ls_status dn_linear(device_state *self, const op_call *call)
{
    ls_tensor *const bias = call->in[2];
    const primitive_key key =
        key_of(COMPAT_FORWARD, call->in[0]->dtype, call->in[0], call->in[1], bias != NULL);
    primitive *p;
    void *data[4] = {NULL, NULL, NULL, NULL};

    if (is_few_rows(call->in[0], call->in[1]))
        return run_few_rows(self, call);
    LS_TRY(primitive_for(self, &key, &p));
    LS_TRY(dn_host->tensor_plain(call->in[0], &data[0]));
    LS_TRY(packed_weights(self, call->in[1], p->weights, 0, NULL, &data[1]));
    if (bias != NULL)
        LS_TRY(dn_host->tensor_plain(bias, &data[3]));
    LS_TRY(layout_place(call->out[0], p->dst));
    data[2] = dn_data(call->out[0]);
    return primitive_run(self, p, data);
}

/* A thread takes a number of such shares of the columns. */
#define SHARE ((size_t)64)

static void columns_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;
    const size_t last = end * SHARE < k->shape.depth ? end * SHARE : k->shape.depth;

    LS_UNUSED(thread);
    k->simd->dots_dx(&k->shape, k->dy, k->w, k->dx, begin * SHARE, last);
}

static ls_status run_few_rows_back(device_state *self, const op_call *call)
{
    rows_work k = {.simd = self->simd, .shape = shape_of(call->out[0], call->in[1])};
    void *data[2];

    for (int i = 0; i < 2; i++)
        LS_TRY(dn_host->tensor_plain(call->in[i], &data[i]));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    k.dy = data[0];
    k.w = data[1];
    k.dx = dn_data(call->out[0]);
    threads_for(self, (k.shape.depth + SHARE - 1) / SHARE, k.shape.rows * k.shape.outputs * SHARE,
                columns_range, &k);
    return LS_OK;
}

ls_status dn_linear_backward_data(device_state *self, const op_call *call)
{
    const primitive_key key =
        key_of(COMPAT_BACKWARD_DATA, call->in[0]->dtype, call->out[0], call->in[1], false);
    primitive *p;
    void *data[3] = {NULL, NULL, NULL};

    if (is_few_rows(call->out[0], call->in[1]))
        return run_few_rows_back(self, call);
    LS_TRY(primitive_for(self, &key, &p));
    LS_TRY(packed_weights(self, call->in[1], p->weights, 0, NULL, &data[1]));
    LS_TRY(dn_host->tensor_plain(call->in[0], &data[2]));
    LS_TRY(layout_place(call->out[0], p->src));
    data[0] = dn_data(call->out[0]);
    return primitive_run(self, p, data);
}

/* --- gradients of weights --- */

/* dw += dy^T x in place. The primitive would need memory for another dw, and a pass to add it. */
static ls_status add_product(device_state *self, const op_call *call, const float *x,
                             const float *dy)
{
    ls_tensor *const dw = call->out[0];
    const dnnl_dim_t outputs = dw->dims[0];
    const dnnl_dim_t inputs = dw->dims[1];
    const int before = threads_enter(self, true);
    const dnnl_status_t st = dnnl_sgemm('T', 'N', outputs, inputs, call->in[0]->dims[0], 1, dy,
                                        outputs, x, inputs, 1, dn_data(dw), inputs);

    threads_leave(before);
    return st == dnnl_success ? LS_OK : dn_fail(LS_ENOMEM, "oneDNN's matrix product failed");
}

/* out = the sum of the rows of dy. */
static void sum_rows(const device_state *self, const ls_tensor *t, const float *dy, float *out)
{
    const size_t n = (size_t)t->dims[1];

    memset(out, 0, n * sizeof(*out));
    for (size_t row = 0; row < (size_t)t->dims[0]; row++)
        self->simd->add(out, dy + row * n, out, n);
}

static ls_status add_weights(device_state *self, const op_call *call, const layout *bias,
                             void *const *data, ls_tensor **db)
{
    void *sums;

    LS_TRY(add_product(self, call, data[0], data[2]));
    if (call->out[1] == NULL)
        return LS_OK;
    LS_TRY(gradient_begin(self, call, call->out[1], bias, db, &sums));
    sum_rows(self, call->in[1], data[2], sums);
    return gradient_end(self, call, call->out[1], bias, *db);
}

static ls_status run_backward_weights(device_state *self, const op_call *call, primitive *p,
                                      const layout *bias, ls_tensor **dw, ls_tensor **db)
{
    void *data[4] = {NULL, NULL, NULL, NULL};

    LS_TRY(dn_host->tensor_plain(call->in[0], &data[0]));
    LS_TRY(dn_host->tensor_plain(call->in[1], &data[2]));
    if (p->by_gemm && call->accumulate && call->in[0]->dtype == LS_F32 &&
        call->in[0]->dims[0] > 0 && p->weights->kind == LAYOUT_PLAIN)
        return add_weights(self, call, bias, data, db);
    LS_TRY(gradient_begin(self, call, call->out[0], p->weights, dw, &data[1]));
    if (call->out[1] != NULL)
        LS_TRY(gradient_begin(self, call, call->out[1], bias, db, &data[3]));
    LS_TRY(primitive_run(self, p, data));
    LS_TRY(gradient_end(self, call, call->out[0], p->weights, *dw));
    if (call->out[1] != NULL)
        LS_TRY(gradient_end(self, call, call->out[1], bias, *db));
    return LS_OK;
}

ls_status dn_linear_backward_weights(device_state *self, const op_call *call)
{
    const primitive_key key = key_of(COMPAT_BACKWARD_WEIGHTS, call->in[0]->dtype, call->in[0],
                                     call->out[0], call->out[1] != NULL);
    const layout *bias = layout_plain(self, 1, &call->out[0]->dims[0]);
    ls_tensor *dw = NULL;
    ls_tensor *db = NULL;
    primitive *p;
    ls_status st;

    if (bias == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(primitive_for(self, &key, &p));
    st = run_backward_weights(self, call, p, bias, &dw, &db);
    dn_host->tensor_destroy(dw);
    dn_host->tensor_destroy(db);
    return st;
}
