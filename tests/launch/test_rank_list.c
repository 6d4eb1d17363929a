/* SPDX-License-Identifier: Apache-2.0 */
/* The lists behind -r, -t, --ranks and --signals-to-handle, and ${local_rank} in arguments. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/signal_list.h"
#include "base/text.h"
#include "launch/agent/rank_args.h"
#include "launch/spec/rank_list.h"

#include <signal.h>

static void one_digit_is_for_all_ranks(void **state)
{
    static const char *const digits[] = {"0", "1", "2", "3"};
    rank_list list;

    LS_UNUSED(state);
    for (unsigned i = 0; i < 4; i++) {
        assert_ok(rank_list_parse_streams(digits[i], "--tee", &list));
        assert_int_equal(rank_list_streams(&list, 0), i);
        assert_int_equal(rank_list_streams(&list, 4095), i);
        assert_int_equal(rank_list_is_empty(&list), i == 0);
    }
}

static void a_list_is_by_rank_and_names_the_rest_nothing(void **state)
{
    rank_list list;

    LS_UNUSED(state);
    assert_ok(rank_list_parse_streams("0:3,1:1,12:2", "--tee", &list));
    assert_int_equal(rank_list_streams(&list, 0), RANK_STREAMS_BOTH);
    assert_int_equal(rank_list_streams(&list, 1), RANK_STDOUT);
    assert_int_equal(rank_list_streams(&list, 2), RANK_STREAMS_NONE);
    assert_int_equal(rank_list_streams(&list, 12), RANK_STDERR);
    assert_ok(rank_list_parse_streams("0-7:1,3:0,65535:3", "--tee", &list));
    assert_int_equal(rank_list_streams(&list, 7), RANK_STDOUT);
    assert_int_equal(rank_list_streams(&list, 3), RANK_STREAMS_NONE); /* the later part wins */
    assert_int_equal(rank_list_streams(&list, 8), RANK_STREAMS_NONE);
    assert_int_equal(rank_list_streams(&list, 65535), RANK_STREAMS_BOTH);
    assert_ok(rank_list_parse_streams("0:0,1:0", "--tee", &list));
    assert_true(rank_list_is_empty(&list));
}

static void ranks_may_be_given_one_by_one_or_from_to(void **state)
{
    rank_list list;

    LS_UNUSED(state);
    assert_ok(rank_list_parse_ranks("0,3", "--ranks", &list));
    assert_int_equal(rank_list_streams(&list, 0), RANK_STREAMS_BOTH);
    assert_int_equal(rank_list_streams(&list, 1), RANK_STREAMS_NONE);
    assert_int_equal(rank_list_streams(&list, 3), RANK_STREAMS_BOTH);
    assert_ok(rank_list_parse_ranks("2-2,4-6", "--ranks", &list));
    for (int i = 0; i < 8; i++)
        assert_int_equal(rank_list_streams(&list, i) != 0, i == 2 || (i >= 4 && i <= 6));
    assert_ok(rank_list_parse_ranks(" 2 , 4-6 ", "--ranks", &list));
    for (int i = 0; i < 8; i++)
        assert_int_equal(rank_list_streams(&list, i) != 0, i == 2 || (i >= 4 && i <= 6));
    assert_ok(rank_list_parse_streams("0:3, 1:1", "--tee", &list));
    assert_int_equal(rank_list_streams(&list, 1), RANK_STDOUT);
}

static void malformed_list_is_reported_with_the_part(void **state)
{
    static const char *const streams[] = {"",     "4",       ",",
                                          "0:4",  "0:",      "0:1,",
                                          ",0:1", "0:1,1",   "a:1",
                                          "-1:1", "3-1:1",   "0:1;1:1",
                                          "0 :1", "65536:1", "99999999999999999999:1",
                                          "0:12", "0-:1",    "0:1,\x1b",
                                          "03"};
    rank_list list;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(streams); i++) {
        assert_status(rank_list_parse_streams(streams[i], "--tee", &list), LS_EINVAL);
        assert_last_error("--tee: ");
    }
    assert_status(rank_list_parse_streams("0:1,1:x,2:3", "--redirects", &list), LS_EINVAL);
    assert_last_error("--redirects: \"1:x\" is not 0, 1 (stdout), 2 (stderr), 3 (both) or a list");
    assert_status(rank_list_parse_ranks("0:1", "--ranks", &list), LS_EINVAL);
    assert_status(rank_list_parse_ranks("", "--ranks", &list), LS_EINVAL);
    assert_status(rank_list_parse_ranks("0,\x1b[31m", "--ranks", &list), LS_EINVAL);
    assert_last_error("\"?[31m\"");
}

