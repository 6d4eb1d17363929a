/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_probe_internal.h - what the parts of a probe share, and what is said on its connections behind the handshake.
 *
 *   echo    client: 1 u32 | 16 u32 | 16 bytes          server: the same 16 bytes
 *   burst   client: 2 u32 | n u32 | n bytes            server: u32s, each how many of these have come so far; the last is n
 */
#ifndef LS_LAUNCH_NET_PROBE_INTERNAL_H
#define LS_LAUNCH_NET_PROBE_INTERNAL_H

#include "launch/network/net_probe.h"
#include "net/listener.h"

enum { PROBE_ECHO = 1, PROBE_BURST = 2 };

#define PROBE_HEADER_BYTES 8
#define PROBE_ECHO_BYTES   16
#define PROBE_COUNT_BYTES  4
#define PROBE_BURST_MOST   ((size_t)4 * 1024 * 1024)
#define PROBE_PIECE_BYTES  ((size_t)64 * 1024) /* of one send or receive */

typedef struct probe_guest probe_guest;
typedef struct probe_try probe_try;

struct net_probe {
    net_probe_options opt;
    char job[HANDSHAKE_JOB_BYTES];
    net_offer offer;
    net_interface *own; /* all addresses of this host, also those that the filter hides */
    int n_own;
    listener *listener;
    uint8_t *piece; /* PROBE_PIECE_BYTES: of zeros to send */
    uint8_t *sink;  /* PROBE_PIECE_BYTES: where what comes is dropped */

    list_node guests;
    int n_guests;

    net_peer *peers;
    int n_peers;
    net_report report;
    int n_started; /* of the report's tries */
    int first;     /* the place of the first one in the report */
    int at_once;
    list_node running;
    int n_running;
    list_node waiting; /* they work; their bandwidth is still to be measured */
    poll_timer turn;   /* starts what may start, or ends it all */
    net_probe_fn done;
    void *self;
};

/* --- the side that is tried: net_probe_guest.c --- */

/* Takes the descriptor. */
void probe_guest_enter(net_probe *p, const listener_peer *who);
void probe_guests_close(net_probe *p);

/* --- the side that tries: net_probe_try.c --- */

/* Starts what net_probe.c has put into the report. False: no descriptor is free; the result is not decided. */
bool probe_try_start(net_probe *p, net_try *result, const net_peer *peer);
void probe_try_measure(probe_try *t); /* of one that waits */
void probe_tries_close(net_probe *p);

/* Something has ended: there is room for the next one. */
void probe_turn_soon(net_probe *p);

probe_try *probe_first_waiting(net_probe *p); /* NULL: none */

#endif
