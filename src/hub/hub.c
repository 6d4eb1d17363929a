/* SPDX-License-Identifier: Apache-2.0 */
/* hub.c - creates a hub and its listeners, for the agent and rank 0's hub thread. */
#include "hub/hub_internal.h"

#include "base/alloc.h"

#include <string.h>

static ls_status make_listener(hub *h)
{
    listener_options opt = {
        .name = "hub",
        .key = h->opt.key,
        .insecure = h->opt.insecure,
        .expected = {.purpose = h->opt.world_size == 0 ? NET_PURPOSE_STORE : NET_PURPOSE_CONTROL,
                     .to = HANDSHAKE_ANY_RANK,
                     .generation = h->opt.generation,
                     .security = h->opt.security},
        .n_expected = h->opt.world_size,
        .self = h,
        .accepted = hub_enter,
    };

    memcpy(opt.expected.job, h->opt.job, sizeof(h->opt.job));
    return listener_create(h->loop, &opt, &h->listener);
}

ls_status hub_create(poller *p, const hub_options *opt, hub **out)
{
    hub *h;
    ls_status st;

    *out = NULL;
    LS_TRY(LS_NEW(&h, 1, "for a hub"));
    h->loop = p;
    h->opt = *opt;
    h->grace_ms = opt->death_grace_ms;
    list_init(&h->conns);
    list_init(&h->dead);
    list_init(&h->waits);
    list_init(&h->gathers);
    list_init(&h->held);
    list_init(&h->ops);
    list_init(&h->calls);
    list_init(&h->leaves);
    list_init(&h->barriers);
    st = hub_ranks_create(h);
    if (st == LS_OK)
        st = make_listener(h);
    if (st != LS_OK) {
        hub_destroy(h);
        return st;
    }
    *out = h;
    return LS_OK;
}

void hub_destroy(hub *h)
{
    if (h == NULL)
        return;
    h->opt.events = (hub_events){0};
    listener_destroy(h->listener);
    while (!list_empty(&h->conns))
        conn_drop(list_entry(h->conns.next, hub_conn, node));
    poller_timer_cancel(&h->reaper);
    hub_reap(h);
    hub_ranks_free(h);
    hub_gather_free(h);
    table_free(&h->table);
    wire_writer_free(&h->body);
    ls_free(h);
}

void hub_count(const hub *h, int *n_open, int *n_unauthenticated)
{
    *n_unauthenticated = listener_pending(h->listener);
    *n_open = *n_unauthenticated + h->n_conns;
}

bool hub_has_formed(const hub *h)
{
    return h->has_formed;
}

uint64_t hub_frames(const hub *h)
{
    return h->n_frames;
}

ls_status hub_listen(hub *h, const net_address *at, net_address *bound)
{
    return listener_listen(h->listener, at, bound);
}

ls_status hub_listen_take(hub *h, int fd)
{
    return listener_listen_take(h->listener, fd);
}
