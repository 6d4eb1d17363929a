/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_case.c - the inputs and expected results of lockstep bench, compared with a direct
 * computation of every operation.
 */
#include "base/unit.h"

#include "base/compute/half.h"
#include "cli/bench/case.h"

#include <stdlib.h>

#define RANKS_MAX 5
#define MAX_COUNT 4096 /* elements */

/* One element as a number. */
static double value_of(const void *buffer, size_t i, ls_dtype type)
{
    switch (type) {
    case LS_I8:
        return ((const int8_t *)buffer)[i];
    case LS_U8:
        return ((const uint8_t *)buffer)[i];
    case LS_I32:
        return ((const int32_t *)buffer)[i];
    case LS_I64:
        return (double)((const int64_t *)buffer)[i];
    case LS_F16:
        return (double)ls_f16_to_f32(((const uint16_t *)buffer)[i]);
    case LS_BF16:
        return (double)ls_bf16_to_f32(((const uint16_t *)buffer)[i]);
    case LS_F32:
        return (double)((const float *)buffer)[i];
    case LS_F64:
        return ((const double *)buffer)[i];
    }
    return -1;
}

static void names_are_found_and_printed(void **state)
{
    LS_UNUSED(state);
    for (int t = 0; t < LS_DTYPE_COUNT; t++)
        assert_int_equal(bench_type(bench_type_name((ls_dtype)t)), t);
    for (int op = 0; op < LS_REDUCE_OP_COUNT; op++)
        assert_int_equal(bench_redop(bench_redop_name((ls_reduce_op)op)), op);
    for (int i = 0; bench_kind_at(i) >= 0; i++)
        assert_int_equal(bench_kind_of(bench_kind_name(bench_kind_at(i))), bench_kind_at(i));
    assert_int_equal(bench_type("float"), LS_F32);
    assert_int_equal(bench_type("half"), LS_F16);
    assert_int_equal(bench_type("fp8"), -1);
    assert_int_equal(bench_redop("all"), -1);
    assert_int_equal(bench_kind_of("all_to_all"), COLL_ALL_TO_ALL);
    assert_int_equal(bench_kind_of("allreduce"), -1);
    assert_int_equal(bench_kind_of_program("all_reduce_perf"), COLL_ALL_REDUCE);
    assert_int_equal(bench_kind_of_program("alltoall_perf_mpi"), COLL_ALL_TO_ALL);
    assert_int_equal(bench_kind_of_program("all_reduce"), -1);
    assert_int_equal(bench_kind_of_program("all_reduce_perfect"), -1);
    assert_int_equal(bench_kind_of_program("lockstep"), -1);
}

/* The columns that nccl-tests prints for 1 MiB of float32 on 4 ranks, from its documentation's
 * formulas. */
static void sizes_and_bandwidths_equal_those_of_nccl_tests(void **state)
{
    static const struct {
        bench_kind kind;
        size_t count;
        double traffic;
        double bus;
    } want[] = {
        {COLL_ALL_REDUCE, 1 << 18, 1 << 20, 1.5},
        {COLL_ALL_GATHER, 1 << 16, 1 << 20, 0.75},
        {COLL_REDUCE_SCATTER, 1 << 16, 1 << 20, 0.75},
        {COLL_BROADCAST, 1 << 18, 1 << 20, 1},
        {COLL_REDUCE, 1 << 18, 1 << 20, 1},
        {COLL_ALL_TO_ALL, 1 << 16, 1 << 20, 0.75},
        {BENCH_ALL_TO_ALL_V, 1 << 16, 1 << 20, 0.75},
        {COLL_GATHER, 1 << 16, 1 << 20, 0.75},
        {COLL_SCATTER, 1 << 16, 1 << 20, 0.75},
        {BENCH_SEND_RECV, 1 << 18, 1 << 20, 1},
        {BENCH_HYPERCUBE, 1 << 16, 3 << 18, 1},
    };

    LS_UNUSED(state);
    assert_int_equal(bench_kind_at(LS_COUNT_OF(want)), -1);
    for (size_t i = 0; i < LS_COUNT_OF(want); i++) {
        bench_case c = {.kind = want[i].kind, .type = LS_F32, .root = -1, .n = 4};

        c.count = bench_count_for(c.kind, c.type, 1 << 20, c.n);
        assert_int_equal(c.count, want[i].count);
        assert_int_equal(bench_size(&c), 1 << 20);
        assert_true(bench_traffic(&c) == want[i].traffic);
        assert_true(bench_bus_factor(c.kind, c.n) == want[i].bus);
    }
}

// --- every operation, done here on all ranks' memory at once ---

typedef struct scene {
    bench_case c;
    int64_t src[RANKS_MAX][MAX_COUNT];
    int64_t dst[RANKS_MAX][MAX_COUNT];
} scene;

static int64_t combined(int64_t a, int64_t b, ls_reduce_op op)
{
    return op == LS_SUM    ? a + b
           : op == LS_PROD ? a * b
           : op == LS_MIN  ? (a < b ? a : b)
           : op == LS_BAND ? a & b
           : op == LS_BOR  ? a | b
           : op == LS_BXOR ? a ^ b
           : a > b         ? a
                           : b;
}

