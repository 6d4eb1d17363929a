/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flags.c - tests the common flags of training programs: spellings, errors, --gpus, and the
 * help.
 */
#include <lockstep/flags.h>
#include <lockstep/train.h>

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PARSE(flags, ...) parse(flags, (const char *[]){"prog", __VA_ARGS__, NULL})

static ls_status parse(ls_train_flags *flags, const char *const *words)
{
    char *argv[16];
    int argc = 0;

    for (; words[argc] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    argv[argc] = NULL;
    return ls_train_parse("prog", "A test.", argc, argv, flags, NULL, 0);
}

static void all_spellings_of_a_flag_are_understood(void **state)
{
    ls_train_flags f = {.lr = 0.1};

    (void)state;
    assert_int_equal(PARSE(&f, "--batch_size", "7", "--lr=0.5", "-n", "1", "-g", "2",
                           "--local_rank=3", "--no_shuffle"),
                     LS_OK);
    assert_int_equal(f.batch_size, 7);
    assert_true(f.lr == 0.5);
    assert_int_equal(f.nodes, 1);
    assert_string_equal(f.gpus, "2");
    assert_int_equal(f.local_rank, 3);
    assert_int_equal(f.no_shuffle, 1);
}

static void balance_may_have_a_word(void **state)
{
    ls_train_flags f = {.lr = 0.1};

    (void)state;
    assert_int_equal(PARSE(&f, "--lr", "0.5"), LS_OK);
    assert_null(f.balance);
    assert_int_equal(PARSE(&f, "--balance", "--shards", "8"), LS_OK);
    assert_string_equal(f.balance, "");
    assert_int_equal(PARSE(&f, "--shards", "8", "--balance"), LS_OK);
    assert_string_equal(f.balance, "");
    assert_int_equal(PARSE(&f, "--balance", "rows"), LS_OK);
    assert_string_equal(f.balance, "rows");
    assert_int_equal(PARSE(&f, "--balance=shards"), LS_OK);
    assert_string_equal(f.balance, "shards");
}

/* The device that these flags choose, also if it cannot be used here. */
static const char *device_with(const char *flag, const char *value, bool no_accel)
{
    ls_train_flags f = {.lr = 0.1, .no_accel = no_accel};
    const ls_status st = PARSE(&f, "--backend", "nccl", flag, value);

    LS_UNUSED(st);
    return f.device == NULL ? "" : f.device;
}

static void backend_nccl_computes_on_gpus_by_default(void **state)
{
    ls_train_flags f = {.lr = 0.1};

    (void)state;
    assert_string_equal(device_with("--lr", "0.1", false), "cuda");
    assert_string_equal(device_with("--device", "cpu_ref", false), "cpu_ref");
    assert_string_equal(device_with("--lr", "0.1", true), "cpu");
    assert_int_equal(setenv("LOCKSTEP_DEVICE", "cpu_ref", 1), 0);
    assert_string_equal(device_with("--lr", "0.1", false), "");
    assert_int_equal(unsetenv("LOCKSTEP_DEVICE"), 0);
    assert_int_equal(PARSE(&f, "--backend", "native"), LS_OK);
    assert_null(f.device);
}

static void a_name_with_underscores_matches_both_spellings(void **state)
{
    int64_t n = 0;
    int on = 0;
    const ls_flag table[] = {{"warmup_iters", 'w', LS_FLAG_INT, &n, 0, 0, "help"},
                             {"nothing_else", 'e', LS_FLAG_BOOL, &on, 0, 0, "help"}};
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "prog",
                            .usage = "",
                            .summary = "",
                            .tables = {table},
                            .n = {2}};
    const char *const good[] = {"--warmup_iters=7", "--warmup-iters=7", "-warmup_iters=7", "-w7"};
    const char *const bad[] = {"-wx", "-w", "-e1", "--w7"};
    char *argv[] = {(char *)(uintptr_t) "prog", NULL, NULL};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        n = 0;
        argv[1] = (char *)(uintptr_t)good[i];
        assert_int_equal(ls_flags_parse(&flags, 2, argv, NULL), LS_OK);
        assert_int_equal(n, 7);
        argv[1] = (char *)(uintptr_t)bad[i];
        assert_int_equal(ls_flags_parse(&flags, 2, argv, NULL), LS_EINVAL);
    }
}

static void resume_takes_a_path_or_none(void **state)
{
    ls_train_flags f = {0};

    (void)state;
    assert_int_equal(PARSE(&f, "--resume", "--epochs", "2"), LS_OK);
    assert_string_equal(f.resume, "");
    assert_int_equal(f.epochs, 2);
    assert_int_equal(PARSE(&f, "--resume", "a.safetensors"), LS_OK);
    assert_string_equal(f.resume, "a.safetensors");
}

