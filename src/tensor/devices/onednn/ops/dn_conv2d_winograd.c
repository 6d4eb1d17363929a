/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d_winograd.c - convolutions with 3x3, 5x5 and 1x5 kernels and stride 1, by Winograd's
 * algorithm on tiles of 6x6, or of 6 positions of a line.
 *
 * A tile gives 4x4 results of a 3x3 kernel with 36 products instead of 144, or 2x2 results of a 5x5
 * kernel with 36 instead of 100, or 2 results of a 1x5 kernel with 6 instead of 10. All three
 * directions are the same three steps: transform to points, a matrix product at each of the points,
 * transform back:
 *
 *     y:   results (image x  * kernel w)             summed over input channels
 *     dx:  results (image dy * kernel w, rotated by 180 degrees)   summed over output channels
 *     dw:  results (image x  * kernel dy)            summed over tiles; here dy's tile is the
 *          kernel, the 3x3 or 5x5 the result
 *
 * Tiles are processed in portions whose points stay in the L2 cache. For layouts in blocks of 8
 * channels, for which oneDNN has no Winograd kernel. docs/environment.md has the rounding errors.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

#define PORTION_BYTES ((size_t)384 << 10) /* of points */
#define PORTION_TILES 24                  /* minimum: the products outweigh reading the weights */
#define PORTION_LINES 96 /* the same for lines, which share the weights of a point */
#define PAD_FLOATS    16 /* between points: they map to different cache sets */

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
    size_t points; /* of a tile: 36 or 6 */
    size_t kernel; /* 3 or 5 */
    size_t n_taps; /* its square, or in a line itself */
    size_t size;   /* results of a tile in each direction: 4 or 2 */
    size_t padding[2];
    size_t tiles_h;
    size_t tiles_w;
    size_t n_tiles; /* of all images */
    size_t portion; /* tiles at a time */
    const float *image;
    const float *gradient; /* backward by weights: dy */
    float *results;        /* y or dx */
    const float *bias;
    float *weights; /* points of the kernel, in panels of 16 outputs; for dw: of each thread */
    float *sums;    /* for dw, of each thread: db of the portion, and of all portions so far */
    float *memory;  /* points of a portion, for each thread */
} wino;

/* --- tiles --- */

/* Floats of one point of the kernel. */
static size_t point_weights(const wino *k)
{
    return k->in * taps_panels(k->out) * 16;
}

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
                     const int64_t *results, const ls_tensor *weights, const int *padding)
{
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
                .kernel = (size_t)weights->dims[3],
                .padding = {(size_t)padding[0], (size_t)padding[1]}};
    k->points = k->dims == 1 ? 6 : 36;
    k->n_taps = k->dims == 1 ? k->kernel : k->kernel * k->kernel;
    k->size = 7 - k->kernel;
    k->tiles_h = k->dims == 1 ? k->out_h : (k->out_h + k->size - 1) / k->size;
    k->tiles_w = (k->out_w + k->size - 1) / k->size;
    k->n_tiles = (size_t)image[0] * k->tiles_h * k->tiles_w;
    fitting = PORTION_BYTES / (k->points * (k->in + k->out) * sizeof(float));
    least = k->dims == 1 ? PORTION_LINES : PORTION_TILES;
    k->portion = fitting < least ? least : fitting;
    if (k->portion > k->n_tiles)
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
    wino_patch p = {
        .h = k->h, .w = k->w, .blocks = k->in / 8, .step = step_of(k, k->in), .dims = k->dims};

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
                        .blocks = k->out / 8,
                        .top = t.top,
                        .left = t.left,
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

/* --- y and dx --- */

static void multiply(const wino *k, size_t count, const float *image, float *results)
{
    const small_product m = {.rows = count,
                             .depth = k->in,
                             .columns = k->out,
                             .a_row = k->in,
                             .a_step = 1,
                             .b_panel = k->in * 16,
                             .b_step = 16,
                             .c_row = k->out};

    for (size_t p = 0; p < k->points; p++)
        k->simd->product(&m, image + p * step_of(k, k->in), k->weights + p * point_weights(k),
                         results + p * step_of(k, k->out));
}

