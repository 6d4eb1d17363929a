/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_select.c - which algorithm serves which operation of a team: the rows of the table that
 * apply to its size, and the memory that its members have published. team_open.c fills the rows,
 * team.c selects (team_select_row() in team_internal.h). All members see the same rows and the same
 * memory, so all select the same algorithm.
 */
#include "comm/backends/native/team/team_internal.h"

#include <string.h>

static const team_algorithm *find_algorithm(const char *name)
{
    static const team_algorithm *const all[] = {&team_inline, &team_staged, &team_shared,
                                                &team_direct, &team_levels};

    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    }
    LS_ASSERT(false);
    return NULL;
}

static bool takes_everything(const team_row *row)
{
    return row->max_bytes == SIZE_MAX && row->memory == TEAM_ANY_MEMORY;
}

bool team_has_row_for(const team *t, const team_algorithm *algorithm)
{
    for (size_t k = 0; k < LS_COUNT_OF(t->rows); k++) {
        for (size_t i = 0; i < TEAM_ROWS_MAX; i++) {
            if (t->rows[k][i].algorithm == algorithm)
                return true;
        }
    }
    return false;
}

// Rows behind one that takes everything are left out: they would never be reached.
void team_fill_rows(team *t, const algorithm_table *table)
{
    const unsigned of_team = TEAM_HAS_GATES | TEAM_HAS_LEVELS;
    const unsigned has =
        (t->has_gates ? TEAM_HAS_GATES : 0U) | (t->levels.depth > 1 ? TEAM_HAS_LEVELS : 0U);
    int n[COLL_BARRIER + 1] = {0};
    team_rule rule;

    memset(t->rows, 0, sizeof(t->rows));

    for (int i = 0; algorithm_table_row(table, i, &rule); i++) {
        team_row *rows = t->rows[rule.kind];
        const int at = n[rule.kind];

        if (t->n > rule.max_ranks || ((unsigned)rule.memory & of_team & ~has) != 0 ||
            (at > 0 && takes_everything(&rows[at - 1])))
            continue;
        LS_ASSERT(at < TEAM_ROWS_MAX);
        rows[at] = (team_row){.algorithm = find_algorithm(rule.algorithm),
                              .max_bytes = rule.max_bytes,
                              .memory = (team_memory)((unsigned)rule.memory & ~of_team)};
        n[rule.kind]++;
    }
}

team_memory team_find_memory_of(const team *t, int member)
{
    const team_slot *s = team_slot_of(t, member);
    const bool needs_src = team_is_source(t->op, member);
    const bool needs_dst = team_needs_dst(t->op, member);
    const unsigned memory = TEAM_SHARED_MEMORY | (t->can_read ? TEAM_READABLE_MEMORY : 0U);

    if ((needs_src && s->src_at == 0) || (needs_dst && s->dst_at == 0))
        return TEAM_ANY_MEMORY;
    if ((needs_src && s->src.id == 0) || (needs_dst && s->dst.id == 0))
        return (team_memory)(memory & ~(unsigned)TEAM_SHARED_MEMORY);
    return (team_memory)memory;
}

team_memory team_find_memory(const team *t)
{
    unsigned memory = TEAM_BEST_MEMORY;

    for (int k = 0; k < t->n; k++)
        memory &= (unsigned)team_find_memory_of(t, k);
    return (team_memory)memory;
}
