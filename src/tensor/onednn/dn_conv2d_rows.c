/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d_rows.c - convolutions with few output positions: each pair of an output position and a
 * tap of the kernel that is inside the image is a matrix product over the batch.
 *
 *     y(p)    += x(q) w(t)              (N,C) (C,O)
 *     dx(q)   += dy(p) w(t)^T           (N,O) (O,C)
 *     dw(t)^T += dy(p)^T x(q)           (O,N) (N,C)        for all p, t with q = p stride - padding
 *                                       + t dilation
 *
 * oneDNN processes one image at a time and reads all weights for its few positions. Products with
 * the padding are skipped here: with 3x3 kernels on 1x1 images these are eight ninths of all
 * products.
 */
#include "tensor/onednn/dn.h"

#include <string.h>

#define PAD_FLOATS 16 /* after each row: rows map to different cache sets */

typedef struct rows_work {
    const simd_table *simd;
    const op_attrs *attrs;
    size_t n;
    size_t c; /* of x */
    size_t o; /* of y */
    size_t h;
    size_t w;
    size_t out_h;
    size_t out_w;
    size_t n_taps;
    const float *weights; /* panels */
    float *x;             /* rows of (position, image): x or dx; backward by weights: panels of x */
    float *y;             /* rows of y or dy */
    float *dw;            /* (tap, O, C) */
} rows_work;

static rows_work describe(const device_state *self, const op_call *call, const ls_tensor *x,
                          const ls_tensor *w, const ls_tensor *y)
{
    return (rows_work){.simd = self->simd,
                       .attrs = &call->attrs,
                       .n = (size_t)x->dims[0],
                       .c = (size_t)x->dims[1],
                       .o = (size_t)y->dims[1],
                       .h = (size_t)x->dims[2],
                       .w = (size_t)x->dims[3],
                       .out_h = (size_t)y->dims[2],
                       .out_w = (size_t)y->dims[3],
                       .n_taps = (size_t)(w->dims[2] * w->dims[3])};
}

static size_t row_of(size_t channels)
{
    return channels + PAD_FLOATS;
}

/* --- between blocks of 8 channels and rows --- */

/* Floats of `positions` positions with so many channels: (position, image, channel). */
static size_t rows_floats(const rows_work *k, size_t positions, size_t channels)
{
    return positions * k->n * row_of(channels);
}

static void to_rows(const rows_work *k, const float *blocked, size_t positions, size_t channels,
                    float *rows)
{
    for (size_t n = 0; n < k->n; n++) {
        for (size_t b = 0; b < channels / 8; b++) {
            for (size_t p = 0; p < positions; p++, blocked += 8)
                memcpy(rows + (p * k->n + n) * row_of(channels) + b * 8, blocked,
                       8 * sizeof(float));
        }
    }
}

static void from_rows(const rows_work *k, const float *rows, size_t positions, size_t channels,
                      float *blocked)
{
    for (size_t n = 0; n < k->n; n++) {
        for (size_t b = 0; b < channels / 8; b++) {
            for (size_t p = 0; p < positions; p++, blocked += 8)
                memcpy(blocked, rows + (p * k->n + n) * row_of(channels) + b * 8,
                       8 * sizeof(float));
        }
    }
}

/* (position, panel of 16 channels, image, 16) */
static void to_panels(const rows_work *k, const float *blocked, size_t positions, size_t channels,
                      float *panels)
{
    for (size_t n = 0; n < k->n; n++) {
        for (size_t b = 0; b < channels / 8; b++) {
            for (size_t p = 0; p < positions; p++, blocked += 8)
                memcpy(panels + ((p * taps_panels(channels) + b / 2) * k->n + n) * 16 + b % 2 * 8,
                       blocked, 8 * sizeof(float));
        }
    }
}

/* --- pairs of positions --- */

/* The position in x that tap `t` of result `p` reads. False: it is in the padding. */
static bool input_position(const rows_work *k, size_t p, size_t t, size_t *q)
{
    const op_attrs *a = k->attrs;
    const size_t kernel_w = (size_t)a->kernel[1];
    // Positions before the image wrap around and are then too large as well.
    const size_t h = p / k->out_w * (size_t)a->stride[0] + t / kernel_w * (size_t)a->dilation[0] -
                     (size_t)a->padding[0];
    const size_t w = p % k->out_w * (size_t)a->stride[1] + t % kernel_w * (size_t)a->dilation[1] -
                     (size_t)a->padding[1];

    *q = h * k->w + w;
    return h < k->h && w < k->w;
}

/* The matrix product of one pair. */
typedef struct pair_product {
    small_product shape;
    const float *a;
    const float *b;
    float *c;
} pair_product;

typedef pair_product (*pair_fn)(const rows_work *k, size_t p, size_t t, size_t q, size_t begin,
                                size_t end);

