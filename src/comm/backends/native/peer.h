/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - another rank as the native backend sees it: its link, the messages under way to and from
 * it, and the credit that bounds the memory for messages without a receive. match.c maintains all
 * of it.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_PEER_H
#define LS_COMM_BACKENDS_NATIVE_PEER_H

#include "base/map.h"
#include "comm/backends/backend.h"
#include "comm/backends/native/link/link.h"
#include "comm/backends/native/memory/offer_way.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/backends/native/sleep.h"

typedef backend_state native_state;
typedef backend_group native_group;
typedef struct native_peer native_peer;
typedef struct transfer transfer;
typedef struct unexpected_message unexpected_message;

/* One message to or from a peer, for a work. */
struct transfer {
    list_node node;
    native_group *group;
    native_peer *peer; /* NULL: a receive from any source */
    bool is_send;
    bool is_direct;
    bool in_pieces;        /* direct receives: stands in peer->pieces */
    bool announce;         /* announce at once, though the payload waits */
    bool is_offered;       /* direct: the receiver may read the payload from `offered` */
    message_offer offered; /* with SHARED: where the sender writes the second half */
    bool must_write;       /* direct sends: the second half, once the memory is mapped */
    segment_view *view;    /* direct receives: the sender's memory, while both copy; else NULL */
    offer_way *timed;      /* direct receives: of a comparison; else NULL */
    int64_t since;         /* of `timed` */
    uint64_t sequence;     /* direct sends: the peer's next_message */
    uint64_t step;         /* direct: the tag */
    const uint8_t *from;
    uint8_t *to;
    size_t bytes; /* of this message; direct: of all pieces */
    size_t total;
    size_t moved;         /* direct: bytes of finished pieces */
    size_t queued;        /* direct: bytes given to the link */
    const uint8_t *stamp; /* encoded; the work's */
    void (*finished)(transfer *t);
    void *owner;
};

/* A message that came before its receive. */
struct unexpected_message {
    list_node node;
    native_peer *peer;
    message m;
    uint8_t stamp[STAMP_BYTES]; /* m's */
    bool is_complete;
    transfer *claimer; /* a receive posted while the payload was coming in */
    int size_class;
    uint8_t *data; /* behind this struct */
};

struct native_peer {
    native_state *state;
    int rank; /* world */
    /* NULL: this rank itself, or a rank of this host with which no message was exchanged; idle
     * until a remote rank needs it. */
    peer_link *link;
    sleep_link watch; /* of link */
    backend_bytes *received;
    bool is_local;
    bool end_handled;          /* the link has ended, and the works that need it have failed */
    const char *host;          /* its record's, of a rank of another host; else NULL */
    char *unreachable;         /* why there is no connection, else NULL */
    list_node receives;        /* transfers of collectives */
    list_node awaiting;        /* sends that wait for READY */
    list_node pieces;          /* direct receives whose pieces come in */
    list_node unexpected;      /* messages of collectives */
    size_t n_unexpected;       /* direct ones included */
    uint64_t unexpected_bytes; /* charged bytes among them */
    uint64_t charged;          /* sent to the peer, since the start */
    uint64_t credit;           /* of those, what has found its receive */
    uint64_t consumed;         /* of what the peer charged */
    uint64_t reported;         /* the last value of `consumed` that was sent */
    uint64_t next_message;
    offer_ways *ways; /* of messages to read; NULL before the first one */
    /* The message that is coming in: */
    transfer *receiving;
    unexpected_message *receiving_unexpected;
};

#endif