static void a_list_has_bounded_length(void **state)
{
    text_buf t = {0};
    rank_list list;

    LS_UNUSED(state);
    for (int i = 0; i < RANK_LIST_MOST; i++)
        text_append(&t, "%s%d", i > 0 ? "," : "", 2 * i);
    assert_ok(rank_list_parse_ranks(text_str(&t), "--ranks", &list));
    assert_int_equal(rank_list_streams(&list, 2 * (RANK_LIST_MOST - 1)), RANK_STREAMS_BOTH);
    text_append(&t, ",1");
    assert_status(rank_list_parse_ranks(text_str(&t), "--ranks", &list), LS_EINVAL);
    assert_last_error("more than 128 parts");
    text_free(&t);
}

/* --- arguments --- */

static void the_local_rank_stands_for_itself_in_arguments(void **state)
{
    char program[] = "${local_rank}"; /* a name, not an argument */
    char args[][40] = {"--rank=${local_rank}", "${local_rank}${local_rank}x", "$local_rank $$ ${x}",
                       ""};
    char *argv[] = {program, args[0], args[1], args[2], args[3], NULL};
    char **made;

    LS_UNUSED(state);
    assert_ok(rank_args_make(argv, 12, &made));
    assert_string_equal(made[0], "${local_rank}");
    assert_string_equal(made[1], "--rank=12");
    assert_string_equal(made[2], "1212x");
    assert_string_equal(made[3], "$local_rank $$ ${x}");
    assert_string_equal(made[4], "");
    assert_null(made[5]);
    rank_args_free(made);
    rank_args_free(NULL);
}

static void no_memory_for_arguments_leaves_nothing(void **state)
{
    char program[] = "a", arg[] = "b${local_rank}";
    char *argv[] = {program, arg, NULL};
    char **made;

    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 3; n++) {
        ls_alloc_fail_at(n);
        assert_status(rank_args_make(argv, 0, &made), LS_ENOMEM);
        ls_alloc_fail_at(0);
    }
}

/* --- signals --- */

static void signals_are_named_with_or_without_sig(void **state)
{
    uint64_t set;

    LS_UNUSED(state);
    assert_ok(signal_list_parse("SIGTERM,INT,SIGUSR1", "--signals-to-handle", &set));
    assert_true(set == (UINT64_C(1) << SIGTERM | UINT64_C(1) << SIGINT | UINT64_C(1) << SIGUSR1));
}

static void signals_that_cannot_stop_a_job_are_refused(void **state)
{
    static const char *const wrong[] = {"",        "SIGKILL", "SIGCHLD",   "TERM,",    "15",
                                        "sigterm", "SIG",     "TERMINATE", "TERM INT", "\x1b"};
    uint64_t set;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++) {
        assert_status(signal_list_parse(wrong[i], "--signals-to-handle", &set), LS_EINVAL);
        assert_last_error("is none of SIGTERM, SIGINT");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_digit_is_for_all_ranks),
        cmocka_unit_test(a_list_is_by_rank_and_names_the_rest_nothing),
        cmocka_unit_test(ranks_may_be_given_one_by_one_or_from_to),
        cmocka_unit_test(malformed_list_is_reported_with_the_part),
        cmocka_unit_test(a_list_has_bounded_length),
        cmocka_unit_test(the_local_rank_stands_for_itself_in_arguments),
        cmocka_unit_test(no_memory_for_arguments_leaves_nothing),
        cmocka_unit_test(signals_are_named_with_or_without_sig),
        cmocka_unit_test(signals_that_cannot_stop_a_job_are_refused),
    };

    return cmocka_run_group_tests_name("launch rank_list", tests, NULL, NULL);
}
