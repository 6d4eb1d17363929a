/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_linear.c - linear layers. In float32 they are matrix products of plain tensors: loops of our
 * own for few rows, else oneDNN's sgemm, which is as fast as its inner product or faster, and needs
 * no weights in panels. Other types take its inner product.
 */
#include "tensor/devices/onednn/dn.h"

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

/* c (+)= a b, with a or b transposed where the letter is 'T'; c is (m, n). */
typedef struct gemm {
    char trans_a;
    char trans_b;
    int64_t m;
    int64_t n;
    int64_t k;
    const float *a;
    const float *b;
    float *c;
    bool add;
} gemm;

/* Where a is transposed a call of oneDNN adds up so many products: with AVX-512 oneDNN 2.6 is then
 * faster if c has few rows or columns. 512 is slower where sizes are powers of two. */
#define DEPTH_MOST ((int64_t)256)

static ls_status run_gemm(device_state *self, const gemm *g)
{
    const int before = threads_enter(self, true);
    const bool by_columns = g->trans_a == 'T';
    const int64_t step = by_columns ? DEPTH_MOST : g->k;
    dnnl_status_t st = dnnl_success;
    sigset_t signals;

    signals_block(&signals);
    for (int64_t k = 0; k < g->k && st == dnnl_success; k += step)
        st = dnnl_sgemm(g->trans_a, g->trans_b, g->m, g->n, step < g->k - k ? step : g->k - k, 1,
                        g->a + k * g->m, by_columns ? g->m : g->k, g->b + k * g->n,
                        g->trans_b == 'T' ? g->k : g->n, g->add || k > 0 ? 1 : 0, g->c, g->n);
    signals_restore(&signals);
    threads_leave(before);
    return st == dnnl_success ? LS_OK : dn_fail(LS_ENOMEM, "oneDNN's matrix product failed");
}

static bool is_product(const ls_tensor *x, const ls_tensor *w)
{
    return x->dtype == LS_F32 && x->dims[0] > 0 && x->dims[1] > 0 && w->dims[0] > 0;
}

/* The plain data of the call's inputs; of a missing one NULL. */
static ls_status plain_inputs(const op_call *call, int n, void **data)
{
    for (int i = 0; i < n; i++) {
        data[i] = NULL;
        if (call->in[i] != NULL)
            LS_TRY(dn_host->tensor_plain(call->in[i], &data[i]));
    }
    return LS_OK;
}

/* --- few rows --- */

/* Where these loops were faster than oneDNN 2.6's sgemm, with AVX2 and AVX-512: tried were 1 to 32
 * rows, 32 to 1536 columns, 64 to 4096 outputs. They gain where the weights come from memory. */
#define ROWS_LEAST    4
#define ROWS_MOST     24
#define COLUMNS_LEAST 512
#define WEIGHTS_LEAST ((int64_t)1 << 21)

_Static_assert(ROWS_MOST <= FEW_ROWS_MOST, "the loops take as many");

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

/* x is (N,I), w (O,I), of a product. */
static bool is_few_rows(const ls_tensor *x, const ls_tensor *w)
{
    return x->dims[0] >= ROWS_LEAST && x->dims[0] <= ROWS_MOST && x->dims[1] >= COLUMNS_LEAST &&
           w->dims[0] >= WEIGHTS_LEAST / x->dims[1];
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

/* --- forward --- */

typedef struct bias_work {
    const float *bias;
    float *y;
    size_t n;
} bias_work;

static void bias_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const bias_work *k = arg;

    LS_UNUSED(thread);
    for (size_t row = begin; row < end; row++)
        memcpy(k->y + row * k->n, k->bias, k->n * sizeof(*k->y));
}

static ls_status forward_product(device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const ls_tensor *w = call->in[1];
    void *data[3];
    gemm g = {.trans_a = 'N', .trans_b = 'T', .m = x->dims[0], .n = w->dims[0], .k = x->dims[1]};
    bias_work bias = {.n = (size_t)w->dims[0]};

    LS_TRY(plain_inputs(call, 3, data));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    if (is_few_rows(x, w))
        return run_few_rows(self, call, data);
    g.a = data[0];
    g.b = data[1];
    g.c = dn_data(call->out[0]);
    g.add = data[2] != NULL;
    bias.bias = data[2];
    bias.y = g.c;
    if (g.add)
        threads_for(self, (size_t)g.m, bias.n, bias_range, &bias);
    return run_gemm(self, &g);
}

