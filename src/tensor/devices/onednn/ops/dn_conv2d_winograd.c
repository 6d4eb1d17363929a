/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d_winograd.c - convolutions with 3x3, 5x5 and 1x5 kernels and stride 1, by Winograd's
 * algorithm on tiles of 6x6 or 4x4, or of 6 positions of a line.
 *
 * A tile gives 4x4 results of a 3x3 kernel with 36 products instead of 144, or 2x2 (forward) with
 * 16 instead of 36, or 2x2 results of a 5x5 kernel with 36 instead of 100, or 2 results of a 1x5
 * kernel with 6 instead of 10. All three directions are the same three steps: transform to points,
 * a matrix product at each of the points, transform back:
 *
 *     y:   results (image x  * kernel w)             summed over input channels
 *     dx:  results (image dy * kernel w, rotated by 180 degrees)   summed over output channels
 *     dw:  results (image x  * kernel dy)            summed over tiles; here dy's tile is the
 *          kernel, the 3x3 or 5x5 the result
 *
 * Many tiles are processed in portions whose points stay in the L2 cache. Few tiles do not pay for
 * reading the points of all weights again for each portion: there the weights are processed in
 * portions, for all tiles. For layouts in blocks of 8 channels, or with AVX-512 of 16.
 * docs/environment.md has the rounding errors.
 */
#include "tensor/devices/onednn/conv2d_choice.h"
#include "tensor/devices/onednn/dn.h"

#include <string.h>

#define PORTION_BYTES ((size_t)384 << 10) /* of points */
#define PORTION_TILES 24                  /* minimum: the products outweigh reading the weights */
#define PORTION_LINES 96 /* the same for lines, which share the weights of a point */
#define PAD_FLOATS    16 /* between points: they map to different cache sets */
#define PANELS        2  /* by weights: at a time; a product takes two */
#define DW_ROWS       24 /* the same of dw */
#define DW_COLUMNS    128

/* One convolution of an image of `in` channels with `out` results, seen as tiles. */
typedef struct wino {
    const simd_table *simd;
    size_t in;
    size_t out;
    size_t h; /* of the image */
    size_t w;
    size_t out_h;
    size_t out_w;
    int dims;      /* 2, or 1: tiles are lines */
    size_t side;   /* points of a tile in each direction: 6 or 4 */
    size_t points; /* of a tile: 36, 16 or in a line 6 */
    size_t kernel; /* 3 or 5 */
    size_t n_taps; /* its square, or in a line itself */
    size_t size;   /* results of a tile in each direction: 4 or 2 */
    size_t padding[2];
    size_t tiles_h;
    size_t tiles_w;
    size_t n_tiles;  /* of all images */
    size_t portion;  /* tiles at a time */
    bool by_weights; /* the portion has all tiles: threads share its points, and divide weights */
    const float *image;
    const float *gradient; /* backward by weights: dy */
    float *results;        /* y or dx */
    const float *plain;    /* weights, */
    tap_weights taps;      /* in this order */
    const float *bias;
    float *weights;  /* points of the kernel, or of each thread's part of it */
    float *turned;   /* taps of some panels, or of a part of dw, for each thread */
    size_t n_shares; /* of dw, in portions of tiles: one for each thread */
    float *sums;     /* for dw, of each thread: db of the portion, and of all portions so far */
    float *dw;       /* plain */
    bool accumulate;
    float *memory; /* points of a portion, for each thread */
} wino;

/* --- tiles --- */

/* Floats between the points of a portion with so many channels. */
static size_t step_of(const wino *k, size_t channels)
{
    return k->portion * channels + PAD_FLOATS;
}

static size_t memory_floats(const wino *k)
{
    return k->points * step_of(k, k->in) + (k->points + 1) * step_of(k, k->out);
}

