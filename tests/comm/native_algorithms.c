/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_algorithms.c - the table of algorithms: its defaults, the rows of LOCKSTEP_ALGORITHMS, and
 * what is printed of it.
 */
#include "base/unit.h"

#include "base/text.h"
#include "comm/backends/native/team/algorithms.h"
#include "comm/backends/native/team/team_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void every_operation_has_a_rule_for_any_memory(void **state)
{
    team_rule rule;

    (void)state;
    for (int k = 0; k <= COLL_BARRIER; k++) {
        bool is_served = false;

        for (int i = 0; algorithm_table_row(NULL, i, &rule); i++)
            is_served |= rule.kind == (coll_kind)k && rule.max_bytes == SIZE_MAX &&
                         rule.max_ranks == INT_MAX && rule.memory == TEAM_ANY_MEMORY;
        assert_true(is_served);
    }
    assert_false(algorithm_table_row(NULL, -1, &rule));
}

/* Also where the memory is shared: the stamp is read anyway. */
static void small_contributions_are_published_with_the_stamp(void **state)
{
    team_rule rule;

    (void)state;
    for (int k = 0; k <= COLL_BARRIER; k++) {
        int i = 0;

        do
            assert_true(algorithm_table_row(NULL, i++, &rule));
        while (rule.kind != (coll_kind)k ||
               ((unsigned)rule.memory & (TEAM_HAS_GATES | TEAM_HAS_LEVELS)) != 0);
        assert_string_equal(rule.algorithm, "inline");
        assert_in_range(rule.max_bytes, 4096, SIZE_MAX);
    }
}

/* Of a team without gates. */
static const char *algorithm_for(coll_kind kind, int ranks, size_t bytes, team_memory memory)
{
    team_rule rule;

    for (int i = 0; algorithm_table_row(NULL, i, &rule); i++) {
        if (rule.kind == kind && ranks <= rule.max_ranks && bytes <= rule.max_bytes &&
            ((unsigned)rule.memory & ~(unsigned)memory) == 0)
            return rule.algorithm;
    }
    return "none";
}

static void few_ranks_copy_what_they_could_read_in_place(void **state)
{
    static const coll_kind kinds[] = {COLL_BROADCAST, COLL_ALL_GATHER, COLL_REDUCE_SCATTER,
                                      COLL_ALL_TO_ALL};
    const size_t mib = (size_t)1 << 20;

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(kinds); i++) {
        for (team_memory m = TEAM_ANY_MEMORY; m <= TEAM_BEST_MEMORY; m++) {
            assert_string_equal(algorithm_for(kinds[i], 2, 4 * mib, m), "staged");
            assert_string_equal(algorithm_for(kinds[i], 4, 4 * mib, m), "staged");
        }
        assert_string_equal(algorithm_for(kinds[i], 4, 5 * mib, TEAM_BEST_MEMORY), "shared");
        assert_string_equal(algorithm_for(kinds[i], 5, mib / 2, TEAM_BEST_MEMORY), "shared");
        assert_string_equal(algorithm_for(kinds[i], 5, 9 * mib, TEAM_READABLE_MEMORY), "direct");
    }
    assert_string_equal(algorithm_for(COLL_ALL_REDUCE, 2, mib, TEAM_BEST_MEMORY), "shared");
}

