/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithm_table.c - the table that selects an operation's algorithm: the first row that fits.
 *
 * LOCKSTEP_ALGORITHMS puts rows in front of the defaults (algorithm_defaults.c). Every rank has the
 * same rows, because they are compared when the ranks join. native.c creates the table,
 * team_select.c and exec.c read it.
 */
#include "comm/backends/native/team/algorithm_table.h"

#include "base/alloc.h"
#include "base/text.h"
#include "comm/backends/native/plan/schedule.h"
#include "comm/backends/native/team/team_internal.h"

#include <limits.h>
#include <string.h>

#define ITEM_BYTES    96
#define BETWEEN_HOSTS "hosts/"

struct algorithm_table {
    int n;
    int n_of[COLL_BARRIER];
    team_rule rows[TEAM_USER_ROWS_MAX * COLL_BARRIER];
    plan_rules plans;
    plan_rule plan_rows[TEAM_USER_ROWS_MAX * COLL_BARRIER];
};

static const struct {
    const char *name;
    team_memory memory;
} algorithms[] = {
    {"inline", TEAM_ANY_MEMORY},      {"staged", TEAM_ANY_MEMORY}, {"shared", TEAM_SHARED_MEMORY},
    {"direct", TEAM_READABLE_MEMORY}, {"levels", TEAM_HAS_GATES},
};

bool algorithm_table_row(const algorithm_table *t, int index, team_rule *out)
{
    const int n_user = t == NULL ? 0 : t->n;

    if (index < 0 || index >= n_user + n_team_defaults)
        return false;
    *out = index < n_user ? t->rows[index] : team_defaults[index - n_user];
    return true;
}

int algorithm_table_user_rows(const algorithm_table *t)
{
    return t == NULL ? 0 : t->n;
}

const plan_rules *algorithm_table_plans(const algorithm_table *t)
{
    return t == NULL ? NULL : &t->plans;
}

/* --- the user's rows --- */

/* "all" is every operation in front of the barrier, which has one algorithm only. */
static bool find_kinds(const char *name, coll_kind *first, coll_kind *last)
{
    *first = (coll_kind)0;
    *last = (coll_kind)(COLL_BARRIER - 1);
    if (strcmp(name, "all") == 0)
        return true;
    for (int k = 0; k < COLL_BARRIER; k++) {
        if (strcmp(name, coll_name((coll_kind)k)) == 0) {
            *first = (coll_kind)k;
            *last = (coll_kind)k;
            return true;
        }
    }
    return false;
}

static bool supports(const char *algorithm, coll_kind kind)
{
    if (strcmp(algorithm, "levels") == 0)
        return coll_reduces_whole(kind) || kind == COLL_BROADCAST;
    return strcmp(algorithm, "direct") != 0 || kind != COLL_REDUCE;
}

static ls_status check_row(const team_rule *row, const char *item)
{
    if (strcmp(row->algorithm, "inline") == 0 && row->max_bytes > TEAM_INLINE_BYTES)
        return ls_fail(LS_EINVAL, "\"%s\": inline carries at most %d bytes: write inline<=%d", item,
                       TEAM_INLINE_BYTES, TEAM_INLINE_BYTES);
    if (!supports(row->algorithm, row->kind))
        return ls_fail(LS_EINVAL, "\"%s\": %s does not support %s", item, row->algorithm,
                       coll_name(row->kind));
    return LS_OK;
}

static ls_status add_rows(algorithm_table *t, team_rule row, coll_kind first, coll_kind last,
                          const char *item)
{
    const bool all = first != last;

    for (int k = first; k <= (int)last; k++) {
        row.kind = (coll_kind)k;
        if (all && !supports(row.algorithm, row.kind))
            continue;
        LS_TRY(check_row(&row, item));
        if (++t->n_of[k] > TEAM_USER_ROWS_MAX)
            return ls_fail(LS_EINVAL, "more than %d rows for %s", TEAM_USER_ROWS_MAX,
                           coll_name(row.kind));
        t->rows[t->n++] = row;
    }
    return LS_OK;
}

