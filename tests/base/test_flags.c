/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flags.c - the error texts of a command line: each names the flag and a remedy. The flags of
 * programs are tested with the programs.
 */
#include "base/unit.h"

#include <lockstep/flags.h>

static int64_t ranks = 1;
static const ls_flag table[] = {
    {"ranks", 'n', LS_FLAG_INT, &ranks, 1, 64, "number of ranks"},
    {"secret", 0, LS_FLAG_INT, &ranks, 0, 0, NULL},
    {"rank-file", 0, LS_FLAG_INT, &ranks, 0, 0, "file"},
    {"random", 0, LS_FLAG_INT, &ranks, 0, 0, "not abbreviated"},
};
static const char *const *abbreviated;

static ls_status parse(const char *first, const char *second)
{
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "prog",
                            .tables = {table},
                            .n = {LS_COUNT_OF(table)},
                            .abbreviated = abbreviated};
    char program[] = "prog";
    char *argv[] = {program, (char *)(uintptr_t)first, (char *)(uintptr_t)second, NULL};

    return ls_flags_parse(&flags, second == NULL ? 2 : 3, argv, NULL);
}

static void mistyped_flag_names_the_nearest_one(void **state)
{
    LS_UNUSED(state);
    assert_status(parse("--rnaks", "2"), LS_EINVAL);
    assert_last_error("unknown flag --rnaks: did you mean --ranks? (prog --help=all lists all)");
    assert_status(parse("--secert", "2"), LS_EINVAL); // unlisted flags are not suggested
    assert_last_error("unknown flag --secert (prog --help=all lists all)");
    assert_status(parse("--xyz", NULL), LS_EINVAL);
    assert_last_error("unknown flag --xyz (prog --help=all lists all)");
}

static void argument_that_is_not_a_flag_names_the_help(void **state)
{
    LS_UNUSED(state);
    assert_status(parse("train.py", NULL), LS_EINVAL);
    assert_last_error("unexpected argument train.py (prog --help lists the flags)");
}

static void missing_and_invalid_values_name_the_flag(void **state)
{
    LS_UNUSED(state);
    assert_status(parse("--ranks", NULL), LS_EINVAL);
    assert_last_error("--ranks needs a value");
    assert_status(parse("--ranks", "65"), LS_EINVAL);
    assert_last_error("--ranks: \"65\" is not a whole number from 1 to 64");
    assert_ok(parse("-n8", NULL));
    assert_int_equal(ranks, 8);
}

static void names_are_abbreviated_only_where_that_is_allowed(void **state)
{
    static const char *const names[] = {"ranks", "rank-file", NULL};

    LS_UNUSED(state);
    assert_status(parse("--rank-", "3"), LS_EINVAL);
    abbreviated = names;
    assert_ok(parse("--rank_f", "3"));
    assert_int_equal(ranks, 3);
    assert_ok(parse("--ranks=4", NULL)); // a whole name, though others begin so
    assert_int_equal(ranks, 4);
    assert_status(parse("--ra=3", NULL), LS_EINVAL);
    assert_last_error("ambiguous flag --ra: it may be --ranks or --rank-file (prog --help=all "
                      "lists all)");
    assert_status(parse("--rando", "3"), LS_EINVAL);
    assert_last_error("did you mean --random?");
    assert_status(parse("--=3", NULL), LS_EINVAL);
    abbreviated = NULL;
}

static void short_help_counts_the_flags_that_it_leaves_out(void **state)
{
    static const char *const brief[] = {"rank-file", NULL};
    static int help;
    static const ls_flag own[] = {{"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"}};
    ls_flags flags = {.size = sizeof(flags),
                      .program = "prog",
                      .usage = "",
                      .summary = "",
                      .tables = {own, table},
                      .n = {1, LS_COUNT_OF(table)},
                      .brief = brief};
    char program[] = "prog";
    char all[] = "--help=all";
    char *argv[] = {program, all, NULL};
    char *text;

    LS_UNUSED(state);
    assert_ok(ls_flags_help(&flags, &text));
    assert_non_null(strstr(text, "--help "));
    assert_non_null(strstr(text, "--rank-file N"));
    assert_null(strstr(text, "--ranks"));
    assert_non_null(strstr(text, "\n--help=all lists 2 more flags.\n")); // --secret has no help
    ls_flags_free(text);
    assert_ok(ls_flags_parse(&flags, 2, argv, NULL));
    assert_int_equal(help, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistyped_flag_names_the_nearest_one),
        cmocka_unit_test(argument_that_is_not_a_flag_names_the_help),
        cmocka_unit_test(missing_and_invalid_values_name_the_flag),
        cmocka_unit_test(names_are_abbreviated_only_where_that_is_allowed),
        cmocka_unit_test(short_help_counts_the_flags_that_it_leaves_out),
    };

    return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
