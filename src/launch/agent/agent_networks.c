/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_networks.c - this node's part in finding a network: where it can be called, whom it reaches, and what its ranks use then.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/socket.h"

#include <dirent.h>
#include <unistd.h>

enum { BACKLOG = 4096 };

static void begin_message(const agent *a, wire_writer *w)
{
    *w = (wire_writer){0};
    wire_write_u32(w, a->place.place.generation);
}

static void close_probe(agent *a)
{
    net_probe_close(a->probe);
    a->probe = NULL;
}

ls_status agent_offer_addresses(agent *a)
{
    char host[NET_HOST_BYTES] = "?";
    const net_probe_options options = {.loop = a->poller,
                                       .key = &a->key,
                                       .job = a->place.job,
                                       .generation = a->place.place.generation,
                                       .node = a->place.place.node,
                                       .host = host,
                                       .filter = a->spec->net,
                                       .ports = a->spec->ports};
    wire_writer w;

    (void)gethostname(host, sizeof(host) - 1);
    close_probe(a);
    LS_TRY(net_probe_open(&options, &a->probe));
    begin_message(a, &w);
    net_offer_write(&w, net_probe_offer(a->probe));
    agent_send(a, NODE_OFFER, &w);
    wire_writer_free(&w);
    return LS_OK;
}

static void on_tried(void *self, const net_report *report)
{
    agent *a = self;
    wire_writer w;

    begin_message(a, &w);
    net_report_write(&w, report);
    agent_send(a, NODE_PROBED, &w);
    wire_writer_free(&w);
}

/* Whether it is about the present generation, and a network is being sought. */
static bool is_present(const agent *a, wire_reader *r)
{
    return wire_read_u32(r) == a->place.place.generation && a->probe != NULL;
}

ls_status agent_try_networks(agent *a, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    net_peer *peers;
    uint32_t n;
    ls_status st;

    if (!is_present(a, &r))
        return LS_OK;
    n = wire_read_u32(&r);
    if (n > NET_PEERS_MAX)
        return ls_fail(LS_EPROTO, "a list of %u nodes to try", n);
    peers = ls_calloc(n > 0 ? n : 1, sizeof(*peers));
    if (peers == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %u nodes", n);
    for (uint32_t i = 0; i < n; i++)
        net_peer_read(&r, &peers[i]);
    st = wire_reader_end(&r, "a list of nodes to try");
    if (st == LS_OK)
        st = net_probe_start(a->probe, peers, (int)n, on_tried, a);
    ls_free(peers);
    return st;
}

static void send_ready(agent *a, int port)
{
    const node_master master = {.generation = a->place.place.generation, .port = port};
    wire_writer w = {0};

    node_write_master(&w, &master);
    agent_send(a, NODE_READY, &w);
    wire_writer_free(&w);
}

void agent_tell_ready(agent *a)
{
    int port;

    if (agent_choose_master(a, &port) == LS_OK)
        send_ready(a, port);
    else
        agent_tell_failure(a, NULL);
}

ls_status agent_take_network(agent *a, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    if (!is_present(a, &r))
        return LS_OK;
    net_pick_read(&r, &a->pick);
    LS_TRY(wire_reader_end(&r, "a network"));
    close_probe(a);
    agent_tell_ready(a);
    return LS_OK;
}

bool agent_has_rdma(void)
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

ls_status agent_open_listener(const agent *a, int rank, int *fd)
{
    *fd = -1;
    if (a->pick.n == 0)
        return LS_OK;
    return net_listen_in(&a->pick.at[0].address, a->spec->ports, rank, NET_STREAM, BACKLOG, fd,
                         NULL);
}
