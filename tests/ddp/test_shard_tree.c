/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shard_tree.c - compares the partition of shards among ranks with the definition of the tree,
 * for every number of shards and ranks up to 70, and the means of shards on every number of ranks
 * up to 13 with those on one.
 */
#include "ddp/shard_means.h"
#include "ddp/shard_tree.h"

#include "base/rng.h"
#include "ddp/half_bucket.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 70 };

/* A sum whose value shows its tree: (a, b) is 3 a + 5 b + 7 modulo 2^64, which neither commutes nor
 * associates. */
static uint64_t add(uint64_t a, uint64_t b)
{
    return 3 * a + 5 * b + 7;
}

static uint64_t shard_value(int shard)
{
    return (uint64_t)(shard + 1) * 0x9E3779B97F4A7C15U;
}

/* The definition: the node of `size` shards (a power of two) that begins at `first`. */
// NOLINTNEXTLINE(misc-no-recursion): the tree's depth is 7
static uint64_t node_value(int shards, int first, int size)
{
    if (size == 1)
        return shard_value(first);
    if (first + size / 2 >= shards)
        return node_value(shards, first, size / 2);
    return add(node_value(shards, first, size / 2), node_value(shards, first + size / 2, size / 2));
}

static int root_size(int shards)
{
    int size = 1;

    while (size < shards)
        size *= 2;
    return size;
}

/* The same node from a list of pieces in order that cover its shards exactly. */
// NOLINTNEXTLINE(misc-no-recursion): likewise
static uint64_t join(int shards, int first, int size, const shard_node *pieces,
                     const uint64_t *values, int n)
{
    const int end = first + size < shards ? first + size : shards;

    for (int i = 0; i < n; i++)
        if (pieces[i].first == first && pieces[i].first + pieces[i].n == end)
            return values[i];
    assert_true(size > 1); // a piece lies across the nodes of the tree
    if (first + size / 2 >= shards)
        return join(shards, first, size / 2, pieces, values, n);
    return add(join(shards, first, size / 2, pieces, values, n),
               join(shards, first + size / 2, size / 2, pieces, values, n));
}

/* What a rank computes: pieces are added from right to left with the newest shard. */
static void compute(int shards, shard_node range, shard_counter *c, uint64_t *values)
{
    c->n = 0;
    for (int s = range.first; s < range.first + range.n; s++) {
        const int before = c->n;
        const int n_added = shard_counter_add(c, shards, (shard_node){s, 1});
        uint64_t value = shard_value(s);

        assert_in_range(n_added, 0, before);
        assert_int_equal(c->n, before - n_added + 1);
        for (int i = 1; i <= n_added; i++)
            value = add(values[before - i], value);
        values[c->n - 1] = value;
    }
}

static void ranges_are_contiguous_and_equal_but_for_one_shard(void **state)
{
    (void)state;
    for (int shards = 1; shards <= MOST; shards++)
        for (int size = 1; size <= shards; size++) {
            int next = 0;

            for (int r = 0; r < size; r++) {
                const shard_node range = shard_range(shards, r, size);

                assert_int_equal(range.first, next);
                assert_in_range(range.n, shards / size, (shards + size - 1) / size);
                next += range.n;
            }
            assert_int_equal(next, shards);
        }
}

static void every_partition_gives_the_tree_of_the_definition(void **state)
{
    (void)state;
    for (int shards = 1; shards <= MOST; shards++) {
        const uint64_t root = node_value(shards, 0, root_size(shards));

        for (int size = 1; size <= shards; size++) {
            shard_node pieces[MOST * 2];
            uint64_t values[MOST * 2];
            int n = 0;

            for (int r = 0; r < size; r++) {
                shard_counter c;
                shard_counter again;

                compute(shards, shard_range(shards, r, size), &c, values + n);
                shard_pieces(shards, shard_range(shards, r, size), &again);
                assert_int_equal(again.n, c.n);
                assert_memory_equal(again.pieces, c.pieces, (size_t)c.n * sizeof(*c.pieces));
                memcpy(pieces + n, c.pieces, (size_t)c.n * sizeof(*pieces));
                n += c.n;
            }
            assert_true(join(shards, 0, root_size(shards), pieces, values, n) == root);
        }
    }
}

/* A rank cannot have fewer pieces: no two neighbours of it form a node. */
static void pieces_are_the_largest_nodes_of_the_range(void **state)
{
    (void)state;
    for (int shards = 1; shards <= MOST; shards++)
        for (int size = 1; size <= shards; size++)
            for (int r = 0; r < size; r++) {
                const shard_node range = shard_range(shards, r, size);
                shard_counter c;

                shard_pieces(shards, range, &c);
                for (int full = 1; full <= root_size(shards); full *= 2)
                    for (int first = 0; first < shards; first += full) {
                        const int end = first + full < shards ? first + full : shards;
                        bool is_within = false;

                        if (first < range.first || end > range.first + range.n)
                            continue;
                        for (int i = 0; i < c.n; i++)
                            is_within = is_within || (c.pieces[i].first <= first &&
                                                      c.pieces[i].first + c.pieces[i].n >= end);
                        assert_true(is_within);
                    }
            }
}

