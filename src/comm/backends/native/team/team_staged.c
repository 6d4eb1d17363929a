/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_staged.c - operations on the caller's own memory, piece by piece through staging buffers in
 * the members' shared parts. team.c runs it where no algorithm can reach the callers' buffers.
 *
 * Each member has two `in` buffers and two `out` buffers of one piece. For every piece, in this
 * order:
 *
 *   put     copies its contribution into `in`; where each reader gets a part of its own, in n
 *           slices
 *   reduce  (or copy) from the `in` of all members; all_reduce and reduce put the result of the own
 *           slice into `out`
 *   take    all_reduce and reduce only: copies the slices from the `out` of the others
 *
 * and two pieces are under way at once, so that a member that waits for one works on the next.
 * Counters show how far each member is:
 *   put(p)     needs in[p % 2] to be used by all:      reduced >= p - 1
 *   reduce(p)  needs all to have put p:                staged > p
 *              and out[p % 2] to be taken by all:      taken >= p - 1
 *   take(p)    needs all to have reduced p:            reduced > p
 *
 * all_reduce and reduce of two members, and small ones of few, have one step less: each member puts
 * all of its contribution, and reduces all for itself (the root alone). Two members move as many
 * bytes between their caches so, and read their own contribution a second time.
 *
 * Where staging is sure to be selected, a member puts the first piece while it publishes. So of an
 * operation of one piece and one step the member that comes last waits for nothing, which matters
 * most where the other one has to wait for a core, and a member that takes nothing from others does
 * not wait at all.
 *
 * Buffers are used in turn over all operations; so the one of a piece is free as soon as all have
 * reduced the piece before the last.
 *
 * Bytes per rank, all_reduce of m: m (n - 1) / n copied in, m read to reduce, m / n written twice,
 * m (n - 1) / n taken: the volume of reduce-scatter and all-gather (Thakur, Rabenseifner and Gropp,
 * 2005, section 4.5), twice through the cache. The others: their contribution copied in, their
 * result copied out.
 */
#include "comm/backends/native/team/team_internal.h"

#include <string.h>

#define FEW_RANKS   4
#define WHOLE_BYTES ((size_t)16384) /* that each of few ranks reduces for itself */

/* Fills in t->staged. */
static void plan(team *t)
{
    const coll *op = t->op;
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    const size_t slices = coll_divides_src(op->kind) ? (size_t)t->n : 1;
    // Whole cache lines, except the last piece.
    const size_t step = t->piece_bytes / slices / 64 * 64;
    const size_t most = bytes < step ? bytes : step;
    staged_plan *s = &t->staged;

    *s = (staged_plan){.bytes = bytes, .step = step, .turns = 1};
    s->is_whole =
        coll_reduces_whole(op->kind) && (t->n == 2 || (t->n <= FEW_RANKS && bytes <= WHOLE_BYTES));
    // Small pieces of two members use all of a slice in turn: what the other one has read there has
    // left its second-level cache when it is written again. More members would touch too much
    // memory.
    s->turn_bytes = (most + TEAM_PAGE_BYTES - 1) / TEAM_PAGE_BYTES * TEAM_PAGE_BYTES;
    if (t->n == 2 && 2 * s->turn_bytes <= step)
        s->turns = step / s->turn_bytes;
    t->n_pieces = (bytes + step - 1) / step;
}

static char *staging_buffer(const team *t, int member, bool out, uint64_t piece)
{
    const uint64_t number = t->pieces + piece;
    const size_t index = (out ? TEAM_BUFFERS : 0) + (size_t)(number % TEAM_BUFFERS);
    const size_t turn = t->staged.turns > 1 ? (size_t)(number / TEAM_BUFFERS % t->staged.turns) : 0;

    return team_staging(t, member) + index * t->piece_bytes + turn * t->staged.turn_bytes;
}

/* The range of piece p in the vector. */
static void piece_range(const team *t, uint64_t p, size_t *at, size_t *bytes)
{
    const staged_plan *s = &t->staged;

    *at = (size_t)p * s->step;
    *bytes = s->bytes - *at < s->step ? s->bytes - *at : s->step;
}

/* Whether members take from each other what they have reduced. */
static bool has_two_steps(const team *t)
{
    return coll_reduces_whole(t->op->kind) && !t->staged.is_whole;
}

