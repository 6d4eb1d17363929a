/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sampler.c - tests the sampler against PyTorch's DistributedSampler, its modes, and the fixed
 * order of a seed.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "data/sampler.h"

#include <stdbool.h>
#include <stdlib.h>

static ls_sampler *make(size_t count, int rank, int world, ls_sampler_mode mode, int no_shuffle)
{
    ls_sampler *s = NULL;
    const ls_sampler_options opt = {.size = sizeof(opt),
                                    .count = count,
                                    .rank = rank,
                                    .world_size = world,
                                    .seed = 7,
                                    .no_shuffle = no_shuffle,
                                    .mode = mode};

    assert_ok(ls_sampler_create(&opt, &s));
    return s;
}

static void assert_order(const ls_sampler *s, const size_t *want, size_t n)
{
    assert_int_equal(ls_sampler_count(s), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ls_sampler_index(s, i), want[i]);
}

/* The figures are those of torch.utils.data.DistributedSampler(shuffle=False). */
static void padding_equals_pytorchs(void **state)
{
    static const size_t first[] = {0, 3, 6, 9};
    static const size_t last[] = {2, 5, 8, 1};
    ls_sampler *a = make(10, 0, 3, LS_SAMPLER_PAD, 1);
    ls_sampler *b = make(10, 2, 3, LS_SAMPLER_PAD, 1);

    LS_UNUSED(state);
    assert_order(a, first, 4);
    assert_order(b, last, 4);
    ls_sampler_destroy(a);
    ls_sampler_destroy(b);
}

static void padding_repeats_small_sets(void **state)
{
    LS_UNUSED(state);
    for (int rank = 0; rank < 8; rank++) {
        const size_t want = (size_t)rank % 3;
        ls_sampler *s = make(3, rank, 8, LS_SAMPLER_PAD, 1);

        assert_order(s, &want, 1);
        ls_sampler_destroy(s);
    }
}

static void drop_last_gives_all_ranks_equally_many(void **state)
{
    static const size_t want[] = {2, 5, 8};
    ls_sampler *s = make(11, 2, 3, LS_SAMPLER_DROP_LAST, 1);

    LS_UNUSED(state);
    assert_order(s, want, 3);
    ls_sampler_destroy(s);
    s = make(2, 0, 3, LS_SAMPLER_DROP_LAST, 1);
    assert_int_equal(ls_sampler_count(s), 0);
    ls_sampler_destroy(s);
}

/* How often the ranks together see each sample. */
static void count_visits(size_t count, int world, ls_sampler_mode mode, unsigned *visits)
{
    memset(visits, 0, count * sizeof(*visits));
    for (int rank = 0; rank < world; rank++) {
        ls_sampler *s = make(count, rank, world, mode, 0);

        assert_ok(ls_sampler_set_epoch(s, 5));
        for (size_t i = 0; i < ls_sampler_count(s); i++) {
            assert_true(ls_sampler_index(s, i) < count);
            visits[ls_sampler_index(s, i)]++;
        }
        ls_sampler_destroy(s);
    }
}

static void each_mode_visits_the_documented_samples(void **state)
{
    unsigned visits[64];

    LS_UNUSED(state);
    for (size_t count = 0; count < 64; count++) {
        for (int world = 1; world <= 8; world++) {
            size_t n_dropped = 0;
            size_t n_padded = 0;

            count_visits(count, world, LS_SAMPLER_UNEVEN, visits);
            for (size_t i = 0; i < count; i++)
                assert_int_equal(visits[i], 1);
            count_visits(count, world, LS_SAMPLER_DROP_LAST, visits);
            for (size_t i = 0; i < count; i++) {
                assert_true(visits[i] <= 1);
                n_dropped += visits[i] == 0;
            }
            assert_int_equal(n_dropped, count % (size_t)world);
            count_visits(count, world, LS_SAMPLER_PAD, visits);
            for (size_t i = 0; i < count; i++) {
                assert_true(visits[i] >= 1);
                n_padded += visits[i];
            }
            assert_true(n_padded % (size_t)world == 0 && n_padded < count + (size_t)world);
        }
    }
}

/* Ranks of one number take the first `skip` samples of an order, ranks of another number the
 * rest. */
