/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_attention_tiles.c - scaled dot-product attention in bfloat16 on AMX: dn_dot_attention.c's
 * algorithm, with products in tiles. Scores, sums and gradients are float32; weights and slopes of
 * scores are rounded to bfloat16 for the next product, as by PyTorch and on GPUs. Without a mask.
 *
 * The gradients of k and v are added up transposed, (width, keys): so the weights, pairs of
 * queries, are the right-hand side of the product, and nothing large is transposed.
 */
#include "tensor/devices/onednn/ops/attention_block.h"
#include "tensor/devices/onednn/simd/simd_tiles.h"

#include <math.h>
#include <string.h>

enum { QUERIES = 64, KEYS = ATTENTION_KEYS, PANEL = 16, WIDTH_STEP = 32, WIDTH_MOST = 256 };

#ifdef SIMD_HAS_X86_TABLES

typedef struct tiles {
    attention_call call;
    size_t padded_keys; /* a multiple of 32 */
    const uint16_t *in[IN_NORMS];
    const float *norms; /* backward: the largest score and the sum of each query */
    uint16_t *out[3];   /* y; backward: dq?, dk?, dv? */
    float *give_norms;  /* or NULL */
} tiles;

/* The memory of a thread. Pairs are along the sum of the product that reads them. */
typedef struct scratch {
    uint16_t *panel; /* 16 rows, aligned */
    uint16_t *q;     /* a block of queries */
    uint16_t *dy;    /* backward */
    float *scores;
    float *slopes;
    float *sums;           /* y, or dq */
    uint16_t *weights;     /* rows of queries: weights, or slopes of scores */
    uint16_t *other;       /* two rows */
    uint32_t *weight_rows; /* backward: pairs of queries */
    uint32_t *slope_rows;
    uint32_t *k_columns; /* of one attention: pairs of width, in panels of 16 keys */
    uint32_t *v_columns;
    uint32_t *k_rows; /* pairs of keys */
    uint32_t *v_rows;
    uint16_t *q_columns; /* (width, queries) */
    uint16_t *dy_columns;
    uint32_t *turned;
    float *dk; /* (width, keys) */
    float *dv;
    float top[QUERIES];
    float sum[QUERIES];
} scratch;

/* --- memory --- */

/* Divides the memory of a thread; returns how many floats it needs. memory NULL: only that. */
static size_t divide(const tiles *a, float *memory, bool backward, scratch *w)
{
    const size_t width = a->call.sizes.width;
    const size_t values = a->call.sizes.values;
    const size_t most = width > values ? width : values;
    const size_t keys = a->padded_keys;
    size_t n = 0;

    w->panel = attention_take(memory, &n, PANEL * most / 2);
    w->q = attention_take(memory, &n, QUERIES * width / 2);
    w->scores = attention_take(memory, &n, (size_t)QUERIES * KEYS);
    w->sums = attention_take(memory, &n, QUERIES * most);
    w->weights = attention_take(memory, &n, (size_t)QUERIES * KEYS / 2);
    w->k_columns = attention_take(memory, &n, keys * width / 2);
    w->v_rows = attention_take(memory, &n, keys * values / 2);
    if (!backward)
        return n;
    w->dy = attention_take(memory, &n, QUERIES * values / 2);
    w->slopes = attention_take(memory, &n, (size_t)QUERIES * KEYS);
    w->other = attention_take(memory, &n, KEYS);
    w->weight_rows = attention_take(memory, &n, (size_t)QUERIES * KEYS / 2);
    w->slope_rows = attention_take(memory, &n, (size_t)QUERIES * KEYS / 2);
    w->v_columns = attention_take(memory, &n, keys * values / 2);
    w->k_rows = attention_take(memory, &n, keys * width / 2);
    w->q_columns = attention_take(memory, &n, QUERIES * width / 2);
    w->dy_columns = attention_take(memory, &n, QUERIES * values / 2);
    w->turned = attention_take(memory, &n, (keys > QUERIES ? keys : QUERIES) * most);
    w->dk = attention_take(memory, &n, keys * width);
    w->dv = attention_take(memory, &n, keys * values);
    return n;
}

/* --- operands --- */

