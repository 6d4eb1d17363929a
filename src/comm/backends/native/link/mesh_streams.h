/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh_streams.h - the connections of one peer after the first, where its link has several
 * (link_striped.c). mesh.c owns them.
 *
 * The rank that made the first connection makes the others too, to the same address, as soon as the
 * first one is selected. They may reach the other rank before it has received anything on the first
 * connection; then they wait for that.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_LINK_MESH_STREAMS_H
#define LS_COMM_BACKENDS_NATIVE_LINK_MESH_STREAMS_H

#include "comm/backends/native/link/link.h"
#include "net/auth/listener.h"

typedef struct streams streams;

typedef struct streams_options {
    int n; /* connections of the link, the first one included */
    poller *loop;
    const net_key *key;
    handshake_claim claim; /* of an outgoing connection */
    int rank;
    peer_link *link;
    void *self;
    void (*added)(void *self); /* one more stream: the link may move again */
    /* A connection cannot be made. streams_close_pending() may be called from here. */
    void (*failed)(void *self, const char *why);
} streams_options;

/* After so long without an answer of the peer's system its link ends. */
int streams_silence_ms(void);

LS_MUST_USE ls_status streams_create(const streams_options *opt, streams **out);
void streams_destroy(streams *all);       /* NULL is allowed, here and in the next three */
void streams_close_pending(streams *all); /* gives up connections that the link does not have yet */
void streams_forked(const streams *all);  /* closes what a forked child inherited */

/* A link over the first connection, whose socket it takes, also on failure; `all` NULL: there will
 * be no other. */
LS_MUST_USE ls_status streams_open(const streams *all, const link_sink *sink, int fd,
                                   const seal_pair *seals, peer_link **out);
/* The link has the first stream now. This rank made it, to this address, and makes the others. */
void streams_dial(streams *all, const net_address *at);
/* The link has the first stream now, which the peer made: adds the connections that came early. */
void streams_accept_pending(streams *all);
/* The authenticated peer has made one of them. Takes its descriptor. */
void streams_accept(streams *all, const listener_peer *peer);

#endif
