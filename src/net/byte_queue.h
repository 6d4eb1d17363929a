/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_queue.h - bytes on their way into or out of a socket. Its memory grows with the bytes that
 * it holds, never with a length that a peer announces.
 */
#ifndef LS_NET_BYTE_QUEUE_H
#define LS_NET_BYTE_QUEUE_H

#include "base/status.h"

/* Zero-initialise. The content is data[start, end); a consumer advances `start`. */
typedef struct byte_queue {
    uint8_t *data;
    size_t start;
    size_t end;
    size_t capacity;
} byte_queue;

void byte_queue_free(byte_queue *q); /* leaves an empty, usable queue */
size_t byte_queue_size(const byte_queue *q);
void byte_queue_trim(byte_queue *q); /* frees a large block when the queue is empty */

/* Reserves memory for `bytes` more behind `end`. LS_ENOMEM; the content stays. */
LS_MUST_USE ls_status byte_queue_reserve(byte_queue *q, size_t bytes);

LS_MUST_USE ls_status byte_queue_add(byte_queue *q, const void *data, size_t bytes);

/* Reads once from a nonblocking socket; *moved = 0 when no bytes were available. LS_EPEER at the
 * end of the stream. */
LS_MUST_USE ls_status byte_queue_fill(byte_queue *q, int fd, const char *peer, size_t *moved);

/* Writes as many bytes as a nonblocking socket accepts. */
LS_MUST_USE ls_status byte_queue_flush(byte_queue *q, int fd, const char *peer);

#endif