/* Cuts `text` at the first `mark`; returns what follows it, NULL without a mark. */
static char *cut(char *text, const char *mark)
{
    char *at = strstr(text, mark);

    if (at == NULL)
        return NULL;
    *at = '\0';
    return at + strlen(mark);
}

static ls_status add_plan(algorithm_table *t, coll_kind kind, const char *name, size_t max_bytes,
                          int max_ranks)
{
    if (t->plans.n == (int)LS_COUNT_OF(t->plan_rows))
        return ls_fail(LS_EINVAL, "more than %d rows between hosts", t->plans.n);
    return plan_rule_make(kind, name, max_bytes, max_ranks, &t->plan_rows[t->plans.n++]);
}

/* [hosts/]OPERATION:ALGORITHM[<=BYTES][@RANKS] */
static ls_status parse_item(algorithm_table *t, const char *item)
{
    team_rule row = {.max_bytes = SIZE_MAX, .max_ranks = INT_MAX};
    const bool is_plan = strncmp(item, BETWEEN_HOSTS, strlen(BETWEEN_HOSTS)) == 0;
    char text[ITEM_BYTES];
    coll_kind first;
    coll_kind last;
    uint64_t bytes = SIZE_MAX;
    int64_t ranks = INT_MAX;
    char *algorithm;
    char *limit;
    char *most;

    (void)text_format(text, sizeof(text), "%s", item + (is_plan ? strlen(BETWEEN_HOSTS) : 0));
    algorithm = cut(text, ":");
    if (algorithm == NULL)
        return ls_fail(LS_EINVAL,
                       "invalid row \"%s\": write [hosts/]OPERATION:ALGORITHM[<=BYTES][@RANKS]",
                       item);
    most = cut(algorithm, "@");
    limit = cut(algorithm, "<=");
    if (limit != NULL)
        LS_TRY(text_parse_bytes(limit, "the limit", SIZE_MAX / 2, &bytes));
    if (most != NULL)
        LS_TRY(text_parse_int(most, "the number of ranks", 1, INT_MAX, &ranks));
    if (!find_kinds(text, &first, &last) || (is_plan && first != last))
        return ls_fail(LS_EINVAL, "unknown operation \"%s\" (known: %sall_reduce, broadcast, ...)",
                       text, is_plan ? "" : "all, ");
    if (is_plan)
        return add_plan(t, first, algorithm, (size_t)bytes, (int)ranks);
    for (size_t i = 0; i < LS_COUNT_OF(algorithms); i++) {
        if (strcmp(algorithm, algorithms[i].name) == 0) {
            row.algorithm = algorithms[i].name;
            row.memory = algorithms[i].memory;
        }
    }
    if (row.algorithm == NULL)
        return ls_fail(LS_EINVAL,
                       "unknown algorithm \"%s\" (known: inline, staged, shared, direct, levels)",
                       algorithm);
    row.max_bytes = (size_t)bytes;
    row.max_ranks = (int)ranks;
    return add_rows(t, row, first, last, item);
}

static ls_status parse(algorithm_table *t, const char *text)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, ",");
        char raw[ITEM_BYTES];
        char item[ITEM_BYTES];

        if (n >= sizeof(item))
            return ls_fail(LS_EINVAL, "a row has %zu bytes, more than the limit of %d", n,
                           ITEM_BYTES - 1);
        memcpy(raw, text, n);
        raw[n] = '\0';
        text_printable(item, sizeof(item), raw);
        LS_TRY(parse_item(t, item));
        text += n + (text[n] == ',');
    }
    return LS_OK;
}

ls_status algorithm_table_create(const char *text, algorithm_table **out)
{
    algorithm_table *t;
    ls_status st;

    LS_TRY(LS_NEW(&t, 1, "for a table of algorithms"));
    t->plans.rows = t->plan_rows;
    st = parse(t, text);
    if (st != LS_OK) {
        ls_free(t);
        return ls_context(st, "LOCKSTEP_ALGORITHMS");
    }
    *out = t;
    return LS_OK;
}

void algorithm_table_free(algorithm_table *t)
{
    ls_free(t);
}
