/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shard_tree.c - compares the division of shards among ranks with the definition of the tree,
 * for every number of shards and ranks up to 70.
 */
#include "ddp/shard_tree.h"

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

static void every_division_gives_the_tree_of_the_definition(void **state)
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

/* The tree over the ranks of an aligned division, with the pieces as its leaves. */
static void aligned_divisions_need_one_all_reduce(void **state)
{
    int n_aligned = 0;

    (void)state;
    for (int shards = 1; shards <= MOST; shards++)
        for (int size = 1; size <= shards; size++) {
            uint64_t values[MOST];
            shard_node ranks[MOST];
            uint64_t parts[2 * SHARD_PIECES_MOST];

            if (!shard_division_is_aligned(shards, size))
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
    assert_true(shard_division_is_aligned(8, 1) && shard_division_is_aligned(7, 1));
    assert_true(shard_division_is_aligned(8, 2) && shard_division_is_aligned(8, 8));
    assert_true(shard_division_is_aligned(5, 3) && shard_division_is_aligned(7, 4));
    assert_false(shard_division_is_aligned(8, 3) || shard_division_is_aligned(6, 2));
    assert_true(n_aligned > 3 * MOST);
}

static void most_shards_fit_in_a_counter(void **state)
{
    shard_counter c;

    (void)state;
    shard_pieces(SHARDS_MOST, (shard_node){1, SHARDS_MOST - 2}, &c);
    assert_in_range(c.n, 30, SHARD_PIECES_MOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_contiguous_and_equal_but_for_one_shard),
        cmocka_unit_test(every_division_gives_the_tree_of_the_definition),
        cmocka_unit_test(pieces_are_the_largest_nodes_of_the_range),
        cmocka_unit_test(aligned_divisions_need_one_all_reduce),
        cmocka_unit_test(most_shards_fit_in_a_counter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