/* All products of columns or rows [begin, end). */
static void multiply_pairs(const rows_work *k, pair_fn pair, size_t begin, size_t end)
{
    for (size_t p = 0; p < k->out_h * k->out_w; p++) {
        for (size_t t = 0; t < k->n_taps; t++) {
            pair_product m;
            size_t q;

            if (!input_position(k, p, t, &q))
                continue;
            m = pair(k, p, t, q, begin, end);
            k->simd->product(&m.shape, m.a, m.b, m.c);
        }
    }
}

/* Rows of `in` channels times panels [begin, end) of the weights' `out` channels. */
static pair_product by_weights(const rows_work *k, const float *rows, size_t in, size_t out,
                               size_t tap, float *results, size_t begin, size_t end)
{
    const size_t last = end * 16 < out ? end * 16 : out;

    return (pair_product){.shape = {.rows = k->n,
                                    .depth = in,
                                    .columns = last - begin * 16,
                                    .a_row = row_of(in),
                                    .a_step = 1,
                                    .b_panel = in * 16,
                                    .b_step = 16,
                                    .c_row = row_of(out),
                                    .add = true},
                          .a = rows,
                          .b = k->weights + (tap * taps_panels(out) + begin) * in * 16,
                          .c = results + begin * 16};
}

static pair_product forward_pair(const rows_work *k, size_t p, size_t t, size_t q, size_t begin,
                                 size_t end)
{
    return by_weights(k, k->x + rows_floats(k, q, k->c), k->c, k->o, t,
                      k->y + rows_floats(k, p, k->o), begin, end);
}

/* The taps of rotated weights are in reverse order. */
static pair_product data_pair(const rows_work *k, size_t p, size_t t, size_t q, size_t begin,
                              size_t end)
{
    return by_weights(k, k->y + rows_floats(k, p, k->o), k->o, k->c, k->n_taps - 1 - t,
                      k->x + rows_floats(k, q, k->c), begin, end);
}

/* Rows [begin, end) of dw's transpose. */
static pair_product weights_pair(const rows_work *k, size_t p, size_t t, size_t q, size_t begin,
                                 size_t end)
{
    return (pair_product){.shape = {.rows = end - begin,
                                    .depth = k->n,
                                    .columns = k->c,
                                    .a_row = 1,
                                    .a_step = row_of(k->o),
                                    .b_panel = k->n * 16,
                                    .b_step = 16,
                                    .c_row = k->c,
                                    .add = true},
                          .a = k->y + rows_floats(k, p, k->o) + begin,
                          .b = k->x + q * taps_panels(k->c) * k->n * 16,
                          .c = k->dw + (t * k->o + begin) * k->c};
}

static void forward_range(void *arg, size_t begin, size_t end, size_t thread)
{
    LS_UNUSED(thread);
    multiply_pairs(arg, forward_pair, begin, end);
}

static void data_range(void *arg, size_t begin, size_t end, size_t thread)
{
    LS_UNUSED(thread);
    multiply_pairs(arg, data_pair, begin, end);
}

static void weights_range(void *arg, size_t begin, size_t end, size_t thread)
{
    LS_UNUSED(thread);
    multiply_pairs(arg, weights_pair, begin, end);
}

/* --- y and dx --- */

/* Forward, or backward by data. */
typedef struct direction {
    const ls_tensor *from; /* x or dy, in blocks of 8 */
    ls_tensor *to;         /* y or dx, placed */
    ls_tensor *weights;
    ls_tensor *bias;
    tap_weights taps;
    range_fn range;
} direction;

static void fill_with_bias(const rows_work *k, const float *bias, size_t positions, float *rows)
{
    for (size_t i = 0; i < positions * k->n; i++)
        memcpy(rows + i * row_of(k->o), bias, k->o * sizeof(float));
}

static ls_status pass(device_state *self, rows_work *k, const direction *d, const float *blocked,
                      ls_tensor **memory)
{
    const bool is_forward = !d->taps.rotated;
    const size_t in_positions = k->h * k->w;
    const size_t out_positions = k->out_h * k->out_w;
    const size_t x_floats = rows_floats(k, in_positions, k->c);
    const size_t y_floats = rows_floats(k, out_positions, k->o);
    void *plain;
    float *at;

    LS_TRY(dn_host->tensor_plain(d->weights, &plain));
    LS_TRY(dn_floats(d->weights->device, x_floats + y_floats + k->n_taps * taps_floats(&d->taps),
                     memory, &at));
    k->x = at;
    k->y = at + x_floats;
    k->weights = k->y + y_floats;
    taps_arrange(&d->taps, plain, k->y + y_floats);
    if (is_forward)
        to_rows(k, blocked, in_positions, k->c, k->x);
    else
        to_rows(k, blocked, out_positions, k->o, k->y);
    memset(is_forward ? k->y : k->x, 0, (is_forward ? y_floats : x_floats) * sizeof(float));
    if (d->bias != NULL) {
        LS_TRY(dn_host->tensor_plain(d->bias, &plain));
        fill_with_bias(k, plain, out_positions, k->y);
    }
    threads_for(self, taps_panels(d->taps.out), k->n * d->taps.in * 16, d->range, k);
    if (is_forward)
        from_rows(k, k->y, out_positions, k->o, dn_data(d->to));
    else
        from_rows(k, k->x, in_positions, k->c, dn_data(d->to));
    return LS_OK;
}