/* image and results: (N, C, H, W) of x and y, or of dy and dx. */
static void describe(wino *k, const device_state *self, const int64_t *image,
                     const int64_t *results, const ls_tensor *weights, const int *padding,
                     conv2d_direction direction)
{
    const size_t side = (size_t)conv2d_winograd_side(direction, weights->dims[3]);
    size_t fitting;
    size_t least;

    *k = (wino){.simd = self->simd,
                .in = (size_t)image[1],
                .out = (size_t)results[1],
                .h = (size_t)image[2],
                .w = (size_t)image[3],
                .out_h = (size_t)results[2],
                .out_w = (size_t)results[3],
                .dims = weights->dims[2] == 1 ? 1 : 2,
                .side = side,
                .kernel = (size_t)weights->dims[3],
                .padding = {(size_t)padding[0], (size_t)padding[1]}};
    k->points = k->dims == 1 ? side : side * side;
    k->n_taps = k->dims == 1 ? k->kernel : k->kernel * k->kernel;
    k->size = side + 1 - k->kernel;
    k->tiles_h = k->dims == 1 ? k->out_h : (k->out_h + k->size - 1) / k->size;
    k->tiles_w = (k->out_w + k->size - 1) / k->size;
    k->n_tiles = (size_t)image[0] * k->tiles_h * k->tiles_w;
    fitting = PORTION_BYTES / (k->points * (k->in + k->out) * sizeof(float));
    least = k->dims == 1 ? PORTION_LINES : PORTION_TILES;
    k->portion = fitting < least ? least : fitting;
    k->by_weights = k->dims == 2 && k->n_tiles * (k->in + k->out) <= k->in * k->out;
    if (k->by_weights || k->portion > k->n_tiles)
        k->portion = k->n_tiles;
}

/* The position of a tile in the image (which begins `padding` earlier) or in the results. */
typedef struct tile {
    size_t n;
    size_t top;
    size_t left;
} tile;

static tile tile_at(const wino *k, size_t i)
{
    const size_t in_image = i % (k->tiles_h * k->tiles_w);

    return (tile){.n = i / (k->tiles_h * k->tiles_w),
                  .top = in_image / k->tiles_w * (k->dims == 1 ? 1 : k->size),
                  .left = in_image % k->tiles_w * k->size};
}

static void read_image(const wino *k, size_t first, size_t count, float *points)
{
    wino_patch p = {.h = k->h,
                    .w = k->w,
                    .blocks = k->in / k->simd->wino_block,
                    .step = step_of(k, k->in),
                    .dims = k->dims,
                    .side = k->side};

    for (size_t i = 0; i < count; i++) {
        const tile t = tile_at(k, first + i);

        p.top = t.top - k->padding[0];
        p.left = t.left - k->padding[1];
        k->simd->wino_image(&p, k->image + t.n * k->in * k->h * k->w, points + i * k->in);
    }
}

static wino_patch result_patch(const wino *k, tile t)
{
    return (wino_patch){.h = k->out_h,
                        .w = k->out_w,
                        .blocks = k->out / k->simd->wino_block,
                        .top = t.top,
                        .left = t.left,
                        .side = k->side,
                        .size = k->size,
                        .dims = k->dims,
                        .step = step_of(k, k->out)};
}

static void write_results(const wino *k, size_t first, size_t count, const float *points)
{
    for (size_t i = 0; i < count; i++) {
        const tile t = tile_at(k, first + i);
        const wino_patch p = result_patch(k, t);

        k->simd->wino_results(&p, points + i * k->out, k->bias,
                              k->results + t.n * k->out * k->out_h * k->out_w);
    }
}

/* `count` weights of each tap and point; points map to different cache sets. */
static wino_kernel kernel_of(const wino *k, size_t count)
{
    return (wino_kernel){.side = k->side,
                         .size = k->kernel,
                         .dims = k->dims,
                         .count = count,
                         .step = count + PAD_FLOATS};
}

static const layout *blocks_of(device_state *self, const int64_t *dims)
{
    return layout_blocked(self, (int)self->simd->wino_block, dims);
}

/* --- y and dx --- */

/* Panels [begin, end) of the weights. */
typedef struct panels {
    size_t begin;
    size_t end;
    float *points;
} panels;

static wino_kernel kernel_of_panels(const wino *k, size_t n)
{
    return kernel_of(k, n * k->in * 16);
}

