/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dial.h - connects to a listener (listener.h) on a poller. A dial tries all addresses of a name or
 * of a list at once, and repeats until a listener with the same key answers. Only the resolver
 * blocks; it is asked again in each round, because a host name may become known late.
 */
#ifndef LS_NET_AUTH_DIAL_H
#define LS_NET_AUTH_DIAL_H

#include "net/address.h"
#include "net/auth/handshake.h"
#include "net/poller.h"

#define DIAL_ADDRESSES_MAX 16

typedef struct dial dial;

typedef struct dial_options {
    const char *to; /* "HOST:PORT", borrowed; or NULL and the next two: */
    /* Candidate addresses, borrowed. One of them may belong to another machine, so a different key
     * at one of several addresses is not final. */
    const net_address *addresses;
    int n_addresses;
    int default_port;
    const net_key *key; /* borrowed; NULL = without a key (--insecure) */
    handshake_claim claim;
    int64_t deadline_ms;
    /* 0 for a listener that may start later. Otherwise the listener has been open from the start,
     * but its process may be busy: after it has accepted the connection the handshake has no time
     * limit, and the deadline is this long after the last accepted connection ended. The dial then
     * fails early when the key differs at every address, or when every address has refused the
     * connection for several rounds. */
    int64_t accept_timeout_ms;
    void *self;
    /* Called once, never from within dial_open(): with the authenticated, nonblocking connection,
     * which the callee then owns; or with fd -1 and the reason. May call dial_close(). */
    void (*done)(void *self, int fd, const net_address *at, ls_status status, const char *why);
} dial_options;

LS_MUST_USE ls_status dial_open(poller *p, const dial_options *opt, dial **out);
void dial_close(dial *d); /* NULL is allowed */
/* For a forked child, which must use nothing else of it: closes the inherited descriptors. */
void dial_forked(const dial *d);

/* Valid within `done`: the keys that seal all following bytes of the connection. */
const seal_pair *dial_seals(const dial *d);

/* The last error so far: "cannot connect to tcp://10.0.0.1:29500: Connection refused". */
const char *dial_last_error(const dial *d);

#endif
