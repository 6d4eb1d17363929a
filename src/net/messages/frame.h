/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - messages over a byte stream: u32 length of the body, u32 type, body; inside records
 * (seal.h) when the connection is sealed.
 *
 * The reader's memory grows with the received bytes, never with the length in a header.
 *
 * net/messages/: frames on a connection, and messages described by tables (wire_fields.h). Called
 * by hub, launch and diagnose.
 */
#ifndef LS_NET_MESSAGES_FRAME_H
#define LS_NET_MESSAGES_FRAME_H

#include "net/auth/seal.h"
#include "net/byte_queue.h"

#include <stdbool.h>

#define FRAME_HEADER_BYTES 8

typedef struct frame {
    uint32_t type;
    const uint8_t *body; /* borrowed from the reader until its next call */
    size_t bytes;
} frame;

typedef struct frame_reader {
    byte_queue in; /* received, not yet returned */
    size_t max_body;
    seal seal;         /* opens the bytes that are received from now on */
    byte_queue sealed; /* an incomplete record */
} frame_reader;

void frame_reader_init(frame_reader *r, size_t max_body);
void frame_reader_free(frame_reader *r);

/* Adds received bytes. LS_ENOMEM; LS_EPROTO: a record is invalid, see seal_open(). */
LS_MUST_USE ls_status frame_reader_feed(frame_reader *r, const void *data, size_t bytes);

/* Reads once from a nonblocking socket; *moved = 0 when no bytes were available. LS_EPEER at the
 * end of the stream, LS_EPROTO as above. */
LS_MUST_USE ls_status frame_reader_fill(frame_reader *r, int fd, const char *peer, size_t *moved);

/* Returns the next complete frame, or *have = false. LS_EPROTO when a header announces more than
 * max_body. */
LS_MUST_USE ls_status frame_reader_next(frame_reader *r, frame *out, bool *have);

/* Frees a large block when nothing is left in it; the last frame is not valid any more. */
void frame_reader_trim(frame_reader *r);

/* Frames that wait for the socket, at most max_bytes of them. */
typedef struct frame_queue {
    byte_queue out;
    size_t max_bytes;
    seal seal; /* seals the frames that are added from now on */
} frame_queue;

void frame_queue_init(frame_queue *q, size_t max_bytes);
void frame_queue_free(frame_queue *q);

size_t frame_queue_bytes(const frame_queue *q);

/* LS_ENOMEM when there is no memory or the queue is full; then nothing is added. */
LS_MUST_USE ls_status frame_queue_add(frame_queue *q, uint32_t type, const void *body,
                                      size_t bytes);

/* Writes as many bytes as a nonblocking socket accepts. */
LS_MUST_USE ls_status frame_queue_flush(frame_queue *q, int fd, const char *peer);

#endif