/* Some panels of the weights; their points are `step` apart. */
static void read_panels(const wino *k, const panels *b, size_t step, size_t thread)
{
    wino_kernel kernel = kernel_of_panels(k, b->end - b->begin);
    float *taps = k->turned + thread * k->n_taps * kernel_of_panels(k, PANELS).count;

    kernel.step = step;
    taps_arrange(k->simd, &k->taps, k->plain, b->begin, b->end, taps);
    k->simd->wino_weights(&kernel, taps, b->points);
}

static void multiply(const wino *k, size_t count, const float *image, const panels *b,
                     float *results)
{
    const size_t step = kernel_of_panels(k, b->end - b->begin).step;
    const size_t first = b->begin * 16;
    const small_product m = {.rows = count,
                             .depth = k->in,
                             .columns = (b->end * 16 < k->out ? b->end * 16 : k->out) - first,
                             .a_row = k->in,
                             .a_step = 1,
                             .b_panel = k->in * 16,
                             .b_step = 16,
                             .c_row = k->out};

    for (size_t p = 0; p < k->points; p++)
        k->simd->product(&m, image + p * step_of(k, k->in), b->points + p * step,
                         results + p * step_of(k, k->out) + first);
}

/* Panels of the points of all weights. */
static void weights_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    const size_t step = kernel_of_panels(k, taps_panels(k->out)).step;

    for (size_t i = begin; i < end; i += PANELS) {
        const panels b = {i, end < i + PANELS ? end : i + PANELS, k->weights + i * k->in * 16};

        read_panels(k, &b, step, thread);
    }
}

static void convolve_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    const panels all = {0, taps_panels(k->out), k->weights};
    float *image = k->memory + thread * memory_floats(k);
    float *results = image + k->points * step_of(k, k->in);

    for (size_t first = begin; first < end; first += k->portion) {
        const size_t count = end - first < k->portion ? end - first : k->portion;

        read_image(k, first, count, image);
        multiply(k, count, image, &all, results);
        write_results(k, first, count, results);
    }
}

/* The three steps by weights: of tiles, of panels, of tiles. */
static void image_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;

    LS_UNUSED(thread);
    read_image(k, begin, end - begin, k->memory + begin * k->in);
}

static void panels_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    panels b = {.points = k->weights + thread * k->points * kernel_of_panels(k, PANELS).step};

    for (b.begin = begin; b.begin < end; b.begin = b.end) {
        b.end = end < b.begin + PANELS ? end : b.begin + PANELS;
        read_panels(k, &b, kernel_of_panels(k, b.end - b.begin).step, thread);
        multiply(k, k->n_tiles, k->memory, &b, k->memory + k->points * step_of(k, k->in));
    }
}

static void results_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;

    LS_UNUSED(thread);
    write_results(k, begin, end - begin,
                  k->memory + k->points * step_of(k, k->in) + begin * k->out);
}

static void convolve_tiles(const device_state *self, wino *k)
{
    const size_t n_panels = taps_panels(k->out);

    if (k->by_weights) {
        threads_for(self, k->n_tiles, k->points * k->in, image_range, k);
        threads_for(self, n_panels, k->points * k->in * 16, panels_range, k);
        threads_for(self, k->n_tiles, k->points * k->out, results_range, k);
    } else {
        threads_for(self, n_panels, k->points * k->in * 16, weights_range, k);
        threads_for(self, k->n_tiles, k->points * k->in * k->out, convolve_range, k);
    }
}

/* weights: (O,C,K,K), plain; bias: (out), plain, may be NULL. */
static ls_status convolve(device_state *self, wino *k, ls_tensor *weights, ls_tensor *bias,
                          bool rotated, ls_tensor **memory)
{
    const size_t n_threads = (size_t)self->threads;
    const wino_kernel some = kernel_of_panels(k, PANELS);
    const size_t n_points = (k->by_weights ? 1 : n_threads) * memory_floats(k);
    const size_t n_weights =
        k->points *
        (k->by_weights ? n_threads * some.step : kernel_of_panels(k, taps_panels(k->out)).step);
    const size_t n_taps = n_threads * k->n_taps * some.count;
    void *plain;
    float *shift;

    LS_TRY(dn_host->tensor_plain(weights, &plain));
    k->plain = plain;
    k->taps = (tap_weights){.in = k->in, .out = k->out, .n = k->n_taps, .rotated = rotated};
    LS_TRY(dn_floats(weights->device, n_points + n_weights + n_taps + k->out, memory, &k->memory));
    k->weights = k->memory + n_points;
    k->turned = k->weights + n_weights;
    shift = k->turned + n_taps;
    memset(shift, 0, k->out * sizeof(*shift));
    if (bias != NULL) {
        LS_TRY(dn_host->tensor_plain(bias, &plain));
        memcpy(shift, plain, k->out * sizeof(*shift));
    }
    k->bias = shift;
    convolve_tiles(self, k);
    return LS_OK;
}

