/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh.c - collectives and messages of the native backend over its links, with ranks that
 * are threads of this process.
 */
#include "comm/native_mesh_ranks.h"
#include "comm/native_oracle.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "comm/backends/native/memory/copy.h"
#include "comm/backends/reduce.h"
#include "harness/lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

/* Sanitizers are slow, and find their errors in few bytes of one type as well as in many. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LARGE_BYTES ((size_t)12 << 20)
#define FLOOD       6000
#define ONE_TYPE    true
#else
#define LARGE_BYTES ((size_t)200 << 20)
#define FLOOD       30000
#define ONE_TYPE    false
#endif

static const int sizes[] = {2, 3, 4, 5, 8};
static bool is_short; /* fewer ranks, hosts and bytes: the same with other settings */

static void run_everywhere(mesh_fn fn, void *arg)
{
    for (size_t i = 0; i < (is_short ? 2 : LS_COUNT_OF(sizes)); i++) {
        const mesh_job job = {
            .size = sizes[i], .transport = "tcp", .segment_bytes = 4096, .fn = fn, .arg = arg};

        assert_int_equal(mesh_run(&job), 0);
    }
}

static void run_on_hosts(mesh_fn fn)
{
    // 2+1, 3+3, round-robin, one a host, 8+2, 1+7, and three hosts of which one has scattered
    // ranks.
    static const int hosts[][10] = {{0, 0, 1},
                                    {0, 0, 0, 1, 1, 1},
                                    {0, 1, 0, 1, 1},
                                    {0, 1, 2, 3},
                                    {0, 0, 0, 0, 0, 0, 0, 0, 1, 1},
                                    {0, 1, 1, 1, 1, 1, 1, 1},
                                    {0, 0, 1, 1, 2, 0}};
    static const int n[] = {3, 6, 5, 4, 10, 8, 6};

    for (size_t i = 0; i < (is_short ? 1 : LS_COUNT_OF(n)); i++) {
        const mesh_job job = {
            .size = n[i], .transport = "auto", .segment_bytes = 4096, .fn = fn, .hosts = hosts[i]};

        assert_int_equal(mesh_run(&job), 0);
    }
}

static int barriers(mesh_rank *r, void *arg)
{
    LS_UNUSED(arg);
    for (int i = 0; i < 20; i++)
        MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    return 0;
}

static void barriers_end_on_every_rank(void **state)
{
    LS_UNUSED(state);
    run_everywhere(barriers, NULL);
}

// What rank `rank` gives to operation `round`: the same on every rank that asks.
static void fill(void *data, size_t count, ls_dtype type, int rank, uint64_t round)
{
    ls_rng rng;

    ls_rng_seed(&rng, ls_hash3(round, (uint64_t)rank, 1));
    oracle_fill(data, count, type, &rng);
}

static int all_reduces(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {1, 2, 17, 1000, 2048, 2049, 40000};
    static const ls_dtype types[] = {LS_BF16, LS_F32, LS_I64};

    LS_UNUSED(arg);
    for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
        for (size_t t = 0; t < (is_short || ONE_TYPE ? 1 : LS_COUNT_OF(types)); t++) {
            const size_t bytes = counts[c] * ls_dtype_size(types[t]);
            void *src[MESH_RANKS_MAX];
            void *expected = ls_calloc(1, bytes);
            void *dst = ls_calloc(1, bytes);
            const coll op = {.kind = COLL_ALL_REDUCE,
                             .dtype = types[t],
                             .redop = types[t] == LS_I64 ? LS_SUM : LS_AVG,
                             .count = counts[c],
                             .dst = dst};
            coll in_place = op;

            for (int i = 0; i < r->size; i++) {
                src[i] = ls_calloc(1, bytes);
                fill(src[i], counts[c], types[t], i, c);
            }
            oracle_reduce(expected, (const void *const *)src, 0, r->size, counts[c], types[t],
                          op.redop, true);
            in_place.src = memcpy(dst, src[r->rank], bytes);
            MESH_CHECK(mesh_do(&r->world, &in_place) == LS_OK);
            MESH_CHECK(oracle_differs(dst, expected, counts[c], types[t], true) == counts[c]);
            in_place.src = src[r->rank];
            memset(dst, 7, bytes);
            MESH_CHECK(mesh_do(&r->world, &in_place) == LS_OK);
            MESH_CHECK(oracle_differs(dst, expected, counts[c], types[t], true) == counts[c]);
            for (int i = 0; i < r->size; i++)
                ls_free(src[i]);
            ls_free(expected);
            ls_free(dst);
        }
    }
    return 0;
}

