/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - builds plans, and selects the algorithm of an operation from the table: the first
 * row that fits. All ranks of a group select the same row. exec.c calls it.
 */
#include "comm/backends/native/plan/schedule.h"

#include "base/alloc.h"

#include <string.h>

#define SCRATCH_ALIGN 64
#define SLICE_ALIGN   16 /* elements: keeps slices on cache lines from 4-byte types on */

/* An algorithm that sends in one piece has a limit: that of the row with the most bytes. The number
 * of ranks from which other algorithms are faster is no limit. */
ls_status plan_rule_make(coll_kind kind, const char *name, size_t max_bytes, int max_ranks,
                         plan_rule *out)
{
    const plan_rule *most = NULL;

    for (int i = 0; i < n_plan_defaults; i++)
        if (plan_defaults[i].kind == kind && strcmp(plan_defaults[i].name, name) == 0 &&
            (most == NULL || plan_defaults[i].max_bytes > most->max_bytes))
            most = &plan_defaults[i];
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
        choice.rule = first_fit(plan_defaults, n_plan_defaults, &need);
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

plan_holding plan_join(plan *p, const plan_input *in, int round, plan_holding a, plan_holding b,
                       size_t count, plan_ref to)
{
    const plan_holding low = a.first < b.first ? a : b;
    const plan_holding high = a.first < b.first ? b : a;

    plan_reduce(p, round, to, count, low.n + high.n == in->n);
    plan_operand_add(p, low.data, low.first, low.n, low.n > 1);
    plan_operand_add(p, high.data, high.first, high.n, high.n > 1);
    return (plan_holding){.data = to, .first = low.first, .n = low.n + high.n};
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

size_t plan_start(const plan_input *in, const size_t *counts, int i)
{
    size_t start = 0;

    if (counts == NULL)
        return (size_t)i * in->count;
    for (int k = 0; k < i; k++)
        start += counts[k];
    return start;
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
