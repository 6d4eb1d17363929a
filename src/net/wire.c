/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c - encodes and decodes little-endian fields. A writer that fails keeps its status, and a
 * reader never leaves its bytes, so callers check once at the end. Every protocol between processes
 * uses it.
 */
#include "net/wire.h"

#include "base/alloc.h"

#include <string.h>

void wire_put_u16(uint8_t *at, uint16_t v)
{
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
}

void wire_put_u32(uint8_t *at, uint32_t v)
{
    wire_put_u16(at, (uint16_t)v);
    wire_put_u16(at + 2, (uint16_t)(v >> 16));
}

void wire_put_u64(uint8_t *at, uint64_t v)
{
    wire_put_u32(at, (uint32_t)v);
    wire_put_u32(at + 4, (uint32_t)(v >> 32));
}

uint16_t wire_get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

uint32_t wire_get_u32(const uint8_t *at)
{
    return wire_get_u16(at) | (uint32_t)wire_get_u16(at + 2) << 16;
}

uint64_t wire_get_u64(const uint8_t *at)
{
    return wire_get_u32(at) | (uint64_t)wire_get_u32(at + 4) << 32;
}

/* Reserves `bytes` more at the end; NULL when the writer has failed. */
static uint8_t *grow(wire_writer *w, size_t bytes)
{
    size_t wanted;
    uint8_t *data;

    if (w->failed)
        return NULL;
    if (__builtin_add_overflow(w->bytes, bytes, &wanted)) {
        w->failed = true;
        return NULL;
    }
    if (wanted > w->capacity) {
        size_t capacity = w->capacity < 64 ? 64 : w->capacity;

        while (capacity < wanted && capacity <= SIZE_MAX / 2)
            capacity *= 2;
        data = capacity < wanted ? NULL : ls_realloc(w->data, capacity, 1);
        if (data == NULL) {
            w->failed = true;
            return NULL;
        }
        w->data = data;
        w->capacity = capacity;
    }
    data = w->data + w->bytes;
    w->bytes = wanted;
    return data;
}

void wire_write_u8(wire_writer *w, uint8_t v)
{
    uint8_t *at = grow(w, 1);

    if (at != NULL)
        *at = v;
}

void wire_write_u16(wire_writer *w, uint16_t v)
{
    uint8_t *at = grow(w, 2);

    if (at != NULL)
        wire_put_u16(at, v);
}

void wire_write_u32(wire_writer *w, uint32_t v)
{
    uint8_t *at = grow(w, 4);

    if (at != NULL)
        wire_put_u32(at, v);
}

void wire_write_u64(wire_writer *w, uint64_t v)
{
    uint8_t *at = grow(w, 8);

    if (at != NULL)
        wire_put_u64(at, v);
}

void wire_write_i64(wire_writer *w, int64_t v)
{
    wire_write_u64(w, (uint64_t)v);
}

void wire_write_raw(wire_writer *w, const void *data, size_t bytes)
{
    uint8_t *at = grow(w, bytes);

    if (at != NULL && bytes > 0)
        memcpy(at, data, bytes);
}

void wire_write_bytes(wire_writer *w, const void *data, size_t bytes)
{
    if (bytes > UINT32_MAX) {
        w->failed = true;
        return;
    }
    wire_write_u32(w, (uint32_t)bytes);
    wire_write_raw(w, data, bytes);
}

void wire_write_text(wire_writer *w, const char *text)
{
    wire_write_bytes(w, text, strlen(text));
}

ls_status wire_writer_status(const wire_writer *w)
{
    if (w->failed)
        return ls_fail(LS_ENOMEM, "no memory for a message of more than %zu bytes", w->bytes);
    return LS_OK;
}

void wire_writer_reset(wire_writer *w)
{
    w->bytes = 0;
    w->failed = false;
}

void wire_writer_free(wire_writer *w)
{
    ls_free(w->data);
    memset(w, 0, sizeof(*w));
}

wire_reader wire_reader_over(const void *data, size_t bytes)
{
    static const uint8_t nothing[1];

    return (wire_reader){.data = data == NULL ? nothing : data, .bytes = bytes};
}

const uint8_t *wire_read_raw(wire_reader *r, size_t bytes)
{
    if (r->failed || bytes > r->bytes - r->at) {
        r->failed = true;
        return NULL;
    }
    r->at += bytes;
    return r->data + r->at - bytes;
}

uint8_t wire_read_u8(wire_reader *r)
{
    const uint8_t *at = wire_read_raw(r, 1);

    return at == NULL ? 0 : *at;
}

uint16_t wire_read_u16(wire_reader *r)
{
    const uint8_t *at = wire_read_raw(r, 2);

    return at == NULL ? 0 : wire_get_u16(at);
}

uint32_t wire_read_u32(wire_reader *r)
{
    const uint8_t *at = wire_read_raw(r, 4);

    return at == NULL ? 0 : wire_get_u32(at);
}

uint64_t wire_read_u64(wire_reader *r)
{
    const uint8_t *at = wire_read_raw(r, 8);

    return at == NULL ? 0 : wire_get_u64(at);
}

int64_t wire_read_i64(wire_reader *r)
{
    return (int64_t)wire_read_u64(r);
}

const uint8_t *wire_read_bytes(wire_reader *r, size_t max_bytes, size_t *bytes)
{
    const uint32_t length = wire_read_u32(r);
    const uint8_t *at;

    *bytes = 0;
    if (length > max_bytes)
        r->failed = true;
    at = wire_read_raw(r, length);
    if (at != NULL)
        *bytes = length;
    return at;
}

void wire_read_text(wire_reader *r, char *out, size_t n)
{
    size_t bytes;
    const uint8_t *at = wire_read_bytes(r, n - 1, &bytes);

    out[0] = 0;
    if (at == NULL)
        return;
    if (memchr(at, 0, bytes) != NULL) {
        r->failed = true;
        return;
    }
    memcpy(out, at, bytes);
    out[bytes] = 0;
}

ls_status wire_reader_end(const wire_reader *r, const char *what)
{
    if (r->has_no_memory)
        return ls_fail(LS_ENOMEM, "no memory for %s of %zu bytes", what, r->bytes);
    if (r->failed)
        return ls_fail(LS_EPROTO, "%s: bad field %s%sat byte %zu", what,
                       r->field != NULL ? r->field : "", r->field != NULL ? " " : "", r->at);
    if (r->at != r->bytes)
        return ls_fail(LS_EPROTO, "%s: %zu bytes too many", what, r->bytes - r->at);
    return LS_OK;
}
