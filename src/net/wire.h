/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - little-endian fields in bytes that are exchanged between processes. A writer grows, a
 * reader stays within its bytes; both remember the first failure, so that a chain of calls is
 * checked once.
 */
#ifndef LS_NET_WIRE_H
#define LS_NET_WIRE_H

#include "base/status.h"

#include <stdbool.h>

void wire_put_u16(uint8_t *at, uint16_t v);
void wire_put_u32(uint8_t *at, uint32_t v);
void wire_put_u64(uint8_t *at, uint64_t v);
uint16_t wire_get_u16(const uint8_t *at);
uint32_t wire_get_u32(const uint8_t *at);
uint64_t wire_get_u64(const uint8_t *at);

/* Zero-initialise. wire_writer_reset() keeps the memory for the next message. */
typedef struct wire_writer {
    uint8_t *data;
    size_t bytes;
    size_t capacity;
    bool failed;
} wire_writer;

void wire_write_u8(wire_writer *w, uint8_t v);
void wire_write_u16(wire_writer *w, uint16_t v);
void wire_write_u32(wire_writer *w, uint32_t v);
void wire_write_u64(wire_writer *w, uint64_t v);
void wire_write_i64(wire_writer *w, int64_t v);
void wire_write_raw(wire_writer *w, const void *data, size_t bytes);
void wire_write_bytes(wire_writer *w, const void *data, size_t bytes); /* after its length, u32 */
void wire_write_text(wire_writer *w, const char *text); /* as wire_write_bytes(), unterminated */
LS_MUST_USE ls_status wire_writer_status(const wire_writer *w); /* LS_ENOMEM */
void wire_writer_reset(wire_writer *w);
void wire_writer_free(wire_writer *w); /* leaves an empty, usable writer */

/* Borrows its bytes. After a failure every read returns 0. */
typedef struct wire_reader {
    const uint8_t *data;
    size_t bytes;
    size_t at;
    bool failed;
    bool has_no_memory; /* why it has failed */
    const char *field;  /* that is bad, see wire_fields.h; NULL: unknown */
} wire_reader;

wire_reader wire_reader_over(const void *data, size_t bytes);
uint8_t wire_read_u8(wire_reader *r);
uint16_t wire_read_u16(wire_reader *r);
uint32_t wire_read_u32(wire_reader *r);
uint64_t wire_read_u64(wire_reader *r);
int64_t wire_read_i64(wire_reader *r);
const uint8_t *wire_read_raw(wire_reader *r, size_t bytes); /* NULL on failure */
/* Bytes after their length, u32. */
const uint8_t *wire_read_bytes(wire_reader *r, size_t max_bytes, size_t *bytes);
/* Fails when the text does not fit or contains a 0 byte. */
void wire_read_text(wire_reader *r, char *out, size_t n);

/* LS_EPROTO ("WHAT: bad field NAME at byte N") when a read failed or bytes are left over;
 * LS_ENOMEM. */
LS_MUST_USE ls_status wire_reader_end(const wire_reader *r, const char *what);

#endif
