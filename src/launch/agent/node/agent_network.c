/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_network.c - offers this node's addresses to the head, tries the addresses of other nodes,
 * and opens listeners on the picked network. Messages of another generation are ignored. Called by
 * the agent between the welcome of a generation and the start of its ranks.
 */
#include "launch/agent/node/agent_network.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/socket.h"

#include <dirent.h>
#include <unistd.h>

enum { BACKLOG = 4096 };

void agent_network_close(agent_network *n)
{
    net_probe_close(n->probe);
    n->probe = NULL;
}

ls_status agent_network_offer(agent_network *n, const net_key *key)
{
    char host[NET_HOST_BYTES] = "?";
    const net_probe_options options = {.loop = n->ctx->poller,
                                       .key = key,
                                       .job = n->ctx->place.job,
                                       .generation = agent_generation(n->ctx),
                                       .node = n->ctx->place.place.node,
                                       .host = host,
                                       .filter = n->ctx->spec->job->net,
                                       .ports = n->ctx->spec->job->ports};
    wire_writer w;

    (void)gethostname(host, sizeof(host) - 1);
    agent_network_close(n);
    LS_TRY(net_probe_open(&options, &n->probe));
    w = agent_begin_message(n->ctx);
    net_offer_write(&w, net_probe_offer(n->probe));
    agent_send(n->ctx, NODE_OFFER, &w);
    return LS_OK;
}

static void on_tried(void *self, const net_report *report)
{
    const agent_network *n = self;
    wire_writer w = agent_begin_message(n->ctx);

    net_report_write(&w, report);
    agent_send(n->ctx, NODE_PROBED, &w);
}

/* Whether a message is about the present generation, and its network is not picked yet. */
static bool is_present(const agent_network *n, wire_reader *r)
{
    return wire_read_u32(r) == agent_generation(n->ctx) && n->probe != NULL;
}

ls_status agent_network_try(agent_network *n, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    net_peers peers;
    ls_status st;

    if (!is_present(n, &r))
        return LS_OK;
    net_peers_read(&r, &peers);
    st = wire_reader_end(&r, "a list of nodes to try");
    if (st == LS_OK)
        st = net_probe_start(n->probe, peers.list, peers.n, on_tried, n);
    net_peers_free(&peers);
    return st;
}

ls_status agent_network_take(agent_network *n, const frame *f, bool *is_picked)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *is_picked = is_present(n, &r);
    if (!*is_picked)
        return LS_OK;
    net_pick_read(&r, &n->pick);
    LS_TRY(wire_reader_end(&r, "a network"));
    agent_network_close(n);
    return LS_OK;
}

bool agent_network_has_rdma(void)
{
    DIR *devices = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    bool found = false;

    while (devices != NULL && !found && (entry = file_next_entry(devices)) != NULL)
        found = entry->d_name[0] != '.';
    if (devices != NULL)
        closedir(devices);
    return found;
}

ls_status agent_network_listen(const agent_network *n, int rank, int *fd)
{
    *fd = -1;
    if (n->pick.n == 0)
        return LS_OK;
    return net_listen_in(&n->pick.at[0].address, n->ctx->spec->job->ports, rank, NET_STREAM,
                         BACKLOG, fd, NULL);
}
