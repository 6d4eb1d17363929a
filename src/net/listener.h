/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - listens on a poller and lets in who proves the key (handshake.h). Strangers get few slots and little time, so they can
 * neither hold memory nor keep those waiting who have the key.
 */
#ifndef LS_NET_LISTENER_H
#define LS_NET_LISTENER_H

#include "net/address.h"
#include "net/handshake.h"
#include "net/poller.h"

#include <sys/types.h>

#define LISTENER_PEER_TEXT 64

typedef struct listener listener;

/* Somebody who has proved the key. */
typedef struct listener_peer {
    int fd; /* nonblocking, stream options set, not one byte behind the handshake read; the owner's now */
    char name[LISTENER_PEER_TEXT]; /* "tcp://10.0.0.1:4711" or "process 4711" */
    pid_t pid;                     /* of a unix socket, else 0 */
    handshake_claim claim;         /* what it proved to be */
    seal_pair seals;               /* for all that follows */
} listener_peer;

typedef struct listener_options {
    const char *name;         /* of the component, in log lines; a literal */
    const net_key *key;       /* NULL: unix sockets of the same uid only; borrowed */
    bool insecure;            /* without a key, TCP as well */
    handshake_claim expected; /* with its security, which TCP connections have */
    void *self;
    void (*accepted)(
        void *self,
        const listener_peer *peer); /* on the poller's thread; must not destroy the listener */
} listener_options;

LS_MUST_USE ls_status listener_create(poller *p, const listener_options *opt, listener **out);
void listener_destroy(listener *d); /* closes listeners and strangers; NULL is allowed */

void listener_forked(
    const listener
        *d); /* in a forked child, which must use nothing of it: closes what it inherited */

/* Listens at an address (unix or tcp); *bound gets the real port. May be called several times. LS_EAUTH: TCP without a key. */
LS_MUST_USE ls_status listener_listen(listener *d, const net_address *at, net_address *bound);

/* Serves a listening socket that somebody else bound. Takes the descriptor. */
LS_MUST_USE ls_status listener_listen_take(listener *d, int fd);

int listener_pending(const listener *d); /* strangers that have not proved the key yet */

#endif
