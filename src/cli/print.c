/* SPDX-License-Identifier: Apache-2.0 */
/* print.c - the only place where the tool writes to stdout and stderr. */
#include "cli/cli.h"

#include "base/text.h"
#include "cli/help_end.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static int output_error; // errno of the first failure

void print_out(const char *format, ...)
{
    va_list args;
    bool is_lost;

    va_start(args, format);
    is_lost = vprintf(format, args) < 0; // NOLINT(clang-analyzer-valist.Uninitialized): it is
    va_end(args);
    is_lost |= fflush(stdout) != 0;
    if (is_lost && output_error == 0)
        output_error = errno;
}

int print_end(int code)
{
    if (output_error == 0)
        return code;
    print_error("lockstep: cannot write to stdout: %s\n", ls_errno_text(output_error));
    return code == 0 ? 1 : code;
}

void print_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vfprintf(stderr, format, args); // NOLINT(clang-analyzer-valist.Uninitialized): it is
    va_end(args);
}

int print_failure(const char *command, ls_status status)
{
    print_error("lockstep %s: %s\n", command, ls_last_error());
    return status == LS_EINVAL ? 2 : 1;
}

ls_status parse_with_files(const ls_flags *flags, int argc, char **argv, int *n)
{
    char **files = argv;

    *n = 0;
    while (argc > 0) {
        int rest = argc;
        bool has_end; // "--": no flag follows

        LS_TRY(ls_flags_parse(flags, argc, argv, &rest));
        has_end = rest > 1 && text_equal(argv[rest - 1], "--");
        argc -= rest;
        argv += rest; // the file is what argv[0] of a command line is: no flag
        for (int i = 0; i < argc && (has_end || i == 0); i++)
            files[(*n)++] = argv[i];
        if (has_end)
            break;
    }
    return LS_OK;
}

static void (*help_taker)(void *arg, const ls_flags *flags);
static void *help_taker_arg;

void print_help_to(void (*take)(void *arg, const ls_flags *flags), void *arg)
{
    help_taker = take;
    help_taker_arg = arg;
}

int print_help(const ls_flags *flags)
{
    text_buf end = {0};
    char *text;
    ls_status st;

    if (help_taker != NULL) {
        help_taker(help_taker_arg, flags);
        return 0;
    }
    st = ls_flags_help(flags, &text);
    if (st != LS_OK)
        return print_failure(flags->program, st);
    help_end_append(flags->program, &end);
    print_out("%s%s", text, text_str(&end));
    text_free(&end);
    ls_flags_free(text);
    return 0;
}