static void skipped_samples_are_the_first_of_the_order(void **state)
{
    size_t order[29];
    ls_sampler *whole = make(29, 0, 1, LS_SAMPLER_UNEVEN, 0);

    LS_UNUSED(state);
    for (size_t i = 0; i < 29; i++)
        order[i] = ls_sampler_index(whole, i);
    ls_sampler_destroy(whole);
    for (size_t skip = 0; skip <= 29; skip++) {
        for (int rank = 0; rank < 3; rank++) {
            const ls_sampler_options opt = {.size = sizeof(opt),
                                            .count = 29,
                                            .rank = rank,
                                            .world_size = 3,
                                            .seed = 7,
                                            .mode = LS_SAMPLER_PAD,
                                            .skip = skip};
            ls_sampler *s;

            assert_ok(ls_sampler_create(&opt, &s));
            assert_int_equal(ls_sampler_count(s), (29 - skip + 2) / 3);
            for (size_t i = 0; i < ls_sampler_count(s); i++)
                assert_int_equal(ls_sampler_index(s, i), order[(skip + 3 * i + (size_t)rank) % 29]);
            ls_sampler_destroy(s);
        }
    }
}

static void uneven_lengths_differ_by_at_most_one(void **state)
{
    LS_UNUSED(state);
    for (int rank = 0; rank < 5; rank++) {
        ls_sampler *s = make(13, rank, 5, LS_SAMPLER_UNEVEN, 0);

        assert_int_equal(ls_sampler_count(s), rank < 3 ? 3 : 2);
        ls_sampler_destroy(s);
    }
}

static void the_order_depends_on_seed_and_epoch_only(void **state)
{
    ls_sampler *a = make(1000, 0, 1, LS_SAMPLER_PAD, 0);
    ls_sampler *b = make(1000, 0, 1, LS_SAMPLER_PAD, 0);
    size_t n_equal = 0;

    LS_UNUSED(state);
    for (uint64_t epoch = 0; epoch < 9; epoch++)
        assert_ok(ls_sampler_set_epoch(a, epoch));
    assert_ok(ls_sampler_set_epoch(b, 8));
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(ls_sampler_index(a, i), ls_sampler_index(b, i));
    assert_ok(ls_sampler_set_epoch(b, 9));
    for (size_t i = 0; i < 1000; i++)
        n_equal += ls_sampler_index(a, i) == ls_sampler_index(b, i);
    assert_true(n_equal < 20);
    ls_sampler_destroy(a);
    ls_sampler_destroy(b);
}

static void a_sampler_of_another_rank_has_its_order(void **state)
{
    ls_sampler *moved = make(101, 0, 4, LS_SAMPLER_PAD, 0);

    LS_UNUSED(state);
    for (int rank = 3; rank >= 0; rank--) {
        ls_sampler *own = make(101, rank, 4, LS_SAMPLER_PAD, 0);

        sampler_set_rank(moved, rank);
        for (int i = 0; i < 2; i++) { // the second time the order is there
            assert_ok(ls_sampler_set_epoch(own, 5));
            assert_ok(ls_sampler_set_epoch(moved, 5));
        }
        assert_int_equal(ls_sampler_count(moved), ls_sampler_count(own));
        for (size_t i = 0; i < ls_sampler_count(own); i++)
            assert_int_equal(ls_sampler_index(moved, i), ls_sampler_index(own, i));
        ls_sampler_destroy(own);
    }
    ls_sampler_destroy(moved);
}

/* --- batches that are divided unequally --- */

enum { DIVIDED_RANKS = 3 };

static size_t batch_of(const int *rows)
{
    size_t n = 0;

    for (int r = 0; r < DIVIDED_RANKS; r++)
        n += (size_t)rows[r];
    return n;
}

/* The ranks have the samples of each batch of all ranks, as often as it has them. */
static void assert_same_batches(size_t count, size_t skip, const int *rows, ls_sampler_mode mode,
                                bool drop_last)
{
    static int missing[32][80]; /* of each batch: of each sample */
    const size_t batch = batch_of(rows);
    size_t n_all = count - skip;

    if (mode == LS_SAMPLER_PAD)
        n_all = (n_all + DIVIDED_RANKS - 1) / DIVIDED_RANKS * DIVIDED_RANKS;
    n_all -= drop_last ? n_all % batch : 0;
    memset(missing, 0, sizeof(missing));
    for (size_t i = 0; i < n_all; i++)
        missing[i / batch][(skip + i) % count]++;
    for (int rank = 0; rank < DIVIDED_RANKS; rank++) {
        const ls_sampler_options opt = {.size = sizeof(opt),
                                        .count = count,
                                        .rank = rank,
                                        .world_size = DIVIDED_RANKS,
                                        .no_shuffle = 1,
                                        .mode = mode,
                                        .skip = skip};
        ls_sampler *s;

        assert_ok(ls_sampler_create(&opt, &s));
        assert_ok(sampler_divide(s, (const int[DIVIDED_RANKS]){1, 2, 3}, false)); // before
        assert_ok(sampler_divide(s, rows, drop_last));
        for (size_t i = 0; i < ls_sampler_count(s); i++)
            missing[i / (size_t)rows[rank]][ls_sampler_index(s, i)]--;
        ls_sampler_destroy(s);
    }
    for (size_t i = 0; i < 32 * 80; i++)
        assert_int_equal(missing[i / 80][i % 80], 0);
}