// Part r of the reduction on rank r, and all of it at the root.
static int other_reductions(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {1, 333, 5000};
    const size_t n = (size_t)r->size;

    LS_UNUSED(arg);
    for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
        const size_t count = counts[c];
        uint16_t *src[MESH_RANKS_MAX];
        uint16_t *expected = ls_calloc(n * count, sizeof(*expected));
        uint16_t *dst = ls_calloc(n * count, sizeof(*dst));
        coll op = {.dtype = LS_BF16, .redop = LS_SUM, .count = count, .dst = dst};

        for (int i = 0; i < r->size; i++) {
            src[i] = ls_calloc(n * count, sizeof(*src[i]));
            fill(src[i], n * count, LS_BF16, i, c + 50);
        }
        oracle_reduce(expected, (const void *const *)src, 0, r->size, n * count, LS_BF16, LS_SUM,
                      true);
        op.src = src[r->rank];
        op.kind = COLL_REDUCE_SCATTER;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        MESH_CHECK(oracle_differs(dst, expected + (size_t)r->rank * count, count, LS_BF16, true) ==
                   count);
        op.kind = COLL_REDUCE;
        op.root = r->size - 1;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        MESH_CHECK(r->rank != op.root ||
                   oracle_differs(dst, expected, count, LS_BF16, true) == count);
        for (int i = 0; i < r->size; i++)
            ls_free(src[i]);
        ls_free(expected);
        ls_free(dst);
    }
    return 0;
}

static void other_reductions_give_the_bits_of_the_tree(void **state)
{
    LS_UNUSED(state);
    run_everywhere(other_reductions, NULL);
    run_on_hosts(other_reductions);
}

static void all_reduce_gives_the_bits_of_the_tree(void **state)
{
    LS_UNUSED(state);
    run_everywhere(all_reduces, NULL);
    run_on_hosts(all_reduces);
}

// Byte b of what rank `from` gives rank `to`.
static uint8_t pattern(int from, int to, size_t b)
{
    return (uint8_t)(b * 31 + (size_t)from * 7 + (size_t)to * 3 + b / 251);
}

static void paint(uint8_t *at, int from, int to, size_t bytes)
{
    for (size_t b = 0; b < bytes; b++)
        at[b] = pattern(from, to, b);
}

static bool is_painted(const uint8_t *at, int from, int to, size_t bytes)
{
    for (size_t b = 0; b < bytes; b++)
        if (at[b] != pattern(from, to, b))
            return false;
    return true;
}

static int moves(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {1, 4096, 16384, 16385, 100000};
    const int n = r->size;

    LS_UNUSED(arg);
    for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
        const size_t count = counts[c];
        const int root = (int)c % n;
        uint8_t *src = ls_calloc((size_t)n, count);
        uint8_t *dst = ls_calloc((size_t)n, count);
        coll op = {.dtype = LS_U8, .count = count, .root = root, .src = src, .dst = dst};

        for (int i = 0; i < n; i++)
            paint(src + (size_t)i * count, r->rank, i, count);
        op.kind = COLL_ALL_TO_ALL;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        for (int i = 0; i < n; i++)
            MESH_CHECK(is_painted(dst + (size_t)i * count, i, r->rank, count));
        op.kind = COLL_ALL_GATHER;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        for (int i = 0; i < n; i++)
            MESH_CHECK(is_painted(dst + (size_t)i * count, i, 0, count));
        op.kind = COLL_SCATTER;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        MESH_CHECK(is_painted(dst, root, r->rank, count));
        op.kind = COLL_BROADCAST;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        MESH_CHECK(is_painted(dst, root, 0, count));
        op.kind = COLL_GATHER;
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        for (int i = 0; i < n && r->rank == root; i++)
            MESH_CHECK(is_painted(dst + (size_t)i * count, i, 0, count));
        ls_free(src);
        ls_free(dst);
    }
    return 0;
}

