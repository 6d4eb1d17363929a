/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_batch_norm.c - batch normalisation, optionally with the sum and the ReLU that follow, on any
 * layout.
 *
 * Not oneDNN's: each image's plane is read from memory once for both mean and variance, and
 * backward recomputes the ReLU's mask instead of reading one; behind a sum the result is the mask.
 * A plane is processed in pieces; their sums are added in double precision in a fixed order, so the
 * number of threads does not change the bits.
 *
 *     scale = weight / sqrt(variance + eps),  y = (x - mean) scale + bias (+ added)
 *     S = sum dy,  Q = sum dy (x - mean),  m values per channel:
 *     dbias = S,  dweight = Q / sqrt(variance + eps),
 *     dx = scale dy - (scale Q / m / (variance + eps)) (x - mean) - scale S / m
 * With attrs.sync mean, variance, and the S, Q and m in dx are those of the rows of all ranks.
 */
#include "tensor/devices/onednn/dn.h"

#include "tensor/formulas/batch_sync.h"

#include <math.h>
#include <string.h>

#define PIECE_FLOATS   8192 /* of one piece; it stays in the L1 cache for the second pass */
#define PIECE_ROWS_MIN 16
#define PLAIN_LANES    8 /* neighbours of a plain plane that are processed like channels */
#define PIECES         4 /* that a thread has as float32 at a time, at most */

/* A tensor as n images of `planes`, each of them `rows` of `lanes` floats and `tail`
 * single ones. */
typedef struct bn_view {
    size_t n;
    size_t planes;
    size_t rows;
    size_t lanes;
    size_t tail;
    size_t piece_rows;
    size_t whole_pieces; /* of a plane, without the tail */
    size_t pieces;       /* with it */
    bool one_channel;    /* all lanes of a plane belong to one channel (plain layout) */
} bn_view;

typedef struct bn_piece {
    size_t at; /* float where it begins */
    size_t rows;
    size_t lanes;
    size_t slot;  /* where its sums go */
    size_t first; /* of its lanes' parameters */
} bn_piece;

static bn_view view_of(const grid *g)
{
    const size_t area = g->h * g->w;
    bn_view v = {.n = g->n, .planes = g->blocks, .rows = area, .lanes = g->inner, .tail = 0};

    if (area == 1 && g->c % g->inner == 0) { // rows of all channels, in whatever form
        v = (bn_view){.n = 1, .planes = 1, .rows = g->n, .lanes = g->c};
    } else if (g->inner == 1) {
        v.one_channel = true;
        v.lanes = PLAIN_LANES;
        v.rows = area / PLAIN_LANES;
        v.tail = area % PLAIN_LANES;
    } else if (g->blocks == 1) {
        v.n = 1;
        v.rows = g->n * area;
    }
    v.piece_rows =
        PIECE_FLOATS / v.lanes < PIECE_ROWS_MIN ? PIECE_ROWS_MIN : PIECE_FLOATS / v.lanes;
    v.whole_pieces = (v.rows + v.piece_rows - 1) / v.piece_rows;
    v.pieces = v.whole_pieces + (v.tail > 0);
    return v;
}

static size_t n_items(const bn_view *v)
{
    return v->n * v->planes * v->pieces;
}

static size_t rows_of(const bn_view *v, size_t piece)
{
    if (piece == v->whole_pieces)
        return v->tail;
    return piece + 1 < v->whole_pieces ? v->piece_rows : v->rows - piece * v->piece_rows;
}

static bn_piece piece_of(const bn_view *v, size_t item)
{
    const size_t piece = item % v->pieces;
    const size_t plane = item / v->pieces;
    const size_t plane_floats = v->rows * v->lanes + v->tail;
    const bool is_tail = piece == v->whole_pieces;

    return (bn_piece){.at = plane * plane_floats +
                            (is_tail ? v->rows : piece * v->piece_rows) * v->lanes,
                      .rows = rows_of(v, piece),
                      .lanes = is_tail ? 1 : v->lanes,
                      .slot = item * v->lanes,
                      .first = plane % v->planes * v->lanes};
}