static void begin(team *t)
{
    if (!t->is_put)
        plan(t);
    t->next_in = t->is_put ? 1 : 0;
    t->next_reduce = 0;
    t->next_out = 0;
}

/* Whether this counter of every member has reached `pieces` pieces of this operation. */
static bool all_reached(const team *t, size_t counter, uint64_t pieces)
{
    return team_first_below(t, counter, t->pieces + pieces) == t->n;
}

/* --- put --- */

static void put(team *t, uint64_t p)
{
    const coll *op = t->op;
    char *to = staging_buffer(t, t->rank, false, p);
    const char *src = op->src;
    size_t at;
    size_t bytes;

    piece_range(t, p, &at, &bytes);
    if (!team_is_source(op, t->rank))
        return;
    if ((!coll_divides_src(op->kind) && !coll_reduces_whole(op->kind)) || t->staged.is_whole) {
        copy_shared(t->way, to, src + at, bytes);
        return;
    }
    for (int k = 0; k < t->n; k++) {
        size_t from = 0;
        size_t length = bytes;

        if (k == t->rank)
            continue; // reads its own part from its source
        if (coll_divides_src(op->kind)) {
            copy_shared(t->way, to + (size_t)k * t->staged.step,
                        src + (size_t)k * t->staged.bytes + at, bytes);
        } else {
            team_slice(bytes, t->n, k, &from, &length);
            copy_shared(t->way, to + from, src + at + from, length);
        }
    }
}

static bool try_put(team *t)
{
    const uint64_t p = t->next_in;

    if (p == t->n_pieces || p >= t->next_reduce + TEAM_BUFFERS ||
        (p >= TEAM_BUFFERS && !all_reached(t, offsetof(team_part, reduced), p + 1 - TEAM_BUFFERS)))
        return false;
    put(t, p);
    t->next_in = p + 1;
    team_publish(t, &t->parts[t->rank]->staged, t->pieces + t->next_in);
    return true;
}

bool team_put_early(team *t)
{
    const uint64_t used = t->pieces > 0 ? t->pieces - 1 : 0;

    if (t->op->count == 0 || team_first_below(t, offsetof(team_part, reduced), used) < t->n)
        return false;
    plan(t);
    put(t, 0);
    t->is_put = true;
    atomic_store_explicit(&t->parts[t->rank]->staged, t->pieces + 1, memory_order_release);
    return t->n_pieces == 1 && !has_two_steps(t);
}

/* --- reduce --- */

static void reduce_whole(team *t, uint64_t p)
{
    const coll *op = t->op;
    size_t at;
    size_t bytes;

    piece_range(t, p, &at, &bytes);
    for (int k = 0; k < t->n; k++)
        t->sources[k] = k == t->rank ? (const char *)op->src + at : staging_buffer(t, k, false, p);
    if (team_is_reader(op, t->rank))
        team_reduce(t, (char *)op->dst + at, t->sources, bytes / ls_dtype_size(op->dtype));
}

/* Reduces t->sources to `at` of dst and copies each block to `out` while it is in the first-level
 * cache. */
static void reduce_slice(team *t, char *out, size_t at, size_t bytes)
{
    const bool is_reader = team_is_reader(t->op, t->rank);
    const size_t size = ls_dtype_size(t->op->dtype);
    _Alignas(64) char own[TEAM_BLOCK_BYTES];

    for (size_t done = 0; done < bytes;) {
        const size_t block = bytes - done < TEAM_BLOCK_BYTES ? bytes - done : TEAM_BLOCK_BYTES;
        char *to = is_reader ? (char *)t->op->dst + at + done : own;

        team_reduce(t, to, t->sources, block / size);
        copy_shared(t->sum_way, out + done, to, block);
        for (int k = 0; k < t->n; k++)
            t->sources[k] += block;
        done += block;
    }
}

static void reduce_piece(team *t, uint64_t p)
{
    const coll *op = t->op;
    const size_t size = ls_dtype_size(op->dtype);
    const bool cut = coll_divides_src(op->kind);
    size_t at;
    size_t bytes;
    size_t from = 0;
    size_t length;

    piece_range(t, p, &at, &bytes);
    length = bytes;
    if (!cut)
        team_slice(bytes, t->n, t->rank, &from, &length);
    for (int k = 0; k < t->n; k++) {
        const size_t skip = cut ? (size_t)t->rank * t->staged.step : from;

        t->sources[k] = staging_buffer(t, k, false, p) + skip;
    }
    t->sources[t->rank] =
        (const char *)op->src + at + (cut ? (size_t)t->rank * t->staged.bytes : from);
    if (!cut)
        reduce_slice(t, staging_buffer(t, t->rank, true, p) + from, at + from, length);
    else if (length > 0)
        team_reduce(t, (char *)op->dst + at, t->sources, length / size);
}

