/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_broadcast.c - a binomial tree over the ranks counted from the root. schedule.c selects it.
 *
 * ceil(log2 n) steps deep; the root sends ceil(log2 n) * B bytes, every other rank receives B
 * (Thakur, Rabenseifner and Gropp, 2005, section 4.2). Chunks follow each other down the tree, so
 * that long vectors cost one pass and not one per level.
 */
#include "comm/native/schedule.h"

void plan_broadcast_tree(plan *p, const plan_input *in)
{
    const int me = (in->rank - in->root + in->n) % in->n;
    const size_t bytes = plan_part(in, in->count) * in->element_bytes;
    const size_t offset = in->first * in->element_bytes;
    const plan_ref from = plan_at(me == 0 ? PLAN_SRC : PLAN_DST, offset);
    int64_t reach = 1;

    if (me == 0)
        plan_copy(p, 0, plan_at(PLAN_DST, offset), from, bytes);
    // The lowest set bit of `me` is the distance to its parent; children are at the smaller
    // distances.
    while (reach < in->n && (me & reach) == 0)
        reach *= 2;
    if (me != 0) {
        const int parent = (int)((me - reach + in->root) % in->n);

        plan_message(p, PLAN_RECV, 0, parent, 0, plan_at(PLAN_DST, offset), bytes);
    }
    for (int64_t distance = reach / 2; distance > 0; distance /= 2)
        if (me + distance < in->n)
            plan_message(p, PLAN_SEND, 1, (int)((me + distance + in->root) % in->n), 0, from,
                         bytes);
}
