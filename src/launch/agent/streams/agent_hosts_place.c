/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts_place.c - decides which ranks each host gets, and sends the launch requests. Every
 * node's number and ranks follow from the order of the host list. Called by agent_hosts.c when the
 * slots of all hosts are known.
 */
#include "launch/agent/streams/agent_hosts_internal.h"

#include "base/alloc.h"
#include "launch/agent/streams/agent_request.h"
#include "net/interface.h"

#include <string.h>

/* --- launch requests --- */

/* All addresses at which another machine may find the head; its agent tries them together. */
static ls_status list_heads(const agent_hosts *h, launch_request *o)
{
    net_interface found[DIAL_ADDRESSES_MAX];
    const net_address *at = &h->opt.link->listens_at;
    const int port = net_address_port(at);
    int n = 0;

    if (net_address_is_any(at))
        LS_TRY(net_interfaces(h->ctx->spec->job->net, found, DIAL_ADDRESSES_MAX, &n));
    for (int i = 0; i < n; i++)
        o->heads[i] = found[i].address;
    if (n == 0 && net_address_is_any(at))
        LS_TRY(net_address_parse("127.0.0.1:0", 0, &o->heads[n++]));
    else if (n == 0)
        o->heads[n++] = *at;
    for (int i = 0; i < n; i++)
        net_address_set_port(&o->heads[i], port);
    o->n_heads = n;
    return LS_OK;
}

/* srun passes the environment on itself; variables of this node's devices must not be copied. */
static ls_status fill_request(const agent_hosts *h, int i, launch_request *o)
{
    agent_request_fill(h->opt.output, o);
    o->key = h->opt.link->key;
    o->node = h->list[i].node;
    o->n_ranks = h->spec->list->hosts[i].slots;
    o->host = hosts_name(h, i);
    o->folder = h->spec->folder;
    o->security = h->ctx->spec->nodes->security;
    o->size = agent_terminal_size(h->opt.output, h->world_size);
    LS_TRY(list_heads(h, o));
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
        st =
            ls_fail(LS_EINVAL, "arguments and variables have %zu bytes, more than the limit of %zu",
                    w.bytes, LAUNCH_REQUEST_BODY_MAX);
    if (st == LS_OK)
        st = starter_launch(h->starter, i, REMOTE_LAUNCH_REQUEST, w.data, w.bytes);
    if (w.data != NULL)
        explicit_bzero(w.data, w.bytes);
    wire_writer_free(&w);
    net_key_wipe(&o.key);
    ls_free(o.env);
    return st;
}

void hosts_launch(agent_hosts *h, int i)
{
    remote_host *host = &h->list[i];

    if (host->phase != HOST_READY)
        return;
    if (host->node < 0) { /* it has no ranks */
        starter_dismiss(h->starter, i);
        return;
    }
    host->phase = HOST_LAUNCHED;
    if (send_request(h, i) != LS_OK)
        h->ctx->give_up(h->ctx->agent, LS_ESYSTEM);
}

/* --- ranks of hosts --- */

/* Numbers the hosts that have ranks, and their ranks, in the order of the list. */
static int number_hosts(agent_hosts *h)
{
    int n_nodes = 0;

    h->world_size = 0;
    for (int i = 0; i < h->spec->list->n; i++) {
        const int slots = h->spec->list->hosts[i].slots;

        h->list[i].node = slots > 0 ? n_nodes++ : -1;
        h->list[i].rank_base = h->world_size;
        h->world_size += slots;
    }
    return n_nodes;
}

ls_status hosts_place(agent_hosts *h)
{
    const int own = h->spec->own;
    hosts_own_node node = {.node = -1};

    LS_TRY(hostlist_place(h->spec->list, h->spec->n_ranks));
    node.n_nodes = number_hosts(h);
    h->is_placed = true;
    if (own >= 0) {
        node.n_ranks = h->spec->list->hosts[own].slots;
        node.node = h->list[own].node;
        node.name = hosts_name(h, own);
    }
    LS_TRY(h->opt.placed(h->opt.agent, &node));
    LS_TRY(hosts_open_streams(h));
    for (int i = 0; i < h->spec->list->n; i++)
        hosts_launch(h, i);
    return LS_OK;
}

bool hosts_slots_are_known(const agent_hosts *h)
{
    for (int i = 0; i < h->spec->list->n; i++)
        if (h->spec->list->hosts[i].slots == 0)
            return false;
    return true;
}