/* --- partitions in which one all-reduce adds all --- */

/* Ranks whose values are added; one without shards has none. */
typedef struct rank_values {
    int n;
    bool has[MOST];
    uint64_t value[MOST];
} rank_values;

/* The node over `size` ranks from `first` on, as comm/backends/reduce.h adds them up when what has
 * no value changes nothing. False: no rank of it has one. */
// NOLINTNEXTLINE(misc-no-recursion): likewise
static bool rank_sum(const rank_values *v, int first, int size, uint64_t *out)
{
    uint64_t right;
    bool has_left;

    if (size == 1) {
        *out = v->value[first];
        return v->has[first];
    }
    has_left = rank_sum(v, first, size / 2, out);
    if (first + size / 2 >= v->n || !rank_sum(v, first + size / 2, size / 2, &right))
        return has_left;
    *out = has_left ? add(*out, right) : right;
    return true;
}

/* By the definition. */
static bool is_one_sum(int shards, const int *starts, int size)
{
    rank_values v = {.n = size};
    uint64_t parts[2 * SHARD_PIECES_MOST];
    uint64_t sum;

    for (int r = 0; r < size; r++) {
        shard_counter c;

        compute(shards, shard_range_of(starts, r), &c, parts);
        if (c.n > 1)
            return false;
        v.has[r] = c.n == 1;
        v.value[r] = c.n == 1 ? parts[0] : 0;
    }
    return rank_sum(&v, 0, root_size(size), &sum) &&
           sum == node_value(shards, 0, root_size(shards));
}

static void assert_aligned(int shards, const int *starts, int size, bool want)
{
    assert_int_equal(shard_partition_is_aligned(shards, starts, size), want);
    assert_int_equal(is_one_sum(shards, starts, size), want);
}

/* All partitions of up to 11 shards among up to 5 ranks. */
static void aligned_partitions_are_those_of_the_definition(void **state)
{
    int n_aligned = 0;
    int n_unequal = 0;

    (void)state;
    for (int shards = 1; shards <= 11; shards++)
        for (int size = 1; size <= 5; size++) {
            int starts[6] = {0};
            int r = 1;

            starts[size] = shards;
            while (r > 0) { // counts starts[1..size) up as the digits of a number
                int equal[6];
                bool is_aligned;

                for (int i = 1; i < size; i++)
                    starts[i] = starts[i] > starts[i - 1] ? starts[i] : starts[i - 1];
                is_aligned = is_one_sum(shards, starts, size);
                assert_aligned(shards, starts, size, is_aligned);
                for (int i = 0; i < size; i++) {
                    shard_counter c;

                    shard_pieces(shards, shard_range_of(starts, i), &c);
                    assert_int_equal(shard_count_pieces(shards, shard_range_of(starts, i)), c.n);
                }
                shard_divide_equally(shards, size, equal);
                n_aligned += is_aligned;
                n_unequal += is_aligned && memcmp(equal, starts, sizeof(*equal) * (size_t)size);
                for (r = size - 1; r > 0 && starts[r] == shards; r--)
                    starts[r] = 0;
                if (r > 0)
                    starts[r]++;
            }
        }
    assert_true(n_unequal > 100 && n_aligned > n_unequal);
    assert_aligned(12, (int[]){0, 8, 12}, 2, true);
    assert_aligned(11, (int[]){0, 8, 11}, 2, true);
    assert_aligned(12, (int[]){0, 6, 12}, 2, false);
    assert_aligned(7, (int[]){0, 7, 7}, 2, true);
    assert_aligned(2, (int[]){0, 1, 1, 2, 2}, 4, true);
    assert_aligned(8, (int[]){0, 4, 6, 8}, 3, false); // the ranks would add 0..3 and 4..5 first
    assert_aligned(8, (int[]){0, 0, 4, 6, 8}, 4, true);
}

/* The tree over the ranks of an aligned partition, with the pieces as its leaves. */
static void aligned_partitions_need_one_all_reduce(void **state)
{
    int n_aligned = 0;

    (void)state;
    for (int shards = 1; shards <= MOST; shards++)
        for (int size = 1; size <= shards; size++) {
            uint64_t values[MOST];
            shard_node ranks[MOST];
            uint64_t parts[2 * SHARD_PIECES_MOST];
            int starts[MOST + 1];

            shard_divide_equally(shards, size, starts);
            if (!shard_partition_is_aligned(shards, starts, size))
                continue;
            n_aligned++;
            for (int r = 0; r < size; r++) {
                shard_counter c;

                compute(shards, shard_range(shards, r, size), &c, parts);
                assert_int_equal(c.n, 1);
                values[r] = parts[0];
                ranks[r] = (shard_node){r, 1};
            }
            assert_true(join(size, 0, root_size(size), ranks, values, size) ==
                        node_value(shards, 0, root_size(shards)));
        }
    assert_true(n_aligned > 3 * MOST);
}

