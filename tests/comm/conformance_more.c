/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance_more.c - the second half of the conformance suite: messages, splits, in-place
 * operations, memory. conformance.c calls it.
 */
#include "comm/conformance.h"

#include "base/text.h"
#include "hub/stamp.h"

#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 16
#define SCALE     701 /* elements; a few of these are more than one small segment */

/* --- v-variants --- */

/* Elements that rank `from` has for rank `to`; some are none. */
static size_t pair_count(int from, int to)
{
    return (size_t)((from * 7 + to * 3) % 4) * SCALE / 3;
}

static size_t sum_of(const size_t *counts, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static void fill(int32_t *at, size_t n, int from, int to)
{
    for (size_t i = 0; i < n; i++)
        at[i] = from * 1000003 + to * 1009 + (int32_t)i;
}

static bool is_filled(const int32_t *at, size_t n, int from, int to)
{
    for (size_t i = 0; i < n; i++) {
        if (at[i] != from * 1000003 + to * 1009 + (int32_t)i)
            return false;
    }
    return true;
}

typedef struct vector_test {
    ls_comm *comm;
    int rank;
    int size;
    size_t counts[MAX_RANKS];
    size_t out_counts[MAX_RANKS];
    guarded src;
    guarded dst;
} vector_test;

static ls_status check_parts(const vector_test *v, const size_t *counts, int to)
{
    const int32_t *at = (const int32_t *)(const void *)v->dst.data;

    for (int r = 0; r < v->size; r++) {
        LS_CHECK(is_filled(at, counts[r], r, to));
        at += counts[r];
    }
    LS_TRY(guarded_check(&v->src, "src"));
    return guarded_check(&v->dst, "dst");
}

static ls_status gather_both_ways(vector_test *v)
{
    const int root = v->size - 1;

    fill((int32_t *)(void *)v->src.data, v->counts[v->rank], v->rank, 0);
    guarded_poison(&v->dst);
    LS_TRY(ls_all_gather_v(v->comm, v->src.data, v->dst.data, v->counts, LS_I32, NULL));
    LS_TRY(check_parts(v, v->counts, 0));
    guarded_poison(&v->dst);
    LS_TRY(ls_gather_v(v->comm, v->src.data, v->dst.data, v->counts, LS_I32, root, NULL));
    return v->rank == root ? check_parts(v, v->counts, 0) : LS_OK;
}

static ls_status scatter_and_reduce(vector_test *v)
{
    int32_t *src = (int32_t *)(void *)v->src.data;
    const int32_t *dst = (const int32_t *)(const void *)v->dst.data;
    size_t offset = 0;

    for (int r = 0; r < v->size; r++, offset += v->counts[r - 1])
        fill(src + offset, v->counts[r], 5, r);
    guarded_poison(&v->dst);
    LS_TRY(ls_scatter_v(v->comm, src, v->dst.data, v->counts, LS_I32, 0, NULL));
    LS_CHECK(is_filled(dst, v->counts[v->rank], 5, v->rank));
    guarded_poison(&v->dst);
    LS_TRY(ls_reduce_scatter_v(v->comm, src, v->dst.data, v->counts, LS_I32, LS_SUM, NULL));
    for (size_t i = 0; i < v->counts[v->rank]; i++)
        LS_CHECK(dst[i] == v->size * (5 * 1000003 + v->rank * 1009 + (int32_t)i));
    return LS_OK;
}

static ls_status exchange_all(vector_test *v, bool in_place)
{
    guarded *from = in_place ? &v->dst : &v->src;
    int32_t *at = (int32_t *)(void *)from->data;

    guarded_poison(&v->dst);
    for (int r = 0; r < v->size; r++) {
        v->out_counts[r] = in_place ? SCALE : pair_count(v->rank, r);
        v->counts[r] = in_place ? SCALE : pair_count(r, v->rank);
        fill(at, v->out_counts[r], v->rank, r);
        at += v->out_counts[r];
    }
    LS_TRY(
        ls_all_to_all_v(v->comm, from->data, v->out_counts, v->dst.data, v->counts, LS_I32, NULL));
    return check_parts(v, v->counts, v->rank);
}

ls_status conformance_vectors(ls_comm *comm)
{
    vector_test v = {.comm = comm, .rank = ls_comm_rank(comm), .size = ls_comm_size(comm)};
    const size_t bytes = (size_t)v.size * SCALE * sizeof(int32_t);
    ls_status st;

    LS_TRY(guarded_make(&v.src, NULL, bytes));
    LS_TRY(guarded_make(&v.dst, NULL, bytes));
    for (int r = 0; r < v.size; r++)
        v.counts[r] = pair_count(r, 1);
    st = gather_both_ways(&v);
    if (st == LS_OK)
        st = scatter_and_reduce(&v);
    if (st == LS_OK)
        st = exchange_all(&v, false);
    if (st == LS_OK)
        st = exchange_all(&v, true);
    // All counts are 0: no data, but all ranks synchronize.
    memset(v.counts, 0, sizeof(v.counts));
    if (st == LS_OK)
        st = ls_all_gather_v(comm, v.src.data, v.dst.data, v.counts, LS_F32, NULL);
    if (st == LS_OK)
        st = ls_all_to_all_v(comm, v.src.data, v.counts, v.dst.data, v.counts, LS_F32, NULL);
    LS_CHECK(sum_of(v.counts, v.size) == 0);
    guarded_free(&v.src);
    guarded_free(&v.dst);
    return ls_context(st, "v-variants, rank %d of %d", v.rank, v.size);
}

/* --- messages --- */

/* Every rank sends to the right and receives from the left, first the tags up, then down, so that
 * they cross. */
static ls_status ring(ls_comm *comm, size_t count)
{
    const int n = ls_comm_size(comm), rank = ls_comm_rank(comm);
    const int right = (rank + 1) % n, left = (rank + n - 1) % n;
    enum { TAGS = 3 };
    ls_work *sends[TAGS], *recvs[TAGS];
    int32_t *out = malloc(TAGS * (count + 1) * sizeof(*out));
    int32_t *in = malloc(TAGS * (count + 1) * sizeof(*in));

    LS_CHECK(out != NULL && in != NULL);
    for (int tag = 0; tag < TAGS; tag++) {
        fill(out + tag * count, count, rank, tag);
        LS_TRY(ls_send(comm, out + tag * count, count, LS_I32, right, tag, &sends[tag]));
    }
    for (int tag = TAGS - 1; tag >= 0; tag--)
        LS_TRY(ls_recv(comm, in + tag * count, count, LS_I32, left, tag, &recvs[tag]));
    for (int tag = 0; tag < TAGS; tag++) {
        LS_TRY(ls_work_wait(recvs[tag]));
        LS_TRY(ls_work_wait(sends[tag]));
        LS_CHECK(is_filled(in + tag * count, count, left, tag));
    }
    free(out);
    free(in);
    return LS_OK;
}

/* Elements of the i-th message of a stream: of all the sizes at which backends go other ways, in
 * any order. */
static size_t stream_count(int i)
{
    static const size_t counts[] = {1, 4, 5, 260, 261, 0, 1, 5000, 2, 20000, 1, 259, 3, 1};

    return counts[i % (int)LS_COUNT_OF(counts)];
}

enum { STREAM = 56, STREAM_MOST = 20000 };

static ls_status stream_out(ls_comm *comm, bool is_late)
{
    ls_work *works[STREAM];
    int32_t *out[STREAM];

    for (int i = 0; i < STREAM; i++) {
        out[i] = malloc((stream_count(i) + 1) * sizeof(*out[i]));
        LS_CHECK(out[i] != NULL);
        fill(out[i], stream_count(i), 0, i);
        LS_TRY(ls_send(comm, out[i], stream_count(i), LS_I32, 1, 7, &works[i]));
    }
    if (is_late)
        LS_TRY(ls_barrier(comm, NULL));
    for (int i = 0; i < STREAM; i++) {
        LS_TRY(ls_work_wait(works[i]));
        free(out[i]);
    }
    return LS_OK;
}

static ls_status stream_in(ls_comm *comm, bool is_late)
{
    int32_t *in = malloc(STREAM_MOST * sizeof(*in));

    LS_CHECK(in != NULL);
    if (is_late)
        LS_TRY(ls_barrier(comm, NULL));
    for (int i = 0; i < STREAM; i++) {
        const int source = i % 5 == 0 ? LS_ANY_SOURCE : 0;

        memset(in, 0x5a, STREAM_MOST * sizeof(*in));
        LS_TRY(ls_recv(comm, in, stream_count(i), LS_I32, source, 7, NULL));
        LS_CHECK(is_filled(in, stream_count(i), 0, i));
    }
    free(in);
    return LS_OK;
}

/* Messages of one sender and tag arrive in their order, whatever their sizes; late: all have been
 * sent before the first is received. */
static ls_status order(ls_comm *comm, bool is_late)
{
    const int rank = ls_comm_rank(comm);

    if (rank == 0)
        return stream_out(comm, is_late);
    if (rank == 1)
        return stream_in(comm, is_late);
    return is_late ? ls_barrier(comm, NULL) : LS_OK;
}

/* Rank 1 receives small messages of rank 0 in another order than they come in, and answers each. */
static ls_status answers_by_tag(ls_comm *comm)
{
    const int rank = ls_comm_rank(comm);
    enum { TAGS = 4, ROUNDS = 50 };

    for (int32_t round = 0; round < ROUNDS && rank < 2; round++) {
        int32_t out[TAGS];
        ls_work *sends[TAGS];

        for (int32_t tag = 0; tag < TAGS && rank == 0; tag++) {
            out[tag] = round * TAGS + tag;
            LS_TRY(ls_send(comm, &out[tag], 1, LS_I32, 1, tag, &sends[tag]));
        }
        for (int32_t tag = TAGS - 1; tag >= 0; tag--) {
            int32_t in = -1;

            LS_TRY(ls_recv(comm, &in, 1, LS_I32, 1 - rank, rank == 0 ? TAGS : tag, NULL));
            LS_CHECK(in == round * TAGS + tag);
            if (rank == 1)
                LS_TRY(ls_send(comm, &in, 1, LS_I32, 0, TAGS, NULL));
        }
        for (int tag = 0; tag < TAGS && rank == 0; tag++)
            LS_TRY(ls_work_wait(sends[tag]));
    }
    return LS_OK;
}

static ls_status any_source(ls_comm *comm)
{
    const int n = ls_comm_size(comm), rank = ls_comm_rank(comm);
    bool has_come[MAX_RANKS] = {false};

    if (rank != 0) {
        const int32_t mine = rank * 11;

        return ls_send(comm, &mine, 1, LS_I32, 0, 3, NULL);
    }
    for (int i = 1; i < n; i++) {
        int32_t got = -1;
        ls_work *w;
        int source;

        LS_TRY(ls_recv(comm, &got, 1, LS_I32, LS_ANY_SOURCE, 3, &w));
        LS_TRY(ls_work_wait_for(w, -1));
        source = ls_work_source(w);
        LS_TRY(ls_work_wait(w));
        LS_CHECK(source >= 1 && source < n && !has_come[source]);
        LS_CHECK(got == source * 11);
        has_come[source] = true;
    }
    return LS_OK;
}

ls_status conformance_messages(ls_comm *comm)
{
    static const size_t counts[] = {0, 1, 15, 1025, 70001};

    if (ls_comm_size(comm) == 1)
        return LS_OK;
    for (size_t i = 0; i < LS_COUNT_OF(counts); i++)
        LS_TRY(ls_context(ring(comm, counts[i]), "ring of %zu", counts[i]));
    LS_TRY(ls_context(order(comm, false), "order"));
    LS_TRY(ls_context(order(comm, true), "order of late receives"));
    LS_TRY(ls_context(answers_by_tag(comm), "answers by tag"));
    LS_TRY(ls_context(any_source(comm), "any source"));
    return ls_barrier(comm, NULL);
}

/* --- handles --- */

ls_status conformance_handles(ls_comm *comm)
{
    enum { WORKS = 6 };
    static const size_t counts[WORKS] = {1, 30011, 3, 0, 5003, 65};
    const int n = ls_comm_size(comm), rank = ls_comm_rank(comm);
    ls_work *works[WORKS], *barrier;
    float *data[WORKS];

    for (int i = 0; i < WORKS; i++) {
        data[i] = malloc((counts[i] + 1) * sizeof(float));
        LS_CHECK(data[i] != NULL);
        for (size_t k = 0; k < counts[i]; k++)
            data[i][k] = (float)(rank + 1 + i);
        LS_TRY(ls_all_reduce(comm, data[i], data[i], counts[i], LS_F32, LS_SUM, &works[i]));
    }
    LS_TRY(ls_barrier(comm, &barrier));
    // Waiting in any order works, and looking does not disturb.
    for (int i = WORKS - 1; i >= 0; i--) {
        const float expected = (float)(n * (n + 1) / 2 + i * n);
        ls_status st = ls_work_wait_for(works[i], 0);

        LS_CHECK(st == LS_OK || st == LS_ETIMEOUT);
        if (ls_work_test(works[i]) == 0)
            LS_TRY(ls_work_wait_for(works[i], -1));
        LS_CHECK(ls_work_test(works[i]) == 1);
        LS_CHECK(ls_work_source(works[i]) == -1);
        LS_TRY(ls_work_wait(works[i]));
        for (size_t k = 0; k < counts[i]; k++)
            LS_CHECK(data[i][k] == expected);
        free(data[i]);
    }
    return ls_work_wait(barrier);
}

/* --- sub-groups --- */

static ls_status use_group(ls_comm *comm)
{
    static const size_t counts[] = {1, 1500};

    LS_TRY(conformance_movers(comm, counts, LS_COUNT_OF(counts)));
    LS_TRY(conformance_vectors(comm));
    LS_TRY(conformance_messages(comm));
    return conformance_handles(comm);
}

/* Two halves at the same time, in reversed order, with the parent used in between. */
ls_status conformance_groups(ls_comm *comm)
{
    const int n = ls_comm_size(comm), rank = ls_comm_rank(comm);
    const int members = rank % 2 == 0 ? (n + 1) / 2 : n / 2;
    ls_comm *half, *none, *again;

    LS_TRY(ls_comm_split(comm, rank % 2, -rank, &half));
    LS_CHECK(half != NULL && ls_comm_size(half) == members);
    LS_CHECK(ls_comm_rank(half) == members - 1 - rank / 2);
    LS_CHECK(ls_comm_local_size(half) >= 1 && ls_comm_local_size(half) <= members);
    LS_TRY(use_group(half));
    LS_TRY(ls_barrier(comm, NULL));
    LS_TRY(ls_comm_split(half, 0, 0, &again));
    LS_CHECK(ls_comm_rank(again) == ls_comm_rank(half));
    LS_TRY(ls_barrier(again, NULL));
    ls_comm_destroy(again);
    ls_comm_destroy(half);
    LS_TRY(ls_comm_split(comm, rank == 0 ? -1 : 3, 0, &none));
    LS_CHECK((none == NULL) == (rank == 0));
    if (none != NULL)
        LS_TRY(ls_barrier(none, NULL));
    ls_comm_destroy(none);
    return ls_barrier(comm, NULL);
}
