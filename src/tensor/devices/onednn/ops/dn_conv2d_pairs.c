/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d_pairs.c - gradients of 1x1 convolutions in bfloat16, by our products of pairs, on
 * images in blocks of 16 channels:
 *
 *     dx (P, C) = dy (P, O) * w (O, C)                at the P positions of outputs; else 0
 *     dw (O, C) = dy (P, O) transposed * x (P, C)
 *
 * The sum of dx goes over channels, of which dy has two side by side: only the weights are
 * arranged. That of dw goes over positions: both images are arranged, some hundred positions at a
 * time, which stay in the cache.
 */
#include "tensor/devices/onednn/conv2d_choice.h"
#include "tensor/devices/onednn/dn.h"
#include "tensor/devices/onednn/simd/simd_pairs.h"

#include <string.h>

#define BLOCK        ((size_t)16)      /* channels */
#define PIECE        ((size_t)1 << 16) /* elements of dy at a time */
#define PIECE_LEAST  ((size_t)48)      /* positions: they outweigh reading the weights */
#define DW_POSITIONS ((size_t)512)     /* at a time */

typedef struct pairs_work {
    size_t n;
    size_t in;  /* blocks of channels of x */
    size_t out; /* of y */
    size_t h;
    size_t w;
    size_t out_h;
    size_t out_w;
    size_t stride[2];
    uint16_t *x; /* x or dx */
    const uint16_t *dy;
    const uint16_t *plain; /* (O, C) */
    uint32_t *weights;     /* their panels */
    float *dw;
    uint32_t *memory; /* of dw, for each thread */
} pairs_work;

static pairs_work describe(const op_call *call, const int64_t *x, const int64_t *y)
{
    return (pairs_work){.n = (size_t)x[0],
                        .in = (size_t)x[1] / BLOCK,
                        .out = (size_t)y[1] / BLOCK,
                        .h = (size_t)x[2],
                        .w = (size_t)x[3],
                        .out_h = (size_t)y[2],
                        .out_w = (size_t)y[3],
                        .stride = {(size_t)call->attrs.stride[0], (size_t)call->attrs.stride[1]}};
}

static bool has_stride(const pairs_work *k)
{
    return k->stride[0] != 1 || k->stride[1] != 1;
}

/* --- dx --- */

/* A panel of the weights: pairs of outputs. */
static size_t panel_pairs(const pairs_work *k)
{
    return k->out * BLOCK / 2 * BLOCK;
}

static void panels_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const pairs_work *k = arg;
    size_t rows[2] = {0, k->in * BLOCK};

    LS_UNUSED(thread);
    for (size_t b = begin; b < end; b++) {
        for (size_t o = 0; o < k->out * BLOCK; o += 2)
            pairs_pack(k->plain + o * k->in * BLOCK + b * BLOCK, rows, 2,
                       k->weights + b * panel_pairs(k) + o / 2 * BLOCK);
    }
}

/* Positions of dx are multiplied by lines: rows of dy, or without a stride as many positions as a
 * piece has. */
static size_t line_positions(const pairs_work *k)
{
    const size_t piece = PIECE / (k->out * BLOCK);
    const size_t all = k->out_h * k->out_w;
    const size_t most = piece < PIECE_LEAST ? PIECE_LEAST : piece;

    if (has_stride(k))
        return k->out_w;
    return most < all ? most : all;
}

static size_t lines_of_image(const pairs_work *k)
{
    return (k->out_h * k->out_w + line_positions(k) - 1) / line_positions(k);
}

static size_t lines_of_piece(const pairs_work *k)
{
    const size_t lines = PIECE / (k->out * BLOCK) / line_positions(k);

    return lines > 0 ? lines : 1;
}