static void user_rows_precede_the_defaults(void **state)
{
    algorithm_table *t = NULL;
    team_rule rule;

    (void)state;
    assert_int_equal(algorithm_table_create("all_reduce:staged<=1M,gather:direct@4", &t), LS_OK);
    assert_int_equal(algorithm_table_user_rows(t), 2);
    assert_true(algorithm_table_row(t, 0, &rule));
    assert_int_equal(rule.kind, COLL_ALL_REDUCE);
    assert_string_equal(rule.algorithm, "staged");
    assert_int_equal(rule.max_bytes, 1 << 20);
    assert_int_equal(rule.max_ranks, INT_MAX);
    assert_true(algorithm_table_row(t, 1, &rule));
    assert_int_equal(rule.kind, COLL_GATHER);
    assert_int_equal(rule.memory, TEAM_READABLE_MEMORY);
    assert_int_equal(rule.max_ranks, 4);
    algorithm_table_free(t);
    // All operations that direct supports: not reduce, nor the barrier.
    assert_int_equal(algorithm_table_create("all:direct", &t), LS_OK);
    assert_int_equal(algorithm_table_user_rows(t), 7);
    algorithm_table_free(t);
}

static void invalid_row_is_named(void **state)
{
    static const struct {
        const char *text;
        const char *part;
    } bad[] = {
        {"all_reduce", "invalid row \"all_reduce\": write [hosts/]OPERATION:ALGORITHM"},
        {"hosts/all_reduce:staged", "no algorithm \"staged\" between hosts"},
        {"hosts/all_reduce:doubling", "doubling carries at most 2048 bytes: write doubling<=2048"},
        {"hosts/all:slices", "unknown operation \"all\""},
        {"allreduce:staged", "unknown operation \"allreduce\" (known: all, all_reduce"},
        {"all_reduce:ring", "unknown algorithm \"ring\" (known: inline, staged, shared, direct, "
                            "levels)"},
        {"all_reduce:inline", "inline carries at most 4096 bytes: write inline<=4096"},
        {"all_reduce:inline<=32K", "inline carries at most 4096 bytes"},
        {"reduce:direct", "direct does not support reduce"},
        {"gather:levels", "levels does not support gather"},
        {"all_reduce:staged<=many", "many"},
        {"all_reduce:staged@0", "0"},
        {"barrier:inline<=8", "unknown operation \"barrier\""},
        {"all_reduce:staged<=1M,,", "invalid row \"\": write [hosts/]OPERATION:ALGORITHM"},
        {"all:staged,all:staged,all:staged,all:staged,all:staged,all:staged,all:staged,all:staged,"
         "all:staged",
         "more than 8 rows for all_reduce"},
        {"all_reduce:staged________________________________________________________________________"
         "________",
         "bytes, more than the limit of 95"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        algorithm_table *t = NULL;

        assert_int_equal(algorithm_table_create(bad[i].text, &t), LS_EINVAL);
        assert_non_null(strstr(ls_last_error(), bad[i].part));
        assert_non_null(strstr(ls_last_error(), "LOCKSTEP_ALGORITHMS"));
        assert_null(t);
    }
}

static void the_table_can_be_printed(void **state)
{
    text_buf shown = {0};

    (void)state;
    (void)setenv("LOCKSTEP_ALGORITHMS", "gather:staged<=3M", 1);
    assert_int_equal(algorithms_text(&shown), LS_OK);
    assert_non_null(strstr(text_str(&shown), "host    gather          staged             3 MiB"));
    assert_non_null(strstr(text_str(&shown), "LOCKSTEP_ALGORITHMS\n"));
    assert_non_null(strstr(text_str(&shown), "hosts   barrier         dissemination"));
    text_free(&shown);
    (void)setenv("LOCKSTEP_ALGORITHMS", "gather:slowly", 1);
    assert_int_equal(algorithms_text(&shown), LS_EINVAL);
    (void)unsetenv("LOCKSTEP_ALGORITHMS");
    text_free(&shown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_has_a_rule_for_any_memory),
        cmocka_unit_test(small_contributions_are_published_with_the_stamp),
        cmocka_unit_test(few_ranks_copy_what_they_could_read_in_place),
        cmocka_unit_test(user_rows_precede_the_defaults),
        cmocka_unit_test(invalid_row_is_named),
        cmocka_unit_test(the_table_can_be_printed),
    };

    return cmocka_run_group_tests_name("native algorithms", tests, NULL, NULL);
}