/* Runs a convolution with image and results in blocks of channels. */
static ls_status run_convolve(device_state *self, wino *k, ls_tensor *image, ls_tensor *results,
                              ls_tensor *weights, ls_tensor *bias, bool rotated)
{
    ls_tensor *moved = NULL;
    ls_tensor *memory = NULL;
    void *data = NULL;
    ls_status st;

    LS_TRY(layout_place(results, blocks_of(self, results->dims)));
    k->results = dn_data(results);
    st = layout_arrange(self, image, blocks_of(self, image->dims), &moved, &data);
    k->image = data;
    if (st == LS_OK)
        st = convolve(self, k, weights, bias, rotated, &memory);
    dn_host->tensor_destroy(memory);
    dn_host->tensor_destroy(moved);
    return st;
}

ls_status conv2d_winograd(device_state *self, const op_call *call)
{
    wino k;

    describe(&k, self, call->in[0]->dims, call->out[0]->dims, call->in[1], call->attrs.padding,
             CONV2D_FORWARD);
    return run_convolve(self, &k, call->in[0], call->out[0], call->in[1], call->in[2], false);
}

ls_status conv2d_winograd_backward_data(device_state *self, const op_call *call)
{
    ls_tensor *const w = call->in[1];
    const int padding[2] = {(int)w->dims[2] - 1 - call->attrs.padding[0],
                            (int)w->dims[3] - 1 - call->attrs.padding[1]};
    wino k;

    describe(&k, self, call->in[0]->dims, call->out[0]->dims, w, padding, CONV2D_BACKWARD_DATA);
    return run_convolve(self, &k, call->in[0], call->out[0], w, NULL, true);
}

/* --- dw --- */

static void read_gradient(const wino *k, size_t first, size_t count, float *points)
{
    for (size_t i = 0; i < count; i++) {
        const tile t = tile_at(k, first + i);
        const wino_patch p = result_patch(k, t);

        k->simd->wino_gradient(&p, k->gradient + t.n * k->out * k->out_h * k->out_w,
                               points + i * k->out);
    }
}

/* Of dw: from input channels [row, row + rows) to outputs [column, column + columns). */
typedef struct dw_part {
    size_t row;
    size_t rows;
    size_t column;
    size_t columns;
} dw_part;

/* Points of a part, (rows, columns) each, summed over `count` tiles. */
static void multiply_transposed(const wino *k, size_t count, const dw_part *d, const float *image,
                                const float *gradient, float *weights, bool add)
{
    const size_t step = kernel_of(k, d->rows * d->columns).step;
    const small_product m = {.rows = d->rows,
                             .depth = count,
                             .columns = d->columns,
                             .a_row = 1,
                             .a_step = k->in,
                             .b_panel = 16,
                             .b_step = k->out,
                             .c_row = d->columns,
                             .add = add};

    for (size_t p = 0; p < k->points; p++)
        k->simd->product(&m, image + p * step_of(k, k->in) + d->row,
                         gradient + p * step_of(k, k->out) + d->column, weights + p * step);
}

/* Each tile's sum follows its points. */
static void sum_gradient(const wino *k, size_t count, const float *gradient, float *sums)
{
    const float *point = gradient + k->points * step_of(k, k->out);

    memset(sums, 0, k->out * sizeof(*sums));
    for (size_t i = 0; i < count; i++)
        k->simd->add(sums, point + i * k->out, sums, k->out);
    k->simd->add(sums + k->out, sums, sums + k->out, k->out);
}

