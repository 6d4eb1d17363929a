/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h - the connections of one peer behind the first, where its link has several (link_striped.c).
 *
 * Whose call has become the first connection calls for the others too, at the same address, as soon as it knows. They
 * may come to the other rank before it has heard the first word on the first one; then they wait for that.
 */
#ifndef LS_NATIVE_MESH_STREAMS_H
#define LS_NATIVE_MESH_STREAMS_H

#include "comm/native/native.h"
#include "net/listener.h"

typedef struct streams streams;

typedef struct streams_options {
    int n; /* connections of the link, the first among them */
    poller *loop;
    const net_key *key;
    handshake_claim claim; /* of a call of ours */
    native_peer *peer;
    void *self;
    void (*joined)(void *self); /* one more: the link may move again */
    /* One cannot be had. streams_close_pending() may be called from here. */
    void (*failed)(void *self, const char *why);
} streams_options;

LS_MUST_USE ls_status streams_create(const streams_options *opt, streams **out);
void streams_destroy(streams *all);       /* NULL is allowed, here and in the next three */
void streams_close_pending(streams *all); /* gives up what has not joined the link yet */
void streams_forked(const streams *all);  /* closes what a forked child inherited */

/* A link over the first connection, whose socket it takes, also on failure; `all` NULL: it stays the only one. */
LS_MUST_USE ls_status streams_open(const streams *all, native_peer *p, int fd,
                                   const seal_pair *seals, peer_link **out);
/* The peer's link has that stream now; it was our call to this address, or... */
void streams_dial(streams *all, const net_address *at);
/* ... the peer's. */
void streams_accept_pending(streams *all);
/* Somebody has proved to be the peer with one of them. Takes its descriptor. */
void streams_accept(streams *all, const listener_peer *peer);

#endif