/* All that the passes over a tensor read and write. */
typedef struct bn_work {
    const simd_table *simd;
    bn_view v;
    ls_tensor *memory; /* of everything that is not a tensor's */
    converter c;       /* of x, added, dy, dy2, mask, masked and out */
    bool bf16;         /* the kernels read and write bfloat16 in place */
    const void *x;
    const void *added; /* or NULL */
    const void *dy;
    const void *dy2;  /* or NULL */
    const void *mask; /* the result that a ReLU has cut behind a sum, or NULL */
    void *masked;     /* with a mask: dy + dy2 where it is positive, which then is dy */
    void *out;
    float *pieces;  /* of float16: PIECES for each thread */
    float *sums[2]; /* of each item and lane: mean and squares, or dy and dy * (x - mean) */
    float *mean;    /* from here on: of each plane and lane */
    float *scale;
    float *bias;
    float *slope;
    float *shift;
    bool relu;
    size_t channels;
    double *folded[3]; /* of each channel */
    double *shared;    /* with attrs.sync: the values to add up over the ranks, else NULL */
} bn_work;

/* The most floats of a piece. */
static size_t piece_floats(const bn_view *v)
{
    return v->piece_rows * v->lanes;
}

/* Buffer `i` of those of the thread, which only float16 has. */
static float *buffer_of(const bn_work *w, size_t thread, size_t i)
{
    return w->pieces == NULL ? NULL : w->pieces + (PIECES * thread + i) * piece_floats(&w->v);
}

/* Elements as the kernels read them: in place, or of float16 widened into buffer `i`. */
static const void *read_piece(const bn_work *w, const void *elements, const bn_piece *p,
                              size_t thread, size_t i)
{
    if (w->bf16)
        return (const uint16_t *)elements + p->at;
    return convert_in(&w->c, elements, p->at, buffer_of(w, thread, i), p->rows * p->lanes);
}

/* Where a kernel writes; of float16 write_piece() then rounds it. */
static void *begin_piece(const bn_work *w, void *elements, const bn_piece *p, size_t thread,
                         size_t i)
{
    if (w->bf16)
        return (uint16_t *)elements + p->at;
    return convert_begin(&w->c, elements, p->at, buffer_of(w, thread, i));
}

static void write_piece(const bn_work *w, const void *written, void *elements, const bn_piece *p)
{
    if (!w->bf16)
        convert_out(&w->c, written, elements, p->at, p->rows * p->lanes);
}

static ls_status prepare(bn_work *w, device_state *self, const op_call *call, const grid *g)
{
    size_t n_sums;
    size_t n_lanes;
    size_t n_shared; /* of doubles, in front for their alignment */
    size_t n_folded;
    size_t n_pieces; /* floats of them */
    float *at;

    w->simd = self->simd;
    w->v = view_of(g);
    w->relu = call->attrs.relu;
    n_sums = n_items(&w->v) * w->v.lanes;
    n_lanes = w->v.planes * w->v.lanes;
    n_shared = batch_sync_needed(call) ? batch_sync_count(g->c) : 0;
    n_folded = LS_COUNT_OF(w->folded) * g->c;
    w->bf16 = call->in[0]->dtype == LS_BF16;
    w->c = converter_of(self, call->in[0]->dtype);
    n_pieces =
        w->bf16 || w->c.widen == NULL ? 0 : (size_t)self->threads * PIECES * piece_floats(&w->v);
    LS_TRY(dn_floats(call->in[0]->device,
                     2 * (n_shared + n_folded + n_sums) + 5 * n_lanes + n_pieces, &w->memory, &at));
    w->channels = g->c;
    w->shared = n_shared > 0 ? (double *)(void *)at : NULL;
    at += 2 * n_shared;
    for (size_t i = 0; i < LS_COUNT_OF(w->folded); i++)
        w->folded[i] = (double *)(void *)at + i * g->c;
    at += 2 * n_folded;
    w->sums[0] = at;
    w->sums[1] = at + n_sums;
    w->mean = at + 2 * n_sums;
    w->scale = w->mean + n_lanes;
    w->bias = w->scale + n_lanes;
    w->slope = w->bias + n_lanes;
    w->shift = w->slope + n_lanes;
    w->pieces = n_pieces == 0 ? NULL : w->shift + n_lanes;
    return LS_OK;
}

static bn_lanes lanes_at(const bn_work *w, size_t first)
{
    return (bn_lanes){.mean = w->mean + first,
                      .scale = w->scale + first,
                      .bias = w->bias + first,
                      .relu = w->relu};
}

static void run_items(device_state *self, bn_work *w, range_fn fn)
{
    threads_for(self, n_items(&w->v), w->v.piece_rows * w->v.lanes, fn, w);
}

/* --- sums over a channel --- */

