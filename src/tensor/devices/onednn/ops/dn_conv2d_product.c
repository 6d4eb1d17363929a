/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d_product.c - gradients of convolutions by oneDNN's product of matrices, on images with
 * channels last, which are matrices of positions and channels:
 *
 *     dw (O, T C) = dy (P, O) transposed * columns (P, T C)    of P output positions and T taps
 *     dx (P, C)   = dy (P, O) * w (O, C)                       of 1x1 kernels
 *
 * Row p of the columns holds the channels of each position of x that output position p reads. With
 * a 1x1 kernel, stride 1 and no padding that is x itself.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

/* The sizes of a convolution, and the rows that gather_rows() and spread_rows() copy. */
typedef struct rows_work {
    const op_attrs *attrs;
    const int64_t *image;  /* dimensions of x */
    const int64_t *result; /* of y */
    const uint16_t *from;
    uint16_t *to;
} rows_work;

/* Whether x itself is the matrix of columns. */
static bool is_whole(const op_attrs *a)
{
    return conv2d_is_pointwise(a) && a->stride[0] == 1 && a->stride[1] == 1;
}

static int64_t positions_of(const int64_t *dims)
{
    return dims[0] * dims[2] * dims[3];
}

static int64_t taps_of(const op_attrs *a)
{
    return (int64_t)a->kernel[0] * a->kernel[1];
}

/* Columns of the output positions [begin, end); zeros stand for the padding. */
static void gather_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;
    const op_attrs *a = k->attrs;
    const int64_t channels = k->image[1];
    const size_t bytes = (size_t)channels * sizeof(*k->to);
    uint16_t *to = k->to + (int64_t)begin * taps_of(a) * channels;

    LS_UNUSED(thread);
    for (int64_t p = (int64_t)begin; p < (int64_t)end; p++) {
        const int64_t n = p / (k->result[2] * k->result[3]);
        const int64_t top = p / k->result[3] % k->result[2] * a->stride[0] - a->padding[0];
        const int64_t left = p % k->result[3] * a->stride[1] - a->padding[1];

        for (int64_t tap = 0; tap < taps_of(a); tap++, to += channels) {
            const int64_t y = top + tap / a->kernel[1] * a->dilation[0];
            const int64_t x = left + tap % a->kernel[1] * a->dilation[1];

            if (y < 0 || y >= k->image[2] || x < 0 || x >= k->image[3])
                memset(to, 0, bytes);
            else
                memcpy(to, k->from + ((n * k->image[2] + y) * k->image[3] + x) * channels, bytes);
        }
    }
}

/* Positions [begin, end) of dx: that of an output, or zeros between them. */
static void spread_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;
    const int *stride = k->attrs->stride;
    const int64_t channels = k->image[1];
    const size_t bytes = (size_t)channels * sizeof(*k->to);

    LS_UNUSED(thread);
    for (int64_t p = (int64_t)begin; p < (int64_t)end; p++) {
        const int64_t n = p / (k->image[2] * k->image[3]);
        const int64_t y = p / k->image[3] % k->image[2];
        const int64_t x = p % k->image[3];
        const int64_t from = (n * k->result[2] + y / stride[0]) * k->result[3] + x / stride[1];

        if (y % stride[0] != 0 || x % stride[1] != 0)
            memset(k->to + p * channels, 0, bytes);
        else
            memcpy(k->to + p * channels, k->from + from * channels, bytes);
    }
}

/* Memory of n bfloat16 elements, valid until *temporary is destroyed. */
static ls_status elements(ls_device *device, int64_t n, ls_tensor **temporary, uint16_t **out)
{
    float *memory;

    LS_TRY(dn_floats(device, (size_t)(n + 1) / 2, temporary, &memory));
    *out = (uint16_t *)(void *)memory;
    return LS_OK;
}

/* --- gradient of the input --- */

typedef struct data_work {
    ls_tensor *dy;
    ls_tensor *w;
    ls_tensor *rows; /* dx at the positions of outputs */
} data_work;