static int64_t reduced(const scene *s, size_t i)
{
    int64_t value = s->src[0][i];

    for (int r = 1; r < s->c.n; r++)
        value = combined(value, s->src[r][i], s->c.redop);
    return value;
}

/* Elements that go from rank `from` to rank `to`, read off the operation's definition. */
static size_t offset_of(const scene *s, int from, int to)
{
    size_t sum = 0;

    for (int r = 0; r < to; r++)
        sum += bench_pair_count(&s->c, from, r);
    return sum;
}

static void move_parts(scene *s, int rank)
{
    const size_t n = s->c.count;
    int64_t *at = s->dst[rank];

    for (int from = 0; from < s->c.n; from++) {
        const bool to_all = s->c.kind == COLL_ALL_TO_ALL;
        const bool varies = s->c.kind == BENCH_ALL_TO_ALL_V;
        const size_t count = varies ? bench_pair_count(&s->c, from, rank) : n;
        const size_t first = varies ? offset_of(s, from, rank) : to_all ? (size_t)rank * n : 0;

        memcpy(at, s->src[from] + first, count * sizeof(*at));
        at += count;
    }
}

static void perform(scene *s, int rank)
{
    const bench_case *c = &s->c;
    const size_t mine = (size_t)rank * c->count;
    const int before = (rank + c->n - 1) % c->n;

    switch (c->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_REDUCE_SCATTER:
        if (c->kind == COLL_REDUCE && rank != c->root)
            return;
        for (size_t i = 0; i < c->count; i++)
            s->dst[rank][i] = reduced(s, i + (c->kind == COLL_REDUCE_SCATTER ? mine : 0));
        return;
    case COLL_BROADCAST:
        memcpy(s->dst[rank], s->src[c->root], c->count * sizeof(int64_t));
        return;
    case COLL_SCATTER:
        memcpy(s->dst[rank], s->src[c->root] + mine, c->count * sizeof(int64_t));
        return;
    case BENCH_SEND_RECV:
        memcpy(s->dst[rank], s->src[before], c->count * sizeof(int64_t));
        return;
    default:
        if (c->kind != COLL_GATHER || rank == c->root)
            move_parts(s, rank);
    }
}

static void expect_right(scene *s)
{
    memset(s->src, 0xee, sizeof(s->src));
    memset(s->dst, 0xee, sizeof(s->dst));
    for (int r = 0; r < s->c.n; r++)
        bench_fill(&s->c, r, s->src[r]);
    for (int r = 0; r < s->c.n; r++) {
        const size_t got = bench_dst_count(&s->c, r);

        perform(s, r);
        assert_int_equal(bench_count_wrong(&s->c, r, s->dst[r]), 0);
        for (size_t i = 0; i < got; i += 1 + got / 7) { // each changed element is counted
            s->dst[r][i] += 1;
            assert_int_equal(bench_count_wrong(&s->c, r, s->dst[r]), 1);
            s->dst[r][i] -= 1;
        }
        assert_true(s->dst[r][got] == (int64_t)0xeeeeeeeeeeeeeeee); // and no more was written
    }
}

static void expected_results_are_known_for_every_operation(void **state)
{
    static scene s;

    LS_UNUSED(state);
    for (int i = 0; bench_kind_at(i) >= 0; i++)
        for (int n = 1; n <= RANKS_MAX; n++)
            for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
                if (op == LS_AVG || (op > 0 && !bench_reduces(bench_kind_at(i))))
                    continue;
                s.c = (bench_case){.kind = bench_kind_at(i),
                                   .type = LS_I64,
                                   .redop = (ls_reduce_op)op,
                                   .root = n - 1,
                                   .count = 13,
                                   .n = n};
                expect_right(&s);
                s.c.count = 0;
                expect_right(&s);
            }
}

static void products_of_many_ranks_are_those_of_int64(void **state)
{
    enum { RANKS = 200, N = 8 };
    const bench_case c = {.kind = COLL_ALL_REDUCE,
                          .type = LS_I64,
                          .redop = LS_PROD,
                          .root = -1,
                          .count = N,
                          .n = RANKS};
    int64_t product[N];

    LS_UNUSED(state);
    for (int i = 0; i < N; i++)
        product[i] = 1;
    for (int r = 0; r < RANKS; r++) {
        int64_t src[N];

        bench_fill(&c, r, src);
        for (int i = 0; i < N; i++)
            product[i] *= src[i];
    }
    assert_int_equal(bench_count_wrong(&c, 0, product), 0);
}

/* A rank's own data in the place of what it should get is seen, also of neighbours. */
static void data_of_another_rank_is_wrong(void **state)
{
    static scene s;

    LS_UNUSED(state);
    s.c = (bench_case){.kind = BENCH_SEND_RECV, .type = LS_I64, .root = -1, .count = 100, .n = 4};
    for (int r = 0; r < 4; r++)
        bench_fill(&s.c, r, s.src[r]);
    for (int r = 0; r < 4; r++)
        assert_int_equal(bench_count_wrong(&s.c, 1, s.src[r]), r == 0 ? 0 : 100);
}