/* The lanes that hold channel c: [begin, end) of the slots of a plane's first piece. */
typedef struct channel_lanes {
    size_t plane;
    size_t begin;
    size_t end;
} channel_lanes;

static channel_lanes lanes_of(const bn_view *v, size_t c)
{
    if (v->one_channel)
        return (channel_lanes){.plane = c, .begin = 0, .end = v->lanes};
    return (channel_lanes){.plane = c / v->lanes, .begin = c % v->lanes, .end = c % v->lanes + 1};
}

typedef enum fold_kind {
    FOLD_SUM,   /* of the values */
    FOLD_ROWS,  /* of value times rows */
    FOLD_SPREAD /* of (value - centre)^2 times rows */
} fold_kind;

static inline __attribute__((always_inline)) double folded(fold_kind kind, float value, double rows,
                                                           double centre)
{
    const double distance = (double)value - centre;

    if (kind == FOLD_SUM)
        return (double)value;
    return kind == FOLD_ROWS ? (double)value * rows : distance * distance * rows;
}

/* Adds the lanes of an item that begins at channel c, or that holds channel c alone. */
static inline __attribute__((always_inline)) void fold_item(const bn_work *w, const float *values,
                                                            size_t c, size_t piece, fold_kind kind,
                                                            const double *centres, double *sums)
{
    const bn_view *v = &w->v;
    const double rows = (double)rows_of(v, piece);
    const size_t lanes = piece == v->whole_pieces ? 1 : v->lanes;
    const size_t left = w->channels - c;

    if (v->one_channel) {
        for (size_t lane = 0; lane < lanes; lane++)
            sums[c] += folded(kind, values[lane], rows, centres == NULL ? 0 : centres[c]);
        return;
    }
    for (size_t lane = 0; lane < lanes && lane < left; lane++)
        sums[c + lane] += folded(kind, values[lane], rows, centres == NULL ? 0 : centres[c + lane]);
}

/* The sums of all channels, each in the order of images and pieces. */
static inline __attribute__((always_inline)) void
fold(const bn_work *w, const float *values, fold_kind kind, const double *centres, double *sums)
{
    const bn_view *v = &w->v;

    memset(sums, 0, w->channels * sizeof(*sums));
    for (size_t plane = 0; plane < v->n * v->planes; plane++) {
        const size_t c = plane % v->planes * (v->one_channel ? 1 : v->lanes);

        for (size_t piece = 0; piece < v->pieces; piece++, values += v->lanes)
            fold_item(w, values, c, piece, kind, centres, sums);
    }
}

/* Sets a per-channel parameter in all lanes of the channel. */
static void set_lanes(const bn_view *v, float *of, size_t c, double value)
{
    const channel_lanes lanes = lanes_of(v, c);

    for (size_t lane = lanes.begin; lane < lanes.end; lane++)
        of[lanes.plane * v->lanes + lane] = (float)value;
}

/* --- forward --- */

static void moments_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const bn_work *w = arg;

    for (size_t item = begin; item < end; item++) {
        const bn_piece p = piece_of(&w->v, item);
        const void *x = read_piece(w, w->x, &p, thread, 0);

        w->simd->bn_moments(x, w->bf16, p.rows, p.lanes, w->sums[0] + p.slot, w->sums[1] + p.slot);
    }
}

static void apply_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const bn_work *w = arg;

    for (size_t item = begin; item < end; item++) {
        const bn_piece p = piece_of(&w->v, item);
        const bn_lanes lanes = lanes_at(w, p.first);
        const void *x = read_piece(w, w->x, &p, thread, 0);
        const void *added = w->added == NULL ? NULL : read_piece(w, w->added, &p, thread, 2);
        void *y = begin_piece(w, w->out, &p, thread, 1);

        w->simd->bn_apply(x, added, y, w->bf16, p.rows, p.lanes, &lanes);
        write_piece(w, y, w->out, &p);
    }
}

static void move_running(const op_call *call, size_t c, double mean, double variance, double count)
{
    float *running_mean = dn_data(call->in[3]);
    float *running_variance = dn_data(call->in[4]);
    const double k = call->attrs.momentum;

    if (count < 2)
        return;
    running_mean[c] = (float)((1 - k) * (double)running_mean[c] + k * mean);
    running_variance[c] =
        (float)((1 - k) * (double)running_variance[c] + k * variance * count / (count - 1));
}

enum { MEAN, SPREAD, REST };

