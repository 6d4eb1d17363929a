/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_attention_tiles.c - scaled dot-product attention in bfloat16 on AMX: dn_dot_attention.c's
 * algorithm, with products in tiles. Scores, sums and gradients are float32; weights and slopes of
 * scores are rounded to bfloat16 for the next product, as by PyTorch and on GPUs. Without a mask.
 *
 * The gradients of k and v are added up transposed, (width, keys): so the weights, pairs of
 * queries, are the right-hand side of the product, and nothing large is transposed.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/devices/onednn/simd/simd_tiles.h"
#include "tensor/formulas/attention.h"

#include <math.h>
#include <string.h>

enum { QUERIES = 64, KEYS = 256, PANEL = 16, WIDTH_STEP = 32, WIDTH_MOST = 256 };

#ifdef SIMD_HAS_X86_TABLES

enum { IN_Q, IN_DY, IN_K, IN_V, IN_MASK, IN_Y, IN_NORMS, N_IN };

typedef struct tiles {
    const simd_table *simd;
    const op_attrs *attrs;
    attention_sizes z;
    drop_run drop;
    size_t padded_keys; /* a multiple of 32 */
    const uint16_t *in[IN_NORMS];
    const float *norms; /* backward: the largest score and the sum of each query */
    uint16_t *out[3];   /* y; backward: dq?, dk?, dv? */
    float *give_norms;  /* or NULL */
    float *memory;      /* of all threads */
    size_t thread_floats;
} tiles;

/* The memory of a thread. Pairs are along the sum of the product that reads them. */
typedef struct scratch {
    uint16_t *q;  /* a block of queries */
    uint16_t *dy; /* backward */
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

typedef struct block {
    size_t i; /* the attention */
    size_t query;
    size_t n_queries;
    size_t key;
    size_t n_keys;
    size_t padded; /* a multiple of 32 */
} block;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* --- memory --- */

static void *take(float *memory, size_t *used, size_t floats)
{
    const size_t at = *used;

    *used += round_up(floats, 16);
    return memory == NULL ? NULL : memory + at;
}

/* Divides the memory of a thread; returns how many floats it needs. memory NULL: only that. */
static size_t divide(const tiles *a, float *memory, bool backward, scratch *w)
{
    const size_t width = a->z.width;
    const size_t values = a->z.values;
    const size_t most = width > values ? width : values;
    const size_t keys = a->padded_keys;
    size_t n = 0;

    w->q = take(memory, &n, QUERIES * width / 2);
    w->scores = take(memory, &n, (size_t)QUERIES * KEYS);
    w->sums = take(memory, &n, QUERIES * most);
    w->weights = take(memory, &n, (size_t)QUERIES * KEYS / 2);
    w->k_columns = take(memory, &n, keys * width / 2);
    w->v_rows = take(memory, &n, keys * values / 2);
    if (!backward)
        return n;
    w->dy = take(memory, &n, QUERIES * values / 2);
    w->slopes = take(memory, &n, (size_t)QUERIES * KEYS);
    w->other = take(memory, &n, KEYS);
    w->weight_rows = take(memory, &n, (size_t)QUERIES * KEYS / 2);
    w->slope_rows = take(memory, &n, (size_t)QUERIES * KEYS / 2);
    w->v_columns = take(memory, &n, keys * values / 2);
    w->k_rows = take(memory, &n, keys * width / 2);
    w->q_columns = take(memory, &n, QUERIES * width / 2);
    w->dy_columns = take(memory, &n, QUERIES * values / 2);
    w->turned = take(memory, &n, (keys > QUERIES ? keys : QUERIES) * most);
    w->dk = take(memory, &n, keys * width);
    w->dv = take(memory, &n, keys * values);
    return n;
}

/* --- operands --- */

/* Rows of `width` elements, as pairs along the width: panels of 16 rows, the last ones zeros. */
static void pair_columns(const tiles *a, const uint16_t *x, size_t width, uint32_t *to)
{
    const size_t pairs = width / 2;

    for (size_t i = 0; i < a->padded_keys; i += PANEL, to += PANEL * pairs) {
        const size_t left = i < a->z.keys ? a->z.keys - i : 0;
        const size_t rows = left < PANEL ? left : PANEL;

        if (rows < PANEL)
            memset(to, 0, PANEL * pairs * sizeof(*to));
        if (rows > 0)
            a->simd->transpose((const float *)(const void *)(x + i * width), pairs, rows, pairs,
                               (float *)(void *)to, PANEL);
    }
}

/* The same rows as pairs of rows, the last ones zeros. */
static void pair_rows(const tiles *a, const uint16_t *x, size_t width, uint32_t *to)
{
    for (size_t i = 0; i < a->padded_keys; i += 2, to += width) {
        if (i + 1 < a->z.keys) {
            tiles_pair(x + i * width, x + (i + 1) * width, to, width);
            continue;
        }
        memset(to, 0, width * sizeof(*to));
        for (size_t c = 0; i < a->z.keys && c < width; c++)
            to[c] = x[i * width + c];
    }
}

/* A block of rows, padded with zeros. */
static void take_rows(const block *b, const uint16_t *x, size_t width, uint16_t *to)
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
        a->simd->transpose((const float *)(const void *)(rows + i * width), pairs, PANEL, pairs,
                           (float *)(void *)(turned + i), QUERIES);
    for (size_t c = 0; c < pairs; c++)
        tiles_split(turned + c * QUERIES, to + 2 * c * QUERIES, to + (2 * c + 1) * QUERIES,
                    QUERIES);
}