static void moved_bytes_arrive_where_they_belong(void **state)
{
    LS_UNUSED(state);
    run_everywhere(moves, NULL);
    run_on_hosts(moves);
}

static void round_robin_placement_is_reported(void **state)
{
    static const int hosts[] = {0, 1, 0, 1};
    const mesh_job job = {.size = 4, .transport = "auto", .fn = barriers, .hosts = hosts};
    const int lines = lines_create();
    const int old = lines_take_stderr(lines);

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
    assert_true(dup2(old, STDERR_FILENO) == STDERR_FILENO);
    assert_true(lines_have(lines, "ranks are placed round-robin on 2 hosts"));
    assert_true(lines_have(lines, "number the ranks host by host"));
    close(old);
    close(lines);
}

// --- point to point ---

static int rings(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {0, 1, 5000, 16384, 1000000, 16385};
    const size_t n = LS_COUNT_OF(counts) + 150; // the last one, beyond the end of the largest ring
    const int next = (r->rank + 1) % r->size;
    const int last = (r->rank + r->size - 1) % r->size;

    LS_UNUSED(arg);
    for (size_t c = 0; c < n; c++) {
        const size_t count = counts[c < LS_COUNT_OF(counts) ? c : LS_COUNT_OF(counts) - 1];
        uint8_t *src = ls_calloc(1, count + 1);
        uint8_t *dst = ls_calloc(1, count + 1);
        mesh_work out = {0};
        mesh_work in = {0};

        paint(src, r->rank, next, count);
        mesh_start(&r->world, &out,
                   &(coll){.kind = COLL_SEND,
                           .dtype = LS_U8,
                           .count = count,
                           .root = next,
                           .tag = (int)c,
                           .src = src});
        mesh_start(&r->world, &in,
                   &(coll){.kind = COLL_RECV,
                           .dtype = LS_U8,
                           .count = count,
                           .root = c % 2 == 0 ? last : LS_ANY_SOURCE,
                           .tag = (int)c,
                           .dst = dst});
        MESH_CHECK(mesh_wait(&in) == LS_OK);
        MESH_CHECK(mesh_wait(&out) == LS_OK);
        MESH_CHECK(in.b.source == last);
        MESH_CHECK(is_painted(dst, last, r->rank, count));
        ls_free(src);
        ls_free(dst);
    }
    return 0;
}

static void messages_pass_around_a_ring(void **state)
{
    LS_UNUSED(state);
    run_everywhere(rings, NULL);
    for (int size = 2; size <= 4; size += 2) {
        const mesh_job shared = {.size = size, .transport = "auto", .fn = rings};

        for (int around = 0; around < 2; around++) {
            copy_always_around(around != 0); // of the ranks, too
            assert_int_equal(mesh_run(&shared), 0);
        }
    }
    copy_always_around(false);
}

enum { AT_A_TIME = 3, BATCHES = 40, LARGEST = 600000 };

/* Messages that a receiver can read in place, several at a time: now and then one of them is timed,
 * and the next one taken in pieces. */
static int pass_offers(mesh_rank *r, size_t count, uint8_t *memory)
{
    mesh_work works[AT_A_TIME];

    memset(works, 0, sizeof(works));
    for (int i = 0; i < AT_A_TIME; i++) {
        uint8_t *at = memory + (size_t)i * LARGEST;

        if (r->rank == 0)
            paint(at, i, 1, count);
        else
            memset(at, 0, count);
        mesh_start(&r->world, &works[i],
                   &(coll){.kind = r->rank == 0 ? COLL_SEND : COLL_RECV,
                           .dtype = LS_U8,
                           .count = count,
                           .root = 1 - r->rank,
                           .src = at,
                           .dst = at});
    }
    for (int i = 0; i < AT_A_TIME; i++) {
        MESH_CHECK(mesh_wait(&works[i]) == LS_OK);
        MESH_CHECK(is_painted(memory + (size_t)i * LARGEST, i, 1, count));
    }
    return 0;
}

