/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_shared.c - large operations on memory that all members can reach (ls_comm_alloc): no copy but the one that is asked for.
 *
 * all_reduce, reduce    two steps: each member reduces its slice of all sources and writes it to all destinations (the root's);
 *                       then waits until all have. Bytes per rank: m read, m written (n slices of m / n each way).
 *                       In place too, because a slice of anybody's memory is read by its reducer only.
 * reduce_scatter        the same with the destination's own part as slice: n * c read, c written (c: one part).
 * the others            each reader copies from the sources' memory; sources wait for their readers. Bytes as the result.
 *
 * The slices are those of Rabenseifner's reduce-scatter and all-gather (Thakur, Rabenseifner and Gropp, 2005, section 4.5), with both
 * phases in one pass, as the memory is shared. Inside a slice work goes in blocks small enough that a block just reduced
 * is still in the first-level cache when it is copied to the other destinations.
 */
#include "comm/native/copy.h"
#include "comm/native/team_internal.h"

#include <string.h>

#define BLOCK_BYTES ((size_t)8192)

enum { WORKING, WAITING };

static void begin(team *t)
{
    const coll *op = t->op;
    const size_t size = ls_dtype_size(op->dtype);
    size_t slice;

    if (!team_reduces(op->kind))
        return;
    t->at = 0;
    t->end = op->count * size;
    if (op->kind == COLL_REDUCE_SCATTER)
        return;
    // Whole cache lines: two members never write to the same one.
    slice = (t->end + (size_t)t->n * 64 - 1) / ((size_t)t->n * 64) * 64;
    t->at = slice * (size_t)t->rank < t->end ? slice * (size_t)t->rank : t->end;
    t->end = t->at + slice < t->end ? t->at + slice : t->end;
}

/* Bytes [at, at + bytes) of the slice. */
static void reduce_block(team *t, size_t at, size_t bytes)
{
    const coll *op = t->op;
    const size_t size = ls_dtype_size(op->dtype);
    const bool scatters = op->kind == COLL_REDUCE_SCATTER;
    char *first = scatters ? (char *)op->dst + at : NULL;

    for (int k = 0; k < t->n; k++) {
        t->sources[k] = t->src[k] + at + (scatters ? (size_t)t->rank * op->count * size : 0);
        if (!scatters && first == NULL && team_gets(op, k))
            first = t->dst[k] + at;
    }
    LS_ASSERT(first != NULL); // somebody gets the result
    team_reduce(t, first, t->sources, bytes / size);
    for (int k = 0; k < t->n && !scatters; k++) {
        if (team_gets(op, k) && t->dst[k] + at != first)
            memcpy(t->dst[k] + at, first, bytes);
    }
}

static bool reduce_some(team *t)
{
    const size_t chunk = t->end - t->at < TEAM_CHUNK_BYTES ? t->end - t->at : TEAM_CHUNK_BYTES;

    for (size_t done = 0; done < chunk;) {
        const size_t bytes = chunk - done < BLOCK_BYTES ? chunk - done : BLOCK_BYTES;

        reduce_block(t, t->at + done, bytes);
        done += bytes;
    }
    t->at += chunk;
    return t->at == t->end;
}

static void copy_plain(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

/* Copies from the sources, `at` bytes of whose parts are done; true at the end. */
static bool move_some(team *t)
{
    void (*copy)(void *, const void *, size_t) =
        team_result(t->op, t->n) > COPY_AROUND_BYTES ? copy_around : copy_plain;
    size_t total = 0;

    for (int k = 0; k < t->n; k++) {
        // Everybody begins with itself, so that not all read the same memory at once.
        const int source = (t->rank + k) % t->n;
        team_move m;
        size_t bytes;

        if (!team_moves(t->op, source, t->rank, &m))
            continue;
        total = m.bytes;
        bytes = m.bytes - t->at < TEAM_CHUNK_BYTES ? m.bytes - t->at : TEAM_CHUNK_BYTES;
        if ((char *)t->op->dst + m.to != t->src[source] + m.from)
            copy((char *)t->op->dst + m.to + t->at, t->src[source] + m.from + t->at, bytes);
    }
    t->at += TEAM_CHUNK_BYTES;
    return t->at >= total;
}

static team_step step(team *t)
{
    if (t->stage == WORKING) {
        if (!(team_reduces(t->op->kind) ? reduce_some(t) : move_some(t)))
            return TEAM_MOVED;
        t->stage = WAITING;
        team_publish(t, &t->parts[t->rank]->done, t->number);
    }
    return team_all_left(t) ? TEAM_FINISHED : TEAM_WAITS;
}

const team_algorithm team_shared = {.name = "shared", .begin = begin, .step = step};