static void convolve_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    float *image = k->memory + thread * memory_floats(k);
    float *results = image + k->points * step_of(k, k->in);

    for (size_t first = begin; first < end; first += k->portion) {
        const size_t count = end - first < k->portion ? end - first : k->portion;

        read_image(k, first, count, image);
        multiply(k, count, image, results);
        write_results(k, first, count, results);
    }
}

/* weights: (O,C,K,K), plain; bias: (out), plain, may be NULL. */
static ls_status convolve(device_state *self, wino *k, ls_tensor *weights, ls_tensor *bias,
                          bool rotated, ls_tensor **memory)
{
    const size_t count = point_weights(k);
    const size_t n_points = (size_t)self->threads * memory_floats(k);
    const size_t n_taps = k->n_taps * count;
    const tap_weights taps = {.in = k->in, .out = k->out, .n = k->n_taps, .rotated = rotated};
    void *plain;
    float *at;
    float *shift;

    LS_TRY(dn_host->tensor_plain(weights, &plain));
    LS_TRY(dn_floats(weights->device, n_points + k->points * count + n_taps + k->out, memory, &at));
    k->memory = at;
    k->weights = at + n_points;
    taps_arrange(k->simd, &taps, plain, 0, taps_panels(k->out), k->weights + k->points * count);
    k->simd->wino_weights(k->weights + k->points * count, k->kernel, k->dims, count, k->weights);
    shift = k->weights + k->points * count + n_taps;
    memset(shift, 0, k->out * sizeof(*shift));
    if (bias != NULL) {
        LS_TRY(dn_host->tensor_plain(bias, &plain));
        memcpy(shift, plain, k->out * sizeof(*shift));
    }
    k->bias = shift;
    threads_for(self, k->n_tiles, k->points * k->in * k->out, convolve_range, k);
    return LS_OK;
}

/* Runs a convolution with image and results in blocks of 8. */
static ls_status run_convolve(device_state *self, wino *k, ls_tensor *image, ls_tensor *results,
                              ls_tensor *weights, ls_tensor *bias, bool rotated)
{
    ls_tensor *moved = NULL;
    ls_tensor *memory = NULL;
    void *data = NULL;
    ls_status st;

    LS_TRY(layout_place(results, layout_blocked(self, 8, results->dims)));
    k->results = dn_data(results);
    st = layout_arrange(self, image, layout_blocked(self, 8, image->dims), &moved, &data);
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

    describe(&k, self, call->in[0]->dims, call->out[0]->dims, call->in[1], call->attrs.padding);
    return run_convolve(self, &k, call->in[0], call->out[0], call->in[1], call->in[2], false);
}

