/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_world.h - a few nodes with addresses, and the results of their tests, as input for the
 * selection of a network. Used by tests of the selection and of checks.
 */
#ifndef TESTS_LAUNCH_NET_WORLD_H
#define TESTS_LAUNCH_NET_WORLD_H

#include "base/unit.h"

#include "launch/network/net_choice.h"

#define WORLD_NODES_MAX 8
#define GBPS            125000000ULL /* bytes per second */

typedef struct net_world {
    int n;
    net_offer offers[WORLD_NODES_MAX];
    net_try tried[WORLD_NODES_MAX][WORLD_NODES_MAX][NET_ADDRESSES_MAX]; /* [from][to][address] */
    net_try compact[WORLD_NODES_MAX][WORLD_NODES_MAX * NET_ADDRESSES_MAX];
    net_report reports[WORLD_NODES_MAX];
} net_world;

/* Adds an address, "10.77.0.10/24"; docker0 is a bridge. */
static inline void world_address(net_world *w, int node, const char *name, const char *cidr)
{
    net_offer *offer = &w->offers[node];
    net_interface *face = &offer->at[offer->n++];
    char host[64];
    char text[80];
    const char *slash = strchr(cidr, '/');
    int64_t prefix;

    text_format(host, sizeof(host), "%.*s", (int)(slash - cidr), cidr);
    text_format(text, sizeof(text), strchr(host, ':') != NULL ? "[%s]:4711" : "%s:4711", host);
    *face = (net_interface){.mtu = 1500, .is_bridge = text_starts(name, "docker")};
    text_format(face->name, sizeof(face->name), "%s", name);
    assert_ok(net_address_decode(text, &face->address));
    assert_ok(text_parse_int(slash + 1, "prefix", 0, 128, &prefix));
    face->prefix = (int)prefix;
}

/* Adds node number w->n on a machine of its own. */
static inline int world_node(net_world *w, const char *host)
{
    net_offer *offer = &w->offers[w->n];

    text_format(offer->host, sizeof(offer->host), "%s", host);
    offer->machine = 1000 + (uint64_t)w->n;
    return w->n++;
}

/* Sets the result of the test by `from` of one address of `to`. */
static inline void world_set(net_world *w, int from, int to, int address, net_outcome outcome,
                             uint32_t round_trip_us, uint64_t bytes_per_s)
{
    w->tried[from][to][address] = (net_try){.peer = (uint16_t)to,
                                            .address = (uint8_t)address,
                                            .local = -1,
                                            .outcome = (uint8_t)outcome,
                                            .round_trip_us = round_trip_us,
                                            .bytes_per_s = bytes_per_s};
}

/* The same for all pairs, at the address-th address of each node. */
static inline void world_set_all(net_world *w, int address, net_outcome outcome,
                                 uint32_t round_trip_us, uint64_t bytes_per_s)
{
    for (int from = 0; from < w->n; from++)
        for (int to = 0; to < w->n; to++)
            if (from != to)
                world_set(w, from, to, address, outcome, round_trip_us, bytes_per_s);
}

/* Creates the reports; results that were not set are missing. */
static inline void world_report(net_world *w)
{
    for (int from = 0; from < w->n; from++) {
        net_report *report = &w->reports[from];

        *report = (net_report){.tries = w->compact[from]};
        for (int to = 0; to < w->n; to++)
            for (int a = 0; a < NET_ADDRESSES_MAX; a++)
                if (w->tried[from][to][a].outcome != NET_UNTRIED)
                    report->tries[report->n++] = w->tried[from][to][a];
    }
}

static inline ls_status world_choose(net_world *w, const char *filter, net_choice *out)
{
    world_report(w);
    return net_choose(w->offers, w->reports, w->n, filter, out);
}

#endif