static void a_partition_changes_no_batch(void **state)
{
    static const int divisions[][DIVIDED_RANKS] = {{4, 4, 4}, {7, 3, 2}, {1, 1, 10}, {2, 9, 1},
                                                   {8, 2, 2}, {1, 1, 1}, {5, 4, 3}};

    LS_UNUSED(state);
    for (size_t d = 0; d < LS_COUNT_OF(divisions); d++)
        for (size_t count = 12; count < 75; count++)
            for (size_t skip = 0; skip < 24; skip += 11) {
                const size_t at = skip < count ? skip : 0;

                assert_same_batches(count, at, divisions[d], LS_SAMPLER_PAD, false);
                assert_same_batches(count, at, divisions[d], LS_SAMPLER_PAD, true);
                assert_same_batches(count, at, divisions[d], LS_SAMPLER_UNEVEN, false);
            }
}

static void equal_numbers_change_nothing(void **state)
{
    static const int rows[DIVIDED_RANKS] = {4, 4, 4};
    static const ls_sampler_mode modes[] = {LS_SAMPLER_PAD, LS_SAMPLER_DROP_LAST,
                                            LS_SAMPLER_UNEVEN};

    LS_UNUSED(state);
    for (size_t m = 0; m < LS_COUNT_OF(modes); m++)
        for (size_t count = 0; count < 60; count++)
            for (int rank = 0; rank < DIVIDED_RANKS; rank++) {
                ls_sampler *plain = make(count, rank, DIVIDED_RANKS, modes[m], 0);
                ls_sampler *divided = make(count, rank, DIVIDED_RANKS, modes[m], 0);

                assert_ok(sampler_divide(divided, rows, false));
                assert_int_equal(ls_sampler_count(divided), ls_sampler_count(plain));
                for (size_t i = 0; i < ls_sampler_count(plain); i++)
                    assert_int_equal(ls_sampler_index(divided, i), ls_sampler_index(plain, i));
                ls_sampler_destroy(plain);
                ls_sampler_destroy(divided);
            }
}

/* Of 3, 6, ... samples of all ranks: two first, then a share. */
static void short_batches_have_rows_for_each_rank(void **state)
{
    static const int rows[DIVIDED_RANKS] = {24, 8, 4};
    static const size_t want[][DIVIDED_RANKS] = {{1, 1, 1},  {2, 2, 2},  {4, 3, 2},  {7, 3, 2},
                                                 {8, 4, 3},  {11, 4, 3}, {13, 5, 3}, {15, 6, 3},
                                                 {18, 6, 3}, {19, 7, 4}, {22, 7, 4}, {24, 8, 4}};

    LS_UNUSED(state);
    for (size_t t = 1; t <= 12; t++)
        for (int rank = 0; rank < DIVIDED_RANKS; rank++) {
            ls_sampler *s = make(t * DIVIDED_RANKS, rank, DIVIDED_RANKS, LS_SAMPLER_PAD, 0);

            assert_ok(sampler_divide(s, rows, false));
            assert_int_equal(ls_sampler_count(s), want[t - 1][rank]);
            ls_sampler_destroy(s);
        }
}

/* The order is part of what a checkpoint's resume relies on: it may not change between versions. */
static void the_order_of_a_seed_is_fixed(void **state)
{
    static const size_t want[] = {5, 9, 2, 6, 8, 4, 1, 0, 3, 7};
    ls_sampler *s = make(10, 0, 1, LS_SAMPLER_PAD, 0);

    LS_UNUSED(state);
    assert_ok(ls_sampler_set_epoch(s, 3));
    assert_order(s, want, 10);
    ls_sampler_destroy(s);
}

/* --- buckets by length --- */

