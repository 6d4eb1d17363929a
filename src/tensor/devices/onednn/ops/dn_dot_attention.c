/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_dot_attention.c - scaled dot-product attention by blocks of queries and keys, whose scores
 * stay in the cache. Forward is algorithm 1 of Dao, "FlashAttention-2: Faster Attention with Better
 * Parallelism and Work Partitioning", 2023: the sums of a query over the blocks of keys so far are
 * rescaled when a block has a larger score. Backward (algorithm 2) computes the weights again from
 * the norms of each query.
 *
 * All tensors are plain. A thread takes whole blocks of queries, in backward whole attentions, so
 * the number of threads does not change the bits.
 */
#include "tensor/devices/onednn/ops/attention_block.h"

#include <math.h>
#include <string.h>

enum { BLOCK_QUERIES = 32, LANES = 8, PANEL = 16 };

/* The call, for all threads. Padded widths are multiples of LANES. */
typedef struct attention {
    attention_call call;
    size_t width;
    size_t values;
    const float *in[N_IN]; /* NULL for the mask of bytes */
    const uint8_t *excluded;
    float *out[3]; /* y, norms?; backward: dq?, dk?, dv? */
} attention;

/* The memory of a thread, and what of it is filled. */
typedef struct scratch {
    float *q; /* a block of queries times the scale, and what is computed for it */
    float *y; /* backward: dy */
    float *dq;
    float *scores;
    float *slopes;
    float *key_panels; /* of one attention */
    float *value_panels;
    float *padded_keys; /* the inputs, unless their width must be padded */
    float *padded_values;
    float *dk;
    float *dv;
    const float *keys;
    const float *value_rows;
    float top[BLOCK_QUERIES];
    float sum[BLOCK_QUERIES];
} scratch;

/* --- memory --- */

/* Divides the memory of a thread; returns how many floats it needs. memory NULL: only that. */
static size_t divide(const attention *a, float *memory, bool backward, scratch *w)
{
    const attention_sizes *z = &a->call.sizes;
    const size_t panel_keys = round_up(z->keys, PANEL);
    size_t n = 0;

    w->q = attention_take(memory, &n, BLOCK_QUERIES * a->width);
    w->y = attention_take(memory, &n, BLOCK_QUERIES * a->values);
    w->scores = attention_take(memory, &n, (size_t)BLOCK_QUERIES * ATTENTION_KEYS);
    w->key_panels = attention_take(memory, &n, panel_keys * z->width);
    if (!backward) {
        w->padded_values =
            attention_take(memory, &n, a->values == z->values ? 0 : z->keys * a->values);
        return n;
    }
    w->dq = attention_take(memory, &n, BLOCK_QUERIES * a->width);
    w->slopes = attention_take(memory, &n, (size_t)BLOCK_QUERIES * ATTENTION_KEYS);
    w->value_panels = attention_take(memory, &n, panel_keys * z->values);
    w->padded_keys = attention_take(memory, &n, a->width == z->width ? 0 : z->keys * a->width);
    w->dk = attention_take(memory, &n, z->keys * a->width);
    w->dv = attention_take(memory, &n, z->keys * a->values);
    return n;
}

/* n rows of `width` elements as rows of `padded`, with zeros behind them; x itself if these are
 * equal. */
static const float *pad_rows(const float *x, size_t n, size_t width, size_t padded, float *out)
{
    if (width == padded)
        return x;
    for (size_t i = 0; i < n; i++) {
        memcpy(out + i * padded, x + i * width, width * sizeof(*x));
        memset(out + i * padded + width, 0, (padded - width) * sizeof(*x));
    }
    return out;
}

/* Panels of 16 rows, of which the last ones may be zeros. */
static void fill_panels(const attention *a, const float *x, size_t width, float *panels)
{
    const size_t n = a->call.sizes.keys;

    for (size_t i = 0; i < n; i += PANEL, panels += PANEL * width) {
        const size_t rows = n - i < PANEL ? n - i : PANEL;

        if (rows < PANEL)
            // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): there is memory
            memset(panels, 0, PANEL * width * sizeof(*panels));
        a->call.simd->transpose(x + i * width, width, rows, width, panels, PANEL);
    }
}

