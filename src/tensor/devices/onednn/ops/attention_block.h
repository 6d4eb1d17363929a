/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_block.h - blocks of queries and keys, the same for the kernels of float32
 * (dn_dot_attention.c) and of AMX (dn_attention_tiles.c).
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_OPS_ATTENTION_BLOCK_H
#define LS_TENSOR_DEVICES_ONEDNN_OPS_ATTENTION_BLOCK_H

#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/attention.h"

#include <math.h>

#define ATTENTION_KEYS 256 /* of a block, at most */

/* The inputs of a call, in the order of backward; those of dy and the norms are NULL in forward. */
enum { IN_Q, IN_DY, IN_K, IN_V, IN_MASK, IN_Y, IN_NORMS, N_IN };

/* A call, for all threads. */
typedef struct attention_call {
    const simd_table *simd;
    const op_attrs *attrs;
    attention_sizes sizes;
    drop_run drop;
    float *memory; /* of all threads */
    size_t thread_floats;
} attention_call;

/* A block of scores. */
typedef struct attention_block {
    size_t i; /* the attention */
    size_t query;
    size_t n_queries;
    size_t key;
    size_t n_keys;
} attention_block;

static inline size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The next `floats` floats of `memory`, aligned to 64 bytes; NULL: they are counted only. */
static inline void *attention_take(float *memory, size_t *used, size_t floats)
{
    const size_t at = *used;

    *used += round_up(floats, 16);
    return memory == NULL ? NULL : memory + at;
}

/* At most `most` queries from `query` on. */
static inline attention_block attention_block_of(const attention_call *a, size_t i, size_t query,
                                                 size_t most)
{
    const size_t left = a->sizes.queries - query;

    return (attention_block){.i = i, .query = query, .n_queries = left < most ? left : most};
}

/* The blocks of keys of a block of queries; with `causal` those above the diagonal are skipped. */
static inline bool attention_next_keys(const attention_call *a, attention_block *b)
{
    const size_t end = b->query + b->n_queries;
    const size_t keys = a->attrs->causal && end < a->sizes.keys ? end : a->sizes.keys;

    b->key += b->n_keys;
    if (b->key >= keys)
        return false;
    b->n_keys = keys - b->key < ATTENTION_KEYS ? keys - b->key : ATTENTION_KEYS;
    return true;
}

/* How many keys of the block take part for its query r: the first ones. */
static inline size_t attention_visible(const attention_call *a, const attention_block *b, size_t r)
{
    const size_t end = b->query + r + 1;

    if (!a->attrs->causal)
        return b->n_keys;
    if (end <= b->key)
        return 0;
    return end - b->key < b->n_keys ? end - b->key : b->n_keys;
}

/* Whether all keys that take part for query r are in the first block. */
static inline bool attention_sees_one_block(const attention_call *a, const attention_block *b,
                                            size_t r)
{
    return a->sizes.keys <= ATTENTION_KEYS || (a->attrs->causal && b->query + r < ATTENTION_KEYS);
}

/* Drops some of n weights of query r. */
static inline void attention_drop(const attention_call *a, const attention_block *b, size_t r,
                                  float *weights, size_t n)
{
    const size_t row = b->i * a->sizes.queries + b->query + r;
    drop_run run = a->drop;

    run.first = row * a->sizes.keys + b->key;
    if (a->attrs->drop > 0)
        a->simd->dropout(&run, weights, weights, n);
}

/* Makes n scores of a query, whose largest so far and sum are *top and *sum, weights below the
 * largest. Returns the factor for what was added up before. */
static inline float attention_weigh(const attention_call *a, float *scores, size_t n, float *top,
                                    float *sum)
{
    const float largest = a->simd->largest(scores, n);
    const float high = largest > *top ? largest : *top;
    const float base = high == -INFINITY ? 0 : high;
    const float factor = expf(*top - base);

    *top = high;
    *sum = *sum * factor + a->simd->exp_sum(scores, base, scores, n);
    return factor;
}

/* The factor of what a query has added up with that sum, and with `norms` the norms of the query,
 * of which a sum of 0 has none. */
static inline float attention_finish(float top, float sum, float *norms)
{
    const bool is_none = sum == 0;

    if (norms != NULL) {
        norms[0] = is_none ? INFINITY : top;
        norms[1] = is_none ? 1 : sum;
    }
    return is_none ? 1 : 1 / sum;
}

/* scores of query r become its dropped weights, slopes, which has dy v', the slopes of its scores.
 * *sum is dy y. */
static inline void attention_slope(const attention_call *a, const attention_block *b, size_t r,
                                   const float *norms, float *scores, float *slopes, float *sum)
{
    const size_t n = attention_visible(a, b, r);

    a->simd->exp_below(scores, norms[0], scores, n);
    a->simd->shift_scale(scores, 0, 1 / norms[1], scores, n);
    attention_drop(a, b, r, slopes, n);
    // With all keys in one block this is nearer to 0 where the slopes are.
    if (attention_sees_one_block(a, b, r))
        *sum = (float)a->simd->dot(scores, slopes, n);
    a->simd->softmax_dx(scores, slopes, *sum, 1, slopes, n);
    attention_drop(a, b, r, scores, n);
}

/* Runs `fn` on n units of `cost` scores with `arg`, which begins with the call. */
static inline ls_status attention_run(device_state *self, attention_call *a, ls_device *device,
                                      range_fn fn, void *arg, size_t n, size_t cost)
{
    ls_tensor *memory = NULL;

    LS_TRY(dn_floats(device, (size_t)self->threads * a->thread_floats, &memory, &a->memory));
    threads_for(self, n, cost, fn, arg);
    dn_host->tensor_destroy(memory);
    return LS_OK;
}

#endif
