/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame_link.h - one connection that carries frames both ways, on a poller. It never blocks: bytes
 * that the socket does not accept are queued, and a link whose peer does not read is closed.
 */
#ifndef LS_NET_MESSAGES_FRAME_LINK_H
#define LS_NET_MESSAGES_FRAME_LINK_H

#include "net/messages/frame.h"
#include "net/poller.h"

#include <stdbool.h>

typedef struct frame_link {
    poller *loop;
    int fd; /* -1 = closed */
    poll_watch *watch;
    bool needs_write;
    bool is_finishing; /* closes after the queue is sent */
    /* The peer accepts no more bytes; frames that it has sent are still read. */
    bool is_send_failed;
    int64_t received_ms; /* time of the last received bytes */
    const char *peer;    /* for messages; borrowed */
    frame_reader in;
    frame_queue out;
    poll_timer end;
    char why[256]; /* set when `ended` is about to be called */
    /* The peer closed the connection or it broke; false when this side gave it up. */
    bool is_closed_by_peer;
    void *self;
    /* A failing status ends the link with its error text. May close the link, must not free its
     * memory. */
    ls_status (*message)(void *self, const frame *f);
    /* The link has ended without frame_link_close() and is closed. Called once, never from within a
     * call of this module. */
    void (*ended)(void *self, const char *why);
    /* The queue is empty again. Never called from within a call of this module; may be NULL. Must
     * not free the link. */
    void (*drained)(void *self);
} frame_link;

/* Takes a nonblocking fd, also when it fails. The caller sets self, message and ended before. */
LS_MUST_USE ls_status frame_link_open(frame_link *l, poller *p, int fd, const char *peer,
                                      size_t body_max, size_t queue_max);

/* Right after opening: all frames in both directions are sealed with these keys. */
void frame_link_seal(frame_link *l, const seal_pair *seals);

/* Queues one frame and sends as much as the socket accepts; does nothing once the link has ended.
 * When the peer has closed the connection, `ended` is called after the peer's last frame. */
void frame_link_send(frame_link *l, uint32_t type, const void *body, size_t bytes);

/* Ends the link later, with a call of `ended`: a message for it could not be made. */
void frame_link_fail(frame_link *l, const char *why);

/* Sends the queue and waits until the peer has closed, at most two seconds in total; then closes
 * and calls `ended`. Frames that arrive meanwhile are ignored. */
void frame_link_finish(frame_link *l);

/* Closes at once, without a call of `ended`. Allowed when closed or never opened (zeros). */
void frame_link_close(frame_link *l);

#endif
