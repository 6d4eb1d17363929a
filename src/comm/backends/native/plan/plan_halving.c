/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_halving.c - all_reduce and reduce of long vectors in which a rank exchanges messages with
 * O(log n) others, for any n, in aligned-tree order. schedule.c selects them.
 *
 * n is a sum of powers of two; from the highest on these are blocks of consecutive ranks, which are
 * subtrees of the aligned tree. In a block of 2^l ranks, round k exchanges with rank x xor 2^k (x
 * counts from the start of the block); each exchange also halves the range of the vector that a
 * rank is responsible for, so that rank x ends with the sum of its block over range (l, x)
 * (Rabenseifner's algorithm, Thakur, Rabenseifner and Gropp, 2005, section 4.5, with the distances
 * in reverse, nearest first, as the aligned tree requires).
 *
 * The last block gives its sums to the block before it, which adds them to its own, and so on up to
 * the first one, which has the result. Results go back the same way: in a block the exchanges in
 * reverse order make the ranges whole again, and from a block to the next one.
 *
 * A block has at least twice as many ranks as the next one, so a range there is several ranges
 * here. A rank sends them to at most 2^DIRECT_LEVELS ranks of the block before, and these forward
 * the parts that belong to others, along the pairs of the exchanges.
 *
 * 2 log2 n rounds and 2 (n-1)/n * B bytes where n is a power of two. With hosts whose ranks are
 * subtrees a host sends 2 (h-1)/h * B, as plan_hosts.c. With other n a rank sends at most 2 B /
 * 2^DIRECT_LEVELS more, for the next block. reduce sends results only towards the root.
 */
#include "comm/backends/native/plan/schedule.h"

#define HALF_ALIGN    16 /* elements */
#define LEVELS_MAX    31
#define DIRECT_LEVELS 3

/* Each is used once between two ranks of a chunk, in each direction. */
enum { TAG_SUM = 0, TAG_RESULT, TAG_NEXT };

/* Elements of the chunk. */
typedef struct range {
    size_t first;
    size_t count;
} range;

/* 2^levels consecutive ranks. */
typedef struct block {
    int first;
    int levels;
} block;

typedef struct halving {
    plan *p;
    const plan_input *in;
    size_t offset;   /* of the chunk in SRC and DST, bytes */
    plan_ref result; /* the whole chunk */
    block own;
    block before; /* levels -1: own is the first block */
    block next;   /* levels -1: own is the last block */
    int at;       /* this rank in its block */
    int round;
} halving;

/* Of n > 0. */
static int highest_bit(int n)
{
    return 31 - __builtin_clz((unsigned)n);
}

// The block of this rank, and its neighbours.
static void find_blocks(halving *h)
{
    int first = 0;

    h->own = h->before = h->next = (block){.levels = -1};
    do {
        h->before = h->own;
        h->own = (block){.first = first, .levels = highest_bit(h->in->n - first)};
        first += 1 << h->own.levels;
    } while (h->in->rank >= first);
    if (first < h->in->n)
        h->next = (block){.first = first, .levels = highest_bit(h->in->n - first)};
    h->at = h->in->rank - h->own.first;
}

static range half_of(range r, bool is_upper)
{
    size_t half = ((r.count + 1) / 2 + HALF_ALIGN - 1) / HALF_ALIGN * HALF_ALIGN;

    if (half > r.count)
        half = r.count;
    return is_upper ? (range){.first = r.first + half, .count = r.count - half}
                    : (range){.first = r.first, .count = half};
}

// Range (levels, x): of position x after that many exchanges. It depends on the lowest bits of x.
static range range_of(const plan_input *in, int levels, int x)
{
    range r = {.first = 0, .count = plan_part(in, in->count)};

    for (int k = 0; k < levels; k++)
        r = half_of(r, (x >> k & 1) != 0);
    return r;
}

static void message(halving *h, plan_action action, int peer, uint32_t tag, plan_ref at,
                    size_t bytes)
{
    if (bytes > 0)
        plan_message(h->p, action, h->round, peer, tag, at, bytes);
}