static void most_shards_fit_in_a_counter(void **state)
{
    shard_counter c;

    (void)state;
    shard_pieces(SHARDS_MOST, (shard_node){1, SHARDS_MOST - 2}, &c);
    assert_in_range(c.n, 30, SHARD_PIECES_MOST);
}

/* --- means --- */

enum { MEANS_MOST = 13, ELEMENTS = 300 }; /* more than one part */

typedef union elements {
    uint16_t halves[ELEMENTS];
    float floats[ELEMENTS];
    double doubles[ELEMENTS];
} elements;

typedef struct means {
    int shards;
    ls_dtype type;
    ls_dtype wire;
    double weights[MEANS_MOST];
    double leaves[MEANS_MOST][ELEMENTS]; /* floats of a float32 type are doubles here */
    elements sent[MEANS_MOST];
    reduce_operand operands[MEANS_MOST];
    double rows[MEANS_MOST]; /* of the operands */
    int n_operands;
} means;

/* The leaf's elements in the type, rounded. */
static void fill_leaf(const means *m, int shard, elements *out)
{
    for (int i = 0; i < ELEMENTS; i++) {
        if (m->type == LS_F32)
            out->floats[i] = (float)m->leaves[shard][i];
        else
            out->doubles[i] = m->leaves[shard][i];
    }
    mean_round(out, ELEMENTS, m->type, m->wire);
}

static void send(means *m, const elements *values, shard_node node, double weight)
{
    elements *to = &m->sent[m->n_operands];

    if (m->type == LS_F32)
        half_pack(values->floats, to->halves, ELEMENTS, 1, m->wire);
    else
        *to = *values;
    m->rows[m->n_operands] = weight;
    m->operands[m->n_operands++] = (reduce_operand){to, node.first, node.n, true};
}

/* The pieces of a rank, as shards.c adds them up. */
static void send_pieces(means *m, shard_node range)
{
    static elements values[SHARD_PIECES_MOST];
    double weights[SHARD_PIECES_MOST];
    shard_counter c = {.n = 0};

    for (int s = range.first; s < range.first + range.n; s++) {
        int last = c.n;
        const int n_added = shard_counter_add(&c, m->shards, (shard_node){s, 1});

        fill_leaf(m, s, &values[last]);
        weights[last] = m->weights[s];
        for (int k = 0; k < n_added; k++, last--) {
            mean_add(&values[last - 1], weights[last - 1], &values[last], weights[last], ELEMENTS,
                     m->type, m->wire);
            values[last - 1] = values[last];
            weights[last - 1] += weights[last];
        }
    }
    for (int k = 0; k < c.n; k++)
        send(m, &values[k], c.pieces[k], weights[k]);
}

static void check_means(means *m)
{
    static double memory[MEAN_TREE_BYTES / sizeof(double)];
    static elements roots[2];
    const size_t bytes = ELEMENTS * ls_dtype_size(m->wire);

    for (int ranks = 1; ranks <= m->shards; ranks++) {
        elements *root = &roots[ranks > 1];

        m->n_operands = 0;
        for (int r = 0; r < ranks; r++)
            send_pieces(m, shard_range(m->shards, r, ranks));
        mean_tree(root, m->operands, m->rows, m->n_operands, m->shards, ELEMENTS, m->type, m->wire,
                  memory);
        assert_memory_equal(root, &roots[0], bytes);
    }
    for (int i = 0; i < ELEMENTS && m->type == LS_F64; i++) {
        double sum = 0;
        double rows = 0;

        for (int s = 0; s < m->shards; s++) {
            sum += m->weights[s] * m->leaves[s][i];
            rows += m->weights[s];
        }
        assert_true(fabs(roots[0].doubles[i] - (rows > 0 ? sum / rows : 0)) < 1e-12);
    }
}

static void means_do_not_depend_on_the_partition(void **state)
{
    static const ls_dtype types[][2] = {{LS_F64, LS_F64}, {LS_F32, LS_F16}, {LS_F32, LS_BF16}};
    static means m;
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, 11);
    for (m.shards = 1; m.shards <= MEANS_MOST; m.shards++) {
        for (int s = 0; s < m.shards; s++) {
            m.weights[s] = floor(4 * ls_rng_double(&rng)); // without rows the gradient is 0
            for (int i = 0; i < ELEMENTS; i++)
                m.leaves[s][i] = m.weights[s] > 0 ? 2 * ls_rng_double(&rng) - 1 : 0;
        }
        for (size_t k = 0; k < LS_COUNT_OF(types); k++) {
            m.type = types[k][0];
            m.wire = types[k][1];
            check_means(&m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_contiguous_and_equal_but_for_one_shard),
        cmocka_unit_test(every_partition_gives_the_tree_of_the_definition),
        cmocka_unit_test(pieces_are_the_largest_nodes_of_the_range),
        cmocka_unit_test(aligned_partitions_are_those_of_the_definition),
        cmocka_unit_test(aligned_partitions_need_one_all_reduce),
        cmocka_unit_test(most_shards_fit_in_a_counter),
        cmocka_unit_test(means_do_not_depend_on_the_partition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