static void portions_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    float *image = k->memory + thread * memory_floats(k);
    float *gradient = image + k->points * step_of(k, k->in);
    float *weights = k->weights + thread * k->points * kernel_of(k, k->in * k->out).step;
    const dw_part all = {0, k->in, 0, k->out};

    for (size_t first = begin; first < end; first += k->portion) {
        const size_t count = end - first < k->portion ? end - first : k->portion;

        read_image(k, first, count, image);
        read_gradient(k, first, count, gradient);
        multiply_transposed(k, count, &all, image, gradient, weights, true);
        sum_gradient(k, count, gradient, k->sums + thread * 2 * k->out);
    }
}

/* The weights from one input channel to outputs [first, end). */
static void write_some(const wino *k, const dw_part *d, const float *taps, size_t i, size_t first,
                       size_t end)
{
    for (size_t o = first; o < end; o++) {
        float *to = k->dw + ((d->column + o) * k->in + d->row + i) * k->n_taps;

        for (size_t t = 0; t < k->n_taps; t++) {
            const float v = taps[(t * d->rows + i) * d->columns + o];

            to[t] = k->accumulate ? to[t] + v : v;
        }
    }
}

/* (taps, rows, columns) of a part into the plain (O,C,K,K), 16 outputs at a time, which share cache
 * lines. */
static void write_taps(const wino *k, const dw_part *d, const float *taps)
{
    for (size_t first = 0; first < d->columns; first += 16) {
        const size_t end = d->columns < first + 16 ? d->columns : first + 16;

        for (size_t i = 0; i < d->rows; i++)
            write_some(k, d, taps, i, first, end);
    }
}

/* Points of a part, `step` apart, to its weights. */
static void write_part(const wino *k, const dw_part *d, const float *points, size_t step,
                       float *taps)
{
    wino_kernel kernel = kernel_of(k, d->rows * d->columns);

    kernel.step = step;
    k->simd->wino_taps(&kernel, points, taps);
    write_taps(k, d, taps);
}

static void write_bias(const wino *k, const float *sums, float *db, bool accumulate)
{
    for (size_t o = 0; o < k->out; o++)
        db[o] = (accumulate ? db[o] : 0) + sums[o];
}

/* --- dw by weights --- */

/* Image and gradient of tiles. */
static void tiles_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;

    image_range(arg, begin, end, thread);
    read_gradient(k, begin, end - begin,
                  k->memory + k->points * step_of(k, k->in) + begin * k->out);
}

static size_t rows_parts(const wino *k)
{
    return (k->in + DW_ROWS - 1) / DW_ROWS;
}

static size_t parts_across(const wino *k)
{
    return (k->out + DW_COLUMNS - 1) / DW_COLUMNS;
}

static dw_part part_at(const wino *k, size_t i)
{
    dw_part d = {.row = i / parts_across(k) * DW_ROWS, .column = i % parts_across(k) * DW_COLUMNS};

    d.rows = k->in - d.row < DW_ROWS ? k->in - d.row : DW_ROWS;
    d.columns = k->out - d.column < DW_COLUMNS ? k->out - d.column : DW_COLUMNS;
    return d;
}

static void parts_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    const wino_kernel largest = kernel_of(k, DW_ROWS * DW_COLUMNS);
    float *points = k->weights + thread * k->points * largest.step;

    for (size_t i = begin; i < end; i++) {
        const dw_part d = part_at(k, i);

        multiply_transposed(k, k->n_tiles, &d, k->memory, k->memory + k->points * step_of(k, k->in),
                            points, false);
        write_part(k, &d, points, kernel_of(k, d.rows * d.columns).step,
                   k->turned + thread * k->n_taps * largest.count);
    }
}

static ls_status backward_by_weights(device_state *self, const op_call *call, wino *k,
                                     ls_tensor **memory)
{
    const wino_kernel part = kernel_of(k, DW_ROWS * DW_COLUMNS);
    const size_t n_points = memory_floats(k);
    const size_t n_weights = (size_t)self->threads * k->points * part.step;
    const size_t n_taps = (size_t)self->threads * k->n_taps * part.count;

    LS_TRY(dn_floats(call->in[0]->device, n_points + n_weights + n_taps + 2 * k->out, memory,
                     &k->memory));
    k->weights = k->memory + n_points;
    k->turned = k->weights + n_weights;
    k->sums = k->turned + n_taps;
    memset(k->sums, 0, 2 * k->out * sizeof(*k->sums));
    threads_for(self, k->n_tiles, k->points * (k->in + k->out), tiles_range, k);
    threads_for(self, rows_parts(k) * parts_across(k), k->points * part.count, parts_range, k);
    sum_gradient(k, k->n_tiles, k->memory + k->points * step_of(k, k->in), k->sums);
    return LS_OK;
}