static int offers(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {65537, 131072, 131073, LARGEST};
    void *shared = NULL;
    uint8_t *own = ls_calloc(AT_A_TIME, LARGEST);

    LS_UNUSED(arg);
    MESH_CHECK(native_backend_ops.alloc(r->state, (size_t)AT_A_TIME * LARGEST, &shared) == LS_OK);
    MESH_CHECK(own != NULL);
    for (size_t i = 0; i < BATCHES * LS_COUNT_OF(counts); i++) {
        MESH_CHECK(pass_offers(r, counts[i % LS_COUNT_OF(counts)], own) == 0);
        MESH_CHECK(pass_offers(r, counts[i % LS_COUNT_OF(counts)], shared) == 0);
    }
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    native_backend_ops.free(r->state, shared);
    ls_free(own);
    return 0;
}

static void messages_come_whole_whichever_way_they_take(void **state)
{
    const mesh_job job = {.size = 2, .transport = "auto", .fn = offers};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

#define TAGS     3
#define MESSAGES 2000

// Rank 0 receives tag by tag what rank 1 sent in turns, small and large mixed.
static int tags(mesh_rank *r, void *arg)
{
    static const size_t few[] = {1, 100, 3000, 20000};
    uint8_t *data = ls_calloc(MESSAGES + 20000, 1); // messages are in it one byte after the other
    uint8_t *big = ls_calloc(1, 20000);
    mesh_work *works = ls_calloc(MESSAGES, sizeof(*works));

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL && big != NULL && works != NULL);
    for (int i = 0; i < MESSAGES + 20000; i++)
        data[i] = (uint8_t)i;
    for (int i = 0; i < MESSAGES && r->rank == 1; i++)
        mesh_start(&r->world, &works[i],
                   &(coll){.kind = COLL_SEND,
                           .dtype = LS_U8,
                           .count = i % 50 == 0 ? few[i / 50 % 4] : 1,
                           .tag = i % TAGS,
                           .src = &data[i]});
    for (int i = 0; i < MESSAGES && r->rank == 1; i++)
        MESH_CHECK(mesh_wait(&works[i]) == LS_OK);
    for (int tag = TAGS - 1; tag >= 0 && r->rank == 0; tag--) {
        for (int i = tag; i < MESSAGES; i += TAGS) {
            const size_t count = i % 50 == 0 ? few[i / 50 % 4] : 1;

            memset(big, 255, 20000);
            MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_RECV,
                                                  .dtype = LS_U8,
                                                  .count = count,
                                                  .root = 1,
                                                  .tag = tag,
                                                  .dst = big}) == LS_OK);
            MESH_CHECK(memcmp(big, &data[i], count) == 0);
        }
    }
    ls_free(data);
    ls_free(big);
    ls_free(works);
    return 0;
}

static void tags_keep_their_own_order(void **state)
{
    const mesh_job over_tcp = {.size = 2, .transport = "tcp", .fn = tags};
    const mesh_job shared = {.size = 2, .transport = "auto", .fn = tags};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&over_tcp), 0);
    assert_int_equal(mesh_run(&shared), 0);
}

static int big_message(mesh_rank *r, void *arg)
{
    const size_t bytes = *(const size_t *)arg;
    uint8_t *data = ls_calloc(1, bytes);

    MESH_CHECK(data != NULL);
    if (r->rank == 0)
        paint(data, 0, 1, bytes);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = r->rank == 0 ? COLL_SEND : COLL_RECV,
                                          .dtype = LS_U8,
                                          .count = bytes,
                                          .root = 1 - r->rank,
                                          .src = data,
                                          .dst = data}) == LS_OK);
    MESH_CHECK(is_painted(data, 0, 1, bytes));
    ls_free(data);
    return 0;
}