// Where `part` of `whole` is, whose elements begin at `data`.
static plan_ref within(plan_ref data, range whole, range part, size_t width)
{
    return plan_at(data.space, data.offset + (part.first - whole.first) * width);
}

// A range of the result, which is whole there.
static void move_result(halving *h, plan_action action, int peer, range r)
{
    const size_t width = h->in->element_bytes;

    message(h, action, peer, TAG_RESULT,
            plan_at(h->result.space, h->result.offset + r.first * width), r.count * width);
}

// Adds two neighbouring subtrees over range r.
static plan_holding join(halving *h, plan_holding a, plan_holding b, range r)
{
    const int n = a.n + b.n;
    const plan_ref to =
        n == h->in->n ? plan_at(h->result.space, h->result.offset + r.first * h->in->element_bytes)
                      : plan_scratch(h->p, r.count * h->in->partial_bytes);

    if (r.count == 0)
        return (plan_holding){.data = to, .first = a.first < b.first ? a.first : b.first, .n = n};
    return plan_join(h->p, h->in, h->round, a, b, r.count, to);
}

// The sum of this block, over this rank's range.
static plan_holding add_block(halving *h)
{
    const plan_input *in = h->in;
    range whole = range_of(in, 0, 0);
    plan_holding have = {.data = plan_at(PLAN_SRC, h->offset), .first = in->rank, .n = 1};

    for (int k = 0; k < h->own.levels; k++) {
        const int peer = in->rank ^ 1 << k;
        const bool is_upper = (h->at >> k & 1) != 0;
        const range keep = half_of(whole, is_upper);
        const range give = half_of(whole, !is_upper);
        const size_t width = plan_width(in, have.n);
        const plan_holding theirs = {.data = plan_scratch(h->p, keep.count * width),
                                     .first = have.first ^ 1 << k,
                                     .n = have.n};

        message(h, PLAN_SEND, peer, TAG_SUM, within(have.data, whole, give, width),
                give.count * width);
        message(h, PLAN_RECV, peer, TAG_SUM, theirs.data, keep.count * width);
        h->round++;
        have.data = within(have.data, whole, keep, width);
        have = join(h, have, theirs, keep);
        whole = keep;
    }
    return have;
}

// The number of exchanges after which a rank of `wide` has a range that one of `narrow`, the next
// block, sends to it, or receives.
static int direct_levels(block wide, block narrow)
{
    const int levels = narrow.levels + DIRECT_LEVELS;

    return levels < wide.levels ? levels : wide.levels;
}

// From the next block: the sum of all ranks behind this block, over this rank's range. Forwards
// what belongs to others.
static plan_holding take_next(halving *h)
{
    const plan_input *in = h->in;
    const int direct = direct_levels(h->own, h->next);
    const bool is_direct = h->at < 1 << direct;
    const int reached = is_direct ? direct : highest_bit(h->at) + 1;
    const int from = is_direct ? h->next.first + (h->at & ((1 << h->next.levels) - 1))
                               : in->rank - (1 << (reached - 1));
    plan_holding theirs = {.first = h->next.first, .n = in->n - h->next.first};
    const size_t width = plan_width(in, theirs.n);
    const range all = range_of(in, reached, h->at);

    theirs.data = plan_scratch(h->p, all.count * width);
    message(h, PLAN_RECV, from, TAG_NEXT, theirs.data, all.count * width);
    h->round++;
    for (int k = reached; k < h->own.levels; k++) {
        const range part = range_of(in, k + 1, h->at | 1 << k);

        message(h, PLAN_SEND, in->rank + (1 << k), TAG_NEXT, within(theirs.data, all, part, width),
                part.count * width);
    }
    theirs.data = within(theirs.data, all, range_of(in, h->own.levels, h->at), width);
    return theirs;
}

