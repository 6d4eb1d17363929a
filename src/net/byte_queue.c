/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_queue.c - a growing buffer between a socket and a parser or writer. Its capacity is at most
 * a small multiple of the bytes that it has held. Used by frame.c, stream_mux.c, store/ and
 * launch/.
 */
#include "net/byte_queue.h"

#include "base/alloc.h"
#include "net/socket.h"

#include <string.h>

#define READ_BYTES 4096                /* smallest reserve of a read */
#define KEEP_BYTES ((size_t)16 * 1024) /* a larger block is freed once it is empty */

size_t byte_queue_size(const byte_queue *q)
{
    return q->end - q->start;
}

void byte_queue_free(byte_queue *q)
{
    ls_free(q->data);
    memset(q, 0, sizeof(*q));
}

void byte_queue_trim(byte_queue *q)
{
    if (byte_queue_size(q) > 0)
        return;
    q->start = 0;
    q->end = 0;
    if (q->capacity > KEEP_BYTES)
        byte_queue_free(q);
}

/* The new capacity for `wanted` bytes, 0 when impossible. It doubles, so that copying costs O(1)
 * per byte. */
static size_t larger_capacity(const byte_queue *q, size_t wanted)
{
    size_t larger = q->capacity < READ_BYTES ? READ_BYTES : q->capacity;

    while (larger < wanted && larger <= SIZE_MAX / 2)
        larger *= 2;
    if (larger == q->capacity && byte_queue_size(q) > q->capacity / 2 && larger <= SIZE_MAX / 2)
        larger *= 2;
    return larger < wanted ? 0 : larger;
}

static ls_status grow(byte_queue *q, size_t wanted)
{
    const size_t held = byte_queue_size(q);
    const size_t larger = larger_capacity(q, wanted);
    uint8_t *grown = larger == 0 ? NULL : ls_realloc(NULL, larger, 1);

    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes", wanted);
    if (held > 0)
        memcpy(grown, q->data + q->start, held);
    ls_free(q->data);
    q->data = grown;
    q->capacity = larger;
    return LS_OK;
}

/* When half of the block is free the content moves to its beginning instead of growing the
 * block. */
ls_status byte_queue_reserve(byte_queue *q, size_t bytes)
{
    const size_t held = byte_queue_size(q);
    size_t wanted;

    byte_queue_trim(q);
    if (bytes <= q->capacity - q->end)
        return LS_OK;
    LS_TRY(ls_add_size(held, bytes, &wanted));
    if (wanted <= q->capacity && held <= q->capacity / 2)
        memmove(q->data, q->data + q->start, held);
    else
        LS_TRY(grow(q, wanted));
    q->start = 0;
    q->end = held;
    return LS_OK;
}

ls_status byte_queue_add(byte_queue *q, const void *data, size_t bytes)
{
    if (bytes == 0)
        return LS_OK;
    LS_TRY(byte_queue_reserve(q, bytes));
    memcpy(q->data + q->end, data, bytes);
    q->end += bytes;
    return LS_OK;
}

ls_status byte_queue_fill(byte_queue *q, int fd, const char *peer, size_t *moved)
{
    const size_t held = byte_queue_size(q);

    *moved = 0;
    // As many bytes again as the queue holds: memory follows the received bytes, and large messages
    // need few reads.
    LS_TRY(byte_queue_reserve(q, held > READ_BYTES ? held : READ_BYTES));
    LS_TRY(net_recv_some(fd, peer, q->data + q->end, q->capacity - q->end, moved));
    q->end += *moved;
    return LS_OK;
}

ls_status byte_queue_flush(byte_queue *q, int fd, const char *peer)
{
    while (q->start < q->end) {
        size_t moved;

        LS_TRY(net_send_some(fd, peer, q->data + q->start, q->end - q->start, &moved));
        if (moved == 0)
            return LS_OK;
        q->start += moved;
    }
    byte_queue_trim(q);
    return LS_OK;
}
