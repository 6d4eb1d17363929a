/* SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"

#include "net/wire.h"

#include <string.h>

void frame_reader_init(frame_reader *r, size_t max_body)
{
    memset(r, 0, sizeof(*r));
    r->max_body = max_body;
}

void frame_reader_free(frame_reader *r)
{
    byte_queue_free(&r->in);
}

ls_status frame_reader_feed(frame_reader *r, const void *data, size_t bytes)
{
    return byte_queue_add(&r->in, data, bytes);
}

ls_status frame_reader_fill(frame_reader *r, int fd, const char *peer, size_t *moved)
{
    return byte_queue_fill(&r->in, fd, peer, moved);
}

ls_status frame_reader_next(frame_reader *r, frame *out, bool *have)
{
    const size_t held = byte_queue_held(&r->in);
    const uint8_t *header;
    size_t body_bytes;

    *have = false;
    if (held < FRAME_HEADER_BYTES)
        return LS_OK;
    header = r->in.data + r->in.start;
    body_bytes = wire_get_u32(header);
    if (body_bytes > r->max_body)
        return ls_fail(LS_EPROTO, "a frame of %zu bytes where at most %zu are allowed", body_bytes,
                       r->max_body);
    if (held - FRAME_HEADER_BYTES < body_bytes)
        return LS_OK;
    out->type = wire_get_u32(header + 4);
    out->body = header + FRAME_HEADER_BYTES;
    out->bytes = body_bytes;
    r->in.start += FRAME_HEADER_BYTES + body_bytes;
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
    byte_queue_free(&q->out);
}

size_t frame_queue_bytes(const frame_queue *q)
{
    return byte_queue_held(&q->out);
}

ls_status frame_queue_add(frame_queue *q, uint32_t type, const void *body, size_t bytes)
{
    const size_t held = frame_queue_bytes(q);
    uint8_t *at;

    if (bytes > UINT32_MAX || held > q->max_bytes ||
        bytes + FRAME_HEADER_BYTES > q->max_bytes - held)
        return ls_fail(LS_ENOMEM, "%zu bytes wait to be sent, at most %zu may", held + bytes,
                       q->max_bytes);
    LS_TRY(byte_queue_room(&q->out, bytes + FRAME_HEADER_BYTES));
    at = q->out.data + q->out.end;
    wire_put_u32(at, (uint32_t)bytes);
    wire_put_u32(at + 4, type);
    if (bytes > 0)
        memcpy(at + FRAME_HEADER_BYTES, body, bytes);
    q->out.end += FRAME_HEADER_BYTES + bytes;
    return LS_OK;
}

ls_status frame_queue_flush(frame_queue *q, int fd, const char *peer)
{
    return byte_queue_flush(&q->out, fd, peer);
}