/* Rows of `width` elements, as pairs along the width: panels of 16 rows, the last ones zeros.
 * Rows of the caller may begin at any even address. */
static void pair_columns(const tiles *a, const scratch *w, const uint16_t *x, size_t width,
                         uint32_t *to)
{
    const size_t pairs = width / 2;

    for (size_t i = 0; i < a->padded_keys; i += PANEL, to += PANEL * pairs) {
        const size_t left = i < a->call.sizes.keys ? a->call.sizes.keys - i : 0;
        const size_t rows = left < PANEL ? left : PANEL;

        if (rows < PANEL)
            memset(to, 0, PANEL * pairs * sizeof(*to));
        if (rows == 0)
            continue;
        memcpy(w->panel, x + i * width, rows * width * sizeof(*w->panel));
        a->call.simd->transpose((const float *)(const void *)w->panel, pairs, rows, pairs,
                                (float *)(void *)to, PANEL);
    }
}

/* The same rows as pairs of rows, the last ones zeros. */
static void pair_rows(const tiles *a, const uint16_t *x, size_t width, uint32_t *to)
{
    for (size_t i = 0; i < a->padded_keys; i += 2, to += width) {
        if (i + 1 < a->call.sizes.keys) {
            tiles_pair(x + i * width, x + (i + 1) * width, to, width);
            continue;
        }
        memset(to, 0, width * sizeof(*to));
        for (size_t c = 0; i < a->call.sizes.keys && c < width; c++)
            to[c] = x[i * width + c];
    }
}

/* A block of rows, padded with zeros. */
static void take_rows(const attention_block *b, const uint16_t *x, size_t width, uint16_t *to)
{
    memcpy(to, x, b->n_queries * width * sizeof(*to));
    memset(to + b->n_queries * width, 0, (QUERIES - b->n_queries) * width * sizeof(*to));
}

/* (QUERIES, width) to (width, QUERIES). */
static void turn_rows(const tiles *a, const uint16_t *rows, size_t width, uint32_t *turned,
                      uint16_t *to)
{
    const size_t pairs = width / 2;

    for (size_t i = 0; i < QUERIES; i += PANEL)
        a->call.simd->transpose((const float *)(const void *)(rows + i * width), pairs, PANEL,
                                pairs, (float *)(void *)(turned + i), QUERIES);
    for (size_t c = 0; c < pairs; c++)
        tiles_split(turned + c * QUERIES, to + 2 * c * QUERIES, to + (2 * c + 1) * QUERIES,
                    QUERIES);
}

/* --- blocks of scores --- */

/* The keys of a block, with those that are zeros. */
static size_t padded(const attention_block *b)
{
    return round_up(b->n_keys, 32);
}

/* out = rows of `width` times the columns of this block of keys. */
static void multiply_columns(const attention_block *b, const uint16_t *rows, size_t width,
                             const uint32_t *columns, float *out)
{
    const tile_product p = {.rows = QUERIES,
                            .columns = padded(b),
                            .depth = width,
                            .a_row = width,
                            .b_row = PANEL,
                            .b_panel = PANEL * width / 2,
                            .c_row = KEYS};

    tiles_multiply(&p, rows, columns + b->key * width / 2, out);
}

/* sums (+)= weights times the rows of this block of keys. */
static void multiply_rows(const attention_block *b, const uint16_t *weights, const uint32_t *rows,
                          size_t width, float *sums)
{
    const tile_product p = {.rows = QUERIES,
                            .columns = width,
                            .depth = padded(b),
                            .a_row = KEYS,
                            .b_row = width,
                            .b_panel = PANEL,
                            .c_row = width,
                            .add = b->key > 0};

    tiles_multiply(&p, weights, rows + b->key / 2 * width, sums);
}

/* sums of keys += the columns of the queries times their weights. */
static void multiply_queries(const tiles *a, const attention_block *b, const uint16_t *columns,
                             size_t width, const uint32_t *weights, float *sums)
{
    const tile_product p = {.rows = width,
                            .columns = padded(b),
                            .depth = QUERIES,
                            .a_row = QUERIES,
                            .b_row = KEYS,
                            .b_panel = PANEL,
                            .c_row = a->padded_keys,
                            .add = true};

    tiles_multiply(&p, columns, weights, sums + b->key);
}

