/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - builds plans, and selects the algorithm of an operation from a table: the first row
 * that fits. All ranks of a group select the same row. exec.c calls it.
 */
#include "comm/native/schedule.h"

#include "base/alloc.h"

#include <limits.h>
#include <string.h>

#define SCRATCH_ALIGN 64
#define SLICE_ALIGN   16 /* elements: keeps slices on cache lines from 4-byte types on */
#define WHOLE_BYTES   ((size_t)8192)
#define PAIR_BYTES    65536 /* sent without READY */
#define FEW_RANKS     8     /* an all-to-all exchange is one round of at most this many messages */
/* From here on a rank exchanges messages with O(log n) others where it can. */
#define MANY_RANKS 17
/* The plans between hosts have fewer rounds and more peers. */
#define MANY_PEERS 32
/* Segments in a chunk of "halving", whose largest message is half a chunk. */
#define HALVING_PARTS 8

// Sizes below which one exchange of whole vectors beats two of slices: one message each way instead
// of two, and between two ranks as many bytes. Many ranks exchange with few others: 64 ranks of 8
// bytes are 6 messages each instead of 63.
static const plan_rule rules[] = {
    {COLL_ALL_REDUCE, "whole", plan_all_reduce_whole, PAIR_BYTES, 2, .whole = false},
    {COLL_ALL_REDUCE, "whole", plan_all_reduce_whole, WHOLE_BYTES, FEW_RANKS, .whole = true},
    {COLL_ALL_REDUCE, "whole", plan_all_reduce_whole, 512, MANY_RANKS - 1, .whole = true},
    {COLL_ALL_REDUCE, "doubling", plan_all_reduce_doubling, 2048, INT_MAX, .power = true,
     .whole = true},
    {COLL_ALL_REDUCE, "tree", plan_all_reduce_tree, 2048, INT_MAX, MANY_RANKS, .whole = true},
    {COLL_ALL_REDUCE, "hosts", plan_all_reduce_hosts, SIZE_MAX, INT_MAX, .sliced = true,
     .hosts = true, .max_peers = MANY_PEERS},
    {COLL_ALL_REDUCE, "tree", plan_all_reduce_tree, 2 * WHOLE_BYTES, INT_MAX, MANY_RANKS,
     .whole = true},
    {COLL_ALL_REDUCE, "halving", plan_all_reduce_halving, SIZE_MAX, INT_MAX, MANY_RANKS,
     .power = true, .segments = HALVING_PARTS},
    {COLL_ALL_REDUCE, "halving", plan_all_reduce_halving, SIZE_MAX, INT_MAX, MANY_PEERS + 1,
     .segments = HALVING_PARTS},
    {COLL_ALL_REDUCE, "slices", plan_all_reduce_slices, SIZE_MAX, INT_MAX, .sliced = true},
    {COLL_REDUCE, "direct", plan_reduce_direct, SIZE_MAX, 2, .whole = false},
    {COLL_REDUCE, "direct", plan_reduce_direct, WHOLE_BYTES, MANY_RANKS - 1, .whole = true},
    {COLL_REDUCE, "tree", plan_reduce_tree, 2 * WHOLE_BYTES, INT_MAX, MANY_RANKS, .whole = true},
    {COLL_REDUCE, "halving", plan_reduce_halving, SIZE_MAX, INT_MAX, MANY_RANKS,
     .segments = HALVING_PARTS},
    {COLL_REDUCE, "slices", plan_reduce_slices, SIZE_MAX, INT_MAX, .sliced = true},
    {COLL_BROADCAST, "hosts", plan_broadcast_hosts, SIZE_MAX, INT_MAX, .hosts = true},
    {COLL_BROADCAST, "tree", plan_broadcast_tree, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_ALL_GATHER, "bruck", plan_all_gather_bruck, 1024, 4096, MANY_RANKS, .whole = true},
    {COLL_ALL_GATHER, "hosts", plan_all_gather_hosts, SIZE_MAX, INT_MAX, .hosts = true},
    {COLL_ALL_GATHER, "direct", plan_all_gather_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_GATHER, "direct", plan_gather_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_SCATTER, "direct", plan_scatter_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_REDUCE_SCATTER, "hosts", plan_reduce_scatter_hosts, SIZE_MAX, INT_MAX, .hosts = true},
    {COLL_REDUCE_SCATTER, "direct", plan_reduce_scatter_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_ALL_TO_ALL, "direct", plan_all_to_all_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_BARRIER, "dissemination", plan_barrier_dissemination, SIZE_MAX, INT_MAX, .whole = true},
};

bool plan_rule_at(int index, plan_rule *out)
{
    if (index < 0 || (size_t)index >= LS_COUNT_OF(rules))
        return false;
    *out = rules[index];
    return true;
}

