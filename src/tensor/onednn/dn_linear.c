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
    return primitive_run(self, p, data);
}

static ls_status run_backward_weights(device_state *self, const op_call *call, primitive *p,
                                      const layout *bias, ls_tensor **dw, ls_tensor **db)
{
    void *data[4] = {NULL, NULL, NULL, NULL};

    LS_TRY(dn_host->tensor_plain(call->in[0], &data[0]));
    LS_TRY(dn_host->tensor_plain(call->in[1], &data[2]));
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