/* --- forward --- */

/* Makes the scores of query r weights below its largest score so far. */
static void weigh(const tiles *a, const attention_block *b, scratch *w, size_t r)
{
    const size_t n = attention_visible(&a->call, b, r);
    const size_t values = a->call.sizes.values;
    float *scores = w->scores + r * KEYS;
    float factor;

    a->call.simd->shift_scale(scores, 0, (float)a->call.attrs->scale, scores, n);
    factor = attention_weigh(&a->call, scores, n, &w->top[r], &w->sum[r]);
    attention_drop(&a->call, b, r, scores, n);
    memset(scores + n, 0, (padded(b) - n) * sizeof(*scores));
    a->call.simd->narrow_bf16(scores, w->weights + r * KEYS, padded(b));
    if (b->key > 0 && factor != 1)
        a->call.simd->shift_scale(w->sums + r * values, 0, factor, w->sums + r * values, values);
}

static void give_queries(const tiles *a, const attention_block *b, scratch *w)
{
    const attention_sizes *z = &a->call.sizes;

    for (size_t r = 0; r < b->n_queries; r++) {
        const size_t row = b->i * z->queries + b->query + r;
        const float factor = attention_finish(
            w->top[r], w->sum[r], a->give_norms == NULL ? NULL : a->give_norms + 2 * row);
        float *y = w->sums + r * z->values;

        a->call.simd->shift_scale(y, 0, factor, y, z->values);
        a->call.simd->narrow_bf16(y, a->out[0] + row * z->values, z->values);
    }
}

static void attend_blocks(void *arg, size_t begin, size_t end, size_t thread)
{
    const tiles *a = arg;
    const size_t n_blocks = (a->call.sizes.queries + QUERIES - 1) / QUERIES;
    scratch w;

    memset(&w, 0, sizeof(w));
    (void)divide(a, a->call.memory + thread * a->call.thread_floats, false, &w);
    tiles_begin();
    for (size_t u = begin; u < end; u++) {
        attention_block b =
            attention_block_of(&a->call, u / n_blocks, u % n_blocks * QUERIES, QUERIES);

        if (u == begin || u % n_blocks == 0) {
            pair_columns(a, &w, a->in[IN_K] + b.i * a->call.sizes.keys * a->call.sizes.width,
                         a->call.sizes.width, w.k_columns);
            pair_rows(a, a->in[IN_V] + b.i * a->call.sizes.keys * a->call.sizes.values,
                      a->call.sizes.values, w.v_rows);
        }
        take_rows(&b, a->in[IN_Q] + (b.i * a->call.sizes.queries + b.query) * a->call.sizes.width,
                  a->call.sizes.width, w.q);
        for (size_t r = 0; r < b.n_queries; r++) {
            w.top[r] = -INFINITY;
            w.sum[r] = 0;
        }
        memset(w.weights + b.n_queries * KEYS, 0,
               (QUERIES - b.n_queries) * KEYS * sizeof(*w.weights));
        while (attention_next_keys(&a->call, &b)) {
            multiply_columns(&b, w.q, a->call.sizes.width, w.k_columns, w.scores);
            for (size_t r = 0; r < b.n_queries; r++)
                weigh(a, &b, &w, r);
            multiply_rows(&b, w.weights, w.v_rows, a->call.sizes.values, w.sums);
        }
        give_queries(a, &b, &w);
    }
    tiles_end();
}

/* --- backward --- */

static void slope(const tiles *a, const attention_block *b, scratch *w, size_t r)
{
    const size_t n = attention_visible(&a->call, b, r);
    const size_t row = b->i * a->call.sizes.queries + b->query + r;
    float *scores = w->scores + r * KEYS;
    float *slopes = w->slopes + r * KEYS;

    a->call.simd->shift_scale(scores, 0, (float)a->call.attrs->scale, scores, n);
    attention_slope(&a->call, b, r, a->norms + 2 * row, scores, slopes, &w->sum[r]);
    memset(scores + n, 0, (padded(b) - n) * sizeof(*scores));
    memset(slopes + n, 0, (padded(b) - n) * sizeof(*slopes));
}