ls_status conv2d_winograd_backward_data(device_state *self, const op_call *call)
{
    ls_tensor *const w = call->in[1];
    const int padding[2] = {(int)w->dims[2] - 1 - call->attrs.padding[0],
                            (int)w->dims[3] - 1 - call->attrs.padding[1]};
    wino k;

    describe(&k, self, call->in[0]->dims, call->out[0]->dims, w, padding);
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

/* Points of dw, (in, out) each, summed over the portion's tiles. */
static void multiply_transposed(const wino *k, size_t count, const float *image,
                                const float *gradient, float *weights)
{
    const small_product m = {.rows = k->in,
                             .depth = count,
                             .columns = k->out,
                             .a_row = 1,
                             .a_step = k->in,
                             .b_panel = 16,
                             .b_step = k->out,
                             .c_row = k->out,
                             .add = true};

    for (size_t p = 0; p < k->points; p++)
        k->simd->product(&m, image + p * step_of(k, k->in), gradient + p * step_of(k, k->out),
                         weights + p * k->in * k->out);
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

static void weights_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const wino *k = arg;
    float *image = k->memory + thread * memory_floats(k);
    float *gradient = image + k->points * step_of(k, k->in);
    float *weights = k->weights + thread * k->points * k->in * k->out;

    for (size_t first = begin; first < end; first += k->portion) {
        const size_t count = end - first < k->portion ? end - first : k->portion;

        read_image(k, first, count, image);
        read_gradient(k, first, count, gradient);
        multiply_transposed(k, count, image, gradient, weights);
        sum_gradient(k, count, gradient, k->sums + thread * 2 * k->out);
    }
}

/* The weights from one input channel to outputs [first, end). */
static void write_some(const wino *k, const float *taps, size_t i, size_t first, size_t end,
                       float *dw, bool accumulate)
{
    for (size_t o = first; o < end; o++) {
        float *to = dw + (o * k->in + i) * k->n_taps;

        for (size_t t = 0; t < k->n_taps; t++) {
            const float v = taps[(t * k->in + i) * k->out + o];

            to[t] = accumulate ? to[t] + v : v;
        }
    }
}

/* (K,K,C,O) into the plain (O,C,K,K), 16 outputs at a time, which share cache lines. */
static void write_taps(const wino *k, const float *taps, float *dw, bool accumulate)
{
    for (size_t first = 0; first < k->out; first += 16) {
        const size_t end = k->out < first + 16 ? k->out : first + 16;

        for (size_t i = 0; i < k->in; i++)
            write_some(k, taps, i, first, end, dw, accumulate);
    }
}

/* Adds the threads' shares, `floats` long and `step` apart, to the first one's. */
static void sum_threads(const device_state *self, float *shares, size_t floats, size_t step)
{
    for (size_t i = 1; i < (size_t)threads_adding(self); i++)
        self->simd->add(shares, shares + i * step, shares, floats);
}

static void write_bias(const wino *k, const float *sums, float *db, bool accumulate)
{
    for (size_t o = 0; o < k->out; o++)
        db[o] = (accumulate ? db[o] : 0) + sums[o];
}

static ls_status backward_weights(device_state *self, const op_call *call, wino *k,
                                  ls_tensor **memory)
{
    const size_t count = k->in * k->out;
    const size_t n_threads = (size_t)threads_adding(self);
    const size_t n_points = n_threads * memory_floats(k);
    const size_t n_sums = n_threads * (k->points * count + 2 * k->out);
    float *taps;

    LS_TRY(
        dn_floats(call->in[0]->device, n_points + n_sums + k->n_taps * count, memory, &k->memory));
    k->weights = k->memory + n_points;
    k->sums = k->weights + n_threads * k->points * count;
    taps = k->weights + n_sums;
    memset(k->weights, 0, n_sums * sizeof(*k->weights));
    if (self->thread_invariant)
        weights_range(k, 0, k->n_tiles, 0);
    else
        threads_for(self, k->n_tiles, k->points * count, weights_range, k);
    sum_threads(self, k->weights, k->points * count, k->points * count);
    sum_threads(self, k->sums + k->out, k->out, 2 * k->out);
    self->simd->wino_taps(k->weights, k->kernel, k->dims, count, taps);
    write_taps(k, taps, dn_data(call->out[0]), call->accumulate);
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

    describe(&k, self, x->dims, dy->dims, call->out[0], call->attrs.padding);
    st = layout_arrange(self, x, layout_blocked(self, 8, x->dims), &moved[0], &data);
    k.image = data;
    if (st == LS_OK)
        st = layout_arrange(self, dy, layout_blocked(self, 8, dy->dims), &moved[1], &data);
    k.gradient = data;
    if (st == LS_OK)
        st = backward_weights(self, call, &k, &memory);
    dn_host->tensor_destroy(memory);
    dn_host->tensor_destroy(moved[0]);
    dn_host->tensor_destroy(moved[1]);
    return st;
}
