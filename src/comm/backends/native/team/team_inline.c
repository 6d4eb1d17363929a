/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_inline.c - small operations: each contribution stands in its owner's slot, beside the stamp,
 * when the slot is published. team.c runs it.
 *
 * Steps  one: when all have published, each member reduces or copies for itself from all slots.
 * Bytes  each member reads the other n - 1 contributions and writes its own: (n - 1) * m over the
 *        cores' interconnect. Up to 32 bytes the stamp's cache line carries the contribution, so a
 *        barrier costs as much as an 8-byte all_reduce. This is the flat exchange of gloo's and
 *        UCX's shared-memory barriers with a payload.
 *
 * In a team with gates all_reduce, reduce and broadcast end when the gate opens (team_gate.c).
 */
#include "comm/backends/native/team/team_internal.h"

#include <string.h>

/* This rank reads its own contribution from the caller's buffer: other caches hold its slot. */
static const char *contribution(const team *t, int member, size_t bytes)
{
    const team_slot *s = team_slot_of(t, member);

    if (member == t->rank)
        return t->op->src;
    return (const char *)(bytes <= TEAM_SMALL_BYTES ? s->head.small : s->data);
}

static void begin(team *t)
{
    LS_UNUSED(t);
}

static void reduce_all(team *t)
{
    const coll *op = t->op;
    const size_t bytes = team_contribution(op, t->n);
    const size_t skip = team_own_part(t);

    for (int k = 0; k < t->n; k++)
        t->sources[k] = contribution(t, k, bytes) + skip;
    team_reduce(t, op->dst, t->sources, op->count);
}

static void move_all(team *t)
{
    const size_t bytes = team_contribution(t->op, t->n);
    const bool has_one_source = coll_shapes[t->op->kind].src_at_root;
    const int first = has_one_source ? t->op->root : 0;
    const int end = has_one_source ? first + 1 : t->n;

    for (int k = first; k < end; k++) {
        team_move m;

        if (team_moves(t->op, k, t->rank, &m))
            memmove((char *)t->op->dst + m.to, contribution(t, k, bytes) + m.from, m.bytes);
    }
}

static team_step step(team *t)
{
    if (t->has_gates && gate_combines(t)) {
        gate_take_result(t);
        return TEAM_FINISHED;
    }
    if (!team_is_reader(t->op, t->rank))
        return TEAM_FINISHED;
    if (coll_reduces(t->op->kind))
        reduce_all(t);
    else
        move_all(t);
    return TEAM_FINISHED;
}

const team_algorithm team_inline = {.name = "inline", .begin = begin, .step = step};
