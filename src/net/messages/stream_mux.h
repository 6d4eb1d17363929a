/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_mux.h - carries several connections of this machine over one frame_link, each as a
 * numbered byte stream. A frame has the stream's number (u32) and then bytes; a frame without bytes
 * ends the stream in both directions.
 *
 * The side that opens a stream numbers it; the other side opens a socket for it. Memory is bounded:
 * while the link is full the sockets are not read, and a stream ends when its socket does not
 * accept the received bytes.
 */
#ifndef LS_NET_MESSAGES_STREAM_MUX_H
#define LS_NET_MESSAGES_STREAM_MUX_H

#include "base/map.h"
#include "net/messages/frame_link.h"

typedef struct stream_mux {
    poller *loop;
    frame_link *link; /* borrowed */
    uint32_t type;    /* of its frames */
    list_node streams;
    int n_streams;
    size_t held; /* bytes that wait for sockets */
    uint32_t last_id;
    void *self;
    /* Opens a nonblocking socket, which the mux then owns, for a stream of the other side. NULL:
     * the other side may not open streams. */
    ls_status (*open)(void *self, int *fd);
} stream_mux;

/* The caller sets self and open. */
void stream_mux_init(stream_mux *m, poller *p, frame_link *link, uint32_t type);
void stream_mux_close(stream_mux *m); /* closes all streams; the peer is not notified */

/* Opens a stream for this connection. Takes fd. */
LS_MUST_USE ls_status stream_mux_begin(stream_mux *m, int fd);

/* Handles a frame of the mux's type. */
LS_MUST_USE ls_status stream_mux_receive(stream_mux *m, const frame *f);

void stream_mux_resume(stream_mux *m); /* reads sockets again: for `drained` of the link */

#endif
