/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_flags.h - reads the flags of a benchmark that has a table of them, and prints their help.
 */
#ifndef BENCH_FLAGS_H
#define BENCH_FLAGS_H

#include <lockstep/flags.h>

#include <stdio.h>

/* ls_flags_parse(). *help, the value of the table's --help: if it is set afterwards, the help with
 * the defaults has been printed. */
static inline ls_status bench_flags(const ls_flags *flags, int argc, char **argv, const int *help)
{
    char *text;
    ls_status st = ls_flags_help(flags, &text);

    if (st != LS_OK)
        return st;
    st = ls_flags_parse(flags, argc, argv, NULL);
    if (st == LS_OK && *help)
        (void)fputs(text, stdout);
    ls_flags_free(text);
    return st;
}

#endif