/* Two panels, or the last one, of a line. */
static void multiply_line(const pairs_work *k, size_t image, size_t line, size_t panel)
{
    const size_t first = line * line_positions(k);
    const size_t left = k->out_h * k->out_w - first;
    const size_t to = has_stride(k) ? line * k->stride[0] * k->w : first;
    const pair_product m = {.rows = left < line_positions(k) ? left : line_positions(k),
                            .panels = k->in - panel < 2 ? 1 : 2,
                            .blocks = k->out,
                            .depth = BLOCK / 2,
                            .a_row = BLOCK / 2,
                            .a_block = k->out_h * k->out_w * BLOCK / 2,
                            .a_step = 1,
                            .b_panel = panel_pairs(k),
                            .c_panel = k->h * k->w * BLOCK,
                            .c_row = k->stride[1] * BLOCK};
    const uint16_t *dy = k->dy + (image * k->out * k->out_h * k->out_w + first) * BLOCK;

    pairs_multiply_bf16(&m, (const uint32_t *)(const void *)dy, k->weights + panel * m.b_panel,
                        k->x + ((image * k->in + panel) * k->h * k->w + to) * BLOCK);
}

/* Zeros between the positions of lines [begin, end). */
static void clear_lines(const pairs_work *k, size_t image, size_t begin, size_t end, size_t panel)
{
    const size_t top = begin * k->stride[0];
    const size_t bottom = end == k->out_h ? k->h : end * k->stride[0];

    for (size_t i = panel; i < panel + 2 && i < k->in; i++)
        memset(k->x + ((image * k->in + i) * k->h + top) * k->w * BLOCK, 0,
               (bottom - top) * k->w * BLOCK * sizeof(*k->x));
}

/* Pieces of images. */
static void data_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const pairs_work *k = arg;
    const size_t lines = lines_of_piece(k);
    const size_t in_image = (lines_of_image(k) + lines - 1) / lines;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        const size_t first = i % in_image * lines;
        const size_t last = first + lines < lines_of_image(k) ? first + lines : lines_of_image(k);

        for (size_t panel = 0; panel < k->in; panel += 2) {
            if (has_stride(k))
                clear_lines(k, i / in_image, first, last, panel);
            for (size_t line = first; line < last; line++)
                multiply_line(k, i / in_image, line, panel);
        }
    }
}

typedef struct data_work {
    ls_tensor *dy;
    ls_tensor *w;
    ls_tensor *panels;
} data_work;

static ls_status backward_data(device_state *self, const op_call *call, data_work *t)
{
    ls_tensor *const dx = call->out[0];
    const layout *weights = layout_plain_as(self, LS_BF16, 4, call->in[1]->dims);
    pairs_work k = describe(call, dx->dims, call->in[0]->dims);
    size_t pieces;
    void *data;
    float *memory;

    if (weights == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_arrange_image(self, call->in[0], &t->dy, &data));
    k.dy = data;
    LS_TRY(packed_weights(self, call->in[1], weights, k.n * k.out_h * k.out_w, &t->w, &data));
    k.plain = data;
    LS_TRY(dn_floats(dx->device, k.in * panel_pairs(&k), &t->panels, &memory));
    k.weights = (uint32_t *)(void *)memory;
    LS_TRY(layout_place(dx, layout_of_images(self, LS_BF16, dx->dims)));
    k.x = dn_data(dx);
    threads_for(self, k.in, panel_pairs(&k), panels_range, &k);
    pieces = k.n * ((lines_of_image(&k) + lines_of_piece(&k) - 1) / lines_of_piece(&k));
    threads_for(self, pieces, PIECE, data_range, &k);
    return LS_OK;
}

ls_status conv2d_pairs_backward_data(device_state *self, const op_call *call)
{
    data_work temporaries = {NULL, NULL, NULL};
    const ls_status st = backward_data(self, call, &temporaries);

    dn_host->tensor_destroy(temporaries.dy);
    dn_host->tensor_destroy(temporaries.w);
    dn_host->tensor_destroy(temporaries.panels);
    return st;
}

/* --- dw --- */

/* Positions [first, first + count) of outputs: where each is in dy, and in x, in their first
 * blocks. */
static void find_positions(const pairs_work *k, size_t first, size_t count, size_t *in_x,
                           size_t *in_dy)
{
    const size_t area = k->out_h * k->out_w;
    size_t n = first / area;
    size_t h = first % area / k->out_w;
    size_t w = first % k->out_w;

    for (size_t i = 0; i < count; i++) {
        in_dy[i] = (n * k->out * area + h * k->out_w + w) * BLOCK;
        in_x[i] = ((n * k->in * k->h + h * k->stride[0]) * k->w + w * k->stride[1]) * BLOCK;
        w = w + 1 < k->out_w ? w + 1 : 0;
        h += w == 0;
        n += h == k->out_h;
        h = h < k->out_h ? h : 0;
    }
}

