/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe.c - the addresses of this node, the listener, and the order of tests: at most AT_ONCE
 * at the same time, then bandwidths one by one. Called by the agent and by the check of several
 * hosts.
 */
#include "launch/network/net_probe_internal.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

#define BACKLOG  4096
#define AT_ONCE  128
#define LIMIT_MS 1000
#define OWN_MAX  256
/* A machine or network that answers later than this is busy: what timed out is tested once more. */
#define BUSY_US      20000
#define BUSY_AT_ONCE 8
#define BUSY_FACTOR  4 /* of the limit */

/* --- the listener --- */

static ls_status list_addresses(net_probe *p)
{
    const bool has_filter = p->opt.filter != NULL && p->opt.filter[0] != 0;
    char all[512];
    int n = 0;

    p->offer.is_filtered = has_filter;
    LS_TRY(LS_NEW(&p->own, OWN_MAX, "for the addresses of this host"));
    LS_TRY(net_interfaces(p->opt.filter, p->own, OWN_MAX, &n));
    for (int i = 0; i < n && p->offer.n < NET_ADDRESSES_MAX; i++)
        if (net_interface_name_is_plain(p->own[i].name))
            p->offer.at[p->offer.n++] = p->own[i];
    if (has_filter && p->offer.n == 0)
        return ls_fail(LS_ENOTFOUND, "no network interface matches --net %s; this host has: %s",
                       p->opt.filter, net_interfaces_text(all, sizeof(all)));
    return net_interfaces(NULL, p->own, OWN_MAX, &p->n_own);
}

static ls_status listen_at(net_probe *p, net_address at, int *port)
{
    net_address bound;
    int fd;

    net_address_set_port(&at, 0);
    LS_TRY(net_listen_in(&at, p->opt.ports, p->opt.node, NET_STREAM, BACKLOG, &fd, &bound));
    *port = net_address_port(&bound);
    return listener_listen_take(p->listener, fd);
}

/* Listens at all addresses with one port, or with a filter only at the addresses that pass it. */
static ls_status listen_all(net_probe *p)
{
    const bool has_filter = p->opt.filter != NULL && p->opt.filter[0] != 0;
    net_address any;
    int port = 0;

    LS_TRY(net_address_decode("[::]:0", &any));
    if (!has_filter)
        LS_TRY(listen_at(p, any, &port));
    for (int i = 0; i < p->offer.n; i++) {
        if (has_filter)
            LS_TRY(listen_at(p, p->offer.at[i].address, &port));
        net_address_set_port(&p->offer.at[i].address, port);
    }
    return LS_OK;
}

static ls_status open_listener(net_probe *p)
{
    listener_options opt = {.name = "networks",
                            .key = p->opt.key,
                            .insecure = p->opt.insecure,
                            .expected = {.purpose = NET_PURPOSE_PROBE,
                                         .to = (uint32_t)p->opt.node,
                                         .generation = p->opt.generation},
                            .self = p,
                            .accepted = probe_responder_start};

    memcpy(opt.expected.job, p->job, sizeof(opt.expected.job));
    return listener_create(p->opt.loop, &opt, &p->listener);
}

ls_status net_probe_open(const net_probe_options *opt, net_probe **out)
{
    net_probe *p;
    ls_status st;

    *out = NULL;
    LS_TRY(LS_NEW(&p, 1, "to test networks"));
    p->opt = *opt;
    p->opt.limit_ms = opt->limit_ms > 0 ? opt->limit_ms : LIMIT_MS;
    p->at_once = AT_ONCE;
    text_format(p->job, sizeof(p->job), "%s", opt->job);
    text_printable(p->offer.host, sizeof(p->offer.host), opt->host);
    p->offer.machine = net_host_value();
    list_init(&p->responders);
    list_init(&p->running);
    list_init(&p->waiting);
    p->piece = ls_calloc(1, PROBE_PIECE_BYTES);
    p->sink = ls_calloc(1, PROBE_PIECE_BYTES);
    st = p->piece == NULL || p->sink == NULL ? ls_fail(LS_ENOMEM, "no memory to test networks")
                                             : LS_OK;
    if (st == LS_OK)
        st = list_addresses(p);
    if (st == LS_OK)
        st = open_listener(p);
    if (st == LS_OK)
        st = listen_all(p);
    if (st == LS_OK)
        *out = p;
    else
        net_probe_close(p);
    return st;
}

const net_offer *net_probe_offer(const net_probe *p)
{
    return &p->offer;
}

void net_probe_close(net_probe *p)
{
    if (p == NULL)
        return;
    poller_timer_cancel(&p->turn);
    probe_tries_close(p);
    listener_destroy(p->listener);
    probe_responders_close(p);
    net_report_free(&p->report);
    ls_free(p->peers);
    ls_free(p->own);
    ls_free(p->piece);
    ls_free(p->sink);
    ls_free(p);
}

