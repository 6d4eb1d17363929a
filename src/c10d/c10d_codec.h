/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_codec.h - parses requests in the wire protocol of PyTorch's TCPStore, from pieces of any
 * size. Pure: no memory of its own, no I/O.
 *
 * Requests have no frames. There are three dialects, which the first bytes of a connection
 * distinguish:
 *
 *     raw        PyTorch up to 2.1   command u8, fields
 *     prefixed   in no release      magic u32, command u8, fields
 *     validated  from 2.2 on         once 0 and the magic; then command u8, fields
 *
 * The dialects number the commands differently. Numbers are little-endian; a u64 length precedes a
 * key or value, a u64 count a list.
 *
 * In the raw dialect command 8 is DELETE_KEY up to 2.0 and APPEND in 2.1, and both begin with a
 * key. Only APPEND has a second field, so a connection that is silent after the key has sent
 * DELETE_KEY: its owner decides how long to wait.
 */
#ifndef LS_C10D_C10D_CODEC_H
#define LS_C10D_C10D_CODEC_H

#include "store/table.h"

#define C10D_MAGIC       0x3C85F7CEU
#define C10D_LIST_MAX    ((size_t)128 * 1024) /* keys, or keys with values, in one request */
#define C10D_REQUEST_MAX ((size_t)2 * LS_STORE_VALUE_MAX + (size_t)64 * 1024)

typedef enum c10d_op {
    C10D_NONE = 0,    /* no command */
    C10D_VALIDATE,    /* the validated dialect's first one, without an answer */
    C10D_SET,         /* key, value */
    C10D_COMPARE_SET, /* key, expected, desired */
    C10D_GET,         /* key */
    C10D_ADD,         /* key, i64 */
    C10D_CHECK,       /* keys */
    C10D_WAIT,        /* keys */
    C10D_COUNT,       /* */
    C10D_DELETE,      /* key */
    C10D_APPEND,      /* key, value */
    C10D_MULTI_GET,   /* keys */
    C10D_MULTI_SET,   /* keys with values */
    C10D_CANCEL_WAIT, /* */
    C10D_PING,        /* u32 */
    C10D_QUEUE_PUSH,  /* key, value */
    C10D_QUEUE_POP,   /* key */
    C10D_QUEUE_LEN,   /* key */
    C10D_LIST_KEYS,   /* */
    C10D_BARRIER,     /* key, i64 */
    /* in the parser only: a DELETE or an APPEND of which the key has arrived */
    C10D_UNDECIDED,
    C10D_OP_COUNT
} c10d_op;

typedef enum c10d_dialect {
    C10D_UNKNOWN = 0, /* too few bytes so far */
    C10D_RAW,
    C10D_PREFIXED,
    C10D_VALIDATED
} c10d_dialect;

/* One whole request. Its fields are read in order, each once; they point into the parsed bytes. */
typedef struct c10d_request {
    c10d_op op;
    size_t n;          /* length of its list, 0 without one */
    const uint8_t *at; /* what is not read yet */
    size_t bytes;
} c10d_request;

kv_bytes c10d_read_bytes(c10d_request *r); /* a key or a value */
int64_t c10d_read_i64(c10d_request *r);

/* Which of the raw dialect's two numberings. */
typedef enum c10d_age { C10D_ANY_AGE = 0, C10D_UP_TO_2_0, C10D_SINCE_2_1 } c10d_age;

/* Where a connection's parser stands. Zero-initialise. */
typedef struct c10d_parser {
    c10d_dialect dialect;
    c10d_age age;
    c10d_op op;        /* of the request under way, C10D_NONE: not begun */
    const char *shape; /* its fields that have not been seen yet */
    size_t n;
    size_t left; /* items of its list that have not been seen yet */
    bool has_values;
    size_t at;   /* bytes of it that have been seen */
    size_t body; /* where its fields, or its list's items, begin */
} c10d_parser;

/* Parses a request of which data[0, bytes) have arrived; an earlier call's part is not parsed
 * again. *used is the request's length, 0 while it is not whole. LS_EPROTO: not a request, or a
 * length is out of bounds; the connection cannot be used any more. */
LS_MUST_USE ls_status c10d_parse(c10d_parser *p, const uint8_t *data, size_t bytes,
                                 c10d_request *out, size_t *used);

/* Whether the bytes are a DELETE_KEY or the beginning of an APPEND; c10d_decide(): the first. */
bool c10d_is_undecided(const c10d_parser *p);
void c10d_decide(c10d_parser *p);

const char *c10d_op_name(c10d_op op);

#endif
