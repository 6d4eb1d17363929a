/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_shared.c - large operations on memory that all members have mapped (ls_comm_alloc): one
 * copy, the one that the operation itself is. team.c runs it when all buffers are shared.
 *
 * all_reduce, reduce      two steps: each member reduces its slice of all sources and writes it to
 *                         all destinations (the root's); then waits until all have. Bytes per rank:
 *                         m read, m written (n slices of m / n each way). Correct in place, because
 *                         only its reducer reads a slice of any member's memory. Slices are claimed
 *                         in chunks, and a member that is done with its own takes those of others
 *                         (self-scheduling: Tang and Yew, 1986): the last one to come waits for no
 *                         rank that has no core. Not in a team with gates.
 * reduce_scatter          the same with the destination's own part as slice: n * c read, c written
 *                         (c: one part).
 * all_gather, all_to_all  each reader copies from the sources' memory; sources wait for their
 *                         readers. Bytes as the result.
 * broadcast, scatter      the same, but the root writes one of n parts of what a reader gets,
 *                         because it would only wait (unless it has its own part to copy).
 * gather                  each source writes its part into the root's memory. These two where the
 *                         destinations are shared too.
 *
 * The slices are those of Rabenseifner's reduce-scatter and all-gather (Thakur, Rabenseifner and
 * Gropp, 2005, section 4.5), with both phases in one pass, as the memory is shared. Inside a slice
 * work goes in blocks that are reduced in the first-level cache and copied to all destinations:
 * other cores have read these, and copy_string() takes their lines back in a quarter of the time of
 * plain stores.
 */
#include "comm/backends/native/team/team_internal.h"

#include <string.h>

#define CLAIM_BYTES ((size_t)65536) /* claims of a shorter vector would take a fifth of its time */

enum { WORKING, WAITING };

bool team_claims(const team *t)
{
    return t->algorithm == &team_shared && !t->has_gates && coll_reduces_whole(t->op->kind) &&
           t->op->count * ls_dtype_size(t->op->dtype) >= CLAIM_BYTES;
}

static void begin(team *t)
{
    const coll *op = t->op;
    size_t length;

    t->helped = 0;
    if (!coll_reduces(op->kind))
        return;
    t->at = 0;
    t->end = op->count * ls_dtype_size(op->dtype);
    if (!coll_reduces_whole(op->kind))
        return;
    team_slice(t->end, t->n, t->rank, &t->at, &length);
    t->end = t->at + length;
}

/* Bytes [at, at + bytes) of the slice. */
static void reduce_block(team *t, size_t at, size_t bytes)
{
    const coll *op = t->op;
    const size_t size = ls_dtype_size(op->dtype);
    const bool scatters = !coll_reduces_whole(op->kind);
    const size_t skip = team_own_part(t);
    _Alignas(64) char block[TEAM_BLOCK_BYTES];

    for (int k = 0; k < t->n; k++)
        t->sources[k] = t->src[k] + at + skip;
    team_reduce(t, scatters ? (char *)op->dst + at : block, t->sources, bytes / size);
    for (int k = 0; k < t->n && !scatters; k++) {
        if (team_is_reader(op, k))
            (void)copy_string(t->dst[k] + at, block, bytes);
    }
}

static void reduce_range(team *t, size_t at, size_t end)
{
    for (; at < end; at += TEAM_BLOCK_BYTES)
        reduce_block(t, at, end - at < TEAM_BLOCK_BYTES ? end - at : TEAM_BLOCK_BYTES);
}

static bool reduce_some(team *t)
{
    const size_t chunk = t->end - t->at < TEAM_CHUNK_BYTES ? t->end - t->at : TEAM_CHUNK_BYTES;

    reduce_range(t, t->at, t->at + chunk);
    t->at += chunk;
    return t->at == t->end;
}

