/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - finding the ranks of this host, which are linked through shared memory (local.h), and listening for all others.
 */
#include "comm/native/mesh.h"
#include "comm/native/native.h"

#include "base/text.h"
#include "comm/native/link_shm.h"

#include <unistd.h>

static ls_status join_local(native_state *s, const comm_boot *boot)
{
    LS_TRY(local_join(boot, s->host, &s->local));
    for (int rank = 0; rank < s->size; rank++) {
        const link_sink sink = match_sink(&s->peers[rank]);

        if (rank == s->rank || !local_has(s->local, rank))
            continue;
        LS_TRY(link_shm_create(s->local, rank, &sink, &s->peers[rank].link));
        s->peers[rank].is_local = true;
    }
    for (int rank = 0; rank < s->size; rank++)
        if (s->peers[rank].is_local)
            LS_TRY(link_shm_attach(s->peers[rank].link, boot->deadline_ms));
    return LS_OK;
}

void native_on_channel_end(native_peer *p)
{
    if (p->is_local)
        link_shm_peer_ended(p->link);
}

static int first_elsewhere(const native_state *s)
{
    for (int rank = 0; rank < s->size; rank++)
        if (rank != s->rank && !s->peers[rank].is_local)
            return rank;
    return -1;
}

// Links to all ranks that are not here, without a connection yet. Takes the listener.
static ls_status join_others(native_state *s, const comm_boot *boot)
{
    if (boot->listen_fd < 0)
        return ls_fail(LS_EUNSUPPORTED, "rank %d has no listener for ranks of other hosts",
                       s->rank);
    LS_TRY(mesh_open(s, boot, &s->mesh));
    for (int rank = 0; rank < s->size; rank++) {
        native_peer *p = &s->peers[rank];
        const link_sink sink = match_sink(p);

        if (rank == s->rank || p->is_local)
            continue;
        text_printable(p->host, sizeof(p->host), boot->records[rank].host);
        LS_TRY(link_idle_create(&sink, &p->link));
    }
    return sleep_watch_mesh(s->sleepers, s->mesh);
}

ls_status native_join(native_state *s, const comm_boot *boot)
{
    ls_status st = LS_OK;
    int elsewhere;

    if (!s->is_tcp_only)
        st = join_local(s, boot);
    else if (boot->local_fd >= 0)
        close(boot->local_fd);
    elsewhere = first_elsewhere(s);
    if (st == LS_OK && elsewhere >= 0 && !text_equal(boot->transport, "shm"))
        return join_others(s, boot);
    if (boot->listen_fd >= 0)
        close(boot->listen_fd);
    if (st == LS_OK && elsewhere >= 0)
        st = ls_fail(LS_EUNSUPPORTED,
                     "transport shm was asked for, but rank %d (%s) is not on this host", elsewhere,
                     boot->records[elsewhere].host);
    return st;
}
