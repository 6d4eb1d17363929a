/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_broadcast.c - a binomial tree over the ranks counted from the root. schedule.c selects it.
 *
 * ceil(log2 n) steps deep; the root sends ceil(log2 n) * B bytes, every other rank receives B
 * (Thakur, Rabenseifner and Gropp, 2005, section 4.2). Chunks follow each other down the tree, so
 * that long vectors cost one pass and not one per level.
 */
#include "comm/backends/native/plan/schedule.h"

void plan_tree(plan *p, const plan_input *in, int at, int n, plan_rank_fn rank_at, plan_ref to,
               plan_ref from, size_t bytes)
{
    int64_t reach = 1;

    // The lowest set bit of `at` is the distance to its parent; children are at smaller distances.
    while (reach < n && (at & reach) == 0)
        reach *= 2;
    if (at != 0)
        plan_message(p, PLAN_RECV, 0, rank_at(in, at - reach), 0, to, bytes);
    for (int64_t distance = reach / 2; distance > 0; distance /= 2)
        if (at + distance < n)
            plan_message(p, PLAN_SEND, 1, rank_at(in, at + distance), 0, from, bytes);
}

static int rank_from_root(const plan_input *in, int64_t position)
{
    return (int)((position + in->root) % in->n);
}

void plan_broadcast_tree(plan *p, const plan_input *in)
{
    const size_t bytes = plan_part(in, in->count) * in->element_bytes;
    const plan_ref to = plan_at(PLAN_DST, in->first * in->element_bytes);
    const plan_ref from = plan_at(in->rank == in->root ? PLAN_SRC : PLAN_DST, to.offset);

    if (in->rank == in->root)
        plan_copy(p, 0, to, from, bytes);
    plan_tree(p, in, (in->rank - in->root + in->n) % in->n, in->n, rank_from_root, to, from, bytes);
}
