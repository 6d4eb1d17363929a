/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_report.c - lockstep report FILE... -o PAGE: metrics of training runs as an HTML page. */
#include "cli/cli.h"

#include "base/file.h"
#include "cli/report/report.h"

enum { REPORT_N_FLAGS = 2 };

static ls_status write_report(char *const *paths, int n, const char *page)
{
    report_run runs[REPORT_RUNS] = {{.n_points = 0}};
    text_buf text = {0};
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++)
        st = report_read(paths[i], &runs[i]);
    if (st == LS_OK) {
        report_page(runs, n, &text);
        st = text_status(&text);
    }
    if (st == LS_OK)
        st = file_replace(page, text_str(&text), text.length);
    text_free(&text);
    for (int i = 0; i < n; i++)
        report_free(&runs[i]);
    return st;
}

static ls_status check_arguments(int n, const char *page)
{
    if (n == 0)
        return ls_fail(LS_EINVAL, "no file; usage: lockstep report FILE... -o PAGE.html");
    if (n > REPORT_RUNS)
        return ls_fail(LS_EINVAL, "%d files: at most %d runs fit into a page", n, REPORT_RUNS);
    return page != NULL ? LS_OK : ls_fail(LS_EINVAL, "no page: give -o PAGE.html");
}

int cmd_report(int argc, char **argv)
{
    const char *page = NULL;
    int help = 0;
    const ls_flag table[REPORT_N_FLAGS] = {
        {"output", 'o', LS_FLAG_TEXT, &page, 0, 0, "`FILE` the page; it is replaced"},
        {"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep report",
                            .usage = "[flags] FILE.jsonl...",
                            .summary =
                                "Writes an HTML page about training runs, from their files of "
                                "--metrics: losses and rates of all runs in one chart each, then "
                                "phases, step times, ranks and evaluations of each run.",
                            .tables = {table},
                            .n = {REPORT_N_FLAGS},
                            .takes_rest = 1};
    int n;
    ls_status st = parse_with_files(&flags, argc, argv, &n);

    if (st == LS_OK && help)
        return print_help(&flags);
    if (st == LS_OK)
        st = check_arguments(n, page);
    if (st == LS_OK)
        st = write_report(argv, n, page);
    return st == LS_OK ? 0 : print_failure("report", st);
}
