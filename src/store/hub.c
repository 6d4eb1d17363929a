/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.c - the life of a hub; hub_internal.h says which file does what.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/file.h"

#include <string.h>

/* --- life --- */

ls_status hub_create(poller *p, const hub_options *opt, hub **out)
{
    hub *h = ls_calloc(1, sizeof(*h));
    ls_status st;

    *out = NULL;
    if (h == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a hub");
    h->loop = p;
    h->opt = *opt;
    h->grace_ms = opt->death_grace_ms;
    h->spare_fd = -1;
    h->expected = (handshake_claim){
        .purpose = opt->world_size == 0 ? NET_PURPOSE_STORE : NET_PURPOSE_CONTROL,
        .to = HANDSHAKE_ANYONE,
        .generation = opt->generation,
    };
    memcpy(h->expected.job, opt->job, sizeof(opt->job));
    list_init(&h->listeners);
    list_init(&h->unproved);
    list_init(&h->proved);
    list_init(&h->dead);
    list_init(&h->waits);
    list_init(&h->held);
    list_init(&h->ops);
    st = hub_ranks_create(h);
    if (st != LS_OK) {
        hub_destroy(h);
        return st;
    }
    hub_open_spare(h);
    *out = h;
    return LS_OK;
}

void hub_destroy(hub *h)
{
    if (h == NULL)
        return;
    h->opt.events = (hub_events){0};
    while (!list_empty(&h->unproved))
        conn_drop(list_entry(h->unproved.next, hub_conn, node));
    while (!list_empty(&h->proved))
        conn_drop(list_entry(h->proved.next, hub_conn, node));
    poller_timer_cancel(&h->reaper);
    hub_reap(h);
    while (!list_empty(&h->listeners)) {
        hub_listener *l = list_entry(h->listeners.next, hub_listener, node);

        list_remove(&l->node);
        poller_unwatch(l->watch);
        file_close(&l->fd);
        ls_free(l);
    }
    poller_timer_cancel(&h->resume);
    hub_ranks_free(h);
    table_free(&h->table);
    wire_writer_free(&h->body);
    file_close(&h->spare_fd);
    ls_free(h);
}

void hub_count(const hub *h, int *n_open, int *n_unproved)
{
    *n_open = h->n_unproved + h->n_proved;
    *n_unproved = h->n_unproved;
}