/* The mean of each channel in this rank's rows, and the sum of squared distances from it. */
static void local_moments(bn_work *w, double count)
{
    fold(w, w->sums[0], FOLD_ROWS, NULL, w->folded[MEAN]);
    for (size_t c = 0; c < w->channels; c++)
        w->folded[MEAN][c] /= count;
    fold(w, w->sums[1], FOLD_SUM, NULL, w->folded[SPREAD]);
    fold(w, w->sums[0], FOLD_SPREAD, w->folded[MEAN], w->folded[REST]);
    for (size_t c = 0; c < w->channels; c++)
        w->folded[SPREAD][c] += w->folded[REST][c];
}

/* The statistics of channel c, rounded as they are saved: backward reads the same bits. */
static void statistics(const op_call *call, const bn_work *w, size_t c, double count, float *mean,
                       float *variance)
{
    double centre;
    double square;

    if (!call->attrs.training) {
        *mean = ((const float *)dn_data(call->in[3]))[c];
        *variance = ((const float *)dn_data(call->in[4]))[c];
        return;
    }
    if (w->shared != NULL) {
        count = w->shared[0];
        batch_sync_get(w->shared, w->channels, c, &centre, &square);
    } else {
        centre = w->folded[MEAN][c];
        square = w->folded[SPREAD][c] / count;
    }
    *mean = (float)centre;
    *variance = (float)square;
    move_running(call, c, centre, square, count);
}

/* Replaces this rank's moments by those of the rows of all ranks. */
static ls_status share_moments(const op_call *call, bn_work *w, double count)
{
    for (size_t c = 0; c < w->channels; c++)
        batch_sync_put(w->shared, w->channels, c, count, w->folded[MEAN][c], w->folded[SPREAD][c]);
    LS_TRY(batch_sync_sum(call, w->shared, w->channels));
    if (w->shared[0] == 1)
        return dn_fail(LS_EINVAL, "training needs more than one value per channel over all ranks");
    return LS_OK;
}

/* The padding of the last block of channels gets zeros, and so stays 0. */
static void set_forward(const op_call *call, bn_work *w, size_t c, float mean, float variance,
                        int weight_at)
{
    const float *weight = dn_data(call->in[weight_at]);
    const float *bias = dn_data(call->in[weight_at + 1]);

    set_lanes(&w->v, w->mean, c, (double)mean);
    set_lanes(&w->v, w->scale, c, (double)weight[c] / sqrt((double)variance + call->attrs.eps));
    set_lanes(&w->v, w->bias, c, (double)bias[c]);
}

static void clear_lanes(bn_work *w)
{
    for (size_t i = 0; i < 5 * w->v.planes * w->v.lanes; i++)
        w->mean[i] = 0;
}

/* The counter changes with the running statistics. */
static void count_batch(const op_call *call, double count)
{
    if (call->attrs.training && call->in[6] != NULL && count >= 2)
        ++*(int64_t *)dn_data(call->in[6]);
}

static ls_status forward(device_state *self, const op_call *call, const grid *g, bn_work *w)
{
    const double count = (double)(g->n * g->h * g->w);
    float *saved[2] = {NULL, NULL};

    for (int i = 0; i < 2; i++) {
        if (call->out[1 + i] == NULL)
            continue;
        LS_TRY(dn_host->tensor_place(call->out[1 + i], NULL, 0));
        saved[i] = dn_data(call->out[1 + i]);
    }
    if (call->attrs.training) {
        run_items(self, w, moments_range);
        local_moments(w, count);
    }
    if (w->shared != NULL)
        LS_TRY(share_moments(call, w, count));
    clear_lanes(w);
    for (size_t c = 0; c < g->c; c++) {
        float mean;
        float variance;

        statistics(call, w, c, count, &mean, &variance);
        set_forward(call, w, c, mean, variance, 1);
        if (saved[0] != NULL)
            saved[0][c] = mean;
        if (saved[1] != NULL)
            saved[1][c] = variance;
    }
    count_batch(call, w->shared != NULL ? w->shared[0] : count);
    run_items(self, w, apply_range);
    return LS_OK;
}

/* Our parameters are plain; a caller's tensor may not be. */
static ls_status plain_parameters(const op_call *call, int first, int n)
{
    void *data;

    for (int i = first; i < first + n; i++)
        LS_TRY(dn_host->tensor_plain(call->in[i], &data));
    return LS_OK;
}

