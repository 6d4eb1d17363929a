/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe.h - tests the networks from this node to others: which addresses answer, as which node,
 * and how fast.
 *
 * A listener accepts the tests of other nodes (listener.h: first the job's key, then the
 * destination node). All addresses of all peers are tested at once. An address that answers as the
 * right node gets round-trip measurements and a small burst, which detects networks that lose large
 * packets. Then, one by one, larger bursts measure the bandwidth to the next node in the ring.
 * Without failures this takes milliseconds; addresses that do not answer cost one second together,
 * up to 128 of them.
 *
 * Threads: all on the poller's thread. No function blocks, and no callback runs within a call.
 */
#ifndef LS_LAUNCH_NETWORK_NET_PROBE_H
#define LS_LAUNCH_NETWORK_NET_PROBE_H

#include "launch/network/net_choice.h"
#include "net/key.h"
#include "net/poller.h"
#include "net/socket.h"

typedef struct net_probe net_probe;

typedef struct net_probe_options {
    poller *loop;
    const net_key *key; /* borrowed; NULL only with insecure */
    bool insecure;
    const char *job;
    uint32_t generation;
    int node;           /* number of this node */
    const char *host;   /* its name, for messages */
    const char *filter; /* --net; NULL or "": none; limits the listening addresses too */
    net_ports ports;    /* --port-range */
    int limit_ms;       /* until an address must answer; 0: 1000 */
} net_probe_options;

/*
 * Finds this node's addresses and listens. LS_ENOTFOUND: no interface passes the filter. LS_EINVAL:
 * the filter. LS_ESYSTEM: no free port.
 */
LS_MUST_USE ls_status net_probe_open(const net_probe_options *opt, net_probe **out);

/*
 * The addresses for the peers; valid until net_probe_close(). A host with loopback only has an
 * offer without addresses.
 */
const net_offer *net_probe_offer(const net_probe *p);

/*
 * Receives the results; the report is valid until net_probe_close(), which the callback may call.
 */
typedef void (*net_probe_fn)(void *self, const net_report *report);

/*
 * Tests the peers (ascending by node; copied), then calls done, once. Other nodes may still test
 * this one, so keep the probe open until all are done. LS_EINVAL: the list is not in order. Call at
 * most once.
 */
LS_MUST_USE ls_status net_probe_start(net_probe *p, const net_peer *peers, int n, net_probe_fn done,
                                      void *self);

/* Ends all tests at once without calling done. NULL is allowed. */
void net_probe_close(net_probe *p);

#endif