/* --- dw in portions of tiles --- */

static size_t share_floats(const wino *k)
{
    return k->points * kernel_of(k, k->in * k->out).step;
}

/* Adds the shares of all threads to the first one, and writes its weights: some rows of dw. */
static void rows_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    const size_t step = kernel_of(k, k->in * k->out).step;

    for (size_t i = begin * DW_ROWS; i < end * DW_ROWS && i < k->in; i += DW_ROWS) {
        const dw_part d = {i, k->in - i < DW_ROWS ? k->in - i : DW_ROWS, 0, k->out};
        float *points = k->weights + i * k->out;

        for (size_t p = 0; p < k->points * (k->n_shares - 1); p++) {
            float *sum = points + p % k->points * step;

            k->simd->add(sum, sum + (p / k->points + 1) * share_floats(k), sum, d.rows * k->out);
        }
        write_part(k, &d, points, step, k->turned + thread * k->n_taps * DW_ROWS * k->out);
    }
}

static ls_status backward_by_tiles(device_state *self, const op_call *call, wino *k,
                                   ls_tensor **memory)
{
    const size_t n_threads = (size_t)threads_adding(self);
    const size_t n_points = n_threads * memory_floats(k);
    const size_t n_sums = n_threads * (share_floats(k) + 2 * k->out);
    const size_t n_taps = (size_t)self->threads * k->n_taps * DW_ROWS * k->out;

    LS_TRY(dn_floats(call->in[0]->device, n_points + n_sums + n_taps, memory, &k->memory));
    k->n_shares = n_threads;
    k->weights = k->memory + n_points;
    k->sums = k->weights + n_threads * share_floats(k);
    k->turned = k->weights + n_sums;
    memset(k->weights, 0, n_sums * sizeof(*k->weights));
    if (self->thread_invariant)
        portions_range(k, 0, k->n_tiles, 0);
    else
        threads_for(self, k->n_tiles, k->points * k->in * k->out, portions_range, k);
    threads_for(self, rows_parts(k), k->points * DW_ROWS * k->out, rows_range, k);
    for (size_t i = 1; i < n_threads; i++)
        self->simd->add(k->sums + k->out, k->sums + (2 * i + 1) * k->out, k->sums + k->out, k->out);
    return LS_OK;
}

static ls_status backward_weights(device_state *self, const op_call *call, wino *k,
                                  ls_tensor **memory)
{
    k->dw = dn_data(call->out[0]);
    k->accumulate = call->accumulate;
    LS_TRY((k->by_weights ? backward_by_weights : backward_by_tiles)(self, call, k, memory));
    if (call->out[1] != NULL)
        write_bias(k, k->sums + k->out, dn_data(call->out[1]), call->accumulate);
    return LS_OK;
}

ls_status conv2d_winograd_backward_weights(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const dy = call->in[1];
    ls_tensor *moved[2] = {NULL, NULL};
    ls_tensor *memory = NULL;
    void *data = NULL;
    ls_status st;
    wino k;

    describe(&k, self, x->dims, dy->dims, call->out[0], call->attrs.padding,
             CONV2D_BACKWARD_WEIGHTS);
    st = layout_arrange(self, x, blocks_of(self, x->dims), &moved[0], &data);
    k.image = data;
    if (st == LS_OK)
        st = layout_arrange(self, dy, blocks_of(self, dy->dims), &moved[1], &data);
    k.gradient = data;
    if (st == LS_OK)
        st = backward_weights(self, call, &k, &memory);
    dn_host->tensor_destroy(memory);
    dn_host->tensor_destroy(moved[0]);
    dn_host->tensor_destroy(moved[1]);
    return st;
}
