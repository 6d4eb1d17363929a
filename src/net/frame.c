/* SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"

#include "base/alloc.h"
#include "net/socket.h"
#include "net/wire.h"

#include <string.h>

#define READ_BYTES 4096                /* room made for one read; doubles with what has come */
#define KEEP_BYTES ((size_t)64 * 1024) /* an empty buffer larger than this is given back */

/*
 * Both the reader and the queue are bytes[start, end) of a block that slides back to its beginning instead of
 * growing when half of it is free.
 */
static bool make_room(uint8_t **data, size_t *start, size_t *end, size_t *capacity, size_t bytes)
{
    const size_t held = *end - *start;
    size_t wanted = held;
    size_t larger = *capacity;
    uint8_t *grown;

    if (bytes <= *capacity - *end)
        return true;
    if (__builtin_add_overflow(held, bytes, &wanted))
        return false;
    if (wanted <= *capacity && held <= *capacity / 2) {
        memmove(*data, *data + *start, held);
    } else {
        if (larger < READ_BYTES)
            larger = READ_BYTES;
        while (larger < wanted && larger <= SIZE_MAX / 2)
            larger *= 2;
        if (larger == *capacity && held > *capacity / 2 && larger <= SIZE_MAX / 2)
            larger *= 2;
        grown = larger < wanted ? NULL : ls_realloc(NULL, larger, 1);
        if (grown == NULL)
            return false;
        if (held > 0)
            memcpy(grown, *data + *start, held);
        ls_free(*data);
        *data = grown;
        *capacity = larger;
    }
    *start = 0;
    *end = held;
    return true;
}

static void give_back(uint8_t **data, size_t *start, size_t *end, size_t *capacity)
{
    *start = 0;
    *end = 0;
    if (*capacity > KEEP_BYTES) {
        ls_free(*data);
        *data = NULL;
        *capacity = 0;
    }
}

void frame_reader_init(frame_reader *r, size_t max_body)
{
    memset(r, 0, sizeof(*r));
    r->max_body = max_body;
}

void frame_reader_free(frame_reader *r)
{
    ls_free(r->data);
    frame_reader_init(r, r->max_body);
}

static ls_status reader_room(frame_reader *r, size_t bytes)
{
    if (r->start == r->end)
        give_back(&r->data, &r->start, &r->end, &r->capacity);
    if (!make_room(&r->data, &r->start, &r->end, &r->capacity, bytes))
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes of frames", r->end - r->start + bytes);
    return LS_OK;
}

ls_status frame_reader_feed(frame_reader *r, const void *data, size_t bytes)
{
    if (bytes == 0)
        return LS_OK;
    LS_TRY(reader_room(r, bytes));
    memcpy(r->data + r->end, data, bytes);
    r->end += bytes;
    return LS_OK;
}

ls_status frame_reader_fill(frame_reader *r, int fd, const char *peer, size_t *moved)
{
    const size_t held = r->end - r->start;

    *moved = 0;
    // As much again as is held: the buffer follows what came, and a large frame still needs few reads.
    LS_TRY(reader_room(r, held > READ_BYTES ? held : READ_BYTES));
    LS_TRY(net_recv_some(fd, peer, r->data + r->end, r->capacity - r->end, moved));
    r->end += *moved;
    return LS_OK;
}

ls_status frame_reader_next(frame_reader *r, frame *out, bool *have)
{
    const size_t held = r->end - r->start;
    const uint8_t *header;
    size_t body_bytes;

    *have = false;
    if (held < FRAME_HEADER_BYTES)
        return LS_OK;
    header = r->data + r->start;
    body_bytes = wire_get_u32(header);
    if (body_bytes > r->max_body)
        return ls_fail(LS_EPROTO, "a frame of %zu bytes where at most %zu are allowed", body_bytes,
                       r->max_body);
    if (held - FRAME_HEADER_BYTES < body_bytes)
        return LS_OK;
    out->type = wire_get_u32(header + 4);
    out->body = header + FRAME_HEADER_BYTES;
    out->bytes = body_bytes;
    r->start += FRAME_HEADER_BYTES + body_bytes;
    *have = true;
    return LS_OK;
}

void frame_queue_init(frame_queue *q, size_t max_bytes)
{
    memset(q, 0, sizeof(*q));
    q->max_bytes = max_bytes;
}

void frame_queue_free(frame_queue *q)
{
    ls_free(q->data);
    frame_queue_init(q, q->max_bytes);
}

size_t frame_queue_bytes(const frame_queue *q)
{
    return q->end - q->start;
}

ls_status frame_queue_add(frame_queue *q, uint32_t type, const void *body, size_t bytes)
{
    const size_t held = frame_queue_bytes(q);

    if (bytes > UINT32_MAX || held > q->max_bytes ||
        bytes + FRAME_HEADER_BYTES > q->max_bytes - held)
        return ls_fail(LS_ENOMEM, "%zu bytes wait to be sent, at most %zu may", held + bytes,
                       q->max_bytes);
    if (!make_room(&q->data, &q->start, &q->end, &q->capacity, bytes + FRAME_HEADER_BYTES))
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes to be sent", held + bytes);
    wire_put_u32(q->data + q->end, (uint32_t)bytes);
    wire_put_u32(q->data + q->end + 4, type);
    if (bytes > 0)
        memcpy(q->data + q->end + FRAME_HEADER_BYTES, body, bytes);
    q->end += FRAME_HEADER_BYTES + bytes;
    return LS_OK;
}

ls_status frame_queue_flush(frame_queue *q, int fd, const char *peer)
{
    while (q->start < q->end) {
        size_t moved;

        LS_TRY(net_send_some(fd, peer, q->data + q->start, q->end - q->start, &moved));
        if (moved == 0)
            return LS_OK;
        q->start += moved;
    }
    give_back(&q->data, &q->start, &q->end, &q->capacity);
    return LS_OK;
}
