/* SPDX-License-Identifier: Apache-2.0 */
/* test_message_counts.c - the numbers of messages: exact, growing, and in bounded memory. */
#include "base/unit.h"

#include "comm/record/message_counts.h"

#include <malloc.h>

#define MANY_TAGS   1000000
#define SEVERAL     1000
#define BYTES_MAX   (1 << 20)
#define SAVED_EVERY 1000

static uint64_t next(message_counts *m, int is_send, int peer, int tag)
{
    const message_count key = {.is_send = is_send, .peer = peer, .tag = tag};
    uint64_t number = 0;

    assert_int_equal(message_counts_next(m, &key, &number), LS_OK);
    return number;
}

static void each_direction_peer_and_tag_counts_from_1(void **state)
{
    message_counts m = {.n_slots = 0};

    (void)state;
    for (uint64_t round = 1; round <= 3; round++) {
        for (int tag = 0; tag < SEVERAL; tag++) {
            assert_int_equal(next(&m, 0, 1, tag), round);
            assert_int_equal(next(&m, 1, 1, tag), round);
            assert_int_equal(next(&m, 1, 2, tag), 2 * round - 1);
            assert_int_equal(next(&m, 1, 2, tag), 2 * round);
        }
    }
    message_counts_free(&m);
}

static void a_million_tags_take_less_than_a_mebibyte(void **state)
{
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    message_counts m = {.n_slots = 0};
    size_t after;

    (void)state;
    for (int tag = 0; tag < MANY_TAGS; tag++)
        (void)next(&m, tag & 1, tag % 7, tag);
    after = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_true(after - before < BYTES_MAX);
    message_counts_free(&m);
}

/* Also where the table has dropped the tag meanwhile. */
static void numbers_of_a_tag_never_repeat(void **state)
{
    static uint64_t last[SAVED_EVERY];
    message_counts m = {.n_slots = 0};

    (void)state;
    for (int i = 0; i < 20 * SAVED_EVERY; i++) {
        const int tag = i % SAVED_EVERY;
        const uint64_t number = next(&m, 1, 0, tag);

        assert_true(number > last[tag]);
        last[tag] = number;
        for (int k = 0; k < 20; k++)
            (void)next(&m, 1, 1, i * 20 + k);
    }
    message_counts_free(&m);
}

static void numbers_of_more_than_32_bits_are_exact(void **state)
{
    message_counts m = {.floor = UINT32_MAX - UINT64_C(1)};

    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        assert_true(next(&m, 1, 0, 5) == UINT32_MAX + i);
        assert_true(next(&m, 1, 0, 6) == UINT32_MAX + i);
    }
    message_counts_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_direction_peer_and_tag_counts_from_1),
        cmocka_unit_test(a_million_tags_take_less_than_a_mebibyte),
        cmocka_unit_test(numbers_of_a_tag_never_repeat),
        cmocka_unit_test(numbers_of_more_than_32_bits_are_exact),
    };

    return cmocka_run_group_tests_name("message counts", tests, NULL, NULL);
}
