/* SPDX-License-Identifier: Apache-2.0 */
/* dn_linear.c - linear layers as oneDNN's inner products; inputs and outputs are plain. */
#include "tensor/onednn/dn.h"

#include <stdatomic.h>
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

/* --- forward of few rows --- */

/* Where dot products were faster than oneDNN 2.6 with AVX2: tried were 4 to 64 rows, 256 to 1536
 * columns. */
#define FEW_ROWS        32
#define COLUMNS_PER_ROW 32
#define COLUMNS_LEAST   256

typedef struct rows_work {
    const simd_table *simd;
    few_rows shape;
    const float *x;
    const float *w;
    const float *bias; /* or NULL */
    float *y;
} rows_work;

static void rows_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;

    LS_UNUSED(thread);
    for (size_t r = 0; r < k->shape.rows && k->bias != NULL; r++)
        memcpy(k->y + r * k->shape.outputs + begin, k->bias + begin, (end - begin) * sizeof(*k->y));
    k->simd->dots(&k->shape, k->x, k->w, k->y, begin, end);
}

static bool is_few_rows(const op_call *call, const primitive *p)
{
    const ls_tensor *x = call->in[0];

    return p->by_gemm && x->dtype == LS_F32 && x->dims[0] <= FEW_ROWS &&
           x->dims[1] >= COLUMNS_LEAST && x->dims[0] * COLUMNS_PER_ROW <= x->dims[1];
}

static void run_few_rows(device_state *self, const op_call *call, void *const *data)
{
    const ls_tensor *w = call->in[1];
    rows_work k = {.simd = self->simd,
                   .shape = {.rows = (size_t)call->in[0]->dims[0],
                             .depth = (size_t)w->dims[1],
                             .outputs = (size_t)w->dims[0],
                             .add = data[3] != NULL},
                   .x = data[0],
                   .w = data[1],
                   .bias = data[3],
                   .y = data[2]};

    threads_for(self, k.shape.outputs, k.shape.rows * k.shape.depth, rows_range, &k);
}

ls_status dn_linear(device_state *self, const op_call *call)
{
    ls_tensor *const bias = call->in[2];
    const primitive_key key =
        key_of(COMPAT_FORWARD, call->in[0]->dtype, call->in[0], call->in[1], bias != NULL);
    primitive *p;
    void *data[4] = {NULL, NULL, NULL, NULL};

    LS_TRY(primitive_for(self, &key, &p));
    LS_TRY(dn_host->tensor_plain(call->in[0], &data[0]));
    LS_TRY(packed_weights(self, call->in[1], p->weights, 0, NULL, &data[1]));
    if (bias != NULL)
        LS_TRY(dn_host->tensor_plain(bias, &data[3]));
    LS_TRY(layout_place(call->out[0], p->dst));
    data[2] = dn_data(call->out[0]);
    if (!is_few_rows(call, p))
        return primitive_run(self, p, data);
    run_few_rows(self, call, data);
    return LS_OK;
}

/* --- backward of few rows --- */

/* Rows of w that are a multiple of COLUMNS_ALIGNED apart share few places of the L1 cache: oneDNN
 * 2.6 has 26 GFLOP/s instead of 34 on an AMD processor with AVX2. Products of PART rows of w at
 * a time, with copies of dy and dx whose rows are GAP floats longer, have 31. */
#define COLUMNS_ALIGNED 1024
#define PART            ((size_t)64)
#define GAP             ((size_t)16)
#define SHARE           256 /* columns; threads take a number of such */

typedef struct parts_work {
    size_t rows;
    size_t inputs;
    size_t outputs;
    const float *dy; /* rows of outputs + GAP floats */
    const float *w;
    float *dx; /* rows of inputs + GAP floats */
    atomic_bool has_failed;
} parts_work;

static void parts_range(void *arg, size_t begin, size_t end, size_t thread)
{
    parts_work *k = arg;
    const float *w = k->w + begin * SHARE;

    LS_UNUSED(thread);
    for (size_t at = 0; at < k->outputs && end > begin; at += PART) {
        const size_t part = k->outputs - at < PART ? k->outputs - at : PART;
        const dnnl_status_t st = dnnl_sgemm(
            'N', 'N', (dnnl_dim_t)k->rows, (dnnl_dim_t)((end - begin) * SHARE), (dnnl_dim_t)part, 1,
            k->dy + at, (dnnl_dim_t)(k->outputs + GAP), w + at * k->inputs, (dnnl_dim_t)k->inputs,
            at > 0 ? 1 : 0, k->dx + begin * SHARE, (dnnl_dim_t)(k->inputs + GAP));

        if (st != dnnl_success)
            atomic_store_explicit(&k->has_failed, true, memory_order_relaxed);
    }
}

/* Copies `rows` rows of n floats, which are from_row and to_row floats apart. */
static void copy_rows(const float *from, size_t from_row, float *to, size_t to_row, size_t rows,
                      size_t n)
{
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * to_row, from + r * from_row, n * sizeof(*to));
}

static bool is_aligned_few(const op_call *call, const primitive *p)
{
    const ls_tensor *dx = call->out[0];

    return p->by_gemm && dx->dtype == LS_F32 && dx->dims[0] > 0 && dx->dims[0] <= FEW_ROWS &&
           dx->dims[1] % COLUMNS_ALIGNED == 0 && call->in[1]->dims[0] >= (int64_t)PART;
}

static ls_status run_parts(device_state *self, const op_call *call, void *const *data)
{
    const ls_tensor *w = call->in[1];
    parts_work k = {.rows = (size_t)call->in[0]->dims[0],
                    .inputs = (size_t)w->dims[1],
                    .outputs = (size_t)w->dims[0],
                    .w = data[1]};
    const size_t dx_floats = k.rows * (k.inputs + GAP);
    ls_tensor *temporary = NULL;
    float *copies;
    int before;

    LS_TRY(dn_floats(w->device, dx_floats + k.rows * (k.outputs + GAP), &temporary, &copies));
    k.dx = copies;
    k.dy = copies + dx_floats;
    copy_rows(data[2], k.outputs, copies + dx_floats, k.outputs + GAP, k.rows, k.outputs);
    before = threads_enter(self, true);
    threads_for(self, k.inputs / SHARE, k.rows * k.outputs * SHARE, parts_range, &k);
    threads_leave(before);
    copy_rows(k.dx, k.inputs + GAP, data[0], k.inputs, k.rows, k.inputs);
    dn_host->tensor_destroy(temporary);
    return atomic_load_explicit(&k.has_failed, memory_order_relaxed)
               ? dn_fail(LS_ENOMEM, "oneDNN's matrix product failed")
               : LS_OK;
}

ls_status dn_linear_backward_data(device_state *self, const op_call *call)
{
    const primitive_key key =
        key_of(COMPAT_BACKWARD_DATA, call->in[0]->dtype, call->out[0], call->in[1], false);
    primitive *p;
    void *data[3] = {NULL, NULL, NULL};

    LS_TRY(primitive_for(self, &key, &p));
    LS_TRY(packed_weights(self, call->in[1], p->weights, 0, NULL, &data[1]));
    LS_TRY(dn_host->tensor_plain(call->in[0], &data[2]));
    LS_TRY(layout_place(call->out[0], p->src));
    data[0] = dn_data(call->out[0]);
    return is_aligned_few(call, p) ? run_parts(self, call, data) : primitive_run(self, p, data);
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
