/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - messages over a byte stream: u32 length of the body, u32 type, body. In records (seal.h) where the connection is sealed.
 *
 * The reader's memory grows with the bytes that have come, never with the length that a header claims.
 */
#ifndef LS_NET_FRAME_H
#define LS_NET_FRAME_H

#include "net/byte_queue.h"
#include "net/seal.h"

#include <stdbool.h>

#define FRAME_HEADER_BYTES 8

typedef struct frame {
    uint32_t type;
    const uint8_t *body; /* borrowed from the reader until its next call */
    size_t bytes;
} frame;

typedef struct frame_reader {
    byte_queue in; /* not handed out yet */
    size_t max_body;
    seal seal;
    byte_queue sealed; /* a record that is not complete */
} frame_reader;

void frame_reader_init(frame_reader *r, size_t max_body);
void frame_reader_free(frame_reader *r);

/* What comes from now on is sealed like this. */
void frame_reader_seal(frame_reader *r, const seal *in);

/* Adds bytes from anywhere. LS_ENOMEM; LS_EPROTO: a record does not fit, see seal_open(). */
LS_MUST_USE ls_status frame_reader_feed(frame_reader *r, const void *data, size_t bytes);

/* Reads once from a nonblocking socket; *moved = 0 when nothing was there. LS_EPEER at its end, LS_EPROTO as above. */
LS_MUST_USE ls_status frame_reader_fill(frame_reader *r, int fd, const char *peer, size_t *moved);

/* The next whole frame, or *have = false. LS_EPROTO when the header claims more than max_body. */
LS_MUST_USE ls_status frame_reader_next(frame_reader *r, frame *out, bool *have);

/* Frames that wait until the socket takes them; never more than max_bytes of them. */
typedef struct frame_queue {
    byte_queue out;
    size_t max_bytes;
    seal seal;
} frame_queue;

void frame_queue_init(frame_queue *q, size_t max_bytes);
void frame_queue_free(frame_queue *q);

/* What is added from now on is sealed like this. */
void frame_queue_seal(frame_queue *q, const seal *out);

size_t frame_queue_bytes(const frame_queue *q);

/* LS_ENOMEM when there is no memory or the queue is full; nothing is added then. */
LS_MUST_USE ls_status frame_queue_add(frame_queue *q, uint32_t type, const void *body,
                                      size_t bytes);

/* Writes as much as a nonblocking socket takes. */
LS_MUST_USE ls_status frame_queue_flush(frame_queue *q, int fd, const char *peer);

#endif
