/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - numbers the hosts of a group and finds the widest subtrees of the aligned tree that
 * are on one host. Pure: all ranks that know the same hosts make the same layout. native.c makes
 * it, the plan_hosts.c plans use it.
 */
#include "comm/backends/native/plan/layout.h"

#include "base/alloc.h"

#include <string.h>

static void number_hosts(plan_layout *l, const int *names)
{
    for (int i = 0; i < l->n; i++) {
        int first = 0;

        while (names[first] != names[i])
            first++;
        l->host_of[i] = first == i ? l->n_hosts++ : l->host_of[first];
        l->host_size[l->host_of[i]]++;
    }
    for (int h = 1; h < l->n_hosts; h++)
        l->host_first[h] = l->host_first[h - 1] + l->host_size[h - 1];
    memset(l->host_size, 0, (size_t)l->n * sizeof(*l->host_size));
    for (int i = 0; i < l->n; i++) {
        const int h = l->host_of[i];

        l->members[l->host_first[h] + l->host_size[h]++] = i;
    }
}

static bool is_on_one_host(const plan_layout *l, int first, int end)
{
    for (int i = first + 1; i < end; i++)
        if (l->host_of[i] != l->host_of[first])
            return false;
    return true;
}

// The end of the widest subtree that begins at `first` and is on one host: subtrees begin at every
// multiple of their width and end at the last rank.
static int end_of_tree(const plan_layout *l, int first)
{
    int best = first + 1;

    for (int64_t width = 2; first % width == 0 && width / 2 < l->n; width *= 2) {
        const int64_t end = first + width < l->n ? first + width : l->n;

        if (!is_on_one_host(l, first, (int)end))
            break;
        best = (int)end;
    }
    return best;
}

static void find_trees(plan_layout *l)
{
    for (int first = 0; first < l->n;) {
        const int end = end_of_tree(l, first);

        l->tree_first[l->n_trees] = first;
        l->tree_size[l->n_trees] = end - first;
        for (int i = first; i < end; i++)
            l->tree_of[i] = l->n_trees;
        l->n_trees++;
        first = end;
    }
}

// The owner of a part receives from one rank of each tree, and the result goes to one rank of each
// host. A tree's rank adds one of tree_size parts, for as many owners.
static void count_peers(plan_layout *l)
{
    int smallest = l->n;

    for (int t = 0; t < l->n_trees; t++)
        if (l->tree_size[t] < smallest)
            smallest = l->tree_size[t];
    l->n_peers = (l->n - 1) / smallest + 1;
    if (l->n_peers < l->n_trees)
        l->n_peers = l->n_trees;
}

ls_status layout_make(int n, const int *names, plan_layout *out)
{
    const size_t row = (size_t)n;
    int *all = ls_calloc(row, 7 * sizeof(int));

    *out = (plan_layout){0};
    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the layout of %d ranks", n);
    *out = (plan_layout){.n = n,
                         .host_of = all,
                         .members = all + row,
                         .host_first = all + 2 * row,
                         .host_size = all + 3 * row,
                         .tree_of = all + 4 * row,
                         .tree_first = all + 5 * row,
                         .tree_size = all + 6 * row};
    number_hosts(out, names);
    find_trees(out);
    count_peers(out);
    return LS_OK;
}

void layout_free(plan_layout *l)
{
    ls_free(l->host_of); // all arrays are one block
    *l = (plan_layout){0};
}

bool layout_helps(const plan_layout *l)
{
    return l->n_hosts > 1 && l->n_trees < l->n;
}

int layout_adder(const plan_layout *l, int tree, int i)
{
    return l->tree_of[i] == tree ? i : l->tree_first[tree] + i % l->tree_size[tree];
}

int layout_receiver(const plan_layout *l, int host, int i)
{
    return l->host_of[i] == host ? i : l->members[l->host_first[host] + i % l->host_size[host]];
}
