/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_copy.c - copies into memory that other ranks read: the bytes are the same whichever way
 * they take, and the way follows the comparisons, but not a single one.
 */
#include "base/unit.h"

#include "base/rng.h"
#include "comm/backends/native/memory/copy.h"

#include <string.h>

#define SEED  UINT64_C(20261130)
#define MOST  ((size_t)200000)
#define EDGES ((size_t)128)
#define GUARD 0xA5

static uint8_t source[MOST + EDGES];
static uint8_t target[MOST + 2 * EDGES];
static uint8_t guards[EDGES];

static void expect_copy(copy_way *way, size_t from, size_t to, size_t bytes)
{
    memset(target, GUARD, to + bytes + EDGES);
    copy_shared(way, target + to, source + from, bytes);
    assert_memory_equal(target, guards, to);
    assert_memory_equal(target + to, source + from, bytes);
    assert_memory_equal(target + to + bytes, guards, EDGES);
}

static void every_way_copies_the_bytes(void **state)
{
    static const size_t sizes[] = {0,
                                   1,
                                   63,
                                   64,
                                   2047,
                                   2048,
                                   4097,
                                   COPY_SHARED_BYTES - 1,
                                   COPY_SHARED_BYTES,
                                   COPY_SHARED_BYTES + 1,
                                   16384,
                                   65535,
                                   65536,
                                   65537,
                                   131071,
                                   MOST};
    ls_rng rng = {0};

    (void)state;
    ls_rng_seed(&rng, SEED);
    memset(guards, GUARD, sizeof(guards));
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)ls_rng_next(&rng);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        copy_way chosen = {0};
        copy_way plain = {.gap = 1 << 20, .left = 1 << 20};
        copy_way around = {.gap = 1 << 20, .left = 1 << 20, .is_around = true};

        for (int k = 0; k < 20; k++) { // of which several compare
            const size_t from = (size_t)ls_rng_below(&rng, EDGES);
            const size_t to = (size_t)ls_rng_below(&rng, EDGES);

            expect_copy(&chosen, from, to, sizes[i]);
            expect_copy(&plain, from, to, sizes[i]);
            expect_copy(&around, from, to, sizes[i]);
            copy_always_around(true);
            expect_copy(&plain, from, to, sizes[i]);
            copy_always_around(false);
        }
        assert_false(plain.is_around);
        assert_true(around.is_around);
    }
}

/* The number of copies up to the one that compares. */
static int count_to_comparison(copy_way *way)
{
    int n = 1;

    while (!copy_way_compares(way))
        n++;
    return n;
}

static void a_way_changes_after_several_comparisons_in_a_row(void **state)
{
    copy_way way = {0};
    int n = 0;

    (void)state;
    assert_true(count_to_comparison(&way) > 4); // behind the first use of all buffers
    for (int k = 0; k < 100; k++) {             // an interrupt in every third one
        copy_way_compared(&way, k % 3 == 0);
        assert_false(way.is_around);
        n = count_to_comparison(&way);
        assert_true(n <= 65);
    }
    copy_way_compared(&way, false);
    for (n = 0; !way.is_around; n++)
        copy_way_compared(&way, true);
    assert_int_equal(n, 3);
    for (int k = 0; k < 100; k++) {
        copy_way_compared(&way, k % 3 != 0);
        assert_true(way.is_around);
        (void)count_to_comparison(&way);
    }
    for (int k = 0; k < 3; k++)
        copy_way_compared(&way, false);
    assert_false(way.is_around);
}

/* Comparisons that agree become rare. */
static void comparisons_are_few(void **state)
{
    copy_way way = {0};
    int n_compared = 0;

    (void)state;
    for (int k = 0; k < 6500; k++) {
        if (!copy_way_compares(&way))
            continue;
        n_compared++;
        copy_way_compared(&way, false);
    }
    assert_in_range(n_compared, 90, 110);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_copies_the_bytes),
        cmocka_unit_test(a_way_changes_after_several_comparisons_in_a_row),
        cmocka_unit_test(comparisons_are_few),
    };

    print_message("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests_name("native copy", tests, NULL, NULL);
}
