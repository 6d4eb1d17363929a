/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_fields.h - messages that are described by tables: a row for each field, in the order of the
 * bytes. The same table writes a struct and reads it; a reader refuses what is outside the bounds
 * of a row, and its error names the field.
 *
 *     static const wire_field slot[] = {
 *         WIRE_ID(node_slot, generation),
 *         WIRE_NUMBER(node_slot, local_rank, 4, 0, RDZV_LOCAL_MAX - 1),
 *     };
 *     const wire_table node_slot_table = WIRE_TABLE(node_slot, "a place", slot, NULL);
 */
#ifndef LS_NET_MESSAGES_WIRE_FIELDS_H
#define LS_NET_MESSAGES_WIRE_FIELDS_H

#include "net/messages/frame.h"
#include "net/wire.h"

#include <stddef.h>

typedef enum wire_kind {
    WIRE_IS_NUMBER,
    WIRE_IS_BITS,
    WIRE_IS_RAW,
    WIRE_IS_TEXT,
    WIRE_IS_LINE,
    WIRE_IS_STRING,
    WIRE_IS_STRINGS,
    WIRE_IS_BYTES,
    WIRE_IS_ADDRESS,
    WIRE_IS_STRUCT,
    WIRE_IS_LIST,
    WIRE_IS_NEW_LIST
} wire_kind;

typedef struct wire_table wire_table;

typedef struct wire_field {
    const char *name;
    wire_kind kind;
    uint8_t width; /* on the wire, of a number or a count; of an address's terminator */
    size_t at;     /* of the member in its struct */
    size_t bytes;  /* of the member, or of its count */
    int64_t least; /* of a number; of a count, a length; the family of an address */
    int64_t most;
    size_t count_at; /* of a list's count, an int; of the number of WIRE_BYTES, a size_t */
    const wire_table *items;
} wire_field;

struct wire_table {
    const char *what; /* the message, for errors */
    size_t bytes;     /* of the struct */
    const wire_field *fields;
    size_t n;
    /* After the fields were read, what no row says: the name of a bad field, NULL: none. */
    const char *(*check)(const void *message);
};

#define WIRE_TABLE(type, text, rows, check)                                                        \
    {                                                                                              \
        text, sizeof(type), rows, LS_COUNT_OF(rows), check                                         \
    }

#define WIRE_ROW(kind, type, member, count, w, low, high, table)                                   \
    {                                                                                              \
#member, kind, w, offsetof(type, member), sizeof(((type *)0)->count), (int64_t)(low),      \
            (int64_t)(high), offsetof(type, count), table                                          \
    }

/* An integer, enum or bool of any size, in `w` bytes. If `low` is -1, it is sent as all ones. */
#define WIRE_NUMBER(type, member, w, low, high)                                                    \
    WIRE_ROW(WIRE_IS_NUMBER, type, member, member, w, low, high, NULL)
#define WIRE_BOOL(type, member) WIRE_NUMBER(type, member, 1, 0, 1)
#define WIRE_ID(type, member)   WIRE_NUMBER(type, member, 4, 0, UINT32_MAX)
#define WIRE_64(type, member)   WIRE_NUMBER(type, member, 8, INT64_MIN, INT64_MAX)
/* `n` bools, one behind the other in the struct, in one byte. */
#define WIRE_BITS(type, first, n) WIRE_ROW(WIRE_IS_BITS, type, first, first, 0, 0, n, NULL)
/* The bytes of the member. */
#define WIRE_RAW(type, member) WIRE_ROW(WIRE_IS_RAW, type, member, member, 0, 0, 0, NULL)
/* A char array; a text that does not fit or contains a 0 is bad. A line loses all characters that
 * control a terminal. */
#define WIRE_TEXT(type, member) WIRE_ROW(WIRE_IS_TEXT, type, member, member, 0, 0, 0, NULL)
#define WIRE_LINE(type, member) WIRE_ROW(WIRE_IS_LINE, type, member, member, 0, 0, 0, NULL)
/* A const char *, sent with its terminator; NULL is sent as "", which is read as NULL. It is read
 * to the bytes of the reader, which the caller keeps. */
#define WIRE_STRING(type, member, low, high)                                                       \
    WIRE_ROW(WIRE_IS_STRING, type, member, member, 0, low, high, NULL)
/* A char **, terminated by NULL, of such strings; NULL is sent as none. The reader allocates the
 * array. */
#define WIRE_STRINGS(type, member, low, high)                                                      \
    WIRE_ROW(WIRE_IS_STRINGS, type, member, member, 0, low, high, NULL)
/* A const uint8_t *, read to the bytes of the reader, and its size_t. */
#define WIRE_BYTES(type, member, count, high)                                                      \
    WIRE_ROW(WIRE_IS_BYTES, type, member, count, 0, 0, high, NULL)
/* A net_address of family `low` or a later one; none is sent as "". */
#define WIRE_ADDRESS(type, member, low)                                                            \
    WIRE_ROW(WIRE_IS_ADDRESS, type, member, member, 0, low, 0, NULL)
/* The only field of an address in a list; `w` 1: sent with its terminator. */
#define WIRE_ADDRESS_ITSELF(w, low)                                                                \
    WIRE_ROW(WIRE_IS_ADDRESS, net_address, socket, socket, w, low, 0, NULL)
#define WIRE_STRUCT(type, member, table)                                                           \
    WIRE_ROW(WIRE_IS_STRUCT, type, member, member, 0, 0, 0, table)
/* An array of structs, behind its count in `w` bytes. */
#define WIRE_LIST(type, member, count, w, low, high, table)                                        \
    WIRE_ROW(WIRE_IS_LIST, type, member, count, w, low, high, table)
/* The same, of an array that the reader allocates, unless it is empty. */
#define WIRE_NEW_LIST(type, member, count, w, low, high, table)                                    \
    WIRE_ROW(WIRE_IS_NEW_LIST, type, member, count, w, low, high, table)

void wire_write_fields(wire_writer *w, const wire_table *t, const void *message);
/* Overwrites *message. After a failure (wire_reader_end()) nothing of it is allocated. */
void wire_read_fields(wire_reader *r, const wire_table *t, void *message);
/* What the reader has allocated; leaves it empty. */
void wire_free_fields(const wire_table *t, void *message);
/* A message that fills its frame. After a failure nothing of it is allocated. */
LS_MUST_USE ls_status wire_read_frame(const frame *f, const wire_table *t, void *message);

// NOLINTBEGIN(bugprone-macro-parentheses): types and names of functions
/* Declares a table and the two functions that use it, for a message that fills its frame. */
#define WIRE_FUNCTIONS(write, read, type)                                                          \
    extern const wire_table type##_table;                                                          \
    static inline void write(wire_writer *w, const type *message)                                  \
    {                                                                                              \
        wire_write_fields(w, &type##_table, message);                                              \
    }                                                                                              \
    LS_MUST_USE static inline ls_status read(const frame *f, type *message)                        \
    {                                                                                              \
        return wire_read_frame(f, &type##_table, message);                                         \
    }
/* The same, for a part of a message. */
#define WIRE_PART_FUNCTIONS(write, read, type)                                                     \
    extern const wire_table type##_table;                                                          \
    static inline void write(wire_writer *w, const type *part)                                     \
    {                                                                                              \
        wire_write_fields(w, &type##_table, part);                                                 \
    }                                                                                              \
    static inline void read(wire_reader *r, type *part)                                            \
    {                                                                                              \
        wire_read_fields(r, &type##_table, part);                                                  \
    }
// NOLINTEND(bugprone-macro-parentheses)

#endif