/* An algorithm that sends in one piece has a limit: that of the row with the most bytes. The number
 * of ranks from which other algorithms are faster is no limit. */
ls_status plan_rule_make(coll_kind kind, const char *name, size_t max_bytes, int max_ranks,
                         plan_rule *out)
{
    const plan_rule *most = NULL;

    for (size_t i = 0; i < LS_COUNT_OF(rules); i++)
        if (rules[i].kind == kind && strcmp(rules[i].name, name) == 0 &&
            (most == NULL || rules[i].max_bytes > most->max_bytes))
            most = &rules[i];
    if (most == NULL)
        return ls_fail(LS_EINVAL, "%s has no algorithm \"%s\" between hosts", coll_name(kind),
                       name);
    if (most->whole && max_bytes > most->max_bytes)
        return ls_fail(LS_EINVAL, "%s carries at most %zu bytes: write %s<=%zu", name,
                       most->max_bytes, name, most->max_bytes);
    *out = *most;
    out->max_bytes = max_bytes;
    out->max_ranks = most->whole && max_ranks > most->max_ranks ? most->max_ranks : max_ranks;
    out->min_ranks = 0;
    out->max_peers = 0;
    return LS_OK;
}

static size_t largest(const size_t *counts, int n, size_t or_else)
{
    size_t most = 0;

    if (counts == NULL)
        return or_else;
    for (int i = 0; i < n; i++)
        if (counts[i] > most)
            most = counts[i];
    return most;
}

/* The operation that needs an algorithm. */
typedef struct plan_need {
    coll_kind kind;
    int n;
    const plan_layout *layout;
    size_t part; /* elements */
    size_t element_bytes;
} plan_need;

static bool fits(const plan_rule *rule, int n, const plan_layout *layout)
{
    return n >= rule->min_ranks && n <= rule->max_ranks && (!rule->power || (n & (n - 1)) == 0) &&
           (!rule->hosts ||
            (layout != NULL && (rule->max_peers == 0 || layout->n_peers <= rule->max_peers)));
}

static const plan_rule *first_fit(const plan_rule *rows, int n_rows, const plan_need *need)
{
    for (int i = 0; i < n_rows; i++)
        if (rows[i].kind == need->kind && fits(&rows[i], need->n, need->layout) &&
            need->part <= rows[i].max_bytes / need->element_bytes)
            return &rows[i];
    return NULL;
}

plan_choice plan_choose(const coll *op, int n, const plan_layout *layout, size_t segment_bytes,
                        const plan_rules *own)
{
    const size_t element_bytes = op->kind == COLL_BARRIER ? 1 : ls_dtype_size(op->dtype);
    const size_t from = largest(op->src_counts, n, op->count);
    const size_t to = largest(op->dst_counts, n, op->count);
    const bool has_both = op->src_counts != NULL && op->dst_counts != NULL;
    size_t part = op->src_counts != NULL ? from : to;
    plan_choice choice = {.rule = NULL, .chunk = 0, .n_chunks = 1};
    plan_need need;

    // all_to_all_v has counts per rank, so the number of chunks may differ between ranks; pairs
    // agree by chunk.
    if (has_both && to > part)
        part = to;
    need = (plan_need){
        .kind = op->kind, .n = n, .layout = layout, .part = part, .element_bytes = element_bytes};
    if (own != NULL)
        choice.rule = first_fit(own->rows, own->n, &need);
    if (choice.rule == NULL)
        choice.rule = first_fit(rules, (int)LS_COUNT_OF(rules), &need);
    LS_ASSERT(choice.rule != NULL);

    choice.chunk = segment_bytes / element_bytes;
    if (choice.chunk < SLICE_ALIGN)
        choice.chunk = SLICE_ALIGN;
    if (choice.rule->sliced)
        choice.chunk *= (size_t)n;
    else if (choice.rule->segments > 0)
        choice.chunk *= (size_t)choice.rule->segments;
    if (choice.rule->whole || part <= choice.chunk)
        choice.chunk = part;
    else
        choice.n_chunks = (part - 1) / choice.chunk + 1;
    return choice;
}

plan_input plan_input_of(const coll *op, int n, int rank, const plan_layout *layout,
                         const plan_choice *choice)
{
    return (plan_input){
        .n = n,
        .rank = rank,
        .root = op->root,
        .layout = layout,
        .element_bytes = op->kind == COLL_BARRIER ? 1 : ls_dtype_size(op->dtype),
        .partial_bytes = ls_dtype_size(reduce_partial_type(op->dtype)),
        .count = op->count,
        .src_counts = op->src_counts,
        .dst_counts = op->dst_counts,
        .chunk = choice->chunk,
    };
}

