/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.c - writes and reads values as differences. hub_gather.c writes the answers that control.c
 * reads.
 */
#include "hub/values.h"

#include <lockstep/store.h>

#include <string.h>

#define WHOLE     255
#define RUN_MAX   255
#define GAP_LEAST 3 /* fewer equal bytes than this do not end a run: they cost as much */

/* From `at` on: where bytes that differ begin, and where they end. */
typedef struct run {
    size_t first;
    size_t end;
} run;

static run next_run(kv_bytes before, kv_bytes value, size_t at)
{
    run r;
    size_t i = at;

    while (i < value.bytes && i - at < RUN_MAX && value.data[i] == before.data[i])
        i++;
    r = (run){.first = i, .end = i};
    for (; i < value.bytes && i - r.first < RUN_MAX && i - r.end < GAP_LEAST; i++)
        if (value.data[i] != before.data[i])
            r.end = i + 1;
    return r;
}

// False, and nothing is written, where that is not shorter than the value.
static bool write_runs(wire_writer *w, kv_bytes before, kv_bytes value)
{
    const size_t start = w->bytes;
    size_t n = 0;

    if (before.bytes != value.bytes)
        return false;
    wire_write_u8(w, 0);
    for (size_t at = 0; at < value.bytes; n++) {
        const run r = next_run(before, value, at);

        if (r.first == value.bytes)
            break;
        wire_write_u8(w, (uint8_t)(r.first - at));
        wire_write_u8(w, (uint8_t)(r.end - r.first));
        wire_write_raw(w, value.data + r.first, r.end - r.first);
        at = r.end;
    }
    if (w->failed)
        return true; // the caller sees it
    if (n >= WHOLE || w->bytes - start > value.bytes) {
        w->bytes = start;
        return false;
    }
    w->data[start] = (uint8_t)n;
    return true;
}

void values_write(wire_writer *w, kv_bytes before, kv_bytes value)
{
    if (write_runs(w, before, value))
        return;
    wire_write_u8(w, WHOLE);
    wire_write_bytes(w, value.data, value.bytes);
}

static ls_status read_runs(wire_reader *r, int n, byte_queue *value)
{
    uint8_t *at = value->data + value->start;
    size_t left = byte_queue_size(value);

    for (int i = 0; i < n; i++) {
        const size_t stay = wire_read_u8(r);
        const size_t bytes = wire_read_u8(r);
        const uint8_t *from = wire_read_raw(r, bytes);

        if (r->failed || stay + bytes > left)
            return ls_fail(LS_EPROTO, "a value that does not fit the one before");
        if (bytes > 0)
            memcpy(at + stay, from, bytes);
        at += stay + bytes;
        left -= stay + bytes;
    }
    return LS_OK;
}

ls_status values_read(wire_reader *r, byte_queue *value)
{
    const int n = wire_read_u8(r);
    const uint8_t *whole;
    size_t bytes;

    if (r->failed)
        return ls_fail(LS_EPROTO, "a list of values that is too short");
    if (n != WHOLE)
        return read_runs(r, n, value);
    whole = wire_read_bytes(r, LS_STORE_VALUE_MAX, &bytes);
    if (r->failed)
        return ls_fail(LS_EPROTO, "a value that is too long");
    value->start = value->end = 0;
    return byte_queue_add(value, whole, bytes);
}
