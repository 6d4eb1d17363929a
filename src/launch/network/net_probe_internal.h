/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe_internal.h - what the parts of a probe share, and the requests on its connections after
 * the handshake:
 *
 *     echo    client: 1 u32 | 16 u32 | 16 bytes    server: the same 16 bytes
 *     burst   client: 2 u32 | n u32 | n bytes      server: u32s, the bytes received so far, up to n
 */
#ifndef LS_LAUNCH_NETWORK_NET_PROBE_INTERNAL_H
#define LS_LAUNCH_NETWORK_NET_PROBE_INTERNAL_H

#include "launch/network/net_probe.h"
#include "net/auth/listener.h"

enum { PROBE_ECHO = 1, PROBE_BURST = 2 };

#define PROBE_HEADER_BYTES 8
#define PROBE_ECHO_BYTES   16
#define PROBE_COUNT_BYTES  4
#define PROBE_BURST_MOST   ((size_t)4 * 1024 * 1024)
#define PROBE_PIECE_BYTES  ((size_t)64 * 1024) /* of one send or receive */

typedef struct probe_responder probe_responder;
typedef struct probe_try probe_try;

struct net_probe {
    net_probe_options opt;
    char job[HANDSHAKE_JOB_BYTES];
    net_offer offer;
    net_interface *own; /* all addresses of this host, also those that the filter hides */
    int n_own;
    listener *listener;
    uint8_t *piece; /* PROBE_PIECE_BYTES: of zeros to send */
    uint8_t *sink;  /* PROBE_PIECE_BYTES: receives data that is discarded */

    list_node responders;
    int n_responders;

    net_peer *peers;
    int n_peers;
    net_report report;
    int n_started; /* of the report's tries */
    int first;     /* index of the first test in the report */
    int at_once;
    bool is_repeated; /* the tests that timed out */
    list_node running;
    int n_running;
    list_node waiting; /* tests that work, before their bandwidth is measured */
    poll_timer turn;   /* starts further tests, or ends the probe */
    net_probe_fn done;
    void *self;
};

/* --- tests from other nodes: net_probe_responder.c --- */

/* Takes ownership of the descriptor. */
void probe_responder_start(void *probe, const listener_peer *peer);
void probe_responders_close(net_probe *p);

/* --- tests of other nodes: net_probe_try.c --- */

/* Starts one test of the report. False, without a result, when no descriptor is free. */
bool probe_try_start(net_probe *p, net_try *result, const net_peer *peer);
void probe_try_measure(probe_try *t); /* measures the bandwidth of a waiting test */
void probe_tries_close(net_probe *p);

/* A test has ended: schedules the next one. */
void probe_turn_soon(net_probe *p);

probe_try *probe_first_waiting(net_probe *p); /* NULL: none */

#endif
