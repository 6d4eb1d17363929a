/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts_place.c - which ranks each host of a job gets that is started from here, and what its agent is told.
 */
#include "launch/agent/agent_hosts_internal.h"

#include "base/alloc.h"
#include "launch/hosts/launch_request.h"
#include "net/interface.h"

#include <string.h>

/* --- launch requests --- */

/* All that may be ours seen from elsewhere; the agent there tries them together. */
static ls_status list_heads(const agent *a, launch_request *o)
{
    net_interface found[DIAL_ADDRESSES_MAX];
    const int port = net_address_port(&a->listens_at);
    int n = 0;

    if (net_address_is_any(&a->listens_at))
        LS_TRY(net_interfaces(a->spec->net, found, DIAL_ADDRESSES_MAX, &n));
    for (int i = 0; i < n; i++)
        o->heads[i] = found[i].address;
    if (n == 0 && net_address_is_any(&a->listens_at))
        LS_TRY(net_address_parse("127.0.0.1:0", 0, &o->heads[n++]));
    else if (n == 0)
        o->heads[n++] = a->listens_at;
    for (int i = 0; i < n; i++)
        net_address_set_port(&o->heads[i], port);
    o->n_heads = n;
    return LS_OK;
}

/* Under Slurm the environment has come along, and a node's own devices must stay its own. */
static ls_status fill_request(const agent_hosts *h, int i, launch_request *o)
{
    const agent *a = h->agent;

    agent_fill_request(a, o);
    o->key = a->base;
    o->node = h->list[i].node;
    o->n_ranks = h->spec->list->hosts[i].slots;
    o->host = hosts_name(h, i);
    o->folder = h->spec->folder;
    o->security = a->own_nodes.security;
    o->size = agent_terminal_size(a, h->world_size);
    LS_TRY(list_heads(a, o));
    return launch_request_list_env(h->spec->exports, h->spec->n_exports,
                                   h->spec->start.way == START_SSH, o);
}

static ls_status send_request(const agent_hosts *h, int i)
{
    launch_request o = {0};
    wire_writer w = {0};
    ls_status st;

    st = fill_request(h, i, &o);
    if (st == LS_OK) {
        launch_request_write(&w, &o);
        st = wire_writer_status(&w);
    }
    if (st == LS_OK && w.bytes > LAUNCH_REQUEST_BODY_MAX)
        st = ls_fail(LS_EINVAL, "arguments and variables of %zu bytes; %zu are the most", w.bytes,
                     LAUNCH_REQUEST_BODY_MAX);
    if (st == LS_OK)
        st = starter_launch(h->starter, i, REMOTE_LAUNCH_REQUEST, w.data, w.bytes);
    if (w.data != NULL)
        explicit_bzero(w.data, w.bytes);
    wire_writer_free(&w);
    net_key_wipe(&o.key);
    ls_free(o.env);
    return st;
}

void hosts_order(agent_hosts *h, int i)
{
    remote_host *host = &h->list[i];

    if (host->phase != IS_THERE)
        return;
    if (host->node < 0) { /* the ranks were placed before it */
        starter_dismiss(h->starter, i);
        return;
    }
    host->phase = HAS_REQUEST;
    if (send_request(h, i) != LS_OK)
        agent_give_up(h->agent, LS_ESYSTEM);
}

/* --- places --- */

static int count_nodes(const agent_hosts *h)
{
    int n = 0;

    for (int i = 0; i < h->spec->list->n; i++)
        n += h->spec->list->hosts[i].slots > 0;
    return n;
}

/* What each host of the job is: its number, its ranks. The same for this machine, if it is one of them. */
static void number_hosts(agent_hosts *h)
{
    int node = 0;

    h->world_size = 0;
    for (int i = 0; i < h->spec->list->n; i++) {
        const int slots = h->spec->list->hosts[i].slots;

        h->list[i].node = slots > 0 ? node++ : -1;
        h->list[i].rank_base = h->world_size;
        h->world_size += slots;
    }
}

static void settle_own(agent_hosts *h)
{
    agent *a = h->agent;
    const int own = h->spec->own;

    a->own_spec.n_ranks = own >= 0 ? h->spec->list->hosts[own].slots : 0;
    a->own_spec.rendezvous.by_id = true;
    a->own_spec.rendezvous.min_nodes = a->own_spec.rendezvous.max_nodes = count_nodes(h);
    a->own_nodes.id = own >= 0 ? h->list[own].node : -1;
    if (own >= 0)
        a->own_nodes.name = hosts_name(h, own);
}

ls_status hosts_place(agent_hosts *h)
{
    LS_TRY(hostlist_place(h->spec->list, h->spec->n_ranks));
    number_hosts(h);
    h->is_placed = true;
    settle_own(h);
    LS_TRY(hosts_open_streams(h));
    LS_TRY(agent_open_head(h->agent));
    for (int i = 0; i < h->spec->list->n; i++)
        hosts_order(h, i);
    return LS_OK;
}

bool hosts_slots_are_known(const agent_hosts *h)
{
    for (int i = 0; i < h->spec->list->n; i++)
        if (h->spec->list->hosts[i].slots == 0)
            return false;
    return true;
}
