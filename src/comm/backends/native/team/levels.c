/* SPDX-License-Identifier: Apache-2.0 */
/*
 * levels.c - groups the members of a team by socket and core complex, and divides vectors among
 * them. Pure but for the memory: all members know the same places and make the same levels.
 * team_open.c makes them, team_gate.c and team_levels.c use them.
 */
#include "comm/backends/native/team/levels.h"

#include "base/alloc.h"

#include <string.h>

static ls_status number_groups(levels *v, int level)
{
    const plan_layout *l = &v->at[level];
    const size_t n = (size_t)v->n;
    int *all = ls_calloc(n, 5 * sizeof(int));

    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the levels of %d ranks", v->n);
    v->index[level] = all;
    v->tree_index[level] = all + n;
    v->outer[level] = all + 2 * n;
    v->n_inner[level] = all + 3 * n;
    v->n_trees[level] = all + 4 * n;
    for (int i = 0; i < v->n; i++)
        v->index[level][l->members[i]] = i - l->host_first[l->host_of[l->members[i]]];
    for (int tree = 0; tree < l->n_trees; tree++)
        v->tree_index[level][tree] = v->n_trees[level][l->host_of[l->tree_first[tree]]]++;
    for (int g = 0; g < l->n_hosts; g++) {
        v->n_inner[level][g] = l->host_size[g];
        if (level == 0)
            continue;
        v->outer[level][g] = v->at[level - 1].host_of[l->members[l->host_first[g]]];
        if (v->n_trees[level][g] > v->max_trees)
            v->max_trees = v->n_trees[level][g];
    }
    return LS_OK;
}

static void count_inner(levels *v)
{
    for (int level = 0; level + 1 < v->depth; level++) {
        memset(v->n_inner[level], 0, (size_t)v->n * sizeof(int));
        for (int g = 0; g < v->at[level + 1].n_hosts; g++)
            v->n_inner[level][v->outer[level + 1][g]]++;
    }
}

/* Adds a level with these groups if some of them have several members, it divides the groups of the
 * level before, and partial results of it are sums. names[i] < 0: member i is in none. */
static ls_status add_level(levels *v, const int *names)
{
    plan_layout *l = &v->at[v->depth];
    ls_status st;

    for (int i = 0; i < v->n; i++)
        if (names[i] < 0)
            return LS_OK;
    st = layout_make(v->n, names, l);
    if (st != LS_OK)
        return st;
    if (v->depth > 0 && (l->n_hosts == v->at[v->depth - 1].n_hosts || !layout_helps(l))) {
        layout_free(l);
        return LS_OK;
    }
    v->depth++;
    return number_groups(v, v->depth - 1);
}

