/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithm_table.h - the table of rows that select the algorithm of an operation: the user's rows
 * first, then the measured defaults (algorithm_defaults.c).
 */
#ifndef LS_COMM_BACKENDS_NATIVE_TEAM_ALGORITHM_TABLE_H
#define LS_COMM_BACKENDS_NATIVE_TEAM_ALGORITHM_TABLE_H

#include "hub/stamp.h"

#include <stdbool.h>
#include <stddef.h>

#define TEAM_USER_ROWS_MAX 8 /* of one kind of operation */

typedef struct algorithm_table algorithm_table;

/* What an algorithm requires of the memory that other ranks access, and of the team, as bits. */
typedef enum team_memory {
    TEAM_ANY_MEMORY = 0,
    TEAM_READABLE_MEMORY = 1, /* the kernel permits the members to read each other's */
    TEAM_SHARED_MEMORY = 2,   /* all of it comes from ls_comm_alloc() */
    TEAM_BEST_MEMORY = 3,
    TEAM_HAS_GATES = 4, /* its members wait at gates (team_gate.c) */
    TEAM_HAS_LEVELS = 8 /* they do, and are in several sockets or core complexes */
} team_memory;

typedef struct team_rule {
    coll_kind kind;
    const char *algorithm; /* "inline", "staged", "shared", "direct", "levels" */
    size_t max_bytes;      /* contribution of a rank, SIZE_MAX: no limit */
    int max_ranks;         /* INT_MAX: no limit */
    team_memory memory;
} team_rule;

extern const team_rule team_defaults[];
extern const int n_team_defaults;

/* text: rows separated by commas, [hosts/]OPERATION:ALGORITHM[<=BYTES][@RANKS]; "" for none.
 * LS_EINVAL names the wrong row and the reason. */
LS_MUST_USE ls_status algorithm_table_create(const char *text, algorithm_table **out);
void algorithm_table_free(algorithm_table *t); /* NULL is allowed */

/* The user's rows between hosts; borrowed. t NULL: none. */
const struct plan_rules *algorithm_table_plans(const algorithm_table *t);

/* Row `index` of those for teams, the user's first; false after the last. t NULL: the defaults
 * only. */
bool algorithm_table_row(const algorithm_table *t, int index, team_rule *out);
/* How many of them are the user's. */
int algorithm_table_user_rows(const algorithm_table *t);

#endif