/* Blocks of outputs and of inputs. */
typedef struct dw_part {
    size_t out_begin;
    size_t out_end;
    size_t in_begin;
    size_t in_end;
} dw_part;

static void multiply_positions(const pairs_work *k, const dw_part *d, size_t first, size_t count,
                               uint32_t *memory)
{
    const size_t panel = (count + 1) / 2 * BLOCK;
    const pair_product m = {.rows = BLOCK,
                            .panels = d->in_end - d->in_begin,
                            .blocks = 1,
                            .depth = (count + 1) / 2,
                            .a_row = 1,
                            .a_step = BLOCK,
                            .b_panel = panel,
                            .c_panel = BLOCK,
                            .c_row = k->in * BLOCK};
    uint32_t *rows = memory + m.panels * panel;
    size_t in_x[DW_POSITIONS];
    size_t in_dy[DW_POSITIONS];

    find_positions(k, first, count, in_x, in_dy);
    for (size_t i = d->in_begin; i < d->in_end; i++)
        pairs_pack(k->x + i * k->h * k->w * BLOCK, in_x, count, memory + (i - d->in_begin) * panel);
    for (size_t o = d->out_begin; o < d->out_end; o++) {
        pairs_pack(k->dy + o * k->out_h * k->out_w * BLOCK, in_dy, count, rows);
        pairs_multiply(&m, rows, memory, k->dw + (o * k->in * BLOCK + d->in_begin) * BLOCK,
                       first > 0);
    }
}

/* For each thread. */
static size_t memory_pairs(const pairs_work *k)
{
    return (k->in + 1) * DW_POSITIONS / 2 * BLOCK;
}

/* Of the blocks that there are more of: each thread arranges all others. */
static void weights_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const pairs_work *k = arg;
    const size_t positions = k->n * k->out_h * k->out_w;
    const dw_part part =
        k->out >= k->in ? (dw_part){begin, end, 0, k->in} : (dw_part){0, k->out, begin, end};

    if (begin == end)
        return; // more threads than blocks
    for (size_t i = 0; i < positions; i += DW_POSITIONS) {
        const size_t left = positions - i;

        multiply_positions(k, &part, i, left < DW_POSITIONS ? left : DW_POSITIONS,
                           k->memory + thread * memory_pairs(k));
    }
}

typedef struct weights_work {
    ls_tensor *x;
    ls_tensor *dy;
    ls_tensor *dw;
    ls_tensor *memory;
} weights_work;

static ls_status backward_weights(device_state *self, const op_call *call, weights_work *t)
{
    const layout *plain = layout_plain(self, 4, call->out[0]->dims);
    pairs_work k = describe(call, call->in[0]->dims, call->in[1]->dims);
    void *data;
    float *memory;

    if (plain == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_arrange_image(self, call->in[0], &t->x, &data));
    k.x = data;
    LS_TRY(layout_arrange_image(self, call->in[1], &t->dy, &data));
    k.dy = data;
    LS_TRY(gradient_begin(self, call, call->out[0], plain, &t->dw, &data));
    k.dw = data;
    LS_TRY(dn_floats(call->out[0]->device, (size_t)self->threads * memory_pairs(&k), &t->memory,
                     &memory));
    k.memory = (uint32_t *)(void *)memory;
    threads_for(self, k.out >= k.in ? k.out : k.in, k.n * k.out_h * k.out_w * BLOCK, weights_range,
                &k);
    return gradient_end(self, call, call->out[0], plain, t->dw);
}

ls_status conv2d_pairs_backward_weights(device_state *self, const op_call *call)
{
    weights_work temporaries = {NULL, NULL, NULL, NULL};
    const ls_status st = backward_weights(self, call, &temporaries);

    dn_host->tensor_destroy(temporaries.x);
    dn_host->tensor_destroy(temporaries.dy);
    dn_host->tensor_destroy(temporaries.dw);
    dn_host->tensor_destroy(temporaries.memory);
    return st;
}
