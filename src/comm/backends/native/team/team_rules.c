/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_rules.c - the shape of each operation: which member reads from which, and how many bytes.
 * Pure functions of the operation, so all members get the same answers. The team's other files call
 * it.
 */
#include "comm/backends/native/team/team_internal.h"
#include "comm/backends/reduce.h"

static size_t block_bytes(const coll *op)
{
    return op->count * ls_dtype_size(op->dtype);
}

bool team_supports(const coll *op)
{
    return !coll_is_message(op->kind) && op->src_counts == NULL && op->dst_counts == NULL;
}

static size_t extent_bytes(const coll *op, coll_extent extent, int n)
{
    if (extent == COLL_NOTHING)
        return 0;
    return extent == COLL_ALL_PARTS ? (size_t)n * block_bytes(op) : block_bytes(op);
}

size_t team_contribution(const coll *op, int n)
{
    return extent_bytes(op, coll_shapes[op->kind].src, n);
}

size_t team_result(const coll *op, int n)
{
    return extent_bytes(op, coll_shapes[op->kind].dst, n);
}

bool team_is_source(const coll *op, int rank)
{
    const coll_shape *shape = &coll_shapes[op->kind];

    return shape->src != COLL_NOTHING && (!shape->src_at_root || rank == op->root);
}

bool team_is_reader(const coll *op, int rank)
{
    const coll_shape *shape = &coll_shapes[op->kind];

    return shape->dst != COLL_NOTHING && (!shape->dst_at_root || rank == op->root);
}

bool team_can_push(coll_kind kind)
{
    return coll_has_root(kind) && !coll_reduces(kind);
}

static bool moves_between(const coll *op, int source, int reader)
{
    return team_is_source(op, source) && team_is_reader(op, reader);
}

bool team_touches(const coll *op, int other, int rank)
{
    if (other == rank)
        return false;
    // Every rank reduces its slice of all ranks' memory, also where only the root gets the result.
    return coll_reduces(op->kind) || moves_between(op, rank, other) ||
           (team_can_push(op->kind) && moves_between(op, other, rank));
}

bool team_needs_dst(const coll *op, int rank)
{
    return coll_reduces_whole(op->kind) && team_is_reader(op, rank);
}

bool team_moves(const coll *op, int source, int reader, team_move *out)
{
    const size_t bytes = block_bytes(op);

    if (!moves_between(op, source, reader))
        return false;
    out->from = coll_divides_src(op->kind) ? (size_t)reader * bytes : 0;
    out->to = coll_divides_dst(op->kind) ? (size_t)source * bytes : 0;
    out->bytes = bytes;
    return true;
}

size_t team_reduced_bytes(const coll *op, int n, int reader)
{
    const size_t slice = block_bytes(op) / (size_t)n;

    if (!coll_reduces_whole(op->kind))
        return block_bytes(op);
    return team_is_reader(op, reader) ? 2 * slice : slice;
}

size_t team_own_part(const team *t)
{
    return coll_reduces_whole(t->op->kind) ? 0 : (size_t)t->rank * block_bytes(t->op);
}

void team_reduce(const team *t, void *dst, const char *const *src, size_t count)
{
    for (int k = 0; k < t->n; k++)
        t->operands[k] = (reduce_operand){.data = src[k], .first = k, .n_ranks = 1};
    reduce_tree(dst, t->operands, t->n, count, t->op->dtype, t->op->redop, true, t->op->divisor);
}
