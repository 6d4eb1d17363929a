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
 * products. Each weight is multiplied a few times only, so that its way between memory and the
 * registers counts: weights are arranged, and dw is added up, in blocks that stay in the cache
 * meanwhile.
 */
#include "tensor/devices/onednn/conv2d_choice.h"
#include "tensor/devices/onednn/dn.h"

#include <string.h>

#define PAD_FLOATS   16 /* after each row: rows map to different cache sets */
#define BLOCK_FLOATS ((size_t)1 << 16)
#define TILE_ROWS    12 /* of dw, in one product */

typedef struct rows_work {
    const simd_table *simd;
    const op_attrs *attrs;
    size_t images;
    size_t in_positions; /* of an image of x */
    size_t out_positions;
    size_t n; /* rows of a position: the images, or of 1x1 kernels all that there are */
    size_t c; /* of x */
    size_t o; /* of y */
    size_t h;
    size_t w;
    size_t out_h;
    size_t out_w;
    size_t n_taps;
    bool used[CONV2D_ROWS_TAPS]; /* taps that are not in the padding at all positions */
    size_t n_used;
    tap_weights taps; /* of the plain weights; not for dw */
    const float *weights;
    float *x;  /* rows of (position, image): x or dx; backward by weights: panels of x */
    float *y;  /* rows of y or dy */
    float *dw; /* plain */
    bool accumulate;
    size_t block;  /* panels of weights, or rows of dw */
    float *memory; /* of a block, for each thread */
} rows_work;

static size_t row_of(size_t channels)
{
    return channels + PAD_FLOATS;
}

/* --- between blocks of 8 channels and rows --- */

/* Floats of `positions` positions with so many channels: (position, row, channel). */
static size_t rows_floats(const rows_work *k, size_t positions, size_t channels)
{
    return positions * k->n * row_of(channels);
}

static void to_rows(const rows_work *k, const float *blocked, size_t positions, size_t channels,
                    float *rows)
{
    for (size_t n = 0; n < k->images; n++) {
        for (size_t b = 0; b < channels / 8; b++) {
            for (size_t p = 0; p < positions; p++, blocked += 8)
                memcpy(rows + (p * k->images + n) * row_of(channels) + b * 8, blocked,
                       8 * sizeof(float));
        }
    }
}

static void from_rows(const rows_work *k, const float *rows, size_t positions, size_t channels,
                      float *blocked)
{
    for (size_t n = 0; n < k->images; n++) {
        for (size_t b = 0; b < channels / 8; b++) {
            for (size_t p = 0; p < positions; p++, blocked += 8)
                memcpy(blocked, rows + (p * k->images + n) * row_of(channels) + b * 8,
                       8 * sizeof(float));
        }
    }
}