/* Rows of two queries as bfloat16, and as pairs. */
static void round_pair(const tiles *a, const attention_block *b, const float *rows, size_t r,
                       uint16_t *rounded, uint32_t *pairs)
{
    a->call.simd->narrow_bf16(rows + r * KEYS, rounded, padded(b));
    a->call.simd->narrow_bf16(rows + (r + 1) * KEYS, rounded + KEYS, padded(b));
    tiles_pair(rounded, rounded + KEYS, pairs + r / 2 * KEYS, padded(b));
}

/* All that a block of queries adds to the gradients. */
static void attend_block_back(const tiles *a, attention_block *b, scratch *w)
{
    const attention_sizes *z = &a->call.sizes;
    const size_t first = b->i * z->queries + b->query;
    const uint16_t *dy = a->in[IN_DY] + first * z->values;

    take_rows(b, a->in[IN_Q] + first * z->width, z->width, w->q);
    take_rows(b, dy, z->values, w->dy);
    turn_rows(a, w->q, z->width, w->turned, w->q_columns);
    turn_rows(a, w->dy, z->values, w->turned, w->dy_columns);
    for (size_t r = 0; r < b->n_queries; r++) {
        float *row = w->slopes;

        a->call.simd->widen_bf16(dy + r * z->values, row, z->values);
        a->call.simd->widen_bf16(a->in[IN_Y] + (first + r) * z->values, row + WIDTH_MOST,
                                 z->values);
        w->sum[r] = (float)a->call.simd->dot(row, row + WIDTH_MOST, z->values);
    }
    while (attention_next_keys(&a->call, b)) {
        multiply_columns(b, w->q, z->width, w->k_columns, w->scores);
        multiply_columns(b, w->dy, z->values, w->v_columns, w->slopes);
        for (size_t r = 0; r < b->n_queries; r++)
            slope(a, b, w, r);
        for (size_t r = b->n_queries; r < QUERIES; r++) {
            memset(w->scores + r * KEYS, 0, padded(b) * sizeof(*w->scores));
            memset(w->slopes + r * KEYS, 0, padded(b) * sizeof(*w->slopes));
        }
        for (size_t r = 0; r < QUERIES; r += 2) {
            round_pair(a, b, w->scores, r, w->other, w->weight_rows);
            round_pair(a, b, w->slopes, r, w->weights + r * KEYS, w->slope_rows);
        }
        if (a->out[0] != NULL)
            multiply_rows(b, w->weights, w->k_rows, z->width, w->sums);
        if (a->out[1] != NULL)
            multiply_queries(a, b, w->q_columns, z->width, w->slope_rows, w->dk);
        if (a->out[2] != NULL)
            multiply_queries(a, b, w->dy_columns, z->values, w->weight_rows, w->dv);
    }
    for (size_t r = 0; r < b->n_queries && a->out[0] != NULL; r++) {
        float *dq = w->sums + r * z->width;

        a->call.simd->shift_scale(dq, 0, (float)a->call.attrs->scale, dq, z->width);
        a->call.simd->narrow_bf16(dq, a->out[0] + (first + r) * z->width, z->width);
    }
}

/* Turns the sums of keys, times `scale`, into rows of keys. */
static void give_keys(const tiles *a, float *sums, size_t width, double scale, uint32_t *turned,
                      uint16_t *out)
{
    float *rows = (float *)(void *)turned;

    if (out == NULL)
        return;
    for (size_t c = 0; c < width; c += PANEL)
        a->call.simd->transpose(sums + c * a->padded_keys, a->padded_keys, PANEL,
                                a->call.sizes.keys, rows + c, (ptrdiff_t)width);
    a->call.simd->shift_scale(rows, 0, (float)scale, rows, a->call.sizes.keys * width);
    a->call.simd->narrow_bf16(rows, out, a->call.sizes.keys * width);
}

