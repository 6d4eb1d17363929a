/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_levels.c - operations of teams with gates, in the steps of levels.h: all members do a step,
 * wait at a gate, and do the next, so that a member waits few times whatever the size. team.c runs
 * it.
 *
 * A round covers as much of the vector as the staging memory of a member holds. Its steps:
 *
 *   put     copies the contribution into staging; not if all sources are in shared memory, where
 *           the others read it. Of a broadcast only the root puts.
 *   up      reductions: adds up, from the innermost level to level 0
 *   down    copies from other sockets and core complexes; reduce has none
 *   take    copies the result to dst, for reduce from the owners at level 0
 *
 * In staging the vector stands at its own offsets, first the contribution and later the result;
 * behind it the partial results (levels_partial_at()). The step that overwrites a contribution is
 * two gates behind its last reader, but at the only level: there a member's own interval, of which
 * only it reads the contribution, from src.
 *
 * Bytes of a rank, all_reduce of m with one level: as team_staged.c. With several, m is put, m read
 * in the core complex, the subtrees' sums of m / (ranks of the complex) read from others, and m
 * taken in the complex.
 */
#include "comm/backends/native/team/team_internal.h"

#include <string.h>

enum { PUT, UP, DOWN, TAKE, END };

static bool is_reduction(const team *t)
{
    return coll_reduces(t->op->kind);
}

static int widening(const team *t)
{
    return (int)(ls_dtype_size(reduce_partial_type(t->op->dtype)) / ls_dtype_size(t->op->dtype));
}

/* Whether the others read this team's contributions where they are. */
static bool reads_sources(const team *t)
{
    return is_reduction(t) && (t->memory_kind & TEAM_SHARED_MEMORY) != 0 && t->levels.depth > 1;
}

bool team_levels_reads(const team *t, int member)
{
    const int level = t->levels.depth - 1;

    return reads_sources(t) &&
           levels_group(&t->levels, level, member) == levels_group(&t->levels, level, t->rank);
}

/* Bytes of the current round, which begins at t->at. */
static size_t round_bytes(const team *t)
{
    const size_t most = t->round_bytes[is_reduction(t) && widening(t) > 1];

    return t->end - t->at < most ? t->end - t->at : most;
}

// --- steps ---

static void put(team *t)
{
    const coll *op = t->op;
    const size_t bytes = round_bytes(t);
    const char *src = (const char *)op->src + t->at;
    size_t own = 0;
    size_t own_end = 0;

    if (!team_is_source(op, t->rank))
        return;
    if (is_reduction(t))
        levels_interval(&t->levels, t->levels.depth - 1, t->rank, bytes, &own, &own_end);
    copy_shared(t->way, team_staging(t, t->rank), src, own);
    copy_shared(t->way, team_staging(t, t->rank) + own_end, src + own_end, bytes - own_end);
}

static const char *source_data(const team *t, const levels_source *s, int level, size_t bytes,
                               size_t at)
{
    if (level + 1 < t->levels.depth)
        return team_staging(t, s->member) +
               levels_partial_at(&t->levels, level + 1, s->member, s->tree, bytes, widening(t), at);
    if (s->member == t->rank)
        return (const char *)t->op->src + t->at + at;
    return reads_sources(t) ? t->src[s->member] + t->at + at : team_staging(t, s->member) + at;
}

/* Adds the operands up, `count` elements, to `to` in staging: copies blocks that are in the
 * first-level cache. */
static void add_up(team *t, char *to, reduce_operand *operands, int n, size_t count, bool is_final)
{
    const coll *op = t->op;
    const size_t whole = ls_dtype_size(op->dtype);
    const size_t partial = ls_dtype_size(reduce_partial_type(op->dtype));
    const size_t size = is_final ? whole : partial;
    _Alignas(64) char own[TEAM_BLOCK_BYTES];

    for (size_t done = 0; done < count;) {
        const size_t left = count - done;
        const size_t block = left < TEAM_BLOCK_BYTES / size ? left : TEAM_BLOCK_BYTES / size;

        reduce_tree(own, operands, n, block, op->dtype, op->redop, is_final, op->divisor);
        copy_shared(t->sum_way, to + done * size, own, block * size);
        for (int i = 0; i < n; i++)
            operands[i].data =
                (const char *)operands[i].data + block * (operands[i].partial ? partial : whole);
        done += block;
    }
}