/* The block of queries times the scale, padded. */
static void fill_queries(const attention *a, const attention_block *b, scratch *w)
{
    const size_t width = a->call.sizes.width;
    const float *q = a->in[IN_Q] + (b->i * a->call.sizes.queries + b->query) * width;

    for (size_t r = 0; r < b->n_queries; r++) {
        a->call.simd->shift_scale(q + r * width, 0, (float)a->call.attrs->scale,
                                  w->q + r * a->width, width);
        memset(w->q + r * a->width + width, 0, (a->width - width) * sizeof(*w->q));
    }
}

/* --- blocks of scores --- */

/* out = rows of `width` elements times columns in panels. */
static void multiply_panels(const attention *a, const attention_block *b, const float *rows,
                            size_t row, size_t width, const float *panels, float *out)
{
    const small_product m = {.rows = b->n_queries,
                             .depth = width,
                             .columns = round_up(b->n_keys, LANES),
                             .a_row = row,
                             .a_step = 1,
                             .b_panel = PANEL * width,
                             .b_step = PANEL,
                             .c_row = ATTENTION_KEYS};

    a->call.simd->product(&m, rows, panels + b->key * width, out);
}

/* out (+)= scores times the rows of their keys, which have `width` elements, a multiple of LANES.
 */
static void multiply_keys(const attention *a, const attention_block *b, const float *scores,
                          const float *rows, size_t width, float *out)
{
    const small_product m = {.rows = b->n_queries,
                             .depth = b->n_keys,
                             .columns = width,
                             .a_row = ATTENTION_KEYS,
                             .a_step = 1,
                             .b_panel = PANEL,
                             .b_step = width,
                             .c_row = width,
                             .add = b->key > 0};

    a->call.simd->product(&m, scores, rows + b->key * width, out);
}

/* sums of the keys += transposed scores times the rows of their queries. */
static void multiply_queries(const attention *a, const attention_block *b, const float *scores,
                             const float *rows, size_t width, float *sums)
{
    const small_product m = {.rows = b->n_keys,
                             .depth = b->n_queries,
                             .columns = width,
                             .a_row = 1,
                             .a_step = ATTENTION_KEYS,
                             .b_panel = PANEL,
                             .b_step = width,
                             .c_row = width,
                             .add = true};

    a->call.simd->product(&m, scores, rows, sums + b->key * width);
}

/* Applies the mask to n scores of query r. */
static void add_mask(const attention *a, const attention_block *b, size_t r, float *scores,
                     size_t n)
{
    const attention_sizes *z = &a->call.sizes;
    const size_t step = z->mask_column;
    const size_t at = attention_mask_first(z, b->i) + (b->query + r) * z->mask_row + b->key * step;

    for (size_t s = 0; a->excluded != NULL && s < n; s++)
        scores[s] = a->excluded[at + s * step] != 0 ? -INFINITY : scores[s];
    for (size_t s = 0; a->in[IN_MASK] != NULL && s < n; s++) {
        const float added = a->in[IN_MASK][at + s * step];

        scores[s] = added == -INFINITY ? added : scores[s] + added;
    }
}

/* --- forward --- */

/* Makes the scores of query r weights below its largest score so far. */
static void weigh(const attention *a, const attention_block *b, scratch *w, size_t r)
{
    const size_t n = attention_visible(&a->call, b, r);
    float *scores = w->scores + r * ATTENTION_KEYS;
    float *y = w->y + r * a->values;
    float factor;

    add_mask(a, b, r, scores, n);
    factor = attention_weigh(&a->call, scores, n, &w->top[r], &w->sum[r]);
    memset(scores + n, 0, (b->n_keys - n) * sizeof(*scores));
    attention_drop(&a->call, b, r, scores, n);
    if (b->key > 0 && factor != 1)
        a->call.simd->shift_scale(y, 0, factor, y, a->values);
}

