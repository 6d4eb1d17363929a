/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - splits a byte stream into frames and queues frames for sending, both through records
 * when the connection is sealed. A frame is returned only once all its bytes have arrived. Used by
 * frame_link.c, store/ and launch/.
 */
#include "net/messages/frame.h"

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
    byte_queue_free(&r->sealed);
    seal_wipe(&r->seal);
}

/* Moves the content of complete records to the frames. */
static ls_status open_records(frame_reader *r)
{
    byte_queue *q = &r->sealed;
    size_t record = 1;
    size_t bytes;

    while (record > 0 && byte_queue_size(q) > 0) {
        uint8_t *at = q->data + q->start;

        LS_TRY(seal_open(&r->seal, at, byte_queue_size(q), &record, &bytes));
        LS_TRY(byte_queue_add(&r->in, at + SEAL_HEAD_BYTES, bytes));
        q->start += record;
    }
    byte_queue_trim(q);
    return LS_OK;
}

ls_status frame_reader_feed(frame_reader *r, const void *data, size_t bytes)
{
    if (r->seal.mode == NET_AUTH)
        return byte_queue_add(&r->in, data, bytes);
    LS_TRY(byte_queue_add(&r->sealed, data, bytes));
    return open_records(r);
}

ls_status frame_reader_fill(frame_reader *r, int fd, const char *peer, size_t *moved)
{
    ls_status st;

    if (r->seal.mode == NET_AUTH)
        return byte_queue_fill(&r->in, fd, peer, moved);
    st = byte_queue_fill(&r->sealed, fd, peer, moved);
    if (st == LS_OK)
        return open_records(r);
    return byte_queue_size(&r->sealed) == 0 ? st : ls_context(st, "in the middle of a record");
}

void frame_reader_trim(frame_reader *r)
{
    byte_queue_trim(&r->in);
    byte_queue_trim(&r->sealed);
}

ls_status frame_reader_next(frame_reader *r, frame *out, bool *have)
{
    const size_t held = byte_queue_size(&r->in);
    const uint8_t *header;
    size_t body_bytes;

    *have = false;
    if (held < FRAME_HEADER_BYTES)
        return LS_OK;
    header = r->in.data + r->in.start;
    body_bytes = wire_get_u32(header);
    if (body_bytes > r->max_body)
        return ls_fail(LS_EPROTO, "a frame of %zu bytes exceeds the limit of %zu", body_bytes,
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
    seal_wipe(&q->seal);
}

size_t frame_queue_bytes(const frame_queue *q)
{
    return byte_queue_size(&q->out);
}

/* Copies the bytes from `at` on of header and body, taken as one sequence. */
static void copy_piece(uint8_t *out, const uint8_t header[FRAME_HEADER_BYTES], const uint8_t *body,
                       size_t at, size_t bytes)
{
    if (at < FRAME_HEADER_BYTES) {
        const size_t n = bytes < FRAME_HEADER_BYTES - at ? bytes : FRAME_HEADER_BYTES - at;

        memcpy(out, header + at, n);
        out += n;
        at += n;
        bytes -= n;
    }
    if (bytes > 0)
        memcpy(out, body + at - FRAME_HEADER_BYTES, bytes);
}

static void add_sealed(frame_queue *q, const uint8_t header[FRAME_HEADER_BYTES],
                       const uint8_t *body, size_t total)
{
    for (size_t at = 0; at < total; at += SEAL_RECORD_MAX) {
        const size_t n = total - at < SEAL_RECORD_MAX ? total - at : SEAL_RECORD_MAX;
        uint8_t *record = q->out.data + q->out.end;

        copy_piece(record + SEAL_HEAD_BYTES, header, body, at, n);
        q->out.end += seal_close(&q->seal, record, n);
    }
}

ls_status frame_queue_add(frame_queue *q, uint32_t type, const void *body, size_t bytes)
{
    const bool is_sealed = q->seal.mode != NET_AUTH;
    const size_t held = frame_queue_bytes(q);
    const size_t total = FRAME_HEADER_BYTES + bytes;
    uint8_t header[FRAME_HEADER_BYTES];

    if (bytes > UINT32_MAX || held > q->max_bytes || total > q->max_bytes - held)
        return ls_fail(LS_ENOMEM, "the send queue would have %zu bytes, the limit is %zu",
                       held + bytes, q->max_bytes);
    LS_TRY(byte_queue_reserve(&q->out, is_sealed ? seal_size(total) : total));
    wire_put_u32(header, (uint32_t)bytes);
    wire_put_u32(header + 4, type);
    if (is_sealed) {
        add_sealed(q, header, body, total);
    } else {
        copy_piece(q->out.data + q->out.end, header, body, 0, total);
        q->out.end += total;
    }
    return LS_OK;
}

ls_status frame_queue_flush(frame_queue *q, int fd, const char *peer)
{
    return byte_queue_flush(&q->out, fd, peer);
}
