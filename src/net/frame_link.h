/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame_link.h - one connection that carries frames both ways, on a poller. It never waits: what the socket does not take is queued,
 * and a peer that does not read what it is sent is given up.
 */
#ifndef LS_NET_FRAME_LINK_H
#define LS_NET_FRAME_LINK_H

#include "net/frame.h"
#include "net/poller.h"

#include <stdbool.h>

typedef struct frame_link {
    poller *loop;
    int fd; /* -1: closed */
    poll_watch *watch;
    bool wants_write;
    bool is_finishing;   /* closes when all is sent */
    bool is_send_failed; /* the peer takes nothing any more; what it has sent is still read */
    int64_t received_ms; /* last bytes */
    const char *peer;    /* for messages; borrowed */
    frame_reader in;
    frame_queue out;
    poll_timer end;
    char why[256]; /* it has ended, and `ended` is about to be called */
    bool
        is_closed_by_peer; /* ... because the connection was closed or broke; else it was given up here */
    void *self;
    /* A failing status ends the link with that text. May close the link, must not free its memory. */
    ls_status (*message)(void *self, const frame *f);
    /* The link has ended without frame_link_close(), and is closed: called once, never from within a call of this module. */
    void (*ended)(void *self, const char *why);
    /* Everything that had to wait has been sent: never from within a call of this module; may be NULL. Must not free the link. */
    void (*drained)(void *self);
} frame_link;

/* Takes a nonblocking fd, whether or not it succeeds. self, message and ended are the caller's to set before. */
LS_MUST_USE ls_status frame_link_open(frame_link *l, poller *p, int fd, const char *peer,
                                      size_t body_max, size_t queue_max);

/* Right after opening: all that is sent and comes is sealed like this. */
void frame_link_seal(frame_link *l, const seal_pair *seals);

/* Queues one frame and sends what the socket takes; nothing once the link has ended. Where the peer
 * has closed the connection, `ended` is called after the peer's last frame. */
void frame_link_send(frame_link *l, uint32_t type, const void *body, size_t bytes);

/* Sends what is queued and waits until the peer has closed, for at most two seconds together; then closes and calls `ended`. What
 * comes meanwhile is not looked at. */
void frame_link_finish(frame_link *l);

void frame_link_close(
    frame_link *l); /* at once, without a word; allowed when closed, or never opened (zeros) */

#endif