enum { BUCKET_COUNT = 1003, BUCKET_RANKS = 3, BUCKET_BATCH = 4 };

static int64_t lengths[BUCKET_COUNT];

static ls_sampler *make_buckets(int rank, size_t skip, int no_shuffle, ls_sampler_mode mode)
{
    const ls_sampler_options opt = {.size = sizeof(opt),
                                    .count = BUCKET_COUNT,
                                    .rank = rank,
                                    .world_size = BUCKET_RANKS,
                                    .seed = 9,
                                    .no_shuffle = no_shuffle,
                                    .mode = mode,
                                    .skip = skip,
                                    .lengths = lengths,
                                    .bucket_rows = BUCKET_RANKS * BUCKET_BATCH};
    ls_sampler *s = NULL;

    for (size_t i = 0; i < BUCKET_COUNT; i++)
        lengths[i] = (int64_t)(i * 7919 % 400);
    assert_ok(ls_sampler_create(&opt, &s));
    return s;
}

/* The order of all ranks together. */
static void read_buckets(uint64_t epoch, int no_shuffle, size_t *order)
{
    for (int rank = 0; rank < BUCKET_RANKS; rank++) {
        ls_sampler *s = make_buckets(rank, 0, no_shuffle, LS_SAMPLER_UNEVEN);

        assert_ok(ls_sampler_set_epoch(s, epoch));
        for (size_t i = 0; i < ls_sampler_count(s); i++)
            order[i * BUCKET_RANKS + (size_t)rank] = ls_sampler_index(s, i);
        ls_sampler_destroy(s);
    }
}

/* Sum over the batches of all ranks of the longest sample's length times the rows. */
static int64_t padded_frames(const size_t *order)
{
    const size_t group = BUCKET_RANKS * BUCKET_BATCH;
    int64_t sum = 0;

    for (size_t first = 0; first < BUCKET_COUNT; first += group) {
        const size_t n = BUCKET_COUNT - first < group ? BUCKET_COUNT - first : group;
        int64_t longest = 0;

        for (size_t i = first; i < first + n; i++)
            longest = lengths[order[i]] > longest ? lengths[order[i]] : longest;
        sum += longest * (int64_t)n;
    }
    return sum;
}

static void buckets_hold_samples_of_similar_length(void **state)
{
    static size_t order[BUCKET_COUNT];
    static size_t next[BUCKET_COUNT];
    static bool seen[BUCKET_COUNT];
    int64_t frames = 0;
    size_t n_equal = 0;

    LS_UNUSED(state);
    read_buckets(0, 0, order);
    read_buckets(1, 0, next);
    memset(seen, 0, sizeof(seen));
    for (size_t i = 0; i < BUCKET_COUNT; i++) {
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
        frames += lengths[order[i]];
        n_equal += order[i] == next[i];
    }
    // At random a batch of 12 rows would be padded by more than four fifths.
    assert_true(padded_frames(order) < frames * 104 / 100);
    assert_true(padded_frames(next) < frames * 104 / 100);
    assert_true(n_equal < 20);
}

static void unshuffled_buckets_are_sorted(void **state)
{
    static size_t order[BUCKET_COUNT];

    LS_UNUSED(state);
    read_buckets(3, 1, order);
    for (size_t i = 1; i < BUCKET_COUNT; i++)
        assert_true(lengths[order[i - 1]] < lengths[order[i]] ||
                    (lengths[order[i - 1]] == lengths[order[i]] && order[i - 1] < order[i]));
}

/* As without buckets: a resumed epoch skips the first samples, and all ranks have as many. */
static void buckets_are_skipped_and_padded_as_any_order(void **state)
{
    static size_t order[BUCKET_COUNT];

    LS_UNUSED(state);
    read_buckets(2, 0, order);
    for (size_t skip = 0; skip <= BUCKET_COUNT; skip += 17) {
        for (int rank = 0; rank < BUCKET_RANKS; rank++) {
            ls_sampler *s = make_buckets(rank, skip, 0, LS_SAMPLER_PAD);

            assert_ok(ls_sampler_set_epoch(s, 2));
            assert_int_equal(ls_sampler_count(s),
                             (BUCKET_COUNT - skip + BUCKET_RANKS - 1) / BUCKET_RANKS);
            for (size_t i = 0; i < ls_sampler_count(s); i++)
                assert_int_equal(ls_sampler_index(s, i),
                                 order[(skip + i * BUCKET_RANKS + (size_t)rank) % BUCKET_COUNT]);
            ls_sampler_destroy(s);
        }
    }
}

