/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_flags.c - every flag in a --help=all is accepted with hyphens and with underscores. */
#include "launch/job.h"

#include <stdlib.h>

#define test(name)   cmocka_unit_test_teardown(name, job_clean_up)
#define PROGRAM(...) ((const char *[]){__VA_ARGS__, NULL})
#define UNKNOWN      "--no-such-flag"

enum { WORDS_MOST = 240, NAME_BYTES = 64 };

typedef enum spelling { WITH_HYPHENS, WITH_UNDERSCORES, BY_LETTER } spelling;

/* One flag of a help text. */
typedef struct shown_flag {
    char name[NAME_BYTES]; /* "--iters" */
    char letter[3];        /* "-n", or "" */
    char value[4];         /* a value that its parser accepts; "": it takes none */
} shown_flag;

/* A line of the help that begins with "  -n, --iters N" or "      --no-shuffle". */
static bool parse_line(const char *line, shown_flag *out)
{
    const bool has_letter = text_starts(line, "  -") && text_starts(line + 4, ", --");
    const char *name = line + 6;
    const size_t n = has_letter || text_starts(line, "      --") ? strcspn(name, " [\n") : 0;

    if (n == 0)
        return false;
    text_format(out->name, sizeof(out->name), "%.*s", (int)n, name);
    text_format(out->letter, sizeof(out->letter), "%.*s", has_letter ? 2 : 0, line + 2);
    text_format(out->value, sizeof(out->value), "%s",
                name[n] != ' ' || strchr(" [", name[n + 1]) != NULL ? ""
                : text_starts(name + n, " X ")                      ? "0.5"
                                                                    : "1");
    return true;
}

static void spell(shown_flag *flag, spelling how)
{
    for (char *c = flag->name + 2; *c != '\0'; c++)
        if (*c == '-' || *c == '_')
            *c = how == WITH_UNDERSCORES ? '_' : '-';
}

/* Appends all flags of the help text to `words`; gives how many there are. */
static int add_flags(job *j, const char *help, spelling how, shown_flag *flags, const char **words)
{
    int n = 0;

    while (*words != NULL)
        words++;
    for (const char *line = help; *line != '\0'; line += strcspn(line, "\n") + 1) {
        shown_flag *flag = &flags[n];

        if (!parse_line(line, flag) || (how == BY_LETTER && flag->letter[0] == '\0'))
            continue;
        spell(flag, how);
        *words++ = how == BY_LETTER ? flag->letter : flag->name;
        if (flag->value[0] != '\0')
            *words++ = flag->value;
        n++;
        job_expect(j, n < WORDS_MOST / 2 - 4);
    }
    *words++ = UNKNOWN;
    *words = NULL;
    return n;
}

/* Only the flag at the end, which no program has, is unknown. Gives how many flags there are. */
static int expect_all_known(const char *const *program, spelling how)
{
    static shown_flag flags[WORDS_MOST];
    const char *words[WORDS_MOST] = {NULL};
    text_buf help = {0};
    job *j;
    int n = 0;

    for (; program[n] != NULL; n++)
        words[n] = program[n];
    words[n] = "--help=all";
    j = job_start(words, NULL);
    job_expect_code(j, 0);
    text_append(&help, "%s", text_str(&j->out));
    job_expect(j, strstr(text_str(&help), "\nExample") != NULL);
    job_expect(j, strstr(text_str(&help), "\nPage: docs/") != NULL);
    words[n] = NULL;
    n = add_flags(j, text_str(&help), how, flags, words);
    text_free(&help);
    job_clean_up(NULL);
    j = job_start(words, NULL);
    job_await_end(j);
    job_expect(j, j->status != 0 && job_printed(j, 1, "unknown flag " UNKNOWN));
    job_clean_up(NULL);
    return n;
}

static void expect_both_spellings(const char *const *program)
{
    const int n = expect_all_known(program, WITH_HYPHENS);

    assert_true(n >= 2);
    assert_int_equal(expect_all_known(program, WITH_UNDERSCORES), n);
    assert_true(expect_all_known(program, BY_LETTER) > 0);
}

static void every_command_accepts_its_flags_in_both_spellings(void **state)
{
    char names[16][NAME_BYTES];
    int n = 0;
    job *j = job_start(JOB_LIST(JOB_TOOL, "--help"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (const char *line = text_str(&j->out); *line != '\0'; line += strcspn(line, "\n") + 1)
        if (text_starts(line, "  "))
            text_format(names[n++], NAME_BYTES, "%.*s", (int)strcspn(line + 2, " "), line + 2);
    job_expect(j, n >= 6);
    job_clean_up(NULL);
    for (int i = 0; i < n; i++)
        expect_both_spellings(PROGRAM(JOB_TOOL, names[i]));
    expect_both_spellings(PROGRAM(LOCKSTEP_BIN "/torchrun"));
    expect_both_spellings(PROGRAM(LOCKSTEP_BIN "/all_reduce_perf"));
}

/* The command ends with 0 and prints `text`. */
static void expect_text(const char *const *command, const char *text)
{
    job *j = job_start(command, NULL);

    job_expect_code(j, 0);
    job_expect(j, strstr(text_str(&j->out), text) != NULL);
    job_clean_up(NULL);
}

static void help_and_version_are_printed_in_every_spelling(void **state)
{
    static const char *const names[] = {"mnist",       "resnet",          "imagenet", "gpt",
                                        "elastic_ddp", "message_passing", "own_data"};
    char path[512];
    char line[64];

    LS_UNUSED(state);
    expect_text(PROGRAM(JOB_TOOL, "help"), "usage: lockstep COMMAND");
    expect_text(PROGRAM(JOB_TOOL, "help", "run"), "usage: lockstep run ");
    expect_text(PROGRAM(JOB_TOOL, "help", "bench"), "usage: lockstep bench ");
    text_format(line, sizeof(line), "lockstep %s\n", ls_version());
    expect_text(PROGRAM(JOB_TOOL, "--version"), line);
    expect_text(PROGRAM(JOB_TOOL, "-V"), line);
    expect_text(PROGRAM(JOB_TOOL, "version"), line);
    expect_text(PROGRAM(JOB_TOOL, "run", "--version"), line);
    expect_text(PROGRAM(JOB_TOOL, "data", "--version"), line);
    expect_text(PROGRAM(LOCKSTEP_BIN "/torchrun", "--version"), line);
    expect_text(PROGRAM(LOCKSTEP_BIN "/all_reduce_perf", "--version"), line);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        text_format(path, sizeof(path), "%s/%s", LOCKSTEP_BIN, names[i]);
        text_format(line, sizeof(line), "%s (lockstep %s)\n", names[i], ls_version());
        expect_text(PROGRAM(path, "--version"), line);
    }
}

static void every_training_program_accepts_its_flags_in_both_spellings(void **state)
{
    static const char *const names[] = {"mnist", "resnet", "imagenet", "elastic_ddp",
                                        "message_passing"};
    char path[512];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        text_format(path, sizeof(path), "%s/%s", LOCKSTEP_BIN, names[i]);
        expect_both_spellings(PROGRAM(path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(every_command_accepts_its_flags_in_both_spellings),
        test(every_training_program_accepts_its_flags_in_both_spellings),
        test(help_and_version_are_printed_in_every_spelling),
    };

    return cmocka_run_group_tests_name("cli flags", tests, NULL, NULL);
}
