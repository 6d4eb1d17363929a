/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_log.c - plans of short vectors in which a rank exchanges messages with O(log n) others only,
 * in aligned-tree order: for many ranks, where an exchange of all with all costs more in messages
 * (and connections) than it saves in rounds. schedule.c selects them; plan_halving.c is for long
 * vectors.
 *
 * doubling  n a power of two. In round l rank r exchanges what it has of its subtree of 2^l ranks
 *           with rank r xor 2^l, and both add the two halves of the next wider subtree. log2 n
 *           rounds, log2 n * B bytes per rank (Thakur, Rabenseifner and Gropp, 2005, section 4.5:
 *           recursive doubling; the tree is that of all other plans, so the bits are too).
 * tree      any n. Up the aligned tree to rank 0, down again; for reduce, on to the root. 2
 *           ceil(log2 n) rounds, at most 2 B bytes sent up and down, B * log2 n at rank 0.
 * bruck     all_gather: in round k rank r has 2^k blocks from its own on, and passes them to rank r
 *           - 2^k. ceil(log2 n) rounds, (n-1) * B bytes (Bruck et al., "Efficient algorithms for
 *           all-to-all communications in multiport message-passing systems", IEEE TPDS 1997,
 *           section 4). Blocks are at their final offsets from the start, so nothing is rotated at
 *           the end; where they wrap around after the last rank they go as two messages.
 */
#include "comm/backends/native/plan/schedule.h"

static void message(plan *p, plan_action action, int round, int peer, plan_ref at, size_t bytes)
{
    if (bytes > 0)
        plan_message(p, action, round, peer, (uint32_t)round, at, bytes);
}

static plan_holding own_input(const plan_input *in, size_t offset)
{
    return (plan_holding){.data = plan_at(PLAN_SRC, offset), .first = in->rank, .n = 1};
}

void plan_all_reduce_doubling(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t offset = in->first * in->element_bytes;
    plan_holding have = own_input(in, offset);
    int round = 0;

    for (int64_t distance = 1; distance < in->n; distance *= 2, round++) {
        const int peer = in->rank ^ (int)distance;
        const size_t bytes = count * plan_width(in, have.n);
        const plan_holding theirs = {
            .data = plan_scratch(p, bytes), .first = have.first ^ (int)distance, .n = have.n};
        const bool is_last = distance * 2 == in->n;

        message(p, PLAN_SEND, round, peer, have.data, bytes);
        message(p, PLAN_RECV, round, peer, theirs.data, bytes);
        have = plan_join(p, in, round + 1, have, theirs, count,
                         is_last ? plan_at(PLAN_DST, offset)
                                 : plan_scratch(p, count * in->partial_bytes));
    }
}

// Ranks of the subtree that begins at `first` and has `width` ranks, unless there are fewer.
static int tree_ranks(const plan_input *in, int first, int64_t width)
{
    return first + width < in->n ? (int)width : in->n - first;
}

// Adds up the aligned tree: into `result` at rank 0. Each other rank sends its sum, in round 1 with
// tag 0, to the rank that is the width of its subtree lower. Returns this width.
static int64_t add_up(plan *p, const plan_input *in, plan_ref result)
{
    const size_t count = plan_part(in, in->count);
    const size_t offset = in->first * in->element_bytes;
    const bool is_root = in->rank == 0;
    plan_holding have = own_input(in, offset);
    int64_t reach = 1; // this rank is the first of a subtree of this width
    size_t slots = 0;

    while (reach < in->n && in->rank % (2 * reach) == 0)
        reach *= 2;
    for (int64_t d = 1; d < reach && in->rank + d < in->n; d *= 2) {
        const int child = (int)(in->rank + d);
        const size_t bytes = count * plan_width(in, tree_ranks(in, child, d));
        const plan_ref slot = plan_scratch(p, bytes);

        slots = d == 1 ? slot.offset : slots;
        message(p, PLAN_RECV, 0, child, slot, bytes);
    }
    have.n = tree_ranks(in, in->rank, reach);
    if (have.n > 1) {
        plan_ref at = plan_at(PLAN_SCRATCH, slots);

        have.data = is_root ? result : plan_scratch(p, count * in->partial_bytes);
        plan_reduce(p, 1, have.data, count, is_root);
        plan_operand_add(p, plan_at(PLAN_SRC, offset), in->rank, 1, false);
        for (int64_t d = 1; d < reach && in->rank + d < in->n; d *= 2) {
            const int n_ranks = tree_ranks(in, (int)(in->rank + d), d);

            plan_operand_add(p, at, (int)(in->rank + d), n_ranks, n_ranks > 1);
            at.offset += plan_aligned(count * plan_width(in, n_ranks));
        }
    }
    if (!is_root) // the tag is 0, as in the parent's round 0
        plan_message(p, PLAN_SEND, 1, (int)(in->rank - reach), 0, have.data,
                     count * plan_width(in, have.n));
    return reach;
}