/* Inputs are whole numbers that every type holds, so that sums are exact. */
static void inputs_are_small_integers_and_differ(void **state)
{
    static int64_t a[301], b[301];

    LS_UNUSED(state);
    for (int t = 0; t < LS_DTYPE_COUNT; t++)
        for (int i = 0; bench_kind_at(i) >= 0; i++) {
            const bench_case c = {
                .kind = bench_kind_at(i), .type = (ls_dtype)t, .root = 0, .count = 100, .n = 2};
            size_t n_equal = 0;

            bench_fill(&c, 0, a);
            bench_fill(&c, bench_src_count(&c, 1) > 0 ? 1 : 0, b);
            for (size_t k = 0; k < 100; k++) {
                const double v = value_of(a, k, (ls_dtype)t);

                assert_true(v == (double)(int)v && v >= 0 && v < 100);
                n_equal += v == value_of(b, k, (ls_dtype)t);
            }
            assert_true(bench_src_count(&c, 1) == 0 || n_equal < 50);
        }
}

static void an_average_is_rounded_once(void **state)
{
    static float sum[64], one[64];
    const bench_case c = {
        .kind = COLL_ALL_REDUCE, .type = LS_F32, .redop = LS_AVG, .root = -1, .count = 64, .n = 3};

    LS_UNUSED(state);
    for (int r = 0; r < 3; r++) {
        bench_fill(&c, r, one);
        for (size_t i = 0; i < 64; i++)
            sum[i] += one[i];
    }
    for (size_t i = 0; i < 64; i++)
        one[i] = sum[i] / 3.0F;
    assert_int_equal(bench_count_wrong(&c, 0, one), 0);
    one[5] *= -1.0F;
    assert_int_equal(bench_count_wrong(&c, 0, one), 1);
}

/* In place is where comm.h says, and never leaves the first buffer. */
static void in_place_buffers_are_those_of_the_library(void **state)
{
    static int32_t first[64], second[64];
    bench_case c = {.type = LS_I32, .root = 1, .count = 4, .n = 3};
    void *src;
    void *dst;

    LS_UNUSED(state);
    for (int i = 0; bench_kind_at(i) >= 0; i++)
        for (int r = 0; r < 3; r++) {
            const bench_kind kind = bench_kind_at(i);

            c.kind = kind;
            bench_place(&c, r, false, first, second, &src, &dst);
            assert_true(src == first && dst == second);
            bench_place(&c, r, true, first, second, &src, &dst);
            assert_true(src == (kind == COLL_ALL_GATHER || kind == BENCH_HYPERCUBE ||
                                        (kind == COLL_GATHER && r == 1)
                                    ? first + 4 * r
                                    : first));
            assert_true(dst == (kind == COLL_REDUCE_SCATTER || (kind == COLL_SCATTER && r == 1)
                                    ? first + 4 * r
                                    : first));
        }
}

static void split_is_read_as_nccl_tests_reads_it(void **state)
{
    static const struct {
        const char *split, *mask;
        int color; /* of rank 13; -1: refused */
    } cases[] = {
        {"AND 0x7", NULL, 5}, {"&7", NULL, 5},      {"and 0b11", NULL, 1}, {"OR 2", NULL, 15},
        {"|0x2", NULL, 15},   {"MOD 8", NULL, 5},   {"%8", NULL, 5},       {"Div 4", NULL, 3},
        {"/4", NULL, 3},      {NULL, "10", 0},      {NULL, "1c", 12},      {NULL, "0x7", 5},
        {"MOD 8", "1", 1},    {"MOD 0", NULL, -1},  {"/0", NULL, -1},      {"XOR 1", NULL, -1},
        {"AND", NULL, -1},    {"AND 1x", NULL, -1}, {"& -1", NULL, -1},    {"7", NULL, -1},
        {NULL, "x", -1},      {NULL, "", -1},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        int color = -1;
        const ls_status st = bench_split_color(cases[i].split, cases[i].mask, 13, &color);

        assert_int_equal(st, cases[i].color < 0 ? LS_EINVAL : LS_OK);
        if (st == LS_OK)
            assert_int_equal(color, cases[i].color);
        else
            assert_last_error("NCCL_TESTS_SPLIT");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_is_read_as_nccl_tests_reads_it),
        cmocka_unit_test(names_are_found_and_printed),
        cmocka_unit_test(sizes_and_bandwidths_equal_those_of_nccl_tests),
        cmocka_unit_test(expected_results_are_known_for_every_operation),
        cmocka_unit_test(products_of_many_ranks_are_those_of_int64),
        cmocka_unit_test(data_of_another_rank_is_wrong),
        cmocka_unit_test(inputs_are_small_integers_and_differ),
        cmocka_unit_test(an_average_is_rounded_once),
        cmocka_unit_test(in_place_buffers_are_those_of_the_library),
    };

    return cmocka_run_group_tests_name("bench case", tests, NULL, NULL);
}
