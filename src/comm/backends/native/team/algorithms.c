/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithms.c - the table of algorithms as text, for `lockstep bench --show-algorithms`: the
 * user's rows and the defaults, in the order in which they are tried.
 */
#include "comm/backends/native/team/algorithms.h"

#include "base/config.h"
#include "comm/backends/native/plan/schedule.h"
#include "comm/backends/native/team/algorithm_table.h"

#include <limits.h>

#define USER_ORIGIN "LOCKSTEP_ALGORITHMS"

static void append_row(text_buf *out, const char *where, const char *origin, coll_kind kind,
                       const char *algorithm, size_t max_bytes, int max_ranks, const char *needs)
{
    char bytes[32] = "any";
    char ranks[32] = "any";

    if (max_bytes != SIZE_MAX)
        text_bytes(bytes, sizeof(bytes), max_bytes);
    if (max_ranks != INT_MAX)
        text_format(ranks, sizeof(ranks), "%d", max_ranks);
    text_append(out, "%-6s  %-14s  %-13s  %9s  %6s  %-8s  %s\n", where, coll_name(kind), algorithm,
                bytes, ranks, needs, origin);
}

static const char *needs_text(team_memory memory)
{
    if (memory == TEAM_SHARED_MEMORY)
        return "alloc"; // from ls_comm_alloc()
    if (memory == TEAM_HAS_GATES)
        return "gates";
    if (memory == TEAM_HAS_LEVELS)
        return "levels";
    return memory == TEAM_READABLE_MEMORY ? "readable" : "-";
}

static void append_team(text_buf *out, const algorithm_table *table)
{
    team_rule r;

    for (int i = 0; algorithm_table_row(table, i, &r); i++)
        append_row(out, "host", i < algorithm_table_user_rows(table) ? USER_ORIGIN : "default",
                   r.kind, r.algorithm, r.max_bytes, r.max_ranks, needs_text(r.memory));
}

static void append_plan(text_buf *out, const plan_rule *r, const char *origin)
{
    append_row(out, "hosts", origin, r->kind, r->name, r->max_bytes, r->max_ranks,
               r->hosts ? "layout" : "-");
}

static void append_plans(text_buf *out, const plan_rules *user)
{
    for (int i = 0; i < user->n; i++)
        append_plan(out, &user->rows[i], USER_ORIGIN);
    for (int i = 0; i < n_plan_defaults; i++)
        append_plan(out, &plan_defaults[i], "default");
}

ls_status algorithms_text(text_buf *out)
{
    const char *text;
    algorithm_table *table;

    LS_TRY(config_text(CONFIG_ALGORITHMS, &text));
    LS_TRY(algorithm_table_create(text, &table));
    text_append(out, "%-6s  %-14s  %-13s  %9s  %6s  %-8s  %s\n", "where", "operation", "algorithm",
                "up to", "ranks", "needs", "from");
    append_team(out, table);
    append_plans(out, algorithm_table_plans(table));
    algorithm_table_free(table);
    return text_status(out);
}