static void an_attached_value_is_optional(void **state)
{
    const char *style = NULL;
    const ls_flag flag = {"pass", 0, LS_FLAG_ATTACHED_TEXT, &style, 0, 0, "help"};
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "prog",
                            .usage = "",
                            .summary = "",
                            .tables = {&flag},
                            .n = {1},
                            .takes_rest = 1};
    char program[] = "prog", alone[] = "--pass", attached[] = "--pass=dash", next[] = "dash";
    char *first[] = {program, alone, next};
    char *second[] = {program, attached, next};
    int rest;

    (void)state;
    assert_int_equal(ls_flags_parse(&flags, 3, first, &rest), LS_OK);
    assert_string_equal(style, "");
    assert_int_equal(rest, 2);
    assert_int_equal(ls_flags_parse(&flags, 3, second, &rest), LS_OK);
    assert_string_equal(style, "dash");
    assert_int_equal(rest, 2);
}

static void errors_name_the_flag_and_the_nearest_one(void **state)
{
    ls_train_flags f = {0};

    (void)state;
    assert_int_equal(PARSE(&f, "--epoch", "3"), LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "did you mean --epochs"));
    assert_int_equal(PARSE(&f, "-V", "3"), LS_EINVAL); // no name has this letter
    assert_null(strstr(ls_last_error(), "did you mean"));
    assert_int_equal(PARSE(&f, "--epochs"), LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--epochs"));
    assert_int_equal(PARSE(&f, "--epochs", "three"), LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "three"));
    assert_int_equal(PARSE(&f, "--batch-size", "0"), LS_EINVAL);
    assert_int_equal(PARSE(&f, "--momentum", "1.5"), LS_EINVAL);
    assert_int_equal(PARSE(&f, "--no-shuffle=perhaps"), LS_EINVAL);
    assert_int_equal(PARSE(&f, "stray"), LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "stray"));
}

static void gpus_sets_the_ranks_of_this_node(void **state)
{
    ls_train_flags f = {.gpus = "2"};
    int n = -1;

    (void)state;
    unsetenv("LOCKSTEP_RANK");
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_OK);
    assert_int_equal(n, 2);
    f = (ls_train_flags){0};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_OK);
    assert_int_equal(n, 0);
    f = (ls_train_flags){.gpus = "8,2", .nodes = 2, .node_id = 1};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(f.per_node[0], 8);
    f = (ls_train_flags){.gpus = "8,2"}; // the list says how many machines
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_OK);
    assert_int_equal(n, 8);
    assert_int_equal(f.nodes, 2);
    f = (ls_train_flags){.gpus = "4", .nodes = 3, .node_id = 2}; // the same on each
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_OK);
    assert_int_equal(n, 4);
    assert_int_equal(f.per_node[2], 4);
    f = (ls_train_flags){.gpus = "8,2", .nodes = 3};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = "8,2", .nodes = 1};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = "8,2", .nodes = 2, .node_id = 2};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = "2,x"};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = ""};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = "2", .node_id = 1};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.nodes = 2};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    setenv("LOCKSTEP_RANK", "0", 1);
    f = (ls_train_flags){.gpus = "2"};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    unsetenv("LOCKSTEP_RANK");
}

static void gpus_may_have_blanks_around_its_numbers(void **state)
{
    static const char *const lists[] = {"8, 2", " 8 ,2 ", "8\t,\t2"};
    ls_train_flags f;
    int n = -1;

    (void)state;
    unsetenv("LOCKSTEP_RANK");
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        f = (ls_train_flags){.gpus = lists[i], .node_id = 1};
        assert_int_equal(ls_train_local_ranks(&f, &n), LS_OK);
        assert_int_equal(f.nodes, 2);
        assert_int_equal(f.per_node[0], 8);
        assert_int_equal(n, 2);
    }
    f = (ls_train_flags){.gpus = "8 2"};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = "8, ,2"};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
    f = (ls_train_flags){.gpus = " "};
    assert_int_equal(ls_train_local_ranks(&f, &n), LS_EINVAL);
}