static void large_message_arrives_whole(void **state)
{
    size_t bytes = (is_short ? (size_t)8 << 20 : LARGE_BYTES) + 13;
    const mesh_job over_tcp = {.size = 2, .transport = "tcp", .fn = big_message, .arg = &bytes};
    const mesh_job shared = {.size = 2, .transport = "auto", .fn = big_message, .arg = &bytes};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&over_tcp), 0);
    bytes = LARGE_BYTES / 10 + 13;
    assert_int_equal(mesh_run(&shared), 0);
    for (int mode = NET_MAC; mode <= NET_ENCRYPT; mode++) {
        const net_security modes[2] = {(net_security)mode, (net_security)mode};
        mesh_job sealed = over_tcp;

        sealed.modes = modes;
        assert_int_equal(mesh_run(&sealed), 0);
    }
}

// The root is far ahead: its messages wait in bounded memory, and nothing is lost.
static int flood(mesh_rank *r, void *arg)
{
    const int32_t n = is_short ? FLOOD / 10 : FLOOD;
    const coll hold = {.kind = COLL_RECV, .dtype = LS_U8, .count = 1, .root = 0, .tag = 9};
    uint8_t byte = 0;
    coll op = {.kind = COLL_BROADCAST, .dtype = LS_I32, .count = 1};
    mesh_work *works = ls_calloc(FLOOD, sizeof(*works));
    int32_t *values = ls_calloc(FLOOD, sizeof(*values));

    LS_UNUSED(arg);
    MESH_CHECK(works != NULL && values != NULL);
    for (int32_t i = 0; i < n; i++) {
        coll receive = hold;

        if (r->rank == 0 && i == n / 2) // only now the others begin
            for (int to = 1; to < r->size; to++)
                MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_SEND,
                                                      .dtype = LS_U8,
                                                      .count = 1,
                                                      .root = to,
                                                      .tag = 9,
                                                      .src = &byte}) == LS_OK);
        receive.dst = &byte;
        if (r->rank != 0 && i == 0)
            MESH_CHECK(mesh_do(&r->world, &receive) == LS_OK);
        values[i] = r->rank == 0 ? i : -1;
        op.src = &values[i];
        op.dst = &values[i];
        mesh_start(&r->world, &works[i], &op);
    }
    for (int32_t i = 0; i < n; i++) {
        MESH_CHECK(mesh_wait(&works[i]) == LS_OK);
        MESH_CHECK(values[i] == i);
    }
    ls_free(works);
    ls_free(values);
    return 0;
}

static void root_that_runs_ahead_loses_no_message(void **state)
{
    static const net_security encrypted[] = {NET_ENCRYPT, NET_ENCRYPT, NET_ENCRYPT};
    mesh_job job = {.size = 3, .transport = "tcp", .fn = flood};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
    job.modes = encrypted;
    assert_int_equal(mesh_run(&job), 0);
}

// --- several groups ---

#define GROUP_COUNT 300000

static int crossed(mesh_rank *r, void *arg)
{
    mesh_group other;
    mesh_group *order[2] = {&r->world, &other};
    mesh_work works[2][6];
    float *data = ls_calloc(2 * 6 * GROUP_COUNT, sizeof(float));

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL);
    MESH_CHECK(mesh_open_group(r, &other, 5, NULL, r->size) == LS_OK);
    memset(works, 0, sizeof(works));
    for (int g = 0; g < 2; g++) { // odd ranks start the second group first
        const int which = (g + r->rank) % 2;

        for (int i = 0; i < 6; i++) {
            float *at = data + (size_t)(which * 6 + i) * GROUP_COUNT;

            for (size_t k = 0; k < GROUP_COUNT; k++)
                at[k] = (float)(i + which);
            mesh_start(order[which], &works[which][i],
                       &(coll){.kind = COLL_ALL_REDUCE,
                               .dtype = LS_F32,
                               .redop = LS_SUM,
                               .count = GROUP_COUNT,
                               .src = at,
                               .dst = at});
        }
        // And waits for the last of it before it starts the next, where that can be.
        if (r->rank % 2 == 0 && g == 1)
            MESH_CHECK(mesh_wait(&works[which][5]) == LS_OK);
    }
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < 6; i++) {
            const float *at = data + (size_t)(which * 6 + i) * GROUP_COUNT;

            MESH_CHECK(mesh_wait(&works[which][i]) == LS_OK);
            for (size_t k = 0; k < GROUP_COUNT; k++)
                MESH_CHECK(at[k] == (float)((i + which) * r->size));
        }
    }
    mesh_close_group(&other);
    ls_free(data);
    return 0;
}

