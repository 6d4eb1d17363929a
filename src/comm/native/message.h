/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - what stands in front of every message between two ranks: MESSAGE_HEADER_BYTES little-endian bytes.
 *
 *   0 magic u16 | 2 type u8 | 3 flags u8 | 4 group u32 | 8 sequence u64 | 16 step u64 | 24 bytes u64 | 32 total u64 |
 *   40 credit u64 | 48 stamp[80]
 *
 * Collectives are matched by (group, sequence, step). For point to point messages step is the tag and sequence the
 * sender's own number of the message, which READY and PIECE repeat.
 */
#ifndef LS_NATIVE_MESSAGE_H
#define LS_NATIVE_MESSAGE_H

#include "store/stamp.h"

#define MESSAGE_HEADER_BYTES 128
#define MESSAGE_EAGER_BYTES  65536 /* larger ones wait until the receiver is ready */
#define MESSAGE_OFFER_BYTES  24
#define MESSAGE_MAX_BYTES    (4U << 20) /* of one payload */

typedef enum message_type {
    MESSAGE_DATA =
        1,         /* a payload of `bytes`: charged to the sender's credit, or asked for by READY */
    MESSAGE_READY, /* the receiver has a place for `total` bytes */
    MESSAGE_ANNOUNCE, /* the sender has `total` bytes and waits for READY */
    MESSAGE_PIECE,    /* a part of an announced point to point message */
    MESSAGE_CREDIT,   /* nothing but the credit, which every message carries */
    MESSAGE_OFFER, /* as ANNOUNCE, within a host; the payload is a message_offer as it lies in memory */
    MESSAGE_TAKEN,  /* answers OFFER instead of READY: the receiver has it all */
    MESSAGE_SHARED, /* answers OFFER instead of READY: the receiver reads the first half itself, the sender writes the other to
                     * the place in the payload, a message_offer; TAKEN still comes */
    MESSAGE_WRITTEN /* answers SHARED: the second half is there */
} message_type;

/* Where the receiver may read the payload, or the sender write it. */
typedef struct message_offer {
    uint64_t address; /* in the owner's address space; 0 in SHARED */
    uint64_t offset;  /* in the owner's segment `id` (segment.h)... */
    uint32_t id;      /* ...0: it is in none */
    uint32_t unused;
} message_offer;

_Static_assert(sizeof(message_offer) == MESSAGE_OFFER_BYTES, "an offer travels as it lies");

typedef struct message {
    message_type type;
    bool is_charged; /* DATA: may come before its receive */
    bool is_direct;  /* point to point */
    uint32_t group;
    uint64_t sequence;
    uint64_t step;
    uint64_t bytes; /* of the payload behind the header */
    uint64_t total; /* of the whole transfer of which this is a part */
    uint64_t
        credit; /* charged bytes of the other direction that have found their receive, since the start */
    uint8_t dtype;        /* the stamp's */
    const uint8_t *stamp; /* STAMP_BYTES, borrowed; decoding: from the header */
} message;

/* stamp NULL: zeros. */
void message_encode(const message *m, uint8_t out[MESSAGE_HEADER_BYTES]);

/* Both: LS_EPROTO for anything that no sender writes; the text says what, the caller adds who. */
LS_MUST_USE ls_status message_check(const message *m);
LS_MUST_USE ls_status message_decode(const uint8_t in[MESSAGE_HEADER_BYTES], message *out);

#endif
