/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_linear.c - linear layers. In float32 they are matrix products of plain tensors: loops of our
 * own for few rows, else oneDNN's sgemm, which is as fast as its inner product or faster, and needs
 * no weights in panels. Other types take its inner product.
 */
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

/* c (+)= a b, with a and b transposed where the letter is 'T'; c is (m, n). */
typedef struct gemm {
    char trans_a;
    char trans_b;
    int64_t m;
    int64_t n;
    int64_t k;
    const void *a;
    const void *b;
    void *c;
    bool add;
} gemm;

static ls_status run_gemm(device_state *self, const gemm *g)
{
    const int before = threads_enter(self, true);
    const dnnl_status_t st = dnnl_sgemm(
        g->trans_a, g->trans_b, g->m, g->n, g->k, 1, g->a, g->trans_a == 'T' ? g->m : g->k, g->b,
        g->trans_b == 'T' ? g->k : g->n, g->add ? 1 : 0, g->c, g->n);

    threads_leave(before);
    return st == dnnl_success ? LS_OK : dn_fail(LS_ENOMEM, "oneDNN's matrix product failed");
}

static bool is_product(const ls_tensor *x, const ls_tensor *w)
{
    return x->dtype == LS_F32 && x->dims[0] > 0 && x->dims[1] > 0 && w->dims[0] > 0;
}

/* --- few rows --- */

/* Where these loops were faster than oneDNN 2.6 with AVX2: tried were 4 to 64 rows, 256 to 1536
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

/* x is (N,I), of a product. */
static bool is_few_rows(const ls_tensor *x)
{
    return x->dims[0] <= FEW_ROWS_MOST && x->dims[1] >= COLUMNS_LEAST &&
           x->dims[0] * COLUMNS_PER_ROW <= x->dims[1];
}

static few_rows shape_of(const ls_tensor *x, const ls_tensor *w)
{
    return (few_rows){
        .rows = (size_t)x->dims[0], .depth = (size_t)w->dims[1], .outputs = (size_t)w->dims[0]};
}

static ls_status run_few_rows(device_state *self, const op_call *call, void *const *data)
{
    rows_work k = {.simd = self->simd,
                   .shape = shape_of(call->in[0], call->in[1]),
                   .w = data[1],
                   .bias = data[2],
                   .y = dn_data(call->out[0])};
    ls_tensor *temporary = NULL;
    float *columns;

    k.shape.add = k.bias != NULL;
    LS_TRY(dn_floats(call->out[0]->device, k.shape.depth * self->simd->dots_width(k.shape.rows),
                     &temporary, &columns));
    self->simd->dots_pack(&k.shape, data[0], columns);
    k.x = columns;
    threads_for(self, k.shape.outputs, k.shape.rows * k.shape.depth, rows_range, &k);
    dn_host->tensor_destroy(temporary);
    return LS_OK;
}

static ls_status linear_product(device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const ls_tensor *w = call->in[1];
    void *data[3] = {NULL, NULL, NULL};
    gemm g = {.trans_a = 'N', .trans_b = 'T', .m = x->dims[0], .n = w->dims[0], .k = x->dims[1]};

    for (int i = 0; i < 3; i++)
        if (call->in[i] != NULL)
            LS_TRY(dn_host->tensor_plain(call->in[i], &data[i]));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    if (is_few_rows(x))
        return run_few_rows(self, call, data);
    g.a = data[0];
    g.b = data[1];
    g.c = dn_data(call->out[0]);
    g.add = data[2] != NULL;
    for (int64_t row = 0; row < g.m && g.add; row++)
        memcpy((float *)g.c + row * g.n, data[2], (size_t)g.n * sizeof(float));
    return run_gemm(self, &g);
}

