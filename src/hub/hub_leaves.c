/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_leaves.c - which members have left which group, and after which operation. A rank reports its
 * leave once, when it destroys the group; the hub forwards it to the members that wait in the
 * group, now or later. The record of a group is freed when its last member leaves.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"

#define GROUPS_MAX 4096 /* the least recently changed one is dropped */

typedef struct leave_entry {
    int rank;
    uint64_t sequence;
} leave_entry;

typedef struct group_leaves {
    list_node node; /* in hub.leaves */
    uint32_t group;
    int n_members;
    int n;
    int capacity;
    leave_entry *entries;
} group_leaves;

static void free_leaves(hub *h, group_leaves *g)
{
    list_remove(&g->node);
    h->n_leaves--;
    ls_free(g->entries);
    ls_free(g);
}

void hub_leaves_end_group(hub *h, uint32_t group)
{
    list_for_each_safe (it, &h->leaves) {
        group_leaves *g = list_entry(it, group_leaves, node);

        if (group == GROUP_ALL || g->group == group)
            free_leaves(h, g);
    }
}

static group_leaves *find_leaves(hub *h, uint32_t group)
{
    list_for_each (it, &h->leaves) {
        group_leaves *g = list_entry(it, group_leaves, node);

        if (g->group == group)
            return g;
    }
    return NULL;
}

static group_leaves *make_leaves(hub *h, uint32_t group, int n_members)
{
    group_leaves *g = ls_calloc(1, sizeof(*g));

    if (g == NULL)
        return NULL;
    if (h->n_leaves == GROUPS_MAX)
        free_leaves(h, list_entry(h->leaves.next, group_leaves, node));
    g->group = group;
    g->n_members = n_members;
    list_append(&h->leaves, &g->node);
    h->n_leaves++;
    return g;
}

/* False when there is no memory. */
static bool add_entry(group_leaves *g, int rank, uint64_t sequence)
{
    for (int i = 0; i < g->n; i++) {
        if (g->entries[i].rank == rank)
            return true;
    }
    if (g->n == g->capacity) {
        const int capacity = g->capacity == 0 ? 4 : 2 * g->capacity;
        leave_entry *grown = ls_realloc(g->entries, (size_t)capacity, sizeof(*grown));

        if (grown == NULL)
            return false;
        g->entries = grown;
        g->capacity = capacity;
    }
    g->entries[g->n++] = (leave_entry){.rank = rank, .sequence = sequence};
    return true;
}

static void write_leaves(hub *h, uint32_t group, const leave_entry *entries, int n)
{
    wire_writer_reset(&h->body);
    wire_write_u32(&h->body, group);
    wire_write_u32(&h->body, (uint32_t)n);
    for (int i = 0; i < n; i++) {
        wire_write_u32(&h->body, (uint32_t)entries[i].rank);
        wire_write_u64(&h->body, entries[i].sequence);
    }
}

void hub_leaves_send(hub_conn *c, uint32_t group)
{
    const group_leaves *g = find_leaves(c->owner, group);

    if (g == NULL || g->n == 0)
        return;
    write_leaves(c->owner, group, g->entries, g->n);
    conn_send_body(c, HUB_MESSAGE_LEFT_GROUP);
}

static void note_leave(hub_conn *c, uint32_t group, uint64_t sequence, int n_members)
{
    hub *h = c->owner;
    const leave_entry entry = {.rank = c->rank, .sequence = sequence};
    group_leaves *g = find_leaves(h, group);

    if (g == NULL)
        g = make_leaves(h, group, n_members);
    write_leaves(h, group, &entry, 1);
    hub_watch_send_leave(h, group);
    if (g == NULL)
        return;
    list_remove(&g->node);
    list_append(&h->leaves, &g->node);
    if (!add_entry(g, c->rank, sequence) || g->n >= g->n_members)
        free_leaves(h, g);
}

ls_status hub_leave_group_message(hub_conn *c, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t group = wire_read_u32(&r);
    const uint64_t sequence = wire_read_u64(&r);
    const uint32_t n_members = wire_read_u32(&r);

    LS_TRY(wire_reader_end(&r, "the leave of a group"));
    if (n_members == 0 || n_members > (uint32_t)c->owner->opt.world_size)
        return ls_fail(LS_EPROTO, "the leave of a group of %u ranks", n_members);
    if (!hub_is_broken(c->owner, group))
        note_leave(c, group, sequence, (int)n_members);
    return LS_OK;
}