static ls_status backward_data(device_state *self, const op_call *call, data_work *t)
{
    ls_tensor *const dx = call->out[0];
    const bool is_whole_dx = is_whole(&call->attrs);
    const matmul_shape shape = {.type = LS_BF16,
                                .out = LS_BF16,
                                .batch = 1,
                                .m = positions_of(call->in[0]->dims),
                                .n = dx->dims[1],
                                .k = call->in[0]->dims[1]};
    rows_work k = {.attrs = &call->attrs, .image = dx->dims, .result = call->in[0]->dims};
    const layout *weights = layout_plain_as(self, LS_BF16, 4, call->in[1]->dims);
    void *data[3] = {NULL, NULL, NULL};
    uint16_t *rows = NULL;
    primitive *p;

    if (weights == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_arrange_image(self, call->in[0], &t->dy, &data[0]));
    LS_TRY(packed_weights(self, call->in[1], weights, (size_t)shape.m, &t->w, &data[1]));
    LS_TRY(layout_place(dx, layout_of_images(self, LS_BF16, dx->dims)));
    if (!is_whole_dx)
        LS_TRY(elements(dx->device, shape.m * shape.n, &t->rows, &rows));
    data[2] = is_whole_dx ? dn_data(dx) : rows;
    LS_TRY(matmul_for(self, &shape, &p));
    LS_TRY(primitive_run(self, p, data));
    if (!is_whole_dx) {
        k.from = rows;
        k.to = dn_data(dx);
        threads_for(self, (size_t)positions_of(dx->dims), (size_t)shape.n, spread_rows, &k);
    }
    return LS_OK;
}

ls_status conv2d_product_backward_data(device_state *self, const op_call *call)
{
    data_work temporaries = {NULL, NULL, NULL};
    const ls_status st = backward_data(self, call, &temporaries);

    dn_host->tensor_destroy(temporaries.dy);
    dn_host->tensor_destroy(temporaries.w);
    dn_host->tensor_destroy(temporaries.rows);
    return st;
}

/* --- gradient of the weights --- */

typedef struct weights_work {
    ls_tensor *x;
    ls_tensor *columns;
    ls_tensor *dy;
    ls_tensor *dw;
} weights_work;

static ls_status columns_of(device_state *self, const op_call *call, weights_work *t, void **out)
{
    const ls_tensor *x = call->in[0];
    const ls_tensor *dy = call->in[1];
    const int64_t row = taps_of(&call->attrs) * x->dims[1];
    rows_work k = {.attrs = &call->attrs, .image = x->dims, .result = dy->dims};

    LS_TRY(layout_arrange_image(self, call->in[0], &t->x, out));
    if (is_whole(&call->attrs))
        return LS_OK;
    LS_TRY(elements(x->device, positions_of(dy->dims) * row, &t->columns, &k.to));
    k.from = *out;
    threads_for(self, (size_t)positions_of(dy->dims), (size_t)row, gather_rows, &k);
    *out = k.to;
    return LS_OK;
}

static ls_status backward_weights(device_state *self, const op_call *call, weights_work *t)
{
    ls_tensor *const dw = call->out[0];
    // The rows of w have the order of the columns: taps, then channels.
    const layout *l = layout_as(self, layout_of_images(self, LS_BF16, dw->dims), LS_F32);
    const matmul_shape shape = {.type = LS_BF16,
                                .out = LS_F32,
                                .batch = 1,
                                .m = dw->dims[0],
                                .n = taps_of(&call->attrs) * dw->dims[1],
                                .k = positions_of(call->in[1]->dims),
                                .a_swapped = true};
    void *data[3] = {NULL, NULL, NULL};
    primitive *p;

    if (l == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_arrange_image(self, call->in[1], &t->dy, &data[0]));
    LS_TRY(columns_of(self, call, t, &data[1]));
    LS_TRY(gradient_begin(self, call, dw, l, &t->dw, &data[2]));
    LS_TRY(matmul_for(self, &shape, &p));
    LS_TRY(primitive_run(self, p, data));
    return gradient_end(self, call, dw, l, t->dw);
}

ls_status conv2d_product_backward_weights(device_state *self, const op_call *call)
{
    weights_work temporaries = {NULL, NULL, NULL, NULL};
    const ls_status st = backward_weights(self, call, &temporaries);

    dn_host->tensor_destroy(temporaries.x);
    dn_host->tensor_destroy(temporaries.columns);
    dn_host->tensor_destroy(temporaries.dy);
    dn_host->tensor_destroy(temporaries.dw);
    return st;
}
