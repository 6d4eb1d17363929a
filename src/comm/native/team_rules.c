/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_rules.c - the shape of each operation: which member reads from which, and how many bytes.
 * Pure functions of the operation, so all members get the same answers. The team's other files call
 * it.
 */
#include "comm/native/team_internal.h"
#include "comm/reduce.h"

static size_t block_bytes(const coll *op)
{
    return op->count * ls_dtype_size(op->dtype);
}

bool team_supports(const coll *op)
{
    return op->kind != COLL_SEND && op->kind != COLL_RECV && op->src_counts == NULL &&
           op->dst_counts == NULL;
}

bool team_is_reduction(coll_kind kind)
{
    return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER;
}

size_t team_contribution(const coll *op, int n)
{
    switch (op->kind) {
    case COLL_BARRIER:
        return 0;
    case COLL_SCATTER:
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_TO_ALL:
        return (size_t)n * block_bytes(op);
    default:
        return block_bytes(op);
    }
}

size_t team_result(const coll *op, int n)
{
    switch (op->kind) {
    case COLL_BARRIER:
        return 0;
    case COLL_ALL_GATHER:
    case COLL_GATHER:
    case COLL_ALL_TO_ALL:
        return (size_t)n * block_bytes(op);
    default:
        return block_bytes(op);
    }
}

static bool has_one_source(coll_kind kind)
{
    return kind == COLL_BROADCAST || kind == COLL_SCATTER;
}

static bool has_one_reader(coll_kind kind)
{
    return kind == COLL_GATHER || kind == COLL_REDUCE;
}

bool team_is_source(const coll *op, int rank)
{
    return op->kind != COLL_BARRIER && (!has_one_source(op->kind) || rank == op->root);
}

bool team_is_reader(const coll *op, int rank)
{
    return op->kind != COLL_BARRIER && (!has_one_reader(op->kind) || rank == op->root);
}

bool team_can_push(coll_kind kind)
{
    return has_one_source(kind) || kind == COLL_GATHER;
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
    return team_is_reduction(op->kind) || moves_between(op, rank, other) ||
           (team_can_push(op->kind) && moves_between(op, other, rank));
}

bool team_needs_dst(const coll *op, int rank)
{
    return (op->kind == COLL_ALL_REDUCE || op->kind == COLL_REDUCE) && team_is_reader(op, rank);
}

bool team_moves(const coll *op, int source, int reader, team_move *out)
{
    const size_t bytes = block_bytes(op);
    const bool cut = op->kind == COLL_SCATTER || op->kind == COLL_ALL_TO_ALL;
    const bool joined =
        op->kind == COLL_ALL_GATHER || op->kind == COLL_GATHER || op->kind == COLL_ALL_TO_ALL;

    if (!moves_between(op, source, reader))
        return false;
    out->from = cut ? (size_t)reader * bytes : 0;
    out->to = joined ? (size_t)source * bytes : 0;
    out->bytes = bytes;
    return true;
}

size_t team_reduced_bytes(const coll *op, int n, int reader)
{
    const size_t slice = block_bytes(op) / (size_t)n;

    if (op->kind == COLL_REDUCE_SCATTER)
        return block_bytes(op);
    return op->kind == COLL_ALL_REDUCE || reader == op->root ? 2 * slice : slice;
}

void team_reduce(const team *t, void *dst, const char *const *src, size_t count)
{
    for (int k = 0; k < t->n; k++)
        t->operands[k] = (reduce_operand){.data = src[k], .first = k, .n_ranks = 1};
    reduce_tree(dst, t->operands, t->n, count, t->op->dtype, t->op->redop, true, t->op->divisor);
}
