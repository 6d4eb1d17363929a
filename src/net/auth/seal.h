/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h - protects the bytes of a connection behind its handshake: records of at most 64 KiB, each
 * with a tag.
 *
 *   u32 bytes (1 to SEAL_RECORD_MAX) | u32 number | bytes, encrypted or not | tag[16]
 *
 * The tag covers all 64 bits of the record number. A record that was changed, repeated, omitted or
 * reordered does not verify, nor does a record of the other direction or of another connection,
 * because their keys differ. No byte of a record is returned before its tag has been verified. A
 * truncated connection is detected within a record only; the protocols inside (frames, messages)
 * have an end message of their own.
 */
#ifndef LS_NET_AUTH_SEAL_H
#define LS_NET_AUTH_SEAL_H

#include "base/status.h"

#include <stdbool.h>

#define SEAL_KEY_BYTES  32
#define SEAL_HEAD_BYTES 8
#define SEAL_TAG_BYTES  16
#define SEAL_OVERHEAD   (SEAL_HEAD_BYTES + SEAL_TAG_BYTES)
#define SEAL_RECORD_MAX ((size_t)64 * 1024) /* bytes of content in one record */

typedef enum net_security {
    NET_AUTH = 0,   /* the handshake only; the bytes behind it are plain */
    NET_MAC = 1,    /* integrity: keyed BLAKE2b */
    NET_ENCRYPT = 2 /* integrity and confidentiality: ChaCha20-Poly1305 */
} net_security;

const char *net_security_text(net_security mode); /* "auth", "mac", "encrypt" */

/* The value of LOCKSTEP_SECURITY; LS_EINVAL. */
LS_MUST_USE ls_status net_security_setting(net_security *out);

/* Sets LOCKSTEP_SECURITY to `text` for this process and its children; `what` names the source in
 * the error text, LS_EINVAL. The process must have one thread. */
LS_MUST_USE ls_status net_security_set(const char *text, const char *what);

/* One direction. Zeros: NET_AUTH, nothing is sealed. */
typedef struct seal {
    net_security mode;
    bool is_broken; /* a record was invalid: no further record is opened */
    uint64_t next;  /* number of the next record */
    uint8_t key[SEAL_KEY_BYTES];
} seal;

/* Both directions of a connection, as one end sees them. Use only one copy: it counts records. */
typedef struct seal_pair {
    seal out;
    seal in;
} seal_pair;

void seal_start(seal *s, net_security mode, const uint8_t key[SEAL_KEY_BYTES]);
void seal_wipe(seal *s);
void seal_pair_wipe(seal_pair *p);

/* The size of `bytes` of content as records, as few as possible. */
size_t seal_size(size_t bytes);

/* Makes a record, in place, of the `bytes` (1 to SEAL_RECORD_MAX) at record + SEAL_HEAD_BYTES; the
 * buffer must have SEAL_TAG_BYTES more behind them. Returns the size of the record. */
size_t seal_close(seal *s, uint8_t *record, size_t bytes);

/* Opens the record at the front of `data`, in place. *record = its size, and *bytes of content
 * start at data + SEAL_HEAD_BYTES; *record = 0 when it is incomplete. LS_EPROTO says why it is
 * invalid; then close the connection. */
LS_MUST_USE ls_status seal_open(seal *s, uint8_t *data, size_t held, size_t *record, size_t *bytes);

/* The size of the record that seal_open() found incomplete, or of its head while that is
 * incomplete. At least held + 1. */
size_t seal_needed(const uint8_t *data, size_t held);

#endif
