/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance.c - the conformance suite of backends: collectives, counts and errors. Every rank
 * calls suites in the same order; test_conformance.c and engine_ranks.c run it.
 */
#include "comm/conformance.h"

#include "base/text.h"
#include "comm/comm.h"
#include "hub/stamp.h"

#include <stdlib.h>
#include <string.h>

/* One operation of the matrix. */
typedef struct trial {
    ls_comm *comm;
    coll_kind kind;
    ls_dtype type;
    ls_reduce_op op;
    double divisor; /* of LS_AVG; another one than the group's size is comm_average()'s */
    size_t count;
    int root;
    bool in_place;
    bool is_alloced; /* buffers from ls_comm_alloc() */
    int rank;
    int size;
} trial;

typedef struct trial_buffers {
    guarded src;
    guarded dst;
    unsigned char *expected; /* of dst */
    unsigned char *before;   /* of src */
} trial_buffers;

static const char *trial_text(char buf[200], const trial *t)
{
    return text_format(buf, 200, "%s %s op %d count %zu root %d%s%s, rank %d of %d",
                       coll_name(t->kind), ls_dtype_name(t->type), (int)t->op, t->count, t->root,
                       t->in_place ? " in place" : "", t->is_alloced ? " alloced" : "", t->rank,
                       t->size);
}

static bool src_is_cut(coll_kind kind)
{
    return kind == COLL_SCATTER || kind == COLL_REDUCE_SCATTER || kind == COLL_ALL_TO_ALL;
}

static bool dst_is_cut(coll_kind kind)
{
    return kind == COLL_GATHER || kind == COLL_ALL_GATHER || kind == COLL_ALL_TO_ALL;
}

static bool is_reduction(coll_kind kind)
{
    return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER;
}

/* Element i of this rank's src. */
static int input(const trial *t, int rank, size_t i)
{
    return conformance_input(rank, i, is_reduction(t->kind) ? t->op : LS_SUM);
}

/* Element i of what dst must be. */
static void put_expected(const trial *t, unsigned char *expected, size_t i)
{
    const size_t part = t->count == 0 ? 0 : i / t->count;
    const size_t at = t->count == 0 ? 0 : i % t->count;
    const size_t mine = (size_t)t->rank * t->count;

    switch (t->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
        conformance_put_reduced(t->type, expected, i, i, t->size, t->op, t->divisor);
        break;
    case COLL_REDUCE_SCATTER:
        conformance_put_reduced(t->type, expected, i, mine + i, t->size, t->op, t->divisor);
        break;
    case COLL_BROADCAST:
        conformance_put(t->type, expected, i, input(t, t->root, i));
        break;
    case COLL_SCATTER:
        conformance_put(t->type, expected, i, input(t, t->root, mine + i));
        break;
    case COLL_ALL_TO_ALL:
        conformance_put(t->type, expected, i, input(t, (int)part, mine + at));
        break;
    default:
        conformance_put(t->type, expected, i, input(t, (int)part, at));
        break;
    }
}

static ls_status start(const trial *t, const void *src, void *dst, ls_work **out)
{
    switch (t->kind) {
    case COLL_ALL_REDUCE:
        if (t->divisor != t->size)
            return comm_average(t->comm, dst, t->count, t->type, t->divisor, out);
        return ls_all_reduce(t->comm, src, dst, t->count, t->type, t->op, out);
    case COLL_REDUCE:
        return ls_reduce(t->comm, src, dst, t->count, t->type, t->op, t->root, out);
    case COLL_BROADCAST:
        return ls_broadcast(t->comm, src, dst, t->count, t->type, t->root, out);
    case COLL_ALL_GATHER:
        return ls_all_gather(t->comm, src, dst, t->count, t->type, out);
    case COLL_GATHER:
        return ls_gather(t->comm, src, dst, t->count, t->type, t->root, out);
    case COLL_SCATTER:
        return ls_scatter(t->comm, src, dst, t->count, t->type, t->root, out);
    case COLL_REDUCE_SCATTER:
        return ls_reduce_scatter(t->comm, src, dst, t->count, t->type, t->op, out);
    case COLL_ALL_TO_ALL:
        return ls_all_to_all(t->comm, src, dst, t->count, t->type, out);
    default:
        return ls_barrier(t->comm, out);
    }
}

