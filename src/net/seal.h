/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h - what protects the bytes of a connection behind its handshake: records of at most 64 KiB, each with a tag.
 *
 *   u32 bytes (1 to SEAL_RECORD_MAX) | u32 number | bytes, encrypted or not | tag[16]
 *
 * The tag covers all 64 bits of the number: a record that was changed, repeated, left out or moved does not fit, and neither does
 * one of the other direction or of another connection, as their keys differ. Nothing of a record is handed out before its
 * tag was found right. What is missing at the end of a connection is noticed within a record only; what is carried (frames,
 * messages) has a goodbye of its own.
 */
#ifndef LS_NET_SEAL_H
#define LS_NET_SEAL_H

#include "base/status.h"

#include <stdbool.h>

#define SEAL_KEY_BYTES  32
#define SEAL_HEAD_BYTES 8
#define SEAL_TAG_BYTES  16
#define SEAL_OVERHEAD   (SEAL_HEAD_BYTES + SEAL_TAG_BYTES)
#define SEAL_RECORD_MAX ((size_t)64 * 1024) /* of what is carried, in one record */

typedef enum net_security {
    NET_AUTH = 0,   /* the handshake only: what comes behind is as it is */
    NET_MAC = 1,    /* nobody in between can change it unnoticed: keyed BLAKE2b */
    NET_ENCRYPT = 2 /* ... nor read it: ChaCha20-Poly1305 */
} net_security;

const char *net_security_text(net_security mode); /* "auth", "mac", "encrypt" */

/* From LOCKSTEP_SECURITY; LS_EINVAL. */
LS_MUST_USE ls_status net_security_setting(net_security *out);

/* LOCKSTEP_SECURITY is `text` from now on, for this process and what it starts; `what` names it in the error text, LS_EINVAL. Needs a
 * process with one thread. */
LS_MUST_USE ls_status net_security_set(const char *text, const char *what);

/* One direction. Zeros: NET_AUTH, nothing is sealed. */
typedef struct seal {
    net_security mode;
    bool is_broken; /* something did not fit: nothing is opened any more */
    uint64_t next;  /* number of the next record */
    uint8_t key[SEAL_KEY_BYTES];
} seal;

/* Both directions of a connection, as one end sees them. Copies must not both be used. */
typedef struct seal_pair {
    seal out;
    seal in;
} seal_pair;

void seal_start(seal *s, net_security mode, const uint8_t key[SEAL_KEY_BYTES]);
void seal_wipe(seal *s);
void seal_pair_wipe(seal_pair *p);

/* What `bytes` become, in as few records as possible. */
size_t seal_size(size_t bytes);

/* Makes a record of the `bytes` (1 to SEAL_RECORD_MAX) at record + SEAL_HEAD_BYTES, in place; there must be room for the tag behind
 * them. Gives the whole record's size. */
size_t seal_close(seal *s, uint8_t *record, size_t bytes);

/*
 * Opens the record at the front of what has come, in place. *record = its whole size, *bytes of content lie at data +
 * SEAL_HEAD_BYTES; *record = 0: it is not complete. LS_EPROTO says what does not fit; the connection is to be closed.
 */
LS_MUST_USE ls_status seal_open(seal *s, uint8_t *data, size_t held, size_t *record, size_t *bytes);

/* How many bytes the record that seal_open() found incomplete will have; less while even its head is missing. At least held + 1. */
size_t seal_wanted(const uint8_t *data, size_t held);

#endif
