/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_groups.c - opening and closing of the native backend's groups: their peers, the layout of
 * their hosts, and the team of a group on one host. The engine calls it through
 * native_backend_ops.
 */
#include "comm/backends/native/native.h"

#include "comm/backends/native/engine/join.h"
#include "comm/backends/native/p2p/match.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <lockstep/log.h>

#define TEAM_OPEN_MS 60000 /* for all members of a sub-group to open it */

static bool is_all_local(const native_state *s, const group_info *info)
{
    if (s->local == NULL)
        return false;
    for (int i = 0; i < info->size; i++)
        if (!local_has(s->local, info->members[i]))
            return false;
    return true;
}

static void free_group(native_group *g)
{
    team_close(g->team);
    layout_free(&g->layout);
    ls_free(g->peers);
    ls_free(g);
}

static void add_closed(native_state *s, uint32_t id)
{
    if (s->n_closed == s->closed_capacity) {
        const size_t wanted = s->closed_capacity == 0 ? 16 : 2 * s->closed_capacity;
        uint32_t *more = ls_realloc(s->closed, wanted, sizeof(*more));

        if (more == NULL)
            return; // late messages are saved until the end, bounded by the peers' credit
        s->closed = more;
        s->closed_capacity = wanted;
    }
    s->closed[s->n_closed++] = id;
}

// Members that wait for a message learn that none comes any more.
static void send_left(const native_group *g)
{
    for (int i = 0; i < g->info->size; i++) {
        native_peer *p = g->peers[i];

        if (p->is_local || p->link == NULL || p->link->ops == NULL || p->link->is_ended ||
            p->link->is_cut)
            continue;
        match_queue_left(p, g);
        (void)link_flush(p->link);
        sleep_update(g->state->sleepers, &p->watch);
    }
}

void native_close_group(native_group *g)
{
    native_state *s = g->state;
    const uint32_t id = g->info->id;

    LS_ASSERT(list_empty(&g->works) && list_empty(&g->directs));
    send_left(g);
    list_remove(&g->node);
    match_free_group(s, id);
    add_closed(s, id);
    free_group(g);
}

// Ranks that are placed round-robin leave no neighbours in the tree on one host.
static void warn_of_layout(const native_group *g)
{
    const plan_layout *l = &g->layout;

    if (g->info->id != 0 || g->info->rank != 0 || l->n_trees < l->n || l->n_hosts == l->n)
        return;
    ls_log(
        LS_LOG_WARN, "native",
        "ranks are placed round-robin on %d hosts, so each reduction sends %.1f times the bytes it "
        "needs between them: number the ranks host by host",
        l->n_hosts, (double)l->n / l->n_hosts);
}

static ls_status make_layout(native_group *g)
{
    const group_info *info = g->info;
    int *names;
    ls_status st;

    if (g->state->host_names == NULL || is_all_local(g->state, info))
        return LS_OK;
    LS_TRY(LS_NEW(&names, (size_t)info->size, "for a group of %d ranks", info->size));
    for (int i = 0; i < info->size; i++)
        names[i] = g->state->host_names[info->members[i]];
    st = layout_make(info->size, names, &g->layout);
    ls_free(names);
    if (st == LS_OK)
        warn_of_layout(g);
    return st;
}

static ls_status fill_group(native_group *g)
{
    native_state *s = g->state;
    const group_info *info = g->info;

    g->peers = ls_calloc((size_t)info->size, sizeof(native_peer *));
    if (g->peers == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a group of %d ranks", info->size);
    for (int i = 0; i < info->size; i++)
        g->peers[i] = &s->peers[info->members[i]];
    LS_TRY(make_layout(g));
    if (!is_all_local(s, info))
        return LS_OK;
    return team_open(s->local, s->host, info,
                     &(team_options){.segment_bytes = s->segment_bytes,
                                     .table = s->algorithms,
                                     .shares_cores = s->ranks_per_core > 1,
                                     .place = s->place},
                     ls_deadline_ms(TEAM_OPEN_MS), &g->team);
}

ls_status native_open_group(native_state *s, const group_info *info, native_group **out)
{
    native_group *g;
    ls_status st;

    LS_TRY(LS_NEW(&g, 1, "for a group of %d ranks", info->size));
    g->state = s;
    g->info = info;
    list_init(&g->works);
    list_init(&g->directs);
    list_init(&g->receives);
    st = fill_group(g);
    if (st != LS_OK) {
        free_group(g);
        return st;
    }
    list_append(&s->groups, &g->node);
    *out = g;
    return LS_OK;
}