/* (position, panel of 16 channels, row, 16) */
static void to_panels(const rows_work *k, const float *blocked, size_t positions, size_t channels,
                      float *panels)
{
    const size_t position = taps_panels(channels) * k->n * 16;

    for (size_t n = 0; n < k->images; n++) {
        for (size_t b = 0; b < channels / 8; b++) {
            for (size_t p = 0; p < positions; p++, blocked += 8) {
                const size_t row = p * k->images + n;

                memcpy(panels + row / k->n * position + (b / 2 * k->n + row % k->n) * 16 +
                           b % 2 * 8,
                       blocked, 8 * sizeof(float));
            }
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

static rows_work describe(const device_state *self, const op_call *call, const ls_tensor *x,
                          const ls_tensor *w, const ls_tensor *y)
{
    rows_work k = {.simd = self->simd,
                   .attrs = &call->attrs,
                   .images = (size_t)x->dims[0],
                   .in_positions = (size_t)(x->dims[2] * x->dims[3]),
                   .out_positions = (size_t)(y->dims[2] * y->dims[3]),
                   .n = (size_t)x->dims[0],
                   .c = (size_t)x->dims[1],
                   .o = (size_t)y->dims[1],
                   .h = (size_t)x->dims[2],
                   .w = (size_t)x->dims[3],
                   .out_h = (size_t)y->dims[2],
                   .out_w = (size_t)y->dims[3],
                   .n_taps = (size_t)(w->dims[2] * w->dims[3])};
    const op_attrs *a = k.attrs;

    if (k.n_taps == 1 && a->stride[0] == 1 && a->stride[1] == 1 && a->padding[0] == 0 &&
        a->padding[1] == 0) {
        k.n *= k.in_positions;
        k.h = k.w = k.out_h = k.out_w = 1;
    }
    for (size_t t = 0; t < k.n_taps; t++) {
        size_t q;

        for (size_t p = 0; p < k.out_h * k.out_w && !k.used[t]; p++)
            k.used[t] = input_position(&k, p, t, &q);
        k.n_used += k.used[t];
    }
    return k;
}

/* --- y and dx --- */

/* Panels [begin, end) of the weights. */
typedef struct block {
    size_t begin;
    size_t end;
    const float *weights; /* arranged */
} block;

/* The matrix product of one pair. */
typedef struct pair_product {
    small_product shape;
    const float *a;
    const float *b;
    float *c;
} pair_product;

typedef pair_product (*pair_fn)(const rows_work *k, size_t p, size_t t, size_t q, const block *b);

static void multiply_pairs(const rows_work *k, pair_fn pair, const block *b)
{
    for (size_t p = 0; p < k->out_h * k->out_w; p++) {
        for (size_t t = 0; t < k->n_taps; t++) {
            pair_product m;
            size_t q;

            if (!input_position(k, p, t, &q))
                continue;
            m = pair(k, p, t, q, b);
            k->simd->product(&m.shape, m.a, m.b, m.c);
        }
    }
}

static size_t panel_floats(const rows_work *k)
{
    return k->taps.in * 16 * k->n_taps;
}

/* A product takes two panels at a time. */
static size_t panels_in_block(const rows_work *k)
{
    const size_t pairs = BLOCK_FLOATS / (2 * panel_floats(k));
    const size_t all = taps_panels(k->taps.out);
    const size_t panels = pairs > 0 ? 2 * pairs : 2;

    return panels < all ? panels : all;
}

/* Rows of `in` channels times the block's panels. */
static pair_product by_weights(const rows_work *k, const float *rows, size_t tap, float *results,
                               const block *b)
{
    const size_t in = k->taps.in;
    const size_t out = k->taps.out;
    const size_t last = b->end * 16 < out ? b->end * 16 : out;

    return (pair_product){.shape = {.rows = k->n,
                                    .depth = in,
                                    .columns = last - b->begin * 16,
                                    .a_row = row_of(in),
                                    .a_step = 1,
                                    .b_panel = in * 16,
                                    .b_step = 16,
                                    .c_row = row_of(out),
                                    .add = true},
                          .a = rows,
                          .b = b->weights + tap * (b->end - b->begin) * in * 16,
                          .c = results + b->begin * 16};
}

static pair_product forward_pair(const rows_work *k, size_t p, size_t t, size_t q, const block *b)
{
    return by_weights(k, k->x + rows_floats(k, q, k->c), t, k->y + rows_floats(k, p, k->o), b);
}

/* The taps of rotated weights are in reverse order. */
static pair_product data_pair(const rows_work *k, size_t p, size_t t, size_t q, const block *b)
{
    return by_weights(k, k->y + rows_floats(k, p, k->o), k->n_taps - 1 - t,
                      k->x + rows_floats(k, q, k->c), b);
}

/* Panels [begin, end), block by block. */
static void pass_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;
    float *weights = k->memory + thread * k->block * panel_floats(k);

    for (size_t i = begin; i < end; i += k->block) {
        const block b = {i, end < i + k->block ? end : i + k->block, weights};

        taps_arrange(k->simd, &k->taps, k->weights, b.begin, b.end, weights);
        multiply_pairs(k, k->taps.rotated ? data_pair : forward_pair, &b);
    }
}

/* Forward, or backward by data. */
typedef struct direction {
    ls_tensor *to; /* y or dx, placed */
    ls_tensor *weights;
    ls_tensor *bias;
} direction;

static void fill_with_bias(const rows_work *k, const float *bias, float *rows)
{
    for (size_t i = 0; i < k->out_positions * k->images; i++)
        memcpy(rows + i * row_of(k->o), bias, k->o * sizeof(float));
}

static ls_status pass(device_state *self, rows_work *k, const direction *d, const float *blocked,
                      ls_tensor **memory)
{
    const bool is_forward = !k->taps.rotated;
    const size_t x_floats = rows_floats(k, k->h * k->w, k->c);
    const size_t y_floats = rows_floats(k, k->out_h * k->out_w, k->o);
    void *plain;

    k->taps.n = k->n_taps;
    k->block = panels_in_block(k);
    LS_TRY(dn_host->tensor_plain(d->weights, &plain));
    k->weights = plain;
    LS_TRY(dn_floats(d->weights->device,
                     x_floats + y_floats + (size_t)self->threads * k->block * panel_floats(k),
                     memory, &k->x));
    k->y = k->x + x_floats;
    k->memory = k->y + y_floats;
    if (is_forward)
        to_rows(k, blocked, k->in_positions, k->c, k->x);
    else
        to_rows(k, blocked, k->out_positions, k->o, k->y);
    memset(is_forward ? k->y : k->x, 0, (is_forward ? y_floats : x_floats) * sizeof(float));
    if (d->bias != NULL) {
        LS_TRY(dn_host->tensor_plain(d->bias, &plain));
        fill_with_bias(k, plain, k->y);
    }
    threads_for(self, taps_panels(k->taps.out), k->n * k->taps.in * 16, pass_range, k);
    if (is_forward)
        from_rows(k, k->y, k->out_positions, k->o, dn_data(d->to));
    else
        from_rows(k, k->x, k->in_positions, k->c, dn_data(d->to));
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
    const direction d = {.to = call->out[0], .weights = call->in[1], .bias = call->in[2]};

    k.taps = (tap_weights){.in = k.c, .out = k.o};
    return run_direction(self, &k, &d, call->in[0]);
}

ls_status conv2d_rows_backward_data(device_state *self, const op_call *call)
{
    rows_work k = describe(self, call, call->out[0], call->in[1], call->in[0]);
    const direction d = {.to = call->out[0], .weights = call->in[1]};

    k.taps = (tap_weights){.in = k.o, .out = k.c, .rotated = true};
    return run_direction(self, &k, &d, call->in[0]);
}

/* --- dw --- */

/* Rows [begin, end) of dw for each tap, (tap, row, C), to `to`. */
static void weights_block(const rows_work *k, size_t begin, size_t end, bool add, float *to)
{
    small_product shape = {.rows = end - begin,
                           .depth = k->n,
                           .columns = k->c,
                           .a_row = 1,
                           .a_step = row_of(k->o),
                           .b_panel = k->n * 16,
                           .b_step = 16,
                           .c_row = k->c};

    for (size_t t = 0; t < k->n_taps; t++, to += (end - begin) * k->c) {
        shape.add = add;
        for (size_t p = 0; p < k->out_h * k->out_w; p++) {
            size_t q;

            if (!input_position(k, p, t, &q))
                continue;
            k->simd->product(&shape, k->y + rows_floats(k, p, k->o) + begin,
                             k->x + q * taps_panels(k->c) * k->n * 16, to);
            shape.add = true;
        }
    }
}

/* (tap, row, C) into rows of the plain (O, C, tap). */
static void write_weights(const rows_work *k, size_t begin, size_t end, const float *from)
{
    const size_t n = k->n_taps;
    float *dw = k->dw + begin * k->c * n;

    if (!k->accumulate && k->n_used < n)
        memset(dw, 0, (end - begin) * k->c * n * sizeof(*dw));
    for (size_t row = 0; row < end - begin; row++, dw += k->c * n, from += k->c) {
        if (k->n_used == n && !k->accumulate) {
            k->simd->transpose(from, (end - begin) * k->c, n, k->c, dw, (ptrdiff_t)n);
            continue;
        }
        for (size_t t = 0; t < n; t++) {
            const float *sums = from + t * (end - begin) * k->c;

            for (size_t i = 0; k->used[t] && i < k->c; i++)
                dw[i * n + t] += sums[i];
        }
    }
}

/* Whether a block of dw needs no other memory. */
static bool is_direct(const rows_work *k)
{
    return k->n_taps == 1 && k->n_used == 1;
}

static void weights_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *k = arg;
    float *sums = k->memory + thread * k->block * k->c * k->n_taps;

    for (size_t i = begin; i < end; i += k->block) {
        const size_t last = end < i + k->block ? end : i + k->block;

        if (is_direct(k)) {
            weights_block(k, i, last, k->accumulate, k->dw + i * k->c);
        } else {
            weights_block(k, i, last, false, sums);
            write_weights(k, i, last, sums);
        }
    }
}

static size_t rows_in_block(const rows_work *k)
{
    const size_t tile = TILE_ROWS * k->c * (k->n_used > 0 ? k->n_used : 1);
    const size_t rows = BLOCK_FLOATS > tile ? BLOCK_FLOATS / tile * TILE_ROWS : TILE_ROWS;

    return rows < k->o ? rows : k->o;
}

static void write_bias(const rows_work *k, float *db, bool accumulate)
{
    const size_t rows = k->out_positions * k->images;

    if (!accumulate)
        memset(db, 0, k->o * sizeof(*db));
    for (size_t i = 0; i < rows; i++)
        k->simd->add(db, k->y + i * row_of(k->o), db, k->o);
}

static ls_status backward_weights(device_state *self, const op_call *call, rows_work *k,
                                  const float *x, const float *dy, ls_tensor **memory)
{
    const size_t x_floats = k->h * k->w * taps_panels(k->c) * k->n * 16;
    const size_t y_floats = rows_floats(k, k->out_h * k->out_w, k->o);
    const size_t sums = is_direct(k) ? 0 : (size_t)self->threads * k->block * k->c * k->n_taps;

    LS_TRY(dn_floats(call->in[0]->device, x_floats + y_floats + sums, memory, &k->x));
    k->y = k->x + x_floats;
    k->memory = k->y + y_floats;
    to_panels(k, x, k->in_positions, k->c, k->x);
    to_rows(k, dy, k->out_positions, k->o, k->y);
    threads_for(self, k->o, k->n * k->c, weights_range, k);
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

    k.dw = dn_data(call->out[0]);
    k.accumulate = call->accumulate;
    k.block = rows_in_block(&k);
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
