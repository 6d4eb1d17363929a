/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe.h - trying the ways from this node to others: which addresses answer, as whom, and how quickly.
 *
 * One listener takes what others try (listener.h: the job's key, then who is meant). Every address of every peer is tried at once;
 * of those that answer as the right node the round trip is taken and a small burst sent, which finds networks where large packets
 * vanish. Afterwards, one by one, a larger burst measures the bandwidth towards the next node in the ring. With nothing in
 * the way that takes milliseconds; an address where nothing answers costs one second, whatever their number up to 128.
 *
 * Threads    All on the poller's thread. Nothing waits, nothing is called from within a call.
 */
#ifndef LS_LAUNCH_NET_PROBE_H
#define LS_LAUNCH_NET_PROBE_H

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
    int node;           /* this one's number */
    const char *host;   /* its name, for texts */
    const char *filter; /* --net; NULL or "": none. Otherwise only what passes is listened at */
    net_ports ports;    /* --port-range */
    int limit_ms;       /* for one address to answer; 0: 1000 */
} net_probe_options;

/*
 * Finds this node's addresses and listens. LS_ENOTFOUND: nothing fits the filter; says what there is. LS_EINVAL: the filter.
 * LS_ESYSTEM: no port is free.
 */
LS_MUST_USE ls_status net_probe_open(const net_probe_options *opt, net_probe **out);

/* What the others have to know; valid until net_probe_close(). An offer without addresses is possible: a host with loopback alone. */
const net_offer *net_probe_offer(const net_probe *p);

/* What came of it; the report is borrowed and valid until net_probe_close(), which the callback may call. */
typedef void (*net_probe_fn)(void *self, const net_report *report);

/* Tries the peers (ascending by node; copied) and then calls done, once. The others may still try this node: keep it open until
 * all are done. LS_EINVAL: the list is not in order. At most once a probe. */
LS_MUST_USE ls_status net_probe_start(net_probe *p, const net_peer *peers, int n, net_probe_fn done,
                                      void *self);

/* Ends everything at once; done is not called any more. NULL is allowed. */
void net_probe_close(net_probe *p);

#endif