/* Adds up [at, end) for each subtree of this rank's group. */
static void add_part(team *t, int level, size_t bytes, size_t at, size_t end, int n)
{
    const coll *op = t->op;
    const plan_layout *l = &t->levels.at[level];
    const bool is_partial = level + 1 < t->levels.depth;

    for (int i = 0; i < n; i++) {
        const levels_source *s = &t->level_sources[i];

        t->operands[i] = (reduce_operand){.data = source_data(t, s, level, bytes, at),
                                          .first = s->first,
                                          .n_ranks = s->n_ranks,
                                          .partial = is_partial};
    }
    for (int i = 0, next = 0; i < n; i = next) {
        const int tree = l->tree_of[t->operands[i].first];
        char *to = team_staging(t, t->rank);

        while (next < n && l->tree_of[t->operands[next].first] == tree)
            next++;
        to += level == 0
                  ? at
                  : levels_partial_at(&t->levels, level, t->rank, t->levels.tree_index[level][tree],
                                      bytes, widening(t), at);
        add_up(t, to, t->operands + i, next - i, (end - at) / ls_dtype_size(op->dtype), level == 0);
    }
}

static void step_up(team *t, int level)
{
    const size_t bytes = round_bytes(t);
    size_t at;
    size_t last;

    levels_interval(&t->levels, level, t->rank, bytes, &at, &last);
    while (at < last) {
        size_t end;
        const int n = levels_up(&t->levels, level, t->rank, bytes, at, t->level_sources, &end);

        add_part(t, level, bytes, at, end, n);
        at = end;
    }
}

/* Copies [at, last) from its owners to `to`, which has the vector's offsets. */
static void copy_down(const team *t, int level, size_t at, size_t last, char *to)
{
    const int root = is_reduction(t) ? -1 : t->op->root;

    while (at < last) {
        size_t end;
        const int owner = levels_down(&t->levels, level, t->rank, root, round_bytes(t), at, &end);
        const char *from = team_staging(t, owner);

        if (from != to)
            memcpy(to + at, from + at, end - at);
        at = end;
    }
}

static void step_down(const team *t, int level)
{
    size_t at;
    size_t last;

    // The root has everything.
    if (!is_reduction(t) && t->rank == t->op->root)
        return;
    levels_interval(&t->levels, level, t->rank, round_bytes(t), &at, &last);
    copy_down(t, level, at, last, team_staging(t, t->rank));
}

static void take(const team *t)
{
    const coll *op = t->op;
    const size_t bytes = round_bytes(t);
    char *to = (char *)op->dst + t->at;

    if (!team_is_reader(op, t->rank))
        return;
    if (op->kind == COLL_BROADCAST && t->rank == op->root) {
        if (op->dst != op->src)
            memcpy(to, (const char *)op->src + t->at, bytes);
    } else if (op->kind == COLL_REDUCE) {
        for (size_t at = 0; at < bytes;) {
            size_t end;
            const int owner = levels_owner(&t->levels, 0, 0, bytes, at, &end);

            memcpy(to + at, team_staging(t, owner) + at, end - at);
            at = end;
        }
    } else {
        copy_down(t, t->levels.depth, 0, bytes, to);
    }
}

// --- order ---

static void begin_round(team *t)
{
    t->at_step = reads_sources(t) ? UP : PUT;
    t->level = t->levels.depth - 1;
}

static void begin(team *t)
{
    t->at = 0;
    t->end = t->op->count * ls_dtype_size(t->op->dtype);
    begin_round(t);
}

/* Takes up the steps down, or the take if there are none. */
static void begin_down(team *t)
{
    t->level = 1;
    t->at_step = t->levels.depth > 1 && t->op->kind != COLL_REDUCE ? DOWN : TAKE;
}

/* Does one step, and arrives at the gate behind it. */
static void do_step(team *t)
{
    switch (t->at_step) {
    case PUT:
        put(t);
        gate_arrive(t, is_reduction(t) ? t->levels.depth - 1 : 0);
        if (is_reduction(t))
            t->at_step = UP;
        else
            begin_down(t);
        break;
    case UP:
        step_up(t, t->level);
        gate_arrive(t, t->level > 0 ? t->level - 1 : 0);
        if (--t->level < 0)
            begin_down(t);
        break;
    case DOWN:
        step_down(t, t->level);
        gate_arrive(t, t->level);
        if (++t->level == t->levels.depth)
            t->at_step = TAKE;
        break;
    default:
        take(t);
        t->at += round_bytes(t);
        t->at_step = END;
        // The next operation's gate is the one behind the last round.
        if (t->at < t->end) {
            gate_arrive(t, 0);
            begin_round(t);
        }
        break;
    }
}

/* Fails if a member whose source this rank has read has given up the operation. */
static bool sources_were_valid(team *t)
{
    for (int k = 0; k < t->n; k++)
        if (k != t->rank && team_levels_reads(t, k) && team_break_given_up(t, k))
            return false;
    return true;
}

static team_step step(team *t)
{
    if (!gate_is_open(t))
        return TEAM_WAITS;
    if (t->at_step != END && t->end > 0) {
        do_step(t);
        return TEAM_MOVED;
    }
    return sources_were_valid(t) ? TEAM_FINISHED : TEAM_WAITS;
}

const team_algorithm team_levels = {.name = "levels", .begin = begin, .step = step};