static ls_status place_like(device_state *self, ls_tensor *out, const ls_tensor *x)
{
    const layout *l = layout_of(self, x);

    return l == NULL ? dn_fail(LS_ENOMEM, "no memory for a layout") : layout_place(out, l);
}

/* The elements of `t`, which may be NULL, in x's layout. The caller destroys *moved, also after a
 * failure. */
static ls_status arrange(device_state *self, ls_tensor *t, const ls_tensor *x, ls_tensor **moved,
                         const void **out)
{
    void *elements = NULL;

    if (t != NULL)
        LS_TRY(layout_arrange(self, t, layout_of(self, x), moved, &elements));
    *out = elements;
    return LS_OK;
}

/* Behind a sum the result says where the ReLU has cut: it is the mask, without a copy. */
static void share_as_mask(const op_call *call)
{
    ls_tensor *mask = call->out[3];

    if (mask == NULL || call->in[5] == NULL)
        return;
    mask->dtype = call->out[0]->dtype;
    dn_host->tensor_share(mask, call->out[0]);
}

ls_status dn_batch_norm(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    bn_work w = {.memory = NULL};
    ls_tensor *added = NULL;
    grid g;
    ls_status st;

    LS_TRY(plain_parameters(call, 1, 4));
    LS_TRY(grid_walkable(x, &g));
    LS_TRY(place_like(self, call->out[0], x));
    share_as_mask(call);
    w.x = dn_data(x);
    w.out = dn_data(call->out[0]);
    st = arrange(self, call->in[5], x, &added, &w.added);
    if (st == LS_OK)
        st = prepare(&w, self, call, &g);
    if (st == LS_OK)
        st = forward(self, call, &g, &w);
    dn_host->tensor_destroy(w.memory);
    dn_host->tensor_destroy(added);
    return st;
}

/* --- backward --- */

static void sums_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const bn_work *w = arg;

    for (size_t item = begin; item < end; item++) {
        const bn_piece p = piece_of(&w->v, item);
        const bn_lanes lanes = lanes_at(w, p.first);
        const void *x = read_piece(w, w->x, &p, thread, 0);
        const void *dy = read_piece(w, w->dy, &p, thread, 1);
        bn_mask m = {.dy2 = NULL};

        if (w->mask != NULL) {
            m.result = read_piece(w, w->mask, &p, thread, 2);
            m.dy2 = w->dy2 == NULL ? NULL : read_piece(w, w->dy2, &p, thread, 3);
            m.masked = begin_piece(w, w->masked, &p, thread, 1);
        }
        w->simd->bn_sums(x, dy, w->mask == NULL ? NULL : &m, w->bf16, p.rows, p.lanes, &lanes,
                         w->sums[0] + p.slot, w->sums[1] + p.slot);
        if (w->mask != NULL)
            write_piece(w, m.masked, w->masked, &p);
    }
}

static void dx_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const bn_work *w = arg;

    for (size_t item = begin; item < end; item++) {
        const bn_piece p = piece_of(&w->v, item);
        const bn_lanes lanes = lanes_at(w, p.first);
        const void *x = read_piece(w, w->x, &p, thread, 0);
        const void *dy = read_piece(w, w->mask == NULL ? w->dy : w->masked, &p, thread, 1);
        void *dx = begin_piece(w, w->out, &p, thread, 2);
        const bn_slopes slopes = {.slope = w->slope + p.first, .shift = w->shift + p.first};

        w->simd->bn_dx(x, dy, dx, w->bf16, p.rows, p.lanes, &lanes, &slopes);
        write_piece(w, dx, w->out, &p);
    }
}

static void give(float *gradient, size_t c, double value, bool accumulate)
{
    gradient[c] = (float)(accumulate ? (double)gradient[c] + value : value);
}

/* The terms of dx of channel c: sums over `count` values. */
static void set_dx(const op_call *call, bn_work *w, size_t c, double count, double sum_dy,
                   double sum_dy_x)
{
    const float *weight = dn_data(call->in[2]);
    const float *variance = dn_data(call->in[5]);
    const double square = (double)variance[c] + call->attrs.eps;
    const double scale = (double)weight[c] / sqrt(square);

    set_lanes(&w->v, w->slope, c, -scale * sum_dy_x / count / square);
    set_lanes(&w->v, w->shift, c, -scale * sum_dy / count);
}