static ls_status forward_primitive(device_state *self, const op_call *call)
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
    return primitive_run(self, p, data);
}

ls_status dn_linear(device_state *self, const op_call *call)
{
    return is_product(call->in[0], call->in[1]) ? forward_product(self, call)
                                                : forward_primitive(self, call);
}

/* --- gradient of the input --- */

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
    gemm g = {.trans_a = 'N',
              .trans_b = 'N',
              .m = dx->dims[0],
              .n = dx->dims[1],
              .k = call->in[1]->dims[0]};
    void *data[2];

    LS_TRY(plain_inputs(call, 2, data));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    if (is_few_rows(dx, call->in[1])) {
        run_few_rows_back(self, call, data);
        return LS_OK;
    }
    g.a = data[0];
    g.b = data[1];
    g.c = dn_data(dx);
    return run_gemm(self, &g);
}

static ls_status backward_data_primitive(device_state *self, const op_call *call)
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

ls_status dn_linear_backward_data(device_state *self, const op_call *call)
{
    return is_product(call->out[0], call->in[1]) ? backward_data_product(self, call)
                                                 : backward_data_primitive(self, call);
}

/* --- gradients of weights --- */

#define SUM_COLUMNS ((size_t)1536) /* at a time; the sums are on the stack */
#define SUM_ROWS    ((size_t)16)   /* added up as floats; their sums are added as doubles */

typedef struct sum_work {
    const simd_table *simd;
    const float *dy;
    float *sums;
    size_t rows;
    size_t n;
} sum_work;

/* The sums of columns [begin, end) of dy. */
static void sum_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const sum_work *k = arg;
    double sums[SUM_COLUMNS];

    LS_UNUSED(thread);
    for (size_t at = begin; at < end; at += SUM_COLUMNS) {
        const size_t n = end - at < SUM_COLUMNS ? end - at : SUM_COLUMNS;
        float *out = k->sums + at;

        memset(sums, 0, n * sizeof(*sums));
        for (size_t row = 0; row < k->rows;) {
            const size_t after = k->rows - row < SUM_ROWS ? k->rows : row + SUM_ROWS;

            memcpy(out, k->dy + row * k->n + at, n * sizeof(*out));
            while (++row < after)
                k->simd->add(out, k->dy + row * k->n + at, out, n);
            k->simd->accumulate(out, sums, n);
        }
        for (size_t i = 0; i < n; i++)
            out[i] = (float)sums[i];
    }
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
    sum_work sum = {.simd = self->simd, .rows = (size_t)g.k, .n = (size_t)g.m};
    ls_tensor *db = NULL;
    void *data[2];
    void *sums;
    ls_status st;

    LS_TRY(plain_inputs(call, 2, data));
    g.a = data[1];
    g.b = data[0];
    LS_TRY(run_gemm(self, &g));
    if (call->out[1] == NULL)
        return LS_OK;
    LS_TRY(gradient_begin(self, call, call->out[1], bias, &db, &sums));
    sum.dy = data[1];
    sum.sums = sums;
    threads_for(self, sum.n, sum.rows, sum_range, &sum);
    st = gradient_end(self, call, call->out[1], bias, db);
    dn_host->tensor_destroy(db);
    return st;
}

static ls_status run_primitive(device_state *self, const op_call *call, const layout *bias,
                               ls_tensor **dw, ls_tensor **db)
{
    const primitive_key key = key_of(COMPAT_BACKWARD_WEIGHTS, call->in[0]->dtype, call->in[0],
                                     call->out[0], call->out[1] != NULL);
    primitive *p;
    void *data[4] = {NULL, NULL, NULL, NULL};

    LS_TRY(primitive_for(self, &key, &p));
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

static ls_status backward_weights_primitive(device_state *self, const op_call *call,
                                            const layout *bias)
{
    ls_tensor *dw = NULL;
    ls_tensor *db = NULL;
    const ls_status st = run_primitive(self, call, bias, &dw, &db);

    dn_host->tensor_destroy(dw);
    dn_host->tensor_destroy(db);
    return st;
}

ls_status dn_linear_backward_weights(device_state *self, const op_call *call)
{
    const layout *bias = layout_plain(self, 1, &call->out[0]->dims[0]);

    if (bias == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    return is_product(call->in[0], call->out[0]) ? backward_weights_product(self, call, bias)
                                                 : backward_weights_primitive(self, call, bias);
}
