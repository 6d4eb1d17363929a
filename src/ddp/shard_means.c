/* SPDX-License-Identifier: Apache-2.0 */
/* shard_means.c - weighted means in the tree over shards, for shards.c. */
#include "ddp/shard_means.h"

#include "ddp/half_bucket.h"

#include <string.h>

void mean_round(void *values, size_t n, ls_dtype type, ls_dtype wire)
{
    float *x = values;
    uint16_t halves[MEAN_CHUNK];

    if (type != LS_F32)
        return;
    for (size_t i = 0; i < n; i += MEAN_CHUNK) {
        const size_t count = n - i < MEAN_CHUNK ? n - i : MEAN_CHUNK;

        half_pack(x + i, halves, count, 1, wire);
        half_unpack(halves, x + i, count, wire);
    }
}

void mean_add(const void *a, double a_weight, void *b, double b_weight, size_t n, ls_dtype type,
              ls_dtype wire)
{
    const double total = a_weight + b_weight;
    const double a_share = total > 0 ? a_weight / total : 0.5; // without rows both are 0
    const double b_share = total > 0 ? b_weight / total : 0.5;

    if (type == LS_F32) {
        const float *from = a;
        float *to = b;

        for (size_t i = 0; i < n; i++)
            to[i] = from[i] * (float)a_share + to[i] * (float)b_share;
    } else {
        const double *from = a;
        double *to = b;

        for (size_t i = 0; i < n; i++)
            to[i] = from[i] * a_share + to[i] * b_share;
    }
    mean_round(b, n, type, wire);
}

/* --- the tree --- */

/* The nodes that are complete, in the order of shards; a part of the elements of each. */
typedef struct stack {
    shard_counter counter;
    double weights[SHARD_PIECES_MOST];
    char *values[SHARD_PIECES_MOST];
} stack;

/* n elements of an operand, from element `at` on, become the last node of the stack. */
static void push(stack *s, const reduce_operand *o, double rows, int shards, size_t at, size_t n,
                 ls_dtype type, ls_dtype wire)
{
    int last = s->counter.n;
    const int n_added = shard_counter_add(&s->counter, shards, (shard_node){o->first, o->n_ranks});

    if (type == LS_F32)
        half_unpack((const uint16_t *)o->data + at, (float *)(void *)s->values[last], n, wire);
    else
        memcpy(s->values[last], (const double *)o->data + at, n * sizeof(double));
    s->weights[last] = rows;
    for (int k = 0; k < n_added; k++, last--) {
        char *sum = s->values[last];

        mean_add(s->values[last - 1], s->weights[last - 1], sum, s->weights[last], n, type, wire);
        s->weights[last - 1] += s->weights[last];
        s->values[last] = s->values[last - 1];
        s->values[last - 1] = sum;
    }
}

void mean_tree(void *dst, const reduce_operand *operands, const double *rows, int n_operands,
               int shards, size_t n, ls_dtype type, ls_dtype wire, void *memory)
{
    stack s;

    for (size_t i = 0; i < SHARD_PIECES_MOST; i++)
        s.values[i] = (char *)memory + i * MEAN_CHUNK * sizeof(double);
    for (size_t at = 0; at < n; at += MEAN_CHUNK) {
        const size_t count = n - at < MEAN_CHUNK ? n - at : MEAN_CHUNK;

        s.counter.n = 0;
        for (int i = 0; i < n_operands; i++)
            push(&s, &operands[i], rows[i], shards, at, count, type, wire);
        if (type == LS_F32)
            half_pack((const float *)(const void *)s.values[0], (uint16_t *)dst + at, count, 1,
                      wire);
        else
            memcpy((double *)dst + at, s.values[0], count * sizeof(double));
    }
}
