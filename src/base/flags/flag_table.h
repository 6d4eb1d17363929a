/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flag_table.h - access to the rows of an ls_flags as one table, for flags.c, flags_help.c and the
 * tool's pages.c.
 *
 * base/flags/: command lines and their help, for the tool and training programs, by
 * <lockstep/flags.h>.
 */
#ifndef LS_BASE_FLAGS_FLAG_TABLE_H
#define LS_BASE_FLAGS_FLAG_TABLE_H

#include <lockstep/flags.h>

#include <stdbool.h>
#include <string.h>

static inline int n_flags(const ls_flags *f)
{
    return f->n[0] + f->n[1];
}

static inline const ls_flag *flag_at(const ls_flags *f, int i)
{
    return i < f->n[0] ? &f->tables[0][i] : &f->tables[1][i - f->n[0]];
}

/* Whether a flag's name begins with these `n` bytes; "-" and "_" are equal. */
static inline bool flag_name_begins(const char *name, const char *given, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((name[i] == '_' ? '-' : name[i]) != (given[i] == '_' ? '-' : given[i]))
            return false;
    return true;
}

/* Whether `n` bytes of `given` are the flag's name. */
static inline bool is_flag_name(const char *name, const char *given, size_t n)
{
    return strlen(name) == n && flag_name_begins(name, given, n);
}

/* The name of the value: a leading word in backquotes, which *meaning then skips, or one for the
 * kind. Returns the bytes of the name. */
int flag_value_name(const ls_flag *flag, const char **name, const char **meaning);
/* "(0.5)": the current value; "": none. */
void flag_default_text(const ls_flag *flag, char *buf, size_t n);
/* Whether an earlier row has the same name. */
bool flag_is_hidden(const ls_flags *f, int i);

#endif
