/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_queue.h - bytes on their way in or out of a socket. Memory follows what is held, never what somebody announces.
 */
#ifndef LS_NET_BYTE_QUEUE_H
#define LS_NET_BYTE_QUEUE_H

#include "base/status.h"

/* Zero-initialise. Held are data[start, end); whoever takes from the front moves `start`. */
typedef struct byte_queue {
    uint8_t *data;
    size_t start;
    size_t end;
    size_t capacity;
} byte_queue;

void byte_queue_free(byte_queue *q); /* leaves it empty and usable */
size_t byte_queue_size(const byte_queue *q);
void byte_queue_trim(byte_queue *q); /* gives a large block back when nothing is held in it */

/* Makes room for `bytes` more behind `end`. LS_ENOMEM; what is held stays. */
LS_MUST_USE ls_status byte_queue_reserve(byte_queue *q, size_t bytes);

LS_MUST_USE ls_status byte_queue_add(byte_queue *q, const void *data, size_t bytes);

/* Reads once from a nonblocking socket; *moved = 0 when nothing was there. LS_EPEER at its end. */
LS_MUST_USE ls_status byte_queue_fill(byte_queue *q, int fd, const char *peer, size_t *moved);

/* Writes as much as a nonblocking socket takes. */
LS_MUST_USE ls_status byte_queue_flush(byte_queue *q, int fd, const char *peer);

#endif