static void a_flag_may_be_given_several_times(void **state)
{
    const char *items[2];
    ls_flag_texts list = {.items = items, .most = 2};
    const ls_flag table[] = {{"export", 'x', LS_FLAG_TEXTS, &list, 0, 0, "a variable"}};
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "prog",
                            .usage = "",
                            .summary = "",
                            .tables = {table},
                            .n = {1}};
    char *argv[] = {(char *)(uintptr_t) "prog",
                    (char *)(uintptr_t) "-x",
                    (char *)(uintptr_t) "A",
                    (char *)(uintptr_t) "--export=B=c",
                    (char *)(uintptr_t) "-x",
                    (char *)(uintptr_t) "D",
                    NULL};
    char *help;

    (void)state;
    assert_int_equal(ls_flags_parse(&flags, 4, argv, NULL), LS_OK);
    assert_int_equal(list.n, 2);
    assert_string_equal(items[0], "A");
    assert_string_equal(items[1], "B=c");
    list.n = 0;
    assert_int_equal(ls_flags_parse(&flags, 6, argv, NULL), LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--export is given more than 2 times"));
    assert_int_equal(ls_flags_parse(&flags, 2, argv, NULL), LS_EINVAL);
    assert_int_equal(ls_flags_help(&flags, &help), LS_OK);
    assert_non_null(strstr(help, "-x, --export"));
    ls_flags_free(help);
}

/* The help of a small table, `width` columns wide; the caller frees it. */
static char *make_help(int width)
{
    static int64_t epochs = 5;
    static int quiet;
    static const char *path = "a b";
    static const ls_flag table[] = {
        {"Work", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"epochs", 'e', LS_FLAG_INT, &epochs, 0, 0,
         "passes over the set, of which each takes all samples once, in an order of its own"},
        {"Output", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"quiet", 0, LS_FLAG_BOOL, &quiet, 0, 0, "print nothing"},
        {"file-with-a-long-name", 0, LS_FLAG_TEXT, &path, 0, 0, "`PATH` where it is written"},
        {"mode", 0, LS_FLAG_ATTACHED_TEXT, &path, 0, 0, "`WORD` how"},
        {"Hidden", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"old", 0, LS_FLAG_TEXT, &path, 0, 0, NULL},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "prog",
                            .usage = "[flags]",
                            .summary = "Does what the flags say, and ends.\nSecond line.",
                            .tables = {table},
                            .n = {sizeof(table) / sizeof(table[0])},
                            .width = width};
    char *argv[] = {(char *)(uintptr_t) "prog", (char *)(uintptr_t) "--Output", NULL};
    char *help;

    assert_int_equal(ls_flags_parse(&flags, 2, argv, NULL), LS_EINVAL); // a heading is no flag
    assert_null(strstr(ls_last_error(), "did you mean --Output"));
    assert_int_equal(ls_flags_help(&flags, &help), LS_OK);
    return help;
}

static void help_has_headings_and_names_of_values(void **state)
{
    char *help = make_help(80);

    (void)state;
    assert_string_equal(
        help, "usage: prog [flags]\nDoes what the flags say, and ends.\nSecond line.\n"
              "\nWork:\n"
              "  -e, --epochs N            passes over the set, of which each takes all samples\n"
              "                            once, in an order of its own (5)\n"
              "\nOutput:\n"
              "      --quiet               print nothing\n"
              "      --file-with-a-long-name PATH\n"
              "                            where it is written (a b)\n"
              "      --mode[=WORD]         how\n");
    ls_flags_free(help);
}

static void help_fits_the_width_of_the_terminal(void **state)
{
    static const int widths[] = {30, 40, 59, 60, 80, 100, 5000};

    (void)state;
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        char *help = make_help(widths[i]);
        size_t longest = 0;

        for (const char *line = help; *line != 0; line += strcspn(line, "\n") + 1)
            longest = strcspn(line, "\n") > longest ? strcspn(line, "\n") : longest;
        assert_in_range(longest, 1, widths[i] < 34 ? 34 : widths[i]); // the longest flag has 34
        assert_in_range(longest, 1, 100);
        ls_flags_free(help);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_spellings_of_a_flag_are_understood),
        cmocka_unit_test(balance_may_have_a_word),
        cmocka_unit_test(backend_nccl_computes_on_gpus_by_default),
        cmocka_unit_test(a_name_with_underscores_matches_both_spellings),
        cmocka_unit_test(resume_takes_a_path_or_none),
        cmocka_unit_test(an_attached_value_is_optional),
        cmocka_unit_test(errors_name_the_flag_and_the_nearest_one),
        cmocka_unit_test(gpus_sets_the_ranks_of_this_node),
        cmocka_unit_test(gpus_may_have_blanks_around_its_numbers),
        cmocka_unit_test(a_flag_may_be_given_several_times),
        cmocka_unit_test(help_has_headings_and_names_of_values),
        cmocka_unit_test(help_fits_the_width_of_the_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