static void attend_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const tiles *a = arg;
    const attention_sizes *z = &a->call.sizes;
    scratch w;

    memset(&w, 0, sizeof(w));
    (void)divide(a, a->call.memory + thread * a->call.thread_floats, true, &w);
    tiles_begin();
    for (size_t i = begin; i < end; i++) {
        const uint16_t *k = a->in[IN_K] + i * z->keys * z->width;
        const uint16_t *v = a->in[IN_V] + i * z->keys * z->values;

        pair_columns(a, &w, k, z->width, w.k_columns);
        pair_columns(a, &w, v, z->values, w.v_columns);
        pair_rows(a, k, z->width, w.k_rows);
        memset(w.dk, 0, a->padded_keys * z->width * sizeof(*w.dk));
        memset(w.dv, 0, a->padded_keys * z->values * sizeof(*w.dv));
        for (size_t query = 0; query < z->queries; query += QUERIES) {
            attention_block b = attention_block_of(&a->call, i, query, QUERIES);

            attend_block_back(a, &b, &w);
        }
        give_keys(a, w.dk, z->width, a->call.attrs->scale, w.turned,
                  a->out[1] == NULL ? NULL : a->out[1] + i * z->keys * z->width);
        give_keys(a, w.dv, z->values, 1, w.turned,
                  a->out[2] == NULL ? NULL : a->out[2] + i * z->keys * z->values);
    }
    tiles_end();
}

/* --- calls --- */

/* The call with inputs in[] in the order of backward. */
static void open_call(device_state *self, const op_call *call, ls_tensor *const *in, tiles *a)
{
    *a = (tiles){.call = {.simd = self->simd,
                          .attrs = &call->attrs,
                          .sizes = attention_sizes_of(in[IN_Q], in[IN_K], in[IN_V], NULL),
                          .drop = drop_run_of(&call->attrs)},
                 .norms = dn_data(in[IN_NORMS])};
    a->padded_keys = round_up(a->call.sizes.keys, 32);
    for (int i = 0; i < IN_NORMS; i++)
        a->in[i] = dn_data(in[i]);
}

static ls_status run(device_state *self, tiles *a, ls_device *device, bool backward, range_fn fn,
                     size_t n, size_t cost)
{
    scratch w;

    a->call.thread_floats = divide(a, NULL, backward, &w);
    return attention_run(self, &a->call, device, fn, a, n, cost);
}

ls_status attention_tiles(device_state *self, const op_call *call)
{
    ls_tensor *const in[N_IN] = {[IN_Q] = call->in[0], [IN_K] = call->in[1], [IN_V] = call->in[2]};
    tiles a;

    open_call(self, call, in, &a);
    a.out[0] = dn_data(call->out[0]);
    a.give_norms = dn_data(call->out[1]);
    return run(self, &a, call->in[0]->device, false, attend_blocks,
               a.call.sizes.n * ((a.call.sizes.queries + QUERIES - 1) / QUERIES),
               QUERIES * a.call.sizes.keys);
}

ls_status attention_tiles_backward(device_state *self, const op_call *call)
{
    tiles a;

    open_call(self, call, call->in, &a);
    for (int i = 0; i < 3; i++)
        a.out[i] = dn_data(call->out[i]);
    return run(self, &a, call->in[0]->device, true, attend_back, a.call.sizes.n,
               a.call.sizes.queries * a.call.sizes.keys);
}

static bool fits(const ls_tensor *rows)
{
    const int64_t width = rows->dims[rows->n_dims - 1];

    return width % WIDTH_STEP == 0 && width <= WIDTH_MOST;
}

bool attention_fits_tiles(const device_state *self, const op_call *call)
{
    const bool backward = call->op == OP_ATTENTION_BACKWARD;
    const ls_tensor *mask = call->in[backward ? IN_MASK : 3];

    return self->isa >= ISA_AMX && call->in[0]->dtype == LS_BF16 && mask == NULL &&
           fits(call->in[0]) && fits(call->in[backward ? IN_V : 2]);
}

#else

bool attention_fits_tiles(const device_state *self, const op_call *call)
{
    LS_UNUSED(self);
    LS_UNUSED(call);
    return false;
}

ls_status attention_tiles(device_state *self, const op_call *call)
{
    LS_UNUSED(self);
    LS_UNUSED(call);
    return LS_EUNSUPPORTED;
}

ls_status attention_tiles_backward(device_state *self, const op_call *call)
{
    return attention_tiles(self, call);
}

#endif
