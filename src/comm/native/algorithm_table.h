/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithm_table.h - the rows that say which algorithm serves which operation: measured defaults, and the user's in front. Those of
 * teams are here; those of plans between hosts are schedule.h's, but for the user's.
 */
#ifndef LS_NATIVE_ALGORITHM_TABLE_H
#define LS_NATIVE_ALGORITHM_TABLE_H

#include "store/stamp.h"

#include <stdbool.h>
#include <stddef.h>

#define TEAM_USER_ROWS_MAX 8 /* that a user may give for one kind of operation */

typedef struct algorithm_table algorithm_table;

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

/* text: rows by commas, [hosts/]OPERATION:ALGORITHM[<=BYTES][@RANKS]; "" for none. LS_EINVAL says what is wrong with which. */
LS_MUST_USE ls_status algorithm_table_create(const char *text, algorithm_table **out);
void algorithm_table_free(algorithm_table *t); /* NULL is allowed */

/* The user's rows between hosts; borrowed. t NULL: none. */
const struct plan_rules *algorithm_table_plans(const algorithm_table *t);

/* Row `index` of a team's, the user's first; false behind the last. t NULL: the defaults only. */
bool algorithm_table_row(const algorithm_table *t, int index, team_rule *out);
/* How many rows are the user's. */
int algorithm_table_user_rows(const algorithm_table *t);

#endif
