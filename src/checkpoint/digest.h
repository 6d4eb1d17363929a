/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.h - digests in a file's metadata, by which a reader finds out whether the file is what was
 * written. They show damage, not forgery: a program that changes a file can change them, too.
 *
 *   lockstep.blake2b:NAME   of the tensor's bytes in the file
 *   lockstep.blake2b        of the header: see digest_of_header()
 *
 * Each is BLAKE2b (RFC 7693) with 32 bytes of output, as 64 hexadecimal digits.
 */
#ifndef LS_CHECKPOINT_DIGEST_H
#define LS_CHECKPOINT_DIGEST_H

#include "base/thread.h"
#include "checkpoint/safetensors.h"

#include <sodium.h>

#define DIGEST_KEY    "lockstep.blake2b" /* and the beginning of all keys of digests */
#define DIGEST_TENSOR DIGEST_KEY ":"

enum { DIGEST_DIGITS = 64 };

/* Ends the message about a file that does not match. */
#define DIGEST_ADVICE                                                                              \
    "; the file is not what was written: use another save, or load it unchecked (--no-verify)"

typedef struct digest {
    crypto_generichash_state state;
    ls_thread beside; /* adds the next two */
    const void *bytes;
    size_t n;
} digest;

void digest_begin(digest *d);
void digest_add(digest *d, const void *bytes, size_t n);
/* The same, for many bytes in a thread of its own, while the caller reads or writes. The bytes must
 * stay as they are until digest_wait(), the next digest_start() or digest_end(), of which one must
 * follow. */
void digest_start(digest *d, const void *bytes, size_t n);
void digest_wait(digest *d);
void digest_end(digest *d, char out[DIGEST_DIGITS + 1]);

/* Of types, shapes and metadata (with the digests of tensors), sorted by name, so that it does not
 * depend on how a writer orders and formats them: NAME, type, sizes with commas of every tensor,
 * then key and value of every pair but this digest itself, each followed by a zero byte. */
LS_MUST_USE ls_status digest_of_header(const char *path, const safetensors_index *index,
                                       char out[DIGEST_DIGITS + 1]);

/* Sets the digests of all entries and index->has_digests. LS_EFORMAT unless all tensors and the
 * header have one, or none has, and the header matches its own. */
LS_MUST_USE ls_status digest_find_all(const char *path, safetensors_index *index);

#endif
