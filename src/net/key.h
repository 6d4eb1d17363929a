/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.h - the 32 secret bytes that authenticate the processes of a job, and their sources. A key
 * never appears in argv or in a log.
 */
#ifndef LS_NET_KEY_H
#define LS_NET_KEY_H

#include "base/status.h"

#include <stdbool.h>

#define NET_KEY_BYTES     32
#define NET_KEY_FD_ENV    "LOCKSTEP_KEY_FD"
#define NET_KEY_FILE_ENV  "LOCKSTEP_KEY_FILE"
#define NET_KEY_FILE_USER ".config/lockstep/key"

/* Initialises libsodium. LS_ESYSTEM without a source of random numbers. */
LS_MUST_USE ls_status net_crypto_init(void);

/* Copies are allowed; each copy is wiped with net_key_wipe(). */
typedef struct net_key {
    uint8_t bytes[NET_KEY_BYTES];
    /* The file that it was read from, for messages about different keys; "" for a job's own key. */
    char origin[256];
} net_key;

void net_key_wipe(net_key *key);                        /* NULL is allowed */
bool net_key_equal(const net_key *a, const net_key *b); /* in constant time */

/* A random key for one job. */
LS_MUST_USE ls_status net_key_random(net_key *out);

#define NET_KEY_SECRET_MIN 16 /* bytes */

/* The key of a secret of the program. */
LS_MUST_USE ls_status net_key_of_secret(const void *secret, size_t bytes, net_key *out);

/* Derives a key for one rendezvous endpoint from the user's key: HMAC(base, purpose, 0, what). Both
 * sides must use the same spelling of `what` ("10.0.0.1:29500"). */
LS_MUST_USE ls_status net_key_derive(const net_key *base, const char *purpose, const char *what,
                                     net_key *out);

/* The user's key: from `path`, else LOCKSTEP_KEY_FILE, else ~/.config/lockstep/key; only the last
 * is created when absent. A key file has 64 hexadecimal digits, is owned by this user, has mode
 * 0600 or 0400 and is no symbolic link. LS_EAUTH or LS_EFORMAT names the file, the problem and the
 * command that fixes it. */
LS_MUST_USE ls_status net_key_of_user(const char *path, net_key *out);

/* The file that net_key_of_user(NULL) reads: LOCKSTEP_KEY_FILE or ~/.config/lockstep/key. */
LS_MUST_USE ls_status net_key_user_path(char *out, size_t n);

/* Reads or creates (mode 0600, atomically) one key file. */
LS_MUST_USE ls_status net_key_read_file(const char *path, net_key *out);
LS_MUST_USE ls_status net_key_write_file(const char *path, const net_key *key);

/* A memfd that holds the key, CLOEXEC, for a child to inherit; the caller closes it. Its name has
 * the process id of its maker, the agent: a process that still has it after that agent's death is a
 * leftover of a dead job. */
LS_MUST_USE ls_status net_key_to_fd(const net_key *key, int *fd);

/* Reads the key from the inherited descriptor in LOCKSTEP_KEY_FD. *found = false when the variable
 * is not set. A memfd stays open (this program may initialise the library again), becomes CLOEXEC
 * and is read from its start; a pipe is read once and closed. LS_EAUTH when the descriptor is
 * closed or is neither. */
LS_MUST_USE ls_status net_key_inherit(net_key *out, bool *found);

#endif