static ls_status run_direction(device_state *self, rows_work *k, const direction *d,
                               ls_tensor *from)
{
    ls_tensor *moved = NULL;
    ls_tensor *memory = NULL;
    void *data = NULL;
    ls_status st;

    LS_TRY(layout_place(d->to, layout_blocked(self, 8, d->to->dims)));
    st = layout_arrange(self, from, layout_blocked(self, 8, from->dims), &moved, &data);
    if (st == LS_OK)
        st = pass(self, k, d, data, &memory);
    dn_host->tensor_destroy(memory);
    dn_host->tensor_destroy(moved);
    return st;
}

ls_status conv2d_rows(device_state *self, const op_call *call)
{
    rows_work k = describe(self, call, call->in[0], call->in[1], call->out[0]);
    const direction d = {.to = call->out[0],
                         .weights = call->in[1],
                         .bias = call->in[2],
                         .taps = {.in = k.c, .out = k.o, .n = k.n_taps},
                         .range = forward_range};

    return run_direction(self, &k, &d, call->in[0]);
}

ls_status conv2d_rows_backward_data(device_state *self, const op_call *call)
{
    rows_work k = describe(self, call, call->out[0], call->in[1], call->in[0]);
    const direction d = {.to = call->out[0],
                         .weights = call->in[1],
                         .taps = {.in = k.o, .out = k.c, .n = k.n_taps, .rotated = true},
                         .range = data_range};

    return run_direction(self, &k, &d, call->in[0]);
}

/* --- dw --- */

/* (tap, O, C) into the plain (O, C, tap). */
static void write_weights(const rows_work *k, float *dw, bool accumulate)
{
    const size_t count = k->o * k->c;

    for (size_t i = 0; i < count; i++) {
        for (size_t t = 0; t < k->n_taps; t++, dw++)
            *dw = (accumulate ? *dw : 0) + k->dw[t * count + i];
    }
}

static void write_bias(const rows_work *k, float *db, bool accumulate)
{
    const size_t rows = k->out_h * k->out_w * k->n;

    if (!accumulate)
        memset(db, 0, k->o * sizeof(*db));
    for (size_t i = 0; i < rows; i++)
        k->simd->add(db, k->y + i * row_of(k->o), db, k->o);
}

static ls_status backward_weights(device_state *self, const op_call *call, rows_work *k,
                                  const float *x, const float *dy, ls_tensor **memory)
{
    const size_t in_positions = k->h * k->w;
    const size_t out_positions = k->out_h * k->out_w;
    const size_t x_floats = in_positions * taps_panels(k->c) * k->n * 16;
    const size_t y_floats = rows_floats(k, out_positions, k->o);
    const size_t count = k->n_taps * k->o * k->c;
    float *const given = dn_data(call->out[0]);
    const bool direct = k->n_taps == 1;

    LS_TRY(
        dn_floats(call->in[0]->device, x_floats + y_floats + (direct ? 0 : count), memory, &k->x));
    k->y = k->x + x_floats;
    k->dw = direct ? given : k->y + y_floats;
    to_panels(k, x, in_positions, k->c, k->x);
    to_rows(k, dy, out_positions, k->o, k->y);
    if (!direct || !call->accumulate)
        memset(k->dw, 0, count * sizeof(float));
    threads_for(self, k->o, k->n * k->c, weights_range, k);
    if (!direct)
        write_weights(k, given, call->accumulate);
    if (call->out[1] != NULL)
        write_bias(k, dn_data(call->out[1]), call->accumulate);
    return LS_OK;
}

ls_status conv2d_rows_backward_weights(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const dy = call->in[1];
    rows_work k = describe(self, call, x, call->out[0], dy);
    ls_tensor *moved[2] = {NULL, NULL};
    ls_tensor *memory = NULL;
    void *data[2] = {NULL, NULL};
    ls_status st;

    st = layout_arrange(self, x, layout_blocked(self, 8, x->dims), &moved[0], &data[0]);
    if (st == LS_OK)
        st = layout_arrange(self, dy, layout_blocked(self, 8, dy->dims), &moved[1], &data[1]);
    if (st == LS_OK)
        st = backward_weights(self, call, &k, data[0], data[1], &memory);
    dn_host->tensor_destroy(memory);
    dn_host->tensor_destroy(moved[0]);
    dn_host->tensor_destroy(moved[1]);
    return st;
}