/* --- blocks of scores --- */

static block block_of(const tiles *a, size_t i, size_t query)
{
    const size_t left = a->z.queries - query;

    return (block){.i = i, .query = query, .n_queries = left < QUERIES ? left : QUERIES};
}

/* The blocks of keys of a block of queries; with `causal` those above the diagonal are skipped. */
static bool next_keys(const tiles *a, block *b)
{
    const size_t end = b->query + b->n_queries;
    const size_t keys = a->attrs->causal && end < a->z.keys ? end : a->z.keys;

    b->key += b->n_keys;
    if (b->key >= keys)
        return false;
    b->n_keys = keys - b->key < KEYS ? keys - b->key : KEYS;
    b->padded = round_up(b->n_keys, 32);
    return true;
}

/* How many keys of the block take part for its query r: the first ones. */
static size_t visible_keys(const tiles *a, const block *b, size_t r)
{
    const size_t end = b->query + r + 1;

    if (!a->attrs->causal)
        return b->n_keys;
    if (end <= b->key)
        return 0;
    return end - b->key < b->n_keys ? end - b->key : b->n_keys;
}

/* Drops some of n weights of query r. */
static void drop(const tiles *a, const block *b, size_t r, float *weights, size_t n)
{
    const size_t row = b->i * a->z.queries + b->query + r;
    drop_run run = a->drop;

    run.first = row * a->z.keys + b->key;
    if (a->attrs->drop > 0)
        a->simd->dropout(&run, weights, weights, n);
}

/* out = rows of `width` times the columns of this block of keys. */
static void multiply_columns(const block *b, const uint16_t *rows, size_t width,
                             const uint32_t *columns, float *out)
{
    const tile_product p = {.rows = QUERIES,
                            .columns = b->padded,
                            .depth = width,
                            .a_row = width,
                            .b_row = PANEL,
                            .b_panel = PANEL * width / 2,
                            .c_row = KEYS};

    tiles_multiply(&p, rows, columns + b->key * width / 2, out);
}

/* sums (+)= weights times the rows of this block of keys. */
static void multiply_rows(const block *b, const uint16_t *weights, const uint32_t *rows,
                          size_t width, float *sums)
{
    const tile_product p = {.rows = QUERIES,
                            .columns = width,
                            .depth = b->padded,
                            .a_row = KEYS,
                            .b_row = width,
                            .b_panel = PANEL,
                            .c_row = width,
                            .add = b->key > 0};

    tiles_multiply(&p, weights, rows + b->key / 2 * width, sums);
}