static void finish_channel(const op_call *call, bn_work *w, size_t c, double count)
{
    const float *variance = dn_data(call->in[5]);
    const double sum_dy = w->folded[0][c];
    const double sum_dy_x = w->folded[1][c];

    give(dn_data(call->out[1]), c, sum_dy_x / sqrt((double)variance[c] + call->attrs.eps),
         call->accumulate);
    give(dn_data(call->out[2]), c, sum_dy, call->accumulate);
    if (w->shared != NULL) {
        w->shared[1 + c] = sum_dy;
        w->shared[1 + w->channels + c] = sum_dy_x;
    } else {
        set_dx(call, w, c, count, sum_dy, sum_dy_x);
    }
}

/* The terms of dx, with the sums of all ranks. */
static ls_status share_sums(const op_call *call, bn_work *w, double count)
{
    w->shared[0] = count;
    LS_TRY(batch_sync_sum(call, w->shared, w->channels));
    for (size_t c = 0; c < w->channels; c++)
        set_dx(call, w, c, w->shared[0], w->shared[1 + c], w->shared[1 + w->channels + c]);
    return LS_OK;
}

static ls_status backward(device_state *self, const op_call *call, const grid *g, bn_work *w)
{
    const float *mean = dn_data(call->in[4]);
    const float *variance = dn_data(call->in[5]);
    const double count = (double)(g->n * g->h * g->w);

    clear_lanes(w);
    for (size_t c = 0; c < g->c; c++)
        set_forward(call, w, c, mean[c], variance[c], 2);
    run_items(self, w, sums_range);
    for (size_t i = 0; i < LS_COUNT_OF(w->sums); i++)
        fold(w, w->sums[i], FOLD_SUM, NULL, w->folded[i]);
    for (size_t c = 0; c < g->c; c++)
        finish_channel(call, w, c, count);
    if (w->shared != NULL)
        LS_TRY(share_sums(call, w, count));
    if (call->out[0] != NULL)
        run_items(self, w, dx_range);
    return LS_OK;
}

enum { MOVED_DY, MOVED_DY2, MOVED_MASK, MASKED, N_TEMPORARY };

/* Behind a sum with a ReLU: the mask, and memory for the gradient of what was added, which is read
 * as dy once it is written. */
static ls_status arrange_masked(device_state *self, const op_call *call, bn_work *w,
                                ls_tensor **temporary)
{
    const ls_tensor *x = call->in[0];
    ls_tensor *masked = call->out[3];

    if (masked == NULL) {
        LS_TRY(dn_host->tensor_shape(x->device, x->dtype, x->n_dims, x->dims, &temporary[MASKED]));
        masked = temporary[MASKED];
    }
    LS_TRY(layout_place_over(self, call, masked, layout_of(self, x)));
    w->masked = dn_data(masked);
    LS_TRY(arrange(self, call->in[6], x, &temporary[MOVED_MASK], &w->mask));
    return arrange(self, call->in[7], x, &temporary[MOVED_DY2], &w->dy2);
}

static ls_status arrange_backward(device_state *self, const op_call *call, bn_work *w,
                                  ls_tensor **temporary)
{
    const ls_tensor *x = call->in[0];
    const bool has_mask = call->in[6] != NULL && call->in[6]->storage != NULL;

    w->x = dn_data(x);
    if (has_mask)
        LS_TRY(arrange_masked(self, call, w, temporary));
    if (call->out[0] != NULL) {
        LS_TRY(has_mask ? place_like(self, call->out[0], x)
                        : layout_place_over(self, call, call->out[0], layout_of(self, x)));
        w->out = dn_data(call->out[0]);
    }
    return arrange(self, call->in[1], x, &temporary[MOVED_DY], &w->dy);
}

ls_status dn_batch_norm_backward(device_state *self, const op_call *call)
{
    bn_work w = {.memory = NULL};
    ls_tensor *temporary[N_TEMPORARY] = {NULL};
    grid g;
    ls_status st;

    LS_TRY(plain_parameters(call, 2, 4));
    LS_TRY(grid_walkable(call->in[0], &g));
    st = arrange_backward(self, call, &w, temporary);
    if (st == LS_OK)
        st = prepare(&w, self, call, &g);
    w.relu = w.relu && w.mask == NULL;
    if (st == LS_OK)
        st = backward(self, call, &g, &w);
    dn_host->tensor_destroy(w.memory);
    for (int i = 0; i < N_TEMPORARY; i++)
        dn_host->tensor_destroy(temporary[i]);
    return st;
}