/* Where src and dst lie when the operation is done in place: all in dst, or for a cut src all in
 * src. */
static void place_buffers(const trial *t, const trial_buffers *b, const void **src, void **dst)
{
    const size_t offset = (size_t)t->rank * t->count * ls_dtype_size(t->type);

    *src = b->src.data;
    *dst = b->dst.data;
    if (!t->in_place)
        return;
    if (src_is_cut(t->kind) && !dst_is_cut(t->kind))
        *dst = b->src.data + offset;
    else if (dst_is_cut(t->kind) && !src_is_cut(t->kind))
        *src = b->dst.data + offset;
    else
        *src = b->dst.data;
}

static ls_status make_buffers(const trial *t, trial_buffers *b)
{
    const size_t size = ls_dtype_size(t->type);
    const size_t n = (size_t)t->size;
    const size_t src_count = t->count * (src_is_cut(t->kind) ? n : 1);
    const size_t dst_count = t->count * (dst_is_cut(t->kind) ? n : 1);
    const void *src;
    void *dst;

    LS_TRY(guarded_make(&b->src, t->is_alloced ? t->comm : NULL, src_count * size));
    LS_TRY(guarded_make(&b->dst, t->is_alloced ? t->comm : NULL, dst_count * size));
    b->expected = malloc(dst_count * size + 1);
    b->before = malloc(src_count * size + 1);
    LS_CHECK(b->expected != NULL && b->before != NULL);
    guarded_poison(&b->src);
    guarded_poison(&b->dst);
    place_buffers(t, b, &src, &dst);
    for (size_t i = 0; i < src_count; i++)
        conformance_put(t->type, (unsigned char *)(uintptr_t)src, i, input(t, t->rank, i));
    memcpy(b->before, b->src.data, b->src.bytes);
    memset(b->expected, 0, dst_count * size);
    for (size_t i = 0; i < dst_count; i++)
        put_expected(t, b->expected, i);
    return LS_OK;
}

static void free_buffers(trial_buffers *b)
{
    guarded_free(&b->src);
    guarded_free(&b->dst);
    free(b->expected);
    free(b->before);
}

static bool has_result(const trial *t)
{
    return (t->kind != COLL_REDUCE && t->kind != COLL_GATHER) || t->rank == t->root;
}

static ls_status check_result(const trial *t, const trial_buffers *b)
{
    const void *src;
    void *dst;

    place_buffers(t, b, &src, &dst);
    LS_TRY(guarded_check(&b->src, "src"));
    LS_TRY(guarded_check(&b->dst, "dst"));
    if (!t->in_place && memcmp(b->src.data, b->before, b->src.bytes) != 0)
        return ls_fail(LS_EINTERNAL, "src was written");
    if (has_result(t) && memcmp(dst, b->expected, b->dst.bytes) != 0) {
        size_t i = 0;

        while (((unsigned char *)dst)[i] == b->expected[i])
            i++;
        return ls_fail(LS_EINTERNAL, "byte %zu is 0x%02x, not 0x%02x", i, ((unsigned char *)dst)[i],
                       b->expected[i]);
    }
    if (!has_result(t) && !t->in_place) {
        for (size_t i = 0; i < b->dst.bytes; i++) {
            if (b->dst.data[i] != 0xA5)
                return ls_fail(LS_EINTERNAL, "dst was written away from root");
        }
    }
    return LS_OK;
}

static ls_status try_one(const trial *t)
{
    trial_buffers b = {{0}, {0}, NULL, NULL};
    ls_status st = make_buffers(t, &b);
    const void *src;
    void *dst;
    char text[200];

    if (st == LS_OK) {
        place_buffers(t, &b, &src, &dst);
        st = start(t, src, dst, NULL);
    }
    if (st == LS_OK)
        st = check_result(t, &b);
    free_buffers(&b);
    return st == LS_OK ? LS_OK : ls_context(st, "%s", trial_text(text, t));
}