// To the block before. What it returns comes into the result.
static void give_sums(halving *h, plan_holding have)
{
    const plan_input *in = h->in;
    const int direct = direct_levels(h->before, h->own);
    const size_t width = plan_width(in, have.n);
    const range whole = range_of(in, h->own.levels, h->at);

    for (int x = h->at; x < 1 << direct; x += 1 << h->own.levels) {
        const range part = range_of(in, direct, x);

        message(h, PLAN_SEND, h->before.first + x, TAG_NEXT, within(have.data, whole, part, width),
                part.count * width);
    }
    h->round++;
}

static void take_results(halving *h)
{
    const int direct = direct_levels(h->before, h->own);

    for (int x = h->at; x < 1 << direct; x += 1 << h->own.levels)
        move_result(h, PLAN_RECV, h->before.first + x, range_of(h->in, direct, x));
    h->round++;
}

static void give_results(halving *h)
{
    const int direct = direct_levels(h->own, h->next);

    if (h->at < 1 << direct)
        move_result(h, PLAN_SEND, h->next.first + (h->at & ((1 << h->next.levels) - 1)),
                    range_of(h->in, direct, h->at));
}

// The exchanges in reverse, down to this number of them.
static void exchange_results(halving *h, int down_to)
{
    const plan_input *in = h->in;

    for (int k = h->own.levels - 1; k >= down_to; k--) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): at most 30 levels
        const int peer = in->rank ^ 1 << k;

        move_result(h, PLAN_SEND, peer, range_of(in, k + 1, h->at));
        move_result(h, PLAN_RECV, peer, range_of(in, k + 1, h->at ^ 1 << k));
        h->round++;
        if (h->next.levels >= 0 && k == direct_levels(h->own, h->next))
            give_results(h);
    }
}

// The same towards the ranks that have these bits from bit `down_to` on: each other one sends once.
static void collect_results(halving *h, int down_to, int bits)
{
    const plan_input *in = h->in;

    for (int k = h->own.levels - 1; k >= down_to; k--) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): at most 30 levels
        const int peer = in->rank ^ 1 << k;

        if ((h->at >> k & 1) != (bits >> k & 1)) {
            move_result(h, PLAN_SEND, peer, range_of(in, k + 1, h->at));
            return;
        }
        move_result(h, PLAN_RECV, peer, range_of(in, k + 1, h->at ^ 1 << k));
        h->round++;
    }
}

// This rank's range of the sum over all ranks is in the result then, in the first block.
static void add_all(halving *h)
{
    plan_holding have = add_block(h);

    if (h->next.levels >= 0) {
        const plan_holding theirs = take_next(h);

        have = join(h, have, theirs, range_of(h->in, h->own.levels, h->at));
    }
    if (h->before.levels >= 0)
        give_sums(h, have);
}

static halving begin(plan *p, const plan_input *in)
{
    halving h = {.p = p, .in = in, .offset = in->first * in->element_bytes};

    LS_ASSERT(in->n <= INT32_MAX / 2);
    h.result = plan_at(PLAN_DST, h.offset);
    find_blocks(&h);
    return h;
}

void plan_all_reduce_halving(plan *p, const plan_input *in)
{
    halving h = begin(p, in);

    add_all(&h);
    if (h.before.levels >= 0)
        take_results(&h);
    if (h.next.levels >= 0 && direct_levels(h.own, h.next) == h.own.levels)
        give_results(&h);
    exchange_results(&h, 0);
}

void plan_reduce_halving(plan *p, const plan_input *in)
{
    halving h = begin(p, in);

    if (in->rank != in->root) // only the root has a dst
        h.result = plan_scratch(p, plan_part(in, in->count) * in->element_bytes);
    add_all(&h);
    if (in->root < h.own.first)
        return;
    if (h.before.levels >= 0)
        take_results(&h);
    if (h.next.levels < 0 || in->root < h.next.first) {
        collect_results(&h, 0, in->root - h.own.first);
        return;
    }
    collect_results(&h, direct_levels(h.own, h.next), 0);
    give_results(&h);
}