ls_status dn_linear(device_state *self, const op_call *call)
{
    ls_tensor *const bias = call->in[2];
    const primitive_key key =
        key_of(COMPAT_FORWARD, call->in[0]->dtype, call->in[0], call->in[1], bias != NULL);
    primitive *p;
    void *data[4] = {NULL, NULL, NULL, NULL};

    if (is_product(call->in[0], call->in[1]))
        return linear_product(self, call);
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

static void run_few_rows_back(device_state *self, const op_call *call, void *const *data)
{
    rows_work k = {.simd = self->simd,
                   .shape = shape_of(call->out[0], call->in[1]),
                   .w = data[1],
                   .dy = data[0],
                   .dx = dn_data(call->out[0])};

    threads_for(self, (k.shape.depth + SHARE - 1) / SHARE, k.shape.rows * k.shape.outputs * SHARE,
                columns_range, &k);
}

static ls_status backward_data_product(device_state *self, const op_call *call)
{
    const ls_tensor *dx = call->out[0];
    void *data[2];

    for (int i = 0; i < 2; i++)
        LS_TRY(dn_host->tensor_plain(call->in[i], &data[i]));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    if (!is_few_rows(dx)) {
        const gemm g = {.trans_a = 'N',
                        .trans_b = 'N',
                        .m = dx->dims[0],
                        .n = dx->dims[1],
                        .k = call->in[1]->dims[0],
                        .a = data[0],
                        .b = data[1],
                        .c = dn_data(dx)};

        return run_gemm(self, &g);
    }
    run_few_rows_back(self, call, data);
    return LS_OK;
}

ls_status dn_linear_backward_data(device_state *self, const op_call *call)
{
    const primitive_key key =
        key_of(COMPAT_BACKWARD_DATA, call->in[0]->dtype, call->out[0], call->in[1], false);
    primitive *p;
    void *data[3] = {NULL, NULL, NULL};

    if (is_product(call->out[0], call->in[1]))
        return backward_data_product(self, call);
    LS_TRY(primitive_for(self, &key, &p));
    LS_TRY(packed_weights(self, call->in[1], p->weights, 0, NULL, &data[1]));
    LS_TRY(dn_host->tensor_plain(call->in[0], &data[2]));
    LS_TRY(layout_place(call->out[0], p->src));
    data[0] = dn_data(call->out[0]);
    return primitive_run(self, p, data);
}

/* --- gradients of weights --- */

/* out = the sum of the rows of dy. */
static void sum_rows(const device_state *self, const ls_tensor *t, const float *dy, float *out)
{
    const size_t n = (size_t)t->dims[1];

    memset(out, 0, n * sizeof(*out));
    for (size_t row = 0; row < (size_t)t->dims[0]; row++)
        self->simd->add(out, dy + row * n, out, n);
}

/* dw (+)= dy^T x in place, where the primitive would need memory for another dw. */
static ls_status backward_weights_product(device_state *self, const op_call *call,
                                          const layout *bias)
{
    const ls_tensor *dw = call->out[0];
    gemm g = {.trans_a = 'T',
              .trans_b = 'N',
              .m = dw->dims[0],
              .n = dw->dims[1],
              .k = call->in[0]->dims[0],
              .c = dn_data(dw),
              .add = call->accumulate};
    ls_tensor *db = NULL;
    void *x;
    void *dy;
    void *sums;
    ls_status st;

    LS_TRY(dn_host->tensor_plain(call->in[0], &x));
    LS_TRY(dn_host->tensor_plain(call->in[1], &dy));
    g.a = dy;
    g.b = x;
    LS_TRY(run_gemm(self, &g));
    if (call->out[1] == NULL)
        return LS_OK;
    LS_TRY(gradient_begin(self, call, call->out[1], bias, &db, &sums));
    sum_rows(self, call->in[1], dy, sums);
    st = gradient_end(self, call, call->out[1], bias, db);
    dn_host->tensor_destroy(db);
    return st;
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
    if (is_product(call->in[0], call->out[0]))
        return backward_weights_product(self, call, bias);
    LS_TRY(primitive_for(self, &key, &p));
    st = run_backward_weights(self, call, p, bias, &dw, &db);
    dn_host->tensor_destroy(dw);
    dn_host->tensor_destroy(db);
    return st;
}
