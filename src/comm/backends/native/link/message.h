/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - the header of every message between two ranks: MESSAGE_HEADER_BYTES little-endian
 * bytes.
 *
 *   0 magic u16 | 2 type u8 | 3 flags u8 | 4 group u32 | 8 sequence u64 | 16 step u64 |
 *   24 bytes u64 | 32 total u64 | 40 credit u64 | 48 stamp[80]
 *
 * Messages of collectives are matched by (group, sequence, step). For point to point messages step
 * is the tag and sequence the sender's own number of the message, which READY and PIECE repeat.
 * LEFT has the sequence MESSAGE_NO_SEQUENCE.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_LINK_MESSAGE_H
#define LS_COMM_BACKENDS_NATIVE_LINK_MESSAGE_H

#include "hub/stamp.h"

#define MESSAGE_HEADER_BYTES 128
#define MESSAGE_EAGER_BYTES  65536 /* larger ones wait until the receiver is ready */
#define MESSAGE_OFFER_BYTES  24
#define MESSAGE_MAX_BYTES    (4U << 20) /* of one payload */
#define MESSAGE_NO_SEQUENCE  UINT64_MAX

typedef enum message_type {
    /* A payload of `bytes`: charged to the sender's credit, or requested by READY. */
    MESSAGE_DATA = 1,
    MESSAGE_READY,    /* the receiver has a buffer for `total` bytes */
    MESSAGE_ANNOUNCE, /* the sender has `total` bytes and waits for READY */
    MESSAGE_PIECE,    /* a part of an announced point to point message */
    MESSAGE_CREDIT,   /* nothing but the credit, which every message carries */
    /* The sender has closed the group, and sends no more for it. step: the number of its first
     * collective that has not ended there. Receivers save it until they close the group. */
    MESSAGE_LEFT,
    /* As ANNOUNCE, within a host; the payload is a message_offer in the host's byte order. */
    MESSAGE_OFFER,
    MESSAGE_TAKEN, /* answers OFFER instead of READY: the receiver has read everything */
    /* Answers OFFER instead of READY: the receiver reads the first half itself, the sender writes
     * the second half to the location in the payload, a message_offer; TAKEN follows. */
    MESSAGE_SHARED,
    MESSAGE_WRITTEN /* answers SHARED: the second half is written */
} message_type;

/* Where the receiver may read the payload, or the sender write it. */
typedef struct message_offer {
    uint64_t address; /* in the owner's address space; 0 in SHARED */
    uint64_t offset;  /* in the owner's segment `id` (segment.h) */
    uint32_t id;      /* 0: in no segment */
    uint32_t unused;
} message_offer;

_Static_assert(sizeof(message_offer) == MESSAGE_OFFER_BYTES, "an offer is sent as it is in memory");

typedef struct message {
    message_type type;
    bool is_charged; /* DATA: may come before its receive */
    bool is_direct;  /* point to point */
    uint32_t group;
    uint64_t sequence;
    uint64_t step;
    uint64_t bytes; /* of the payload that follows the header */
    uint64_t total; /* of the whole transfer of which this is a part */
    /* Charged bytes of the other direction that have found their receive, since the start. */
    uint64_t credit;
    uint8_t dtype;        /* the stamp's */
    const uint8_t *stamp; /* STAMP_BYTES, borrowed; decoding: from the header */
} message;

/* stamp NULL: zeros. */
void message_encode(const message *m, uint8_t out[MESSAGE_HEADER_BYTES]);

/* Both: LS_EPROTO for anything that no correct sender writes; the text says what is wrong, and the
 * caller adds the rank. */
LS_MUST_USE ls_status message_check(const message *m);
LS_MUST_USE ls_status message_decode(const uint8_t in[MESSAGE_HEADER_BYTES], message *out);

#endif
