/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_trace.c - lockstep trace summarize FILE...: what takes the time in traces. */
#include "cli/cli.h"
#include "cli/trace/trace_summary.h"

enum { TRACE_N_FLAGS = 2 };

static ls_status summarize(char *const *paths, int n, int most)
{
    trace_summary s = {.n_files = 0};
    text_buf text = {0};
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++)
        st = trace_summary_add_file(&s, paths[i]);
    if (st == LS_OK) {
        trace_summary_text(&s, most, &text);
        st = text_status(&text);
    }
    if (st == LS_OK)
        print_out("%s", text_str(&text));
    text_free(&text);
    trace_summary_free(&s);
    return st;
}

int cmd_trace(int argc, char **argv)
{
    int64_t most = 10;
    int help = 0;
    const ls_flag table[TRACE_N_FLAGS] = {
        {"top", 0, LS_FLAG_INT, &most, 1, SUMMARY_OPERATORS, "`N` costliest operators to print"},
        {"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"},
    };
    const ls_flags flags = {
        .size = sizeof(flags),
        .program = "lockstep trace",
        .usage = "summarize [flags] FILE.json...",
        .summary = "Prints what takes the time in traces of --profile (one file of each rank) or "
                   "of lockstep run --trace: the costliest operators with their rates and what "
                   "bounds them, communication, and ranks that are slower than the others.",
        .tables = {table},
        .n = {TRACE_N_FLAGS},
        .takes_rest = 1};
    const bool has_word = argc > 1 && text_equal(argv[1], "summarize");
    int rest = argc - has_word;
    ls_status st = ls_flags_parse(&flags, argc - has_word, argv + has_word, &rest);

    if (st == LS_OK && help)
        return print_help(&flags);
    rest += has_word;
    if (st == LS_OK && (!has_word || rest == argc))
        st = ls_fail(LS_EINVAL, "usage: lockstep trace summarize [flags] FILE.json...");
    if (st == LS_OK)
        st = summarize(argv + rest, argc - rest, (int)most);
    return st == LS_OK ? 0 : print_failure("trace", st);
}
