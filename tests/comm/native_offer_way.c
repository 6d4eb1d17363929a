/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_offer_way.c - how a receiver takes messages that it could read: the faster way, which it
 * finds by comparisons that become rare.
 */
#include "base/unit.h"

#include "comm/backends/native/memory/offer_way.h"

#define BYTES ((size_t)1 << 20)

/* Takes n messages that cost so much either way; returns how many came in pieces. */
static int take(offer_way *w, int n, int64_t read_ns, int64_t pieces_ns)
{
    int n_pieces = 0;

    for (int i = 0; i < n; i++) {
        bool is_timed;
        const bool in_pieces = offer_way_takes_pieces(w, &is_timed);

        n_pieces += in_pieces;
        if (is_timed)
            offer_way_ended(w, BYTES, in_pieces ? pieces_ns : read_ns);
    }
    return n_pieces;
}

static void the_faster_way_is_taken(void **state)
{
    offer_way w = {0};

    (void)state;
    assert_in_range(take(&w, 1000, 20000, 100000), 1, 40); // read, but for comparisons
    (void)take(&w, 400, 100000, 40000);                    // three comparisons, far apart
    assert_in_range(take(&w, 1000, 100000, 40000), 950, 999);
    (void)take(&w, 400, 20000, 40000);
    assert_in_range(take(&w, 1000, 20000, 40000), 1, 40);
    (void)take(&w, 400, 40000, 39000); // no faster: reading does not need the sender
    assert_in_range(take(&w, 1000, 40000, 39000), 1, 40);
}

/* Other messages come while those of a comparison are under way. */
static void one_message_of_each_way_is_timed(void **state)
{
    offer_way w = {0};
    bool is_timed = false;

    (void)state;
    while (!is_timed)
        assert_false(offer_way_takes_pieces(&w, &is_timed));
    for (int i = 0; i < 500; i++) {
        assert_false(offer_way_takes_pieces(&w, &is_timed));
        assert_false(is_timed);
    }
    offer_way_ended(&w, BYTES, 1000);
    assert_true(offer_way_takes_pieces(&w, &is_timed));
    assert_true(is_timed);
    for (int i = 0; i < 500; i++) {
        assert_false(offer_way_takes_pieces(&w, &is_timed));
        assert_false(is_timed);
    }
    offer_way_ended(&w, BYTES, 500);
    assert_false(w.way.is_around); // after one comparison
    assert_int_equal(w.step, OFFER_WAY_IDLE);
}

static void a_comparison_that_fails_is_tried_again(void **state)
{
    offer_way w = {0};
    bool is_timed = false;

    (void)state;
    while (!is_timed)
        assert_false(offer_way_takes_pieces(&w, &is_timed));
    offer_way_gave_up(&w);
    (void)take(&w, 400, 100000, 40000);
    assert_in_range(take(&w, 1000, 100000, 40000), 950, 999);
}

static void sizes_and_kinds_have_their_own_ways(void **state)
{
    offer_ways all = {0};

    (void)state;
    assert_null(offer_ways_find(&all, 1, false));
    assert_null(offer_ways_find(&all, 65536, true));
    assert_ptr_equal(offer_ways_find(&all, 65537, false), &all.of[0][0]);
    assert_ptr_equal(offer_ways_find(&all, 131072, true), &all.of[1][0]);
    assert_ptr_equal(offer_ways_find(&all, 131073, true), &all.of[1][1]);
    assert_ptr_equal(offer_ways_find(&all, (size_t)4 << 20, false), &all.of[0][5]);
    assert_null(offer_ways_find(&all, ((size_t)4 << 20) + 1, false));
    assert_null(offer_ways_find(&all, SIZE_MAX, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_faster_way_is_taken),
        cmocka_unit_test(one_message_of_each_way_is_timed),
        cmocka_unit_test(a_comparison_that_fails_is_tried_again),
        cmocka_unit_test(sizes_and_kinds_have_their_own_ways),
    };

    return cmocka_run_group_tests_name("native offer_way", tests, NULL, NULL);
}
