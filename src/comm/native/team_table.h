/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_table.h - the rows that say which algorithm of a team serves which operation: measured defaults, and the user's in front.
 */
#ifndef LS_NATIVE_TEAM_TABLE_H
#define LS_NATIVE_TEAM_TABLE_H

#include "store/stamp.h"

#include <stdbool.h>
#include <stddef.h>

#define TEAM_OWN_ROWS_MAX 8 /* that a user may give for one kind of operation */

typedef struct team_table team_table;

/* What an algorithm asks of the memory that other ranks touch, as bits. */
typedef enum team_memory {
    TEAM_ANY_MEMORY = 0,
    TEAM_READABLE_MEMORY = 1, /* the kernel lets the members read each other's */
    TEAM_SHARED_MEMORY = 2,   /* all of it comes from ls_comm_alloc() */
    TEAM_BEST_MEMORY = 3
} team_memory;

typedef struct team_rule {
    coll_kind kind;
    const char *algorithm; /* "inline", "staged", "shared", "direct" */
    size_t max_bytes;      /* that one rank contributes, SIZE_MAX: no limit */
    int max_ranks;         /* INT_MAX: no limit */
    team_memory memory;
} team_rule;

/* text: rows by commas, OPERATION:ALGORITHM[<=BYTES][@RANKS]; "" for none. LS_EINVAL says what is wrong with which. */
LS_MUST_USE ls_status team_table_create(const char *text, team_table **out);
void team_table_free(team_table *t); /* NULL is allowed */

/* Row `index`, the user's first; false behind the last. t NULL: the defaults only. */
bool team_table_row(const team_table *t, int index, team_rule *out);
/* How many rows are the user's. */
int team_table_own_rows(const team_table *t);

#endif