/* In and out of place; the kind of memory takes turns, so that both forms meet both kinds. */
static ls_status try_places(trial t, int turn)
{
    for (int form = 0; form < 2; form++) {
        t.in_place = form != 0;
        t.is_alloced = ((turn + turn / 2) & 1) == form;
        LS_TRY(try_one(&t));
    }
    return LS_OK;
}

/* Averages that are divided by what the caller says. */
static ls_status try_averages(trial t, const size_t *counts, int n_counts)
{
    t.kind = COLL_ALL_REDUCE;
    t.op = LS_AVG;
    t.divisor = 10.5;
    t.in_place = true;
    for (int type = LS_F16; type < LS_DTYPE_COUNT; type++) {
        for (int c = 0; c < n_counts; c++) {
            t.type = (ls_dtype)type;
            t.count = counts[c];
            t.is_alloced = !t.is_alloced;
            LS_TRY(try_one(&t));
        }
    }
    return LS_OK;
}

ls_status conformance_reductions(ls_comm *comm, const size_t *counts, int n_counts)
{
    static const coll_kind kinds[] = {COLL_ALL_REDUCE, COLL_REDUCE, COLL_REDUCE_SCATTER};
    trial t = {.comm = comm,
               .rank = ls_comm_rank(comm),
               .size = ls_comm_size(comm),
               .divisor = ls_comm_size(comm)};
    int turn = 0;

    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
        for (int type = 0; type < LS_DTYPE_COUNT; type++) {
            for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
                for (int c = 0; c < n_counts; c++) {
                    if (!reduce_is_defined((ls_reduce_op)op, (ls_dtype)type))
                        continue;
                    t.kind = kinds[k];
                    t.type = (ls_dtype)type;
                    t.op = (ls_reduce_op)op;
                    t.count = counts[c];
                    t.root = turn % t.size;
                    LS_TRY(try_places(t, turn++));
                }
            }
        }
    }
    return try_averages(t, counts, n_counts);
}

ls_status conformance_each(ls_comm *comm, const size_t *counts, int n_counts)
{
    static const coll_kind kinds[] = {COLL_ALL_REDUCE, COLL_REDUCE,     COLL_REDUCE_SCATTER,
                                      COLL_BROADCAST,  COLL_ALL_GATHER, COLL_GATHER,
                                      COLL_SCATTER,    COLL_ALL_TO_ALL, COLL_BARRIER};
    trial t = {.comm = comm,
               .rank = ls_comm_rank(comm),
               .size = ls_comm_size(comm),
               .type = LS_F32,
               .op = LS_SUM,
               .divisor = ls_comm_size(comm)};
    int turn = 0;

    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
        for (int c = 0; c < n_counts; c++) {
            t.kind = kinds[k];
            t.count = t.kind == COLL_BARRIER ? 0 : counts[c];
            t.root = (t.size - 1 + turn) % t.size;
            LS_TRY(try_places(t, turn++));
        }
    }
    return LS_OK;
}

ls_status conformance_movers(ls_comm *comm, const size_t *counts, int n_counts)
{
    static const coll_kind kinds[] = {COLL_BROADCAST, COLL_ALL_GATHER, COLL_GATHER,
                                      COLL_SCATTER,   COLL_ALL_TO_ALL, COLL_BARRIER};
    trial t = {.comm = comm, .rank = ls_comm_rank(comm), .size = ls_comm_size(comm)};
    int turn = 0;

    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
        for (int type = 0; type < LS_DTYPE_COUNT; type++) {
            for (int c = 0; c < n_counts; c++) {
                t.kind = kinds[k];
                t.type = (ls_dtype)type;
                t.count = t.kind == COLL_BARRIER ? 0 : counts[c];
                t.root = turn % t.size;
                LS_TRY(try_places(t, turn++));
            }
        }
    }
    return LS_OK;
}