void plan_reset(plan *p)
{
    p->n_steps = 0;
    p->n_operands = 0;
    p->scratch_bytes = 0;
    p->n_rounds = 0;
    p->failed = false;
}

void plan_free(plan *p)
{
    ls_free(p->steps);
    ls_free(p->operands);
    *p = (plan){0};
}

// `items` with capacity for one more than n; NULL without memory, when `items` stays valid.
static void *grow(void *items, size_t n, size_t *capacity, size_t item_bytes)
{
    const size_t more = *capacity == 0 ? 16 : *capacity * 2;

    if (n < *capacity)
        return items;
    items = ls_realloc(items, more, item_bytes);
    if (items != NULL)
        *capacity = more;
    return items;
}

static plan_step *add_step(plan *p, plan_action action, int round)
{
    plan_step *steps = grow(p->steps, p->n_steps, &p->step_capacity, sizeof(*steps));

    if (steps == NULL) {
        p->failed = true;
        return NULL;
    }
    p->steps = steps;
    if (round >= p->n_rounds)
        p->n_rounds = round + 1;
    steps[p->n_steps] = (plan_step){.action = action, .round = round};
    return &steps[p->n_steps++];
}

plan_step *plan_message(plan *p, plan_action action, int round, int peer, uint32_t tag, plan_ref at,
                        size_t bytes)
{
    plan_step *s = add_step(p, action, round);

    if (s == NULL)
        return NULL;
    s->peer = peer;
    s->tag = tag;
    s->bytes = bytes;
    s->total = bytes;
    if (action == PLAN_SEND)
        s->from = at;
    else
        s->to = at;
    return s;
}

void plan_copy(plan *p, int round, plan_ref to, plan_ref from, size_t bytes)
{
    plan_step *s;

    if (bytes == 0)
        return;
    s = add_step(p, PLAN_COPY, round);
    if (s == NULL)
        return;
    s->to = to;
    s->from = from;
    s->bytes = bytes;
}

void plan_reduce(plan *p, int round, plan_ref to, size_t count, bool is_final)
{
    plan_step *s = add_step(p, PLAN_REDUCE, round);

    if (s == NULL)
        return;
    s->is_final = is_final;
    s->to = to;
    s->count = count;
    s->first_operand = p->n_operands;
}

void plan_operand_add(plan *p, plan_ref data, int first, int n_ranks, bool is_partial)
{
    plan_operand *operands =
        p->failed ? NULL
                  : grow(p->operands, p->n_operands, &p->operand_capacity, sizeof(*operands));

    if (operands == NULL) {
        p->failed = true;
        return;
    }
    p->operands = operands;
    operands[p->n_operands++] =
        (plan_operand){.data = data, .first = first, .n_ranks = n_ranks, .is_partial = is_partial};
    p->steps[p->n_steps - 1].n_operands++;
}

void plan_collect(plan *p, const plan_input *in, plan_ref own, plan_ref to, size_t count)
{
    const size_t bytes = count * in->element_bytes;
    const plan_ref others = plan_scratch(p, bytes * (size_t)(in->n - 1));
    plan_ref next = others;

    if (count == 0)
        return;
    for (int i = 0; i < in->n; i++) {
        if (i == in->rank)
            continue;
        plan_message(p, PLAN_RECV, 0, i, 0, next, bytes);
        next.offset += bytes;
    }
    plan_reduce(p, 1, to, count, true);
    next = others;
    for (int i = 0; i < in->n; i++) {
        plan_operand_add(p, i == in->rank ? own : next, i, 1, false);
        next.offset += i == in->rank ? 0 : bytes;
    }
}

plan_ref plan_scratch(plan *p, size_t bytes)
{
    const plan_ref ref = plan_at(PLAN_SCRATCH, p->scratch_bytes);

    if (bytes > SIZE_MAX / 2 - p->scratch_bytes) {
        p->failed = true;
        return ref;
    }
    p->scratch_bytes += plan_aligned(bytes);
    return ref;
}

size_t plan_aligned(size_t bytes)
{
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

size_t plan_part(const plan_input *in, size_t count)
{
    if (count <= in->first)
        return 0;
    return count - in->first < in->chunk ? count - in->first : in->chunk;
}

void plan_slice(size_t count, int n, int owner, size_t *first, size_t *n_elements)
{
    size_t each = (count - 1) / (size_t)n + 1;
    size_t start;

    if (count == 0)
        each = 0;
    each = (each + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    start = each * (size_t)owner; // at most count + n * SLICE_ALIGN
    if (start > count)
        start = count;
    *first = start;
    *n_elements = count - start < each ? count - start : each;
}
