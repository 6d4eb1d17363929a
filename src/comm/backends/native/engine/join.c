/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - connects a rank when the job starts: with the ranks of this host through shared memory
 * (local.h), and listens for all others (mesh.h). Afterwards every rank of another host has an idle
 * link; those of this host get theirs with the first message (native_link). native.c calls it.
 */
#include "comm/backends/native/engine/join.h"

#include "comm/backends/native/p2p/match.h"

#include "base/alloc.h"
#include "base/text.h"

#include <unistd.h>

static ls_status join_local(native_state *s, const comm_boot *boot)
{
    LS_TRY(local_join(boot, s->host, &s->local));
    sleep_set_local(s->sleepers, s->local);
    for (int rank = 0; rank < s->size; rank++) {
        s->peers[rank].is_local = rank != s->rank && local_has(s->local, rank);
    }
    return LS_OK;
}

static int first_remote(const native_state *s)
{
    for (int rank = 0; rank < s->size; rank++)
        if (rank != s->rank && !s->peers[rank].is_local)
            return rank;
    return -1;
}

// --- upcalls of the mesh ---

static ls_status on_connected(void *self, int rank)
{
    native_state *s = self;

    return sleep_watch(s->sleepers, &s->peers[rank].watch, s->peers[rank].link);
}

static void on_flush(void *self, int rank)
{
    native_state *s = self;
    native_peer *p = &s->peers[rank];

    (void)link_flush(p->link);
    sleep_update(s->sleepers, &p->watch);
}

static void on_send_empty(void *self, int rank)
{
    native_state *s = self;

    match_send_credit(&s->peers[rank]);
}

static bool is_receiving_from(const native_group *g, const native_peer *p)
{
    list_for_each (node, &g->receives) {
        if (list_entry(node, transfer, node)->peer == p)
            return true;
    }
    return false;
}

static bool on_is_expecting(void *self, int rank)
{
    const native_state *s = self;

    list_for_each (node, &s->groups) {
        if (is_receiving_from(list_entry(node, native_group, node), &s->peers[rank]))
            return true;
    }
    return match_is_expecting(&s->peers[rank]);
}

static void on_ended(void *self, int rank, const char *why)
{
    native_state *s = self;
    native_peer *p = &s->peers[rank];

    if (why != NULL) {
        ls_free(p->unreachable);
        p->unreachable = ls_strdup(why);
    }
    native_on_link_end(p);
}

// Links to all ranks of other hosts, without a connection yet. Takes the listener.
static ls_status join_others(native_state *s, const comm_boot *boot)
{
    const mesh_events events = {.self = s,
                                .connected = on_connected,
                                .flush = on_flush,
                                .send_empty = on_send_empty,
                                .is_expecting = on_is_expecting,
                                .ended = on_ended};

    if (boot->listen_fd < 0)
        return ls_fail(LS_EUNSUPPORTED, "rank %d has no listener for ranks of other hosts",
                       s->rank);
    LS_TRY(mesh_open(boot, &events, &s->mesh));
    for (int rank = 0; rank < s->size; rank++) {
        native_peer *p = &s->peers[rank];
        const link_sink sink = match_sink(p);

        if (rank == s->rank || p->is_local)
            continue;
        p->host = boot->records[rank].host;
        LS_TRY(link_idle_create(&sink, &p->link));
        LS_TRY(mesh_add_peer(s->mesh, rank, p->link));
    }
    return sleep_watch_fd(s->sleepers, mesh_fd(s->mesh));
}

ls_status native_join(native_state *s, const comm_boot *boot)
{
    ls_status st = LS_OK;
    int remote;

    if (!s->is_tcp_only)
        st = join_local(s, boot);
    else if (boot->local_fd >= 0)
        close(boot->local_fd);
    remote = first_remote(s);
    if (st == LS_OK && remote >= 0 && !text_equal(boot->transport, "shm"))
        return join_others(s, boot);
    if (boot->listen_fd >= 0)
        close(boot->listen_fd);
    if (st == LS_OK && remote >= 0)
        st = ls_fail(LS_EUNSUPPORTED,
                     "transport shm is set, but rank %d (%s) is not on this host: "
                     "set LOCKSTEP_TRANSPORT to auto",
                     remote, boot->records[remote].host);
    return st;
}
