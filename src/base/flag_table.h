/* SPDX-License-Identifier: Apache-2.0 */
/* flag_table.h - access to the rows of an ls_flags as one table, for flags.c and flags_help.c. */
#ifndef LS_BASE_FLAG_TABLE_H
#define LS_BASE_FLAG_TABLE_H

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

/* Whether `n` bytes of `given` are the flag's name; "-" and "_" are equal. */
static inline bool is_flag_name(const char *name, const char *given, size_t n)
{
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((name[i] == '_' ? '-' : name[i]) != (given[i] == '_' ? '-' : given[i]))
            return false;
    return true;
}

#endif
