/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_mux.h - several connections of this machine carried over one frame_link: each is a stream of bytes with a number. The frame:
 * number u32, then bytes; no bytes are the stream's end, whoever says it.
 *
 * The side that begins streams gives them numbers; the other side opens something for each new one. Memory is bounded: while the
 * link is full the sockets wait, and a stream is ended when its socket does not take what comes.
 */
#ifndef LS_NET_STREAM_MUX_H
#define LS_NET_STREAM_MUX_H

#include "base/map.h"
#include "net/frame_link.h"

typedef struct stream_mux {
    poller *loop;
    frame_link *link; /* borrowed */
    uint32_t type;    /* of its frames */
    list_node streams;
    int n_streams;
    size_t held; /* bytes that wait for sockets */
    uint32_t last_id;
    void *self;
    /* For a stream that the other side has begun: a nonblocking socket, the mux's from then on. NULL: it may not begin any. */
    ls_status (*open)(void *self, int *fd);
} stream_mux;

/* self and open are the caller's to set. */
void stream_mux_init(stream_mux *m, poller *p, frame_link *link, uint32_t type);
void stream_mux_close(stream_mux *m); /* closes all streams without a word */

/* Begins a stream with this connection. Takes fd. */
LS_MUST_USE ls_status stream_mux_begin(stream_mux *m, int fd);

/* A frame of its type. */
LS_MUST_USE ls_status stream_mux_receive(stream_mux *m, const frame *f);

void stream_mux_resume(stream_mux *m); /* the link has room again: for its `drained` */

#endif
