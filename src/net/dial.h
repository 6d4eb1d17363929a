/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dial.h - connects to a listener (listener.h) on a poller: to all addresses of a name or of a list at once, again and again until somebody is there who
 * knows the key. Nothing waits but the resolver, which is asked anew each time: a machine may get its name later than its peers.
 */
#ifndef LS_NET_DIAL_H
#define LS_NET_DIAL_H

#include "net/address.h"
#include "net/handshake.h"
#include "net/poller.h"

#define DIAL_ADDRESSES_MAX 16

typedef struct dial dial;

typedef struct dial_options {
    const char *to; /* "HOST:PORT"; borrowed, as the key is; NULL: */
    const net_address *
        addresses; /* ... these, borrowed, of which one may be another machine's: who has another key there is not final */
    int n_addresses;
    int default_port;
    const net_key *key; /* NULL: none is asked for, --insecure */
    handshake_claim claim;
    int64_t deadline_ms;
    /* Not 0: somebody has been listening there from the start, who may be busy with other things. Whoever takes the connection has
     * as long as it wants for its proof; the deadline is this far from when nobody took it (any more); and it is final, in a list too, when
     * the key differs at every address, or for some time nobody listens at any. */
    int accept_timeout_ms;
    void *self;
    /* Once, and never from within dial_open(): the connection, proved and nonblocking, the callee's from now on; or fd -1 and why.
     * dial_close() may be called from here. */
    void (*done)(void *self, int fd, const net_address *at, ls_status status, const char *why);
} dial_options;

LS_MUST_USE ls_status dial_open(poller *p, const dial_options *opt, dial **out);
void dial_close(dial *d); /* NULL is allowed */
void dial_forked(
    const dial *d); /* in a forked child, which must use nothing of it: closes what it inherited */

/* From within `done`: what all that follows on the connection is sealed with. */
const seal_pair *dial_seals(const dial *d);

/* Why it has not succeeded so far: "cannot connect to tcp://10.0.0.1:29500: Connection refused". */
const char *dial_last_error(const dial *d);

#endif
