/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_seal.c - the opening side of sealed connections. The input is either the received bytes, or
 * the damage that an attacker does to sealed frames. The cuts must not change the result, and only
 * bytes that were sent may come out.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "net/messages/frame.h"

#include <string.h>

#define BODY_MAX   ((size_t)1 << 20)
#define OUT_MAX    ((size_t)128 * 1024)
#define LINE_MAX   ((size_t)1 << 18)
#define HEAD       4
#define PIECES_MAX 2500 /* a short line in single bytes */

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static seal seal_of(uint8_t mode)
{
    static const uint8_t key[SEAL_KEY_BYTES] = {4, 7, 11};
    seal s;

    seal_start(&s, mode % 2 == 0 ? NET_MAC : NET_ENCRYPT, key);
    return s;
}

/* The bodies that came out, concatenated. */
typedef struct received {
    uint8_t *data;
    size_t bytes;
    ls_status end;
} received;

static void take_frames(received *h, frame_reader *r)
{
    bool have = true;
    frame f;

    while (have && h->end == LS_OK) {
        h->end = frame_reader_next(r, &f, &have);
        if (h->end != LS_OK || !have)
            return;
        must(f.bytes <= OUT_MAX - h->bytes);
        memcpy(h->data + h->bytes, f.body, f.bytes);
        h->bytes += f.bytes;
    }
}

static received open_line(uint8_t mode, const uint8_t *line, size_t bytes, size_t piece)
{
    received h = {.data = ls_calloc(1, OUT_MAX)};
    const seal s = seal_of(mode);
    frame_reader r;

    must(h.data != NULL);
    frame_reader_init(&r, BODY_MAX);
    r.seal = s;
    for (size_t at = 0; at < bytes && h.end == LS_OK; at += piece) {
        const ls_status st =
            frame_reader_feed(&r, line + at, bytes - at < piece ? bytes - at : piece);

        take_frames(&h, &r); // the output before the damage counts
        if (h.end == LS_OK)
            h.end = st;
        must(r.sealed.capacity <= 4 * (SEAL_RECORD_MAX + bytes) &&
             r.in.capacity <= 4 * bytes + 8192);
    }
    frame_reader_free(&r);
    return h;
}

/* One frame for each `n` bytes of the input; the last one is large when the input says so. */
static void seal_all(frame_queue *q, uint8_t mode, size_t n, const uint8_t *data, size_t size)
{
    static uint8_t large[SEAL_RECORD_MAX + 100];
    const seal s = seal_of(mode);

    frame_queue_init(q, LINE_MAX);
    q->seal = s;
    for (size_t at = 0; at < size; at += n)
        must(frame_queue_add(q, 1, data + at, size - at < n ? size - at : n) == LS_OK);
    if ((mode & 2) != 0)
        must(frame_queue_add(q, 2, large, sizeof(large)) == LS_OK);
}

/* The change by the attacker; returns the new length. */
static size_t damage(uint8_t *line, size_t bytes, uint8_t how, size_t at)
{
    const size_t n = at % bytes;
    const size_t record = SEAL_OVERHEAD + FRAME_HEADER_BYTES;

    switch (how % 5) {
    case 1: // changes a bit
        line[n] ^= (uint8_t)(1U << (how / 5 % 8));
        return bytes;
    case 2: // cuts the end off
        return n;
    case 3: // removes a part
        if (n + record > bytes)
            return bytes;
        memmove(line + n, line + n + record, bytes - n - record);
        return bytes - record;
    case 4: // repeats a part
        if (n + 2 * record > bytes)
            return bytes;
        memmove(line + n + record, line + n, record);
        return bytes;
    default:
        return bytes;
    }
}

static void same(const received *a, const received *b)
{
    must(a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0);
    must(a->end == b->end);
}

static void open_both_ways(uint8_t mode, const uint8_t *line, size_t bytes, size_t piece,
                           const received *sent)
{
    received whole = open_line(mode, line, bytes, SIZE_MAX / 2);
    received cut =
        open_line(mode, line, bytes, bytes / piece > PIECES_MAX ? bytes / PIECES_MAX : piece);

    same(&whole, &cut);
    if (sent != NULL)
        must(whole.bytes <= sent->bytes && memcmp(whole.data, sent->data, whole.bytes) == 0);
    ls_free(whole.data);
    ls_free(cut.data);
}

/* mode, kind of damage, position, piece; then the bytes of the frames, or the received bytes */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t line[2 * LINE_MAX];
    frame_queue q;
    received sent;
    size_t bytes;
    size_t piece;

    if (size <= HEAD || size > 2048)
        return 0;
    piece = 1 + (size_t)data[3] * 16;
    if ((data[0] & 4) != 0) {
        open_both_ways(data[0], data + HEAD, size - HEAD, piece, NULL);
        return 0;
    }
    seal_all(&q, data[0], 1 + data[2] % 64, data + HEAD, size - HEAD);
    bytes = frame_queue_bytes(&q);
    memcpy(line, q.out.data + q.out.start, bytes);
    frame_queue_free(&q);
    sent = open_line(data[0], line, bytes, bytes);
    must(sent.end == LS_OK && sent.bytes >= size - HEAD);
    bytes = damage(line, bytes, data[1], (size_t)data[2] * 37);
    open_both_ways(data[0], line, bytes, piece, &sent);
    ls_free(sent.data);
    return 0;
}