/* Counts a chunk of this operation, unless `most` are counted; returns how many were before. */
static uint64_t count_chunk(const team *t, _Atomic uint64_t *counter, uint64_t most)
{
    uint64_t old = atomic_load_explicit(counter, memory_order_relaxed);
    uint64_t n;

    do {
        n = old >> TEAM_CHUNK_BITS == t->number ? old & ((UINT64_C(1) << TEAM_CHUNK_BITS) - 1) : 0;
        if (n == most)
            break;
    } while (!atomic_compare_exchange_weak_explicit(counter, &old,
                                                    t->number << TEAM_CHUNK_BITS | (n + 1),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return n;
}

/* Reduces one chunk of any slice, its own first; true: all are claimed. */
static bool reduce_claimed(team *t)
{
    for (; t->helped < t->n; t->helped++) {
        const int k = (t->rank + t->helped) % t->n;
        team_part *part = t->parts[k];
        uint64_t n_chunks;
        uint64_t chunk;
        size_t at;
        size_t length;

        team_slice(t->op->count * ls_dtype_size(t->op->dtype), t->n, k, &at, &length);
        n_chunks = length == 0 ? 1 : (length + TEAM_CHUNK_BYTES - 1) / TEAM_CHUNK_BYTES;
        chunk = count_chunk(t, &part->claimed, n_chunks);
        if (chunk == n_chunks)
            continue;
        length -= (size_t)chunk * TEAM_CHUNK_BYTES;
        at += (size_t)chunk * TEAM_CHUNK_BYTES;
        reduce_range(t, at, at + (length < TEAM_CHUNK_BYTES ? length : TEAM_CHUNK_BYTES));
        if (n_chunks == 1 || count_chunk(t, &part->reduced_chunks, n_chunks) + 1 == n_chunks)
            team_publish(t, &part->done, t->number);
        return false;
    }
    return true;
}

/* Whether the part that this member gets from itself stands in its dst already. */
static bool is_in_place(const team *t, int member)
{
    const team_slot *s = team_slot_of(t, member);
    team_move m;

    return team_moves(t->op, member, member, &m) && s->dst_at + m.to == s->src_at + m.from;
}

/* How many of the bytes that `reader` gets from `source` the source writes: the first ones. */
static size_t pushed_bytes(const team *t, int source, int reader, size_t bytes)
{
    if (source == reader || !team_can_push(t->op->kind) || t->dst[reader] == NULL)
        return 0;
    if (t->op->kind == COLL_GATHER)
        return bytes;
    return is_in_place(t, source) ? bytes / (size_t)t->n / 64 * 64 : 0;
}

/* Copies a chunk of this rank's share of the bytes that `reader` gets from `source`; `at` bytes of
 * the share are copied. True: there is more. */
static bool move_chunk(const team *t, int source, int reader)
{
    const bool is_around = team_result(t->op, t->n) > COPY_AROUND_BYTES;
    char *dst = reader == t->rank ? t->op->dst : t->dst[reader];
    const bool is_reader = reader == t->rank;
    team_move m;
    size_t pushed;
    size_t at;
    size_t end;

    if (!team_moves(t->op, source, reader, &m))
        return false;
    pushed = pushed_bytes(t, source, reader, m.bytes);
    at = (is_reader ? pushed : 0) + t->at;
    end = is_reader ? m.bytes : pushed;
    if (at >= end || dst + m.to == t->src[source] + m.from)
        return false;
    if (end - at > TEAM_CHUNK_BYTES)
        end = at + TEAM_CHUNK_BYTES;
    if (is_around)
        copy_around(dst + m.to + at, t->src[source] + m.from + at, end - at);
    else
        (void)copy_string(dst + m.to + at, t->src[source] + m.from + at, end - at);
    return end < (is_reader ? m.bytes : pushed);
}

/* True at the end. */
static bool move_some(team *t)
{
    bool more = false;

    for (int k = 0; k < t->n; k++) {
        // Each member begins with itself, so that not all read the same memory at once.
        const int other = (t->rank + k) % t->n;

        more |= move_chunk(t, other, t->rank);
        if (other != t->rank)
            more |= move_chunk(t, t->rank, other);
    }
    t->at += TEAM_CHUNK_BYTES;
    return !more;
}

static team_step step(team *t)
{
    if (team_claims(t)) {
        if (t->helped < t->n && !reduce_claimed(t))
            return TEAM_MOVED;
    } else if (t->at_step == WORKING) {
        if (!(coll_reduces(t->op->kind) ? reduce_some(t) : move_some(t)))
            return TEAM_MOVED;
        t->at_step = WAITING;
        team_begin_leave(t);
    }
    return team_leave(t);
}

const team_algorithm team_shared = {.name = "shared", .begin = begin, .step = step};