static void give_queries(const attention *a, const attention_block *b, const scratch *w)
{
    const attention_sizes *z = &a->call.sizes;

    for (size_t r = 0; r < b->n_queries; r++) {
        const size_t row = b->i * z->queries + b->query + r;
        const float factor =
            attention_finish(w->top[r], w->sum[r], a->out[1] == NULL ? NULL : a->out[1] + 2 * row);

        a->call.simd->shift_scale(w->y + r * a->values, 0, factor, a->out[0] + row * z->values,
                                  z->values);
    }
}

/* What all queries of attention `i` read. */
static void open_attention(const attention *a, scratch *w, size_t i)
{
    const attention_sizes *z = &a->call.sizes;

    fill_panels(a, a->in[IN_K] + i * z->keys * z->width, z->width, w->key_panels);
    w->value_rows = pad_rows(a->in[IN_V] + i * z->keys * z->values, z->keys, z->values, a->values,
                             w->padded_values);
}

static void attend_blocks(void *arg, size_t begin, size_t end, size_t thread)
{
    const attention *a = arg;
    const size_t n_blocks = (a->call.sizes.queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
    scratch w = {0};

    (void)divide(a, a->call.memory + thread * a->call.thread_floats, false, &w);
    for (size_t u = begin; u < end; u++) {
        attention_block b =
            attention_block_of(&a->call, u / n_blocks, u % n_blocks * BLOCK_QUERIES, BLOCK_QUERIES);

        if (u == begin || u % n_blocks == 0)
            open_attention(a, &w, b.i);
        fill_queries(a, &b, &w);
        for (size_t r = 0; r < b.n_queries; r++) {
            w.top[r] = -INFINITY;
            w.sum[r] = 0;
        }
        while (attention_next_keys(&a->call, &b)) {
            multiply_panels(a, &b, w.q, a->width, a->call.sizes.width, w.key_panels, w.scores);
            for (size_t r = 0; r < b.n_queries; r++)
                weigh(a, &b, &w, r);
            multiply_keys(a, &b, w.scores, w.value_rows, a->values, w.y);
        }
        give_queries(a, &b, &w);
    }
}

/* The call with inputs in[] in the order of backward. */
static void open_call(device_state *self, const op_call *call, ls_tensor *const *in, attention *a)
{
    const op_attrs *attrs = &call->attrs;

    *a =
        (attention){.call = {.simd = self->simd,
                             .attrs = attrs,
                             .sizes = attention_sizes_of(in[IN_Q], in[IN_K], in[IN_V], in[IN_MASK]),
                             .drop = drop_run_of(attrs)}};
    a->width = round_up(a->call.sizes.width, LANES);
    a->values = round_up(a->call.sizes.values, LANES);
    for (int i = 0; i < N_IN; i++) {
        if (in[i] != NULL && in[i]->dtype == LS_U8)
            a->excluded = dn_data(in[i]);
        else
            a->in[i] = dn_data(in[i]);
    }
    for (int i = 0; i < call->n_out && i < 3; i++)
        a->out[i] = dn_data(call->out[i]);
}

static ls_status run(device_state *self, attention *a, ls_device *device, bool backward,
                     range_fn fn, size_t n, size_t cost)
{
    scratch w;

    a->call.thread_floats = divide(a, NULL, backward, &w);
    return attention_run(self, &a->call, device, fn, a, n, cost);
}

ls_status dn_attention(device_state *self, const op_call *call)
{
    ls_tensor *const in[N_IN] = {
        [IN_Q] = call->in[0], [IN_K] = call->in[1], [IN_V] = call->in[2], [IN_MASK] = call->in[3]};
    attention a;
    size_t n_blocks;

    if (call->in[0]->dtype == LS_BF16)
        return attention_tiles(self, call);
    open_call(self, call, in, &a);
    n_blocks = (a.call.sizes.queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
    return run(self, &a, call->in[0]->device, false, attend_blocks, a.call.sizes.n * n_blocks,
               BLOCK_QUERIES * a.call.sizes.keys);
}

/* --- backward --- */

static void slope(const attention *a, const attention_block *b, scratch *w, size_t r)
{
    const size_t n = attention_visible(&a->call, b, r);
    const size_t row = b->i * a->call.sizes.queries + b->query + r;
    float *scores = w->scores + r * ATTENTION_KEYS;
    float *slopes = w->slopes + r * ATTENTION_KEYS;

    add_mask(a, b, r, scores, n);
    attention_slope(&a->call, b, r, a->in[IN_NORMS] + 2 * row, scores, slopes, &w->sum[r]);
    memset(scores + n, 0, (b->n_keys - n) * sizeof(*scores));
    memset(slopes + n, 0, (b->n_keys - n) * sizeof(*slopes));
}

/* All that a block of queries adds to the gradients. */
static void attend_block_back(const attention *a, attention_block *b, scratch *w)
{
    const attention_sizes *z = &a->call.sizes;
    const size_t first = b->i * z->queries + b->query;
    const float *dy = a->in[IN_DY] + first * z->values;

    fill_queries(a, b, w);
    for (size_t r = 0; r < b->n_queries; r++)
        w->sum[r] = (float)a->call.simd->dot(dy + r * z->values,
                                             a->in[IN_Y] + (first + r) * z->values, z->values);
    dy = pad_rows(dy, b->n_queries, z->values, a->values, w->y);
    while (attention_next_keys(&a->call, b)) {
        multiply_panels(a, b, w->q, a->width, z->width, w->key_panels, w->scores);
        multiply_panels(a, b, dy, a->values, z->values, w->value_panels, w->slopes);
        for (size_t r = 0; r < b->n_queries; r++)
            slope(a, b, w, r);
        if (a->out[0] != NULL)
            multiply_keys(a, b, w->slopes, w->keys, a->width, w->dq);
        if (a->out[1] != NULL)
            multiply_queries(a, b, w->slopes, w->q, a->width, w->dk);
        if (a->out[2] != NULL)
            multiply_queries(a, b, w->scores, dy, a->values, w->dv);
    }
    for (size_t r = 0; r < b->n_queries && a->out[0] != NULL; r++)
        a->call.simd->shift_scale(w->dq + r * a->width, 0, (float)a->call.attrs->scale,
                                  a->out[0] + (first + r) * z->width, z->width);
}

static void give_rows(const float *sums, size_t n, size_t padded, size_t width, float *out)
{
    for (size_t i = 0; i < n && out != NULL; i++)
        memcpy(out + i * width, sums + i * padded, width * sizeof(*out));
}

static void attend_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const attention *a = arg;
    const attention_sizes *z = &a->call.sizes;
    scratch w = {0};

    (void)divide(a, a->call.memory + thread * a->call.thread_floats, true, &w);
    for (size_t i = begin; i < end; i++) {
        const size_t key = i * z->keys;

        fill_panels(a, a->in[IN_K] + key * z->width, z->width, w.key_panels);
        fill_panels(a, a->in[IN_V] + key * z->values, z->values, w.value_panels);
        w.keys = pad_rows(a->in[IN_K] + key * z->width, z->keys, z->width, a->width, w.padded_keys);
        memset(w.dk, 0, z->keys * a->width * sizeof(*w.dk));
        memset(w.dv, 0, z->keys * a->values * sizeof(*w.dv));
        for (size_t query = 0; query < z->queries; query += BLOCK_QUERIES) {
            attention_block b = attention_block_of(&a->call, i, query, BLOCK_QUERIES);

            attend_block_back(a, &b, &w);
        }
        give_rows(w.dk, z->keys, a->width, z->width,
                  a->out[1] == NULL ? NULL : a->out[1] + key * z->width);
        give_rows(w.dv, z->keys, a->values, z->values,
                  a->out[2] == NULL ? NULL : a->out[2] + key * z->values);
    }
}

ls_status dn_attention_backward(device_state *self, const op_call *call)
{
    attention a;

    if (call->in[0]->dtype == LS_BF16)
        return attention_tiles_backward(self, call);
    open_call(self, call, call->in, &a);
    return run(self, &a, call->in[0]->device, true, attend_back, a.call.sizes.n,
               a.call.sizes.queries * a.call.sizes.keys);
}
