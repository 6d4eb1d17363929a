/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - listens on a poller and hands over authenticated connections (handshake.h).
 * Unauthenticated peers get few slots and little time, so they can neither use up memory nor delay
 * peers that have the key.
 */
#ifndef LS_NET_AUTH_LISTENER_H
#define LS_NET_AUTH_LISTENER_H

#include "net/address.h"
#include "net/auth/handshake.h"
#include "net/poller.h"

#include <sys/types.h>

#define LISTENER_PEER_TEXT 64

typedef struct listener listener;

/* An authenticated peer. */
typedef struct listener_peer {
    /* Nonblocking, with stream options; no byte behind the handshake has been read. The callee owns
     * it. */
    int fd;
    char name[LISTENER_PEER_TEXT]; /* "tcp://10.0.0.1:4711" or "process 4711" */
    pid_t pid;                     /* of a unix socket, else 0 */
    handshake_claim claim;         /* the authenticated claim */
    seal_pair seals;               /* for all following bytes */
} listener_peer;

typedef struct listener_options {
    const char *name;         /* the component in log lines; a literal */
    const net_key *key;       /* NULL = unix sockets of the same uid only; borrowed */
    bool insecure;            /* without a key: allows TCP as well */
    handshake_claim expected; /* its security applies to TCP connections */
    int n_expected;           /* peers that may connect at the same time; 0: few */
    void *self;
    /* On the poller's thread; must not destroy the listener. */
    void (*accepted)(void *self, const listener_peer *peer);
} listener_options;

LS_MUST_USE ls_status listener_create(poller *p, const listener_options *opt, listener **out);
/* Closes all listening sockets and unauthenticated connections; NULL is allowed. */
void listener_destroy(listener *l);

/* For a forked child, which must use nothing else of it: closes the inherited descriptors. */
void listener_forked(const listener *l);

/* Listens at an address (unix or TCP); *bound gets the actual port. May be called several times.
 * LS_EAUTH: TCP without a key. */
LS_MUST_USE ls_status listener_listen(listener *l, const net_address *at, net_address *bound);

/* Listens with a socket that the caller has bound. Takes the descriptor. */
LS_MUST_USE ls_status listener_listen_take(listener *l, int fd);

int listener_pending(const listener *l); /* connections in their handshake */

#endif