/* Part of what resuming relies on, as the order without buckets. */
static void the_order_of_buckets_is_fixed(void **state)
{
    static const size_t want[] = {2, 8, 0, 5, 1, 6, 9, 4, 3, 7};
    const int64_t ten[10] = {5, 1, 4, 1, 3, 9, 2, 6, 5, 3};
    const ls_sampler_options opt = {
        .size = sizeof(opt), .count = 10, .seed = 7, .lengths = ten, .bucket_rows = 4};
    ls_sampler *s;

    LS_UNUSED(state);
    assert_ok(ls_sampler_create(&opt, &s));
    assert_ok(ls_sampler_set_epoch(s, 3));
    assert_order(s, want, 10);
    ls_sampler_destroy(s);
}

static void an_empty_set_gives_nothing(void **state)
{
    LS_UNUSED(state);
    for (int mode = LS_SAMPLER_PAD; mode <= LS_SAMPLER_UNEVEN; mode++) {
        ls_sampler *s = make(0, 1, 2, (ls_sampler_mode)mode, 0);

        assert_ok(ls_sampler_set_epoch(s, 1));
        assert_int_equal(ls_sampler_count(s), 0);
        ls_sampler_destroy(s);
    }
}

static void invalid_options_are_named(void **state)
{
    static const struct {
        ls_sampler_options opt;
        const char *message;
    } cases[] = {
        {{.size = 3, .count = 1}, "options"},
        {{.size = sizeof(ls_sampler_options), .rank = 1}, "rank 1 is not below world size 1"},
        {{.size = sizeof(ls_sampler_options), .rank = -1, .world_size = 2},
         "rank -1 is not below world size 2"},
        {{.size = sizeof(ls_sampler_options), .world_size = -2}, "world size -2"},
        {{.size = sizeof(ls_sampler_options), .count = SIZE_MAX}, "2^32"},
        {{.size = sizeof(ls_sampler_options), .mode = (ls_sampler_mode)3}, "invalid mode 3"},
        {{.size = sizeof(ls_sampler_options), .count = 3, .bucket_rows = 4}, "need both lengths"},
        {{.size = sizeof(ls_sampler_options), .count = 3, .lengths = lengths}, "need both lengths"},
        {{.size = sizeof(ls_sampler_options), .count = 3, .skip = 4},
         "skip 4 exceeds the 3 samples"},
    };
    ls_sampler *s;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_status(ls_sampler_create(&cases[i].opt, &s), LS_EINVAL);
        assert_last_error(cases[i].message);
    }
    assert_status(ls_sampler_create(NULL, &s), LS_EINVAL);
    ls_sampler_destroy(NULL);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    const ls_sampler_options opt = {
        .size = sizeof(opt), .count = 10, .lengths = lengths, .bucket_rows = 2};
    ls_sampler *s;

    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 5; n++) {
        ls_alloc_fail_at(n);
        assert_status(ls_sampler_create(&opt, &s), LS_ENOMEM);
        ls_alloc_fail_at(0);
    }
    assert_ok(ls_sampler_create(&opt, &s));
    ls_sampler_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_equals_pytorchs),
        cmocka_unit_test(padding_repeats_small_sets),
        cmocka_unit_test(drop_last_gives_all_ranks_equally_many),
        cmocka_unit_test(each_mode_visits_the_documented_samples),
        cmocka_unit_test(skipped_samples_are_the_first_of_the_order),
        cmocka_unit_test(uneven_lengths_differ_by_at_most_one),
        cmocka_unit_test(the_order_depends_on_seed_and_epoch_only),
        cmocka_unit_test(a_sampler_of_another_rank_has_its_order),
        cmocka_unit_test(a_partition_changes_no_batch),
        cmocka_unit_test(equal_numbers_change_nothing),
        cmocka_unit_test(short_batches_have_rows_for_each_rank),
        cmocka_unit_test(the_order_of_a_seed_is_fixed),
        cmocka_unit_test(buckets_hold_samples_of_similar_length),
        cmocka_unit_test(unshuffled_buckets_are_sorted),
        cmocka_unit_test(buckets_are_skipped_and_padded_as_any_order),
        cmocka_unit_test(the_order_of_buckets_is_fixed),
        cmocka_unit_test(an_empty_set_gives_nothing),
        cmocka_unit_test(invalid_options_are_named),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