void plan_all_reduce_tree(plan *p, const plan_input *in)
{
    const size_t bytes = plan_part(in, in->count) * in->element_bytes;
    const plan_ref result = plan_at(PLAN_DST, in->first * in->element_bytes);
    const int64_t reach = add_up(p, in, result);

    if (in->rank != 0)
        plan_message(p, PLAN_RECV, 1, (int)(in->rank - reach), 1, result, bytes);
    for (int64_t d = reach / 2; d > 0; d /= 2) {
        if (in->rank + d < in->n)
            plan_message(p, PLAN_SEND, 2, (int)(in->rank + d), 1, result, bytes);
    }
}

void plan_reduce_tree(plan *p, const plan_input *in)
{
    const size_t bytes = plan_part(in, in->count) * in->element_bytes;
    plan_ref result = plan_at(PLAN_DST, in->first * in->element_bytes);

    if (in->rank == 0 && in->root != 0) // only the root has a dst
        result = plan_scratch(p, bytes);
    (void)add_up(p, in, result);
    if (in->rank == 0 && in->root != 0)
        plan_message(p, PLAN_SEND, 1, in->root, 1, result, bytes);
    else if (in->rank == in->root && in->root != 0)
        plan_message(p, PLAN_RECV, 1, 0, 1, result, bytes);
}

// --- all_gather ---

// Blocks [first, first + n) modulo the number of ranks: in one message or two, identified by round
// and part.
static void move_blocks(plan *p, const plan_input *in, plan_action action, int round, int peer,
                        int first, int n)
{
    const int begin = first % in->n;
    const int end = begin + n < in->n ? begin + n : in->n;
    const int spans[2][2] = {{begin, end}, {0, begin + n - end}};

    for (int i = 0; i < 2; i++) {
        const size_t from = plan_start(in, in->dst_counts, spans[i][0]);
        const size_t bytes =
            (plan_start(in, in->dst_counts, spans[i][1]) - from) * in->element_bytes;

        if (bytes > 0)
            plan_message(p, action, round, peer, (uint32_t)(2 * round + i),
                         plan_at(PLAN_DST, from * in->element_bytes), bytes);
    }
}

void plan_all_gather_bruck(plan *p, const plan_input *in)
{
    const size_t own = plan_start(in, in->dst_counts, in->rank);
    int round = 0;

    plan_copy(p, 0, plan_at(PLAN_DST, own * in->element_bytes), plan_at(PLAN_SRC, 0),
              plan_count(in, in->dst_counts, in->rank) * in->element_bytes);
    for (int64_t d = 1; d < in->n; d *= 2, round++) {
        const int n = d < in->n - d ? (int)d : in->n - (int)d;

        move_blocks(p, in, PLAN_SEND, round, (int)((in->rank - d + in->n) % in->n), in->rank, n);
        move_blocks(p, in, PLAN_RECV, round, (int)((in->rank + d) % in->n),
                    (int)((in->rank + d) % in->n), n);
    }
}