/* sums of keys += the columns of the queries times their weights. */
static void multiply_queries(const tiles *a, const block *b, const uint16_t *columns, size_t width,
                             const uint32_t *weights, float *sums)
{
    const tile_product p = {.rows = width,
                            .columns = b->padded,
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
static void weigh(const tiles *a, const block *b, scratch *w, size_t r)
{
    const size_t n = visible_keys(a, b, r);
    float *scores = w->scores + r * KEYS;
    float high;
    float base;
    float factor;

    a->simd->shift_scale(scores, 0, (float)a->attrs->scale, scores, n);
    high = a->simd->largest(scores, n);
    high = high > w->top[r] ? high : w->top[r];
    base = high == -INFINITY ? 0 : high;
    factor = expf(w->top[r] - base);
    w->top[r] = high;
    w->sum[r] = w->sum[r] * factor + a->simd->exp_sum(scores, base, scores, n);
    drop(a, b, r, scores, n);
    memset(scores + n, 0, (b->padded - n) * sizeof(*scores));
    a->simd->narrow_bf16(scores, w->weights + r * KEYS, b->padded);
    if (b->key > 0 && factor != 1)
        a->simd->shift_scale(w->sums + r * a->z.values, 0, factor, w->sums + r * a->z.values,
                             a->z.values);
}

static void give_queries(const tiles *a, const block *b, scratch *w)
{
    for (size_t r = 0; r < b->n_queries; r++) {
        const size_t row = b->i * a->z.queries + b->query + r;
        const bool is_none = w->sum[r] == 0;
        float *y = w->sums + r * a->z.values;

        a->simd->shift_scale(y, 0, is_none ? 1 : 1 / w->sum[r], y, a->z.values);
        a->simd->narrow_bf16(y, a->out[0] + row * a->z.values, a->z.values);
        if (a->give_norms != NULL) {
            a->give_norms[2 * row] = is_none ? INFINITY : w->top[r];
            a->give_norms[2 * row + 1] = is_none ? 1 : w->sum[r];
        }
    }
}

static void attend_blocks(void *arg, size_t begin, size_t end, size_t thread)
{
    const tiles *a = arg;
    const size_t n_blocks = (a->z.queries + QUERIES - 1) / QUERIES;
    scratch w;

    memset(&w, 0, sizeof(w));
    (void)divide(a, a->memory + thread * a->thread_floats, false, &w);
    tiles_begin();
    for (size_t u = begin; u < end; u++) {
        block b = block_of(a, u / n_blocks, u % n_blocks * QUERIES);

        if (u == begin || u % n_blocks == 0) {
            pair_columns(a, a->in[IN_K] + b.i * a->z.keys * a->z.width, a->z.width, w.k_columns);
            pair_rows(a, a->in[IN_V] + b.i * a->z.keys * a->z.values, a->z.values, w.v_rows);
        }
        take_rows(&b, a->in[IN_Q] + (b.i * a->z.queries + b.query) * a->z.width, a->z.width, w.q);
        for (size_t r = 0; r < b.n_queries; r++) {
            w.top[r] = -INFINITY;
            w.sum[r] = 0;
        }
        memset(w.weights, 0, (size_t)QUERIES * KEYS * sizeof(*w.weights));
        while (next_keys(a, &b)) {
            multiply_columns(&b, w.q, a->z.width, w.k_columns, w.scores);
            for (size_t r = 0; r < b.n_queries; r++)
                weigh(a, &b, &w, r);
            multiply_rows(&b, w.weights, w.v_rows, a->z.values, w.sums);
        }
        give_queries(a, &b, &w);
    }
    tiles_end();
}

/* --- backward --- */

/* scores becomes the dropped weights of query r, slopes, which has dy v', the slopes of its
 * scores. */
static void slope(const tiles *a, const block *b, scratch *w, size_t r)
{
    const size_t n = visible_keys(a, b, r);
    const float *norms = a->norms + 2 * (b->i * a->z.queries + b->query + r);
    float *scores = w->scores + r * KEYS;
    float *slopes = w->slopes + r * KEYS;

    a->simd->shift_scale(scores, 0, (float)a->attrs->scale, scores, n);
    a->simd->exp_below(scores, norms[0], scores, n);
    a->simd->shift_scale(scores, 0, 1 / norms[1], scores, n);
    drop(a, b, r, slopes, n);
    // With all keys in one block this is nearer to 0 where the slopes are.
    if (a->z.keys <= KEYS || (a->attrs->causal && b->query + r < KEYS))
        w->sum[r] = (float)a->simd->dot(scores, slopes, n);
    a->simd->softmax_dx(scores, slopes, w->sum[r], 1, slopes, n);
    drop(a, b, r, scores, n);
    memset(scores + n, 0, (b->padded - n) * sizeof(*scores));
    memset(slopes + n, 0, (b->padded - n) * sizeof(*slopes));
}

/* Rows of two queries as bfloat16, and as pairs. */
static void round_pair(const tiles *a, const block *b, const float *rows, size_t r,
                       uint16_t *rounded, uint32_t *pairs)
{
    a->simd->narrow_bf16(rows + r * KEYS, rounded, b->padded);
    a->simd->narrow_bf16(rows + (r + 1) * KEYS, rounded + KEYS, b->padded);
    tiles_pair(rounded, rounded + KEYS, pairs + r / 2 * KEYS, b->padded);
}

/* All that a block of queries adds to the gradients. */
static void attend_block_back(const tiles *a, block *b, scratch *w)
{
    const attention_sizes *z = &a->z;
    const size_t first = b->i * z->queries + b->query;
    const uint16_t *dy = a->in[IN_DY] + first * z->values;

    take_rows(b, a->in[IN_Q] + first * z->width, z->width, w->q);
    take_rows(b, dy, z->values, w->dy);
    turn_rows(a, w->q, z->width, w->turned, w->q_columns);
    turn_rows(a, w->dy, z->values, w->turned, w->dy_columns);
    for (size_t r = 0; r < b->n_queries; r++) {
        float *row = w->slopes;

        a->simd->widen_bf16(dy + r * z->values, row, z->values);
        a->simd->widen_bf16(a->in[IN_Y] + (first + r) * z->values, row + WIDTH_MOST, z->values);
        w->sum[r] = (float)a->simd->dot(row, row + WIDTH_MOST, z->values);
    }
    while (next_keys(a, b)) {
        multiply_columns(b, w->q, z->width, w->k_columns, w->scores);
        multiply_columns(b, w->dy, z->values, w->v_columns, w->slopes);
        for (size_t r = 0; r < b->n_queries; r++)
            slope(a, b, w, r);
        for (size_t r = b->n_queries; r < QUERIES; r++) {
            memset(w->scores + r * KEYS, 0, b->padded * sizeof(*w->scores));
            memset(w->slopes + r * KEYS, 0, b->padded * sizeof(*w->slopes));
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

        a->simd->shift_scale(dq, 0, (float)a->attrs->scale, dq, z->width);
        a->simd->narrow_bf16(dq, a->out[0] + (first + r) * z->width, z->width);
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
        a->simd->transpose(sums + c * a->padded_keys, a->padded_keys, PANEL, a->z.keys, rows + c,
                           (ptrdiff_t)width);
    a->simd->shift_scale(rows, 0, (float)scale, rows, a->z.keys * width);
    a->simd->narrow_bf16(rows, out, a->z.keys * width);
}

static void attend_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const tiles *a = arg;
    const attention_sizes *z = &a->z;
    scratch w;

    memset(&w, 0, sizeof(w));
    (void)divide(a, a->memory + thread * a->thread_floats, true, &w);
    tiles_begin();
    for (size_t i = begin; i < end; i++) {
        const uint16_t *k = a->in[IN_K] + i * z->keys * z->width;
        const uint16_t *v = a->in[IN_V] + i * z->keys * z->values;

        pair_columns(a, k, z->width, w.k_columns);
        pair_columns(a, v, z->values, w.v_columns);
        pair_rows(a, k, z->width, w.k_rows);
        memset(w.dk, 0, a->padded_keys * z->width * sizeof(*w.dk));
        memset(w.dv, 0, a->padded_keys * z->values * sizeof(*w.dv));
        for (size_t query = 0; query < z->queries; query += QUERIES) {
            block b = block_of(a, i, query);

            attend_block_back(a, &b, &w);
        }
        give_keys(a, w.dk, z->width, a->attrs->scale, w.turned,
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
    *a = (tiles){.simd = self->simd,
                 .attrs = &call->attrs,
                 .z = attention_sizes_of(in[IN_Q], in[IN_K], in[IN_V], NULL),
                 .drop = drop_run_of(&call->attrs),
                 .norms = dn_data(in[IN_NORMS])};
    a->padded_keys = round_up(a->z.keys, 32);
    for (int i = 0; i < IN_NORMS; i++)
        a->in[i] = dn_data(in[i]);
}

static ls_status run(device_state *self, tiles *a, ls_device *device, bool backward, range_fn fn,
                     size_t n, size_t cost)
{
    ls_tensor *memory = NULL;
    scratch w;

    a->thread_floats = divide(a, NULL, backward, &w);
    LS_TRY(dn_floats(device, (size_t)self->threads * a->thread_floats, &memory, &a->memory));
    threads_for(self, n, cost, fn, a);
    dn_host->tensor_destroy(memory);
    return LS_OK;
}

ls_status attention_tiles(device_state *self, const op_call *call)
{
    ls_tensor *const in[N_IN] = {[IN_Q] = call->in[0], [IN_K] = call->in[1], [IN_V] = call->in[2]};
    tiles a;

    open_call(self, call, in, &a);
    a.out[0] = dn_data(call->out[0]);
    a.give_norms = dn_data(call->out[1]);
    return run(self, &a, call->in[0]->device, false, attend_blocks,
               a.z.n * ((a.z.queries + QUERIES - 1) / QUERIES), QUERIES * a.z.keys);
}

ls_status attention_tiles_backward(device_state *self, const op_call *call)
{
    tiles a;

    open_call(self, call, call->in, &a);
    for (int i = 0; i < 3; i++)
        a.out[i] = dn_data(call->out[i]);
    return run(self, &a, call->in[0]->device, true, attend_back, a.z.n, a.z.queries * a.z.keys);
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
