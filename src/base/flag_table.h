/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flag_table.h - the rows of an ls_flags, over both of its tables.
 */
#ifndef LS_BASE_FLAG_TABLE_H
#define LS_BASE_FLAG_TABLE_H

#include <lockstep/flags.h>

static inline int n_flags(const ls_flags *f)
{
    return f->n[0] + f->n[1];
}

static inline const ls_flag *flag_at(const ls_flags *f, int i)
{
    return i < f->n[0] ? &f->tables[0][i] : &f->tables[1][i - f->n[0]];
}

#endif