/* --- tests --- */

/* An address that this host has as well: a connection to it from here would reach this host. */
static bool is_own(const net_probe *p, const net_peer *peer, const net_interface *iface)
{
    if (peer->offer.machine == p->offer.machine)
        return false;
    if (net_address_is_loopback(&iface->address))
        return true;
    for (int i = 0; i < p->n_own; i++) {
        net_address own = p->own[i].address;

        net_address_set_port(&own, net_address_port(&iface->address));
        if (net_address_equal(&own, &iface->address))
            return true;
    }
    return false;
}

static bool has_family(const net_probe *p, net_family family)
{
    for (int i = 0; i < p->offer.n; i++)
        if (net_address_family(&p->offer.at[i].address) == family)
            return true;
    return false;
}

static void add_tries(net_probe *p, const net_peer *peer)
{
    for (int a = 0; a < peer->offer.n; a++) {
        const net_interface *iface = &peer->offer.at[a];

        if (!has_family(p, net_address_family(&iface->address)))
            continue;
        p->report.tries[p->report.n++] =
            (net_try){.peer = (uint16_t)peer->node,
                      .address = (uint8_t)a,
                      .local = -1,
                      .outcome = is_own(p, peer, iface) ? NET_WRONG_NODE : NET_UNTRIED};
    }
}

static const net_peer *peer_of(const net_probe *p, const net_try *t)
{
    const net_peer *peer = p->peers;

    while (peer->node != t->peer)
        peer++;
    return peer;
}

static bool start_next(net_probe *p)
{
    net_try *t = &p->report.tries[(p->first + p->n_started) % p->report.n];

    if (t->outcome == NET_UNTRIED && !probe_try_start(p, t, peer_of(p, t))) {
        if (p->n_running > 0) {
            p->at_once = p->n_running; // continues when a test has ended
            return false;
        }
        t->outcome = NET_UNREACHABLE;
    }
    p->n_started++;
    return true;
}

/* Where many agents share few cores, their tests delay each other. */
static bool repeat_where_busy(net_probe *p)
{
    bool is_busy = false;
    int n = 0;

    for (int i = 0; i < p->report.n; i++)
        is_busy |=
            p->report.tries[i].outcome == NET_OK && p->report.tries[i].round_trip_us > BUSY_US;
    for (int i = 0; is_busy && !p->is_repeated && i < p->report.n; i++) {
        net_try *t = &p->report.tries[i];

        if (t->outcome != NET_TIMED_OUT)
            continue;
        t->outcome = NET_UNTRIED;
        n++;
    }
    if (n == 0)
        return false;
    p->is_repeated = true;
    p->opt.limit_ms *= BUSY_FACTOR;
    p->at_once = BUSY_AT_ONCE;
    p->n_started = 0;
    probe_turn_soon(p);
    return true;
}

static void turn(void *arg)
{
    net_probe *p = arg;

    while (p->n_started < p->report.n && p->n_running < p->at_once)
        if (!start_next(p))
            return;
    if (p->n_running > 0)
        return;
    if (!list_empty(&p->waiting))
        probe_try_measure(probe_first_waiting(p));
    else if (!p->turn.is_set && !repeat_where_busy(p))
        p->done(p->self, &p->report);
}

void probe_turn_soon(net_probe *p)
{
    poller_timer_set(p->opt.loop, &p->turn, ls_now_ms(), turn, p);
}

/* Each node begins with its successor, so that not all nodes test node 0 first. */
static void find_first(net_probe *p)
{
    while (p->first < p->report.n && p->report.tries[p->first].peer < p->opt.node)
        p->first++;
    if (p->first == p->report.n)
        p->first = 0;
}

ls_status net_probe_start(net_probe *p, const net_peer *peers, int n, net_probe_fn done, void *self)
{
    LS_ASSERT(p->done == NULL);
    if (n < 0 || n > NET_PEERS_MAX)
        return ls_fail(LS_EINVAL, "%d nodes to test, expected at most %d", n, NET_PEERS_MAX);
    for (int i = 0; i < n; i++)
        if (peers[i].node == p->opt.node || peers[i].node < 0 || peers[i].node >= NET_NODES_MAX ||
            (i > 0 && peers[i].node <= peers[i - 1].node))
            return ls_fail(LS_EINVAL, "the nodes to test are not in order");
    LS_TRY(LS_NEW(&p->peers, (size_t)n, "to test networks"));
    LS_TRY(LS_NEW(&p->report.tries, (size_t)n * NET_ADDRESSES_MAX, "to test networks"));
    for (int i = 0; i < n; i++)
        p->peers[i] = peers[i];
    p->n_peers = n;
    for (int i = 0; i < n; i++)
        add_tries(p, &p->peers[i]);
    find_first(p);
    p->done = done;
    p->self = self;
    probe_turn_soon(p);
    return LS_OK;
}