static void groups_in_opposite_order_do_not_block_each_other(void **state)
{
    LS_UNUSED(state);
    for (int n = 2; n <= 3; n++) {
        const mesh_job job = {.size = n, .transport = "tcp", .fn = crossed};

        assert_int_equal(mesh_run(&job), 0);
    }
}

// A group is aborted while its messages are half under way: other groups on the same links go on.
static int given_up(mesh_rank *r, void *arg)
{
    enum { COUNT = 4 << 20 };
    mesh_group other;
    mesh_work w = {0};
    uint8_t *data = ls_calloc(1, COUNT);
    float value = 1;

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL);
    for (uint32_t round = 0; round < 10; round++) {
        MESH_CHECK(mesh_open_group(r, &other, 10 + round, NULL, r->size) == LS_OK);
        mesh_start(&other, &w,
                   &(coll){.kind = COLL_ALL_REDUCE,
                           .dtype = LS_F32,
                           .redop = LS_SUM,
                           .count = COUNT / 4,
                           .src = data,
                           .dst = data});
        for (uint32_t i = 0; i < 3 + 70 * round; i++)
            (void)native_backend_ops.progress(r->state);
        native_backend_ops.abort_group(other.group, LS_ECANCELED, "given up");
        memset(data, 0xee, COUNT); // this rank may use it again
        mesh_close_group(&other);
        value = 1;
        MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_ALL_REDUCE,
                                              .dtype = LS_F32,
                                              .redop = LS_SUM,
                                              .count = 1,
                                              .src = &value,
                                              .dst = &value}) == LS_OK);
        MESH_CHECK(value == (float)r->size);
    }
    ls_free(data);
    return 0;
}

static void group_aborted_in_mid_message_does_not_affect_others(void **state)
{
    LS_UNUSED(state);
    run_everywhere(given_up, NULL);
}

static int steady(mesh_rank *r, void *arg)
{
    enum { COUNT = 200000 };
    float *data = ls_calloc(COUNT, sizeof(float));
    uint64_t before = 0;

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL);
    for (int i = 0; i < 60; i++) {
        const coll op = {.kind = COLL_ALL_REDUCE,
                         .dtype = LS_F32,
                         .redop = LS_MAX,
                         .count = i % 2 == 0 ? COUNT : 10,
                         .src = data,
                         .dst = data};

        if (i == 30) {
            MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
            before = ls_alloc_count();
        }
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
    }
    // All ranks are in this process; none reaches this point before all have warmed up.
    if (r->rank == 0)
        fprintf(stderr, "%llu allocations in 30 operations of all ranks\n",
                (unsigned long long)(ls_alloc_count() - before));
    MESH_CHECK(ls_alloc_count() - before <= 20);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    ls_free(data);
    return 0;
}

static void warm_operations_allocate_nothing(void **state)
{
    const mesh_job job = {.size = 3, .transport = "tcp", .segment_bytes = 16384, .fn = steady};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_end_on_every_rank),
        cmocka_unit_test(all_reduce_gives_the_bits_of_the_tree),
        cmocka_unit_test(other_reductions_give_the_bits_of_the_tree),
        cmocka_unit_test(moved_bytes_arrive_where_they_belong),
        cmocka_unit_test(round_robin_placement_is_reported),
        cmocka_unit_test(messages_pass_around_a_ring),
        cmocka_unit_test(messages_come_whole_whichever_way_they_take),
        cmocka_unit_test(tags_keep_their_own_order),
        cmocka_unit_test(large_message_arrives_whole),
        cmocka_unit_test(root_that_runs_ahead_loses_no_message),
        cmocka_unit_test(groups_in_opposite_order_do_not_block_each_other),
        cmocka_unit_test(group_aborted_in_mid_message_does_not_affect_others),
        cmocka_unit_test(warm_operations_allocate_nothing),
    };

    is_short = argc > 1 && strcmp(argv[1], "short") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