ls_status levels_make(int n, const topology_place *places, levels *out)
{
    int *names = ls_calloc((size_t)n, sizeof(*names));
    ls_status st = LS_OK;

    *out = (levels){.n = n};
    if (names == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the levels of %d ranks", n);
    st = add_level(out, names);
    for (int i = 0; i < n; i++)
        names[i] = places[i].socket;
    if (st == LS_OK)
        st = add_level(out, names);
    // A core complex is in one socket: so its groups are in groups of the level before.
    for (int i = 0; i < n; i++)
        names[i] = places[i].socket < 0 ? -1 : places[i].cache;
    if (st == LS_OK)
        st = add_level(out, names);
    ls_free(names);
    if (st != LS_OK)
        levels_free(out);
    else
        count_inner(out);
    return st;
}

void levels_free(levels *v)
{
    for (int level = 0; level < LEVELS_MAX; level++) {
        layout_free(&v->at[level]);
        ls_free(v->index[level]); // all arrays of a level are one block
    }
    *v = (levels){0};
}

int levels_group(const levels *v, int level, int member)
{
    return v->at[level].host_of[member];
}

int levels_leader(const levels *v, int level, int group)
{
    return v->at[level].members[v->at[level].host_first[group]];
}

// --- intervals ---

static size_t interval_bytes(const levels *v, int level, int group, size_t bytes)
{
    const size_t lines = (size_t)v->at[level].host_size[group] * LEVELS_ALIGN;

    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every group has a member
    return (bytes + lines - 1) / lines * LEVELS_ALIGN;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

void levels_interval(const levels *v, int level, int member, size_t bytes, size_t *at, size_t *end)
{
    const size_t length = interval_bytes(v, level, levels_group(v, level, member), bytes);

    *at = least((size_t)v->index[level][member] * length, bytes);
    *end = least(*at + length, bytes);
}

int levels_owner(const levels *v, int level, int group, size_t bytes, size_t at, size_t *end)
{
    const size_t length = interval_bytes(v, level, group, bytes);

    *end = least((at / length + 1) * length, bytes);
    return v->at[level].members[(size_t)v->at[level].host_first[group] + at / length];
}

// --- steps ---

/* The members of the innermost group. */
static int contributions(const levels *v, int level, int group, levels_source *sources)
{
    const plan_layout *l = &v->at[level];
    const int *members = l->members + l->host_first[group];

    for (int i = 0; i < l->host_size[group]; i++)
        sources[i] = (levels_source){.member = members[i], .first = members[i], .n_ranks = 1};
    return l->host_size[group];
}

int levels_up(const levels *v, int level, int member, size_t bytes, size_t at,
              levels_source *sources, size_t *end)
{
    const plan_layout *inner = &v->at[level + 1 < v->depth ? level + 1 : level];
    const int group = levels_group(v, level, member);
    size_t begin;
    int n = 0;

    levels_interval(v, level, member, bytes, &begin, end);
    if (level + 1 == v->depth)
        return contributions(v, level, group, sources);
    for (int tree = 0; tree < inner->n_trees; tree++) {
        const int g = inner->host_of[inner->tree_first[tree]];
        size_t owner_end;

        if (v->outer[level + 1][g] != group)
            continue;
        sources[n++] =
            (levels_source){.member = levels_owner(v, level + 1, g, bytes, at, &owner_end),
                            .tree = v->tree_index[level + 1][tree],
                            .first = inner->tree_first[tree],
                            .n_ranks = inner->tree_size[tree]};
        *end = least(*end, owner_end);
    }
    return n;
}

int levels_down(const levels *v, int level, int member, int root, size_t bytes, size_t at,
                size_t *end)
{
    size_t begin = 0;
    size_t owner_end = bytes;
    int owner = root;

    *end = bytes;
    if (level < v->depth)
        levels_interval(v, level, member, bytes, &begin, end);
    // Bytes that the member has from a step before.
    for (int outer = root < 0 ? 0 : 1; outer < level && level < v->depth; outer++) {
        size_t has_end;

        levels_interval(v, outer, member, bytes, &begin, &has_end);
        if (at >= begin && at < has_end) {
            *end = least(*end, has_end);
            return member;
        }
        if (at < begin)
            *end = least(*end, begin);
    }
    if (level > 1 || root < 0)
        owner =
            levels_owner(v, level - 1, levels_group(v, level - 1, member), bytes, at, &owner_end);
    *end = least(*end, owner_end);
    return owner;
}

// --- buffers ---

static size_t partials_bytes(const levels *v, int level, int group, size_t bytes, int widening)
{
    return (size_t)v->n_trees[level][group] * interval_bytes(v, level, group, bytes) *
           (size_t)widening;
}

size_t levels_partial_at(const levels *v, int level, int member, int tree, size_t bytes,
                         int widening, size_t at)
{
    const int group = levels_group(v, level, member);
    size_t offset = (bytes + LEVELS_ALIGN - 1) / LEVELS_ALIGN * LEVELS_ALIGN;
    size_t begin;
    size_t end;

    for (int outer = 1; outer < level; outer++)
        offset += partials_bytes(v, outer, levels_group(v, outer, member), bytes, widening);
    levels_interval(v, level, member, bytes, &begin, &end);
    return offset +
           ((size_t)tree * interval_bytes(v, level, group, bytes) + at - begin) * (size_t)widening;
}

/* The longest buffer of a member for this vector. */
static size_t buffer_bytes(const levels *v, size_t bytes, int widening)
{
    size_t all = bytes;

    for (int level = 1; level < v->depth; level++) {
        size_t most = 0;

        for (int g = 0; g < v->at[level].n_hosts; g++) {
            const size_t size = partials_bytes(v, level, g, bytes, widening);

            most = size > most ? size : most;
        }
        all += most;
    }
    return all;
}

size_t levels_fit(const levels *v, size_t capacity, int widening)
{
    size_t low = 1; // in cache lines; fits
    size_t high = capacity / LEVELS_ALIGN + 1;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (buffer_bytes(v, middle * LEVELS_ALIGN, widening) <= capacity)
            low = middle;
        else
            high = middle;
    }
    LS_ASSERT(buffer_bytes(v, low * LEVELS_ALIGN, widening) <= capacity);
    return low * LEVELS_ALIGN;
}