static void move_piece(team *t, uint64_t p)
{
    const coll *op = t->op;
    size_t at;
    size_t bytes;

    piece_range(t, p, &at, &bytes);
    for (int k = 0; k < t->n; k++) {
        const int source = (t->rank + k) % t->n;
        const char *from = staging_buffer(t, source, false, p);
        team_move m;

        if (!team_moves(op, source, t->rank, &m))
            continue;
        if (coll_divides_src(op->kind))
            from += (size_t)t->rank * t->staged.step;
        if (source == t->rank)
            from = (const char *)op->src + m.from + at;
        if ((char *)op->dst + m.to + at != from)
            memcpy((char *)op->dst + m.to + at, from, bytes);
    }
}

/* Otherwise it only gives: a root that broadcasts, a member that is not the root of a gather. */
static bool takes_from_others(const team *t)
{
    const coll *op = t->op;

    return (coll_reduces(op->kind) && !t->staged.is_whole) ||
           (team_is_reader(op, t->rank) &&
            !(coll_shapes[op->kind].src_at_root && t->rank == op->root));
}

static bool try_reduce(team *t)
{
    const uint64_t p = t->next_reduce;

    if (p == t->next_in ||
        (takes_from_others(t) && !all_reached(t, offsetof(team_part, staged), p + 1)) ||
        (p >= TEAM_BUFFERS && has_two_steps(t) &&
         !all_reached(t, offsetof(team_part, taken), p + 1 - TEAM_BUFFERS)))
        return false;
    if (t->staged.is_whole)
        reduce_whole(t, p);
    else if (coll_reduces(t->op->kind))
        reduce_piece(t, p);
    else
        move_piece(t, p);
    t->next_reduce = p + 1;
    // A member that waits for the buffers of the last pieces waits for a later stamp first.
    if (has_two_steps(t) || p + TEAM_BUFFERS < t->n_pieces)
        team_publish(t, &t->parts[t->rank]->reduced, t->pieces + t->next_reduce);
    else
        atomic_store_explicit(&t->parts[t->rank]->reduced, t->pieces + t->next_reduce,
                              memory_order_release);
    return true;
}

/* --- take --- */

static void take(team *t, uint64_t p)
{
    size_t at;
    size_t bytes;

    if (!team_is_reader(t->op, t->rank))
        return;
    piece_range(t, p, &at, &bytes);
    for (int k = 1; k < t->n; k++) {
        const int source = (t->rank + k) % t->n;
        size_t from;
        size_t length;

        team_slice(bytes, t->n, source, &from, &length);
        memcpy((char *)t->op->dst + at + from, staging_buffer(t, source, true, p) + from, length);
    }
}

static bool try_take(team *t)
{
    const uint64_t p = t->next_out;

    if (p == t->next_reduce || !all_reached(t, offsetof(team_part, reduced), p + 1))
        return false;
    take(t, p);
    t->next_out = p + 1;
    team_publish(t, &t->parts[t->rank]->taken, t->pieces + t->next_out);
    return true;
}

/* Reduces first, then puts: that is what other members wait for. */
static team_step step(team *t)
{
    const bool takes = has_two_steps(t);

    if (!try_reduce(t) && !try_put(t) && !(takes && try_take(t)))
        return TEAM_WAITS;
    if (t->next_reduce < t->n_pieces || (takes && t->next_out < t->n_pieces))
        return TEAM_MOVED;
    // `taken` counts the pieces of all operations, also of those without the third step; the stamp
    // of the next operation publishes it.
    if (!takes)
        atomic_store_explicit(&t->parts[t->rank]->taken, t->pieces + t->n_pieces,
                              memory_order_relaxed);
    t->pieces += t->n_pieces;
    return TEAM_FINISHED;
}

const team_algorithm team_staged = {.name = "staged", .begin = begin, .step = step};
