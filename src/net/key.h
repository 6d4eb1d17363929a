/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.h - the 32 secret bytes that make a process part of a job, and the ways to come by them. Never in argv or a log.
 */
#ifndef LS_NET_KEY_H
#define LS_NET_KEY_H

#include "base/status.h"

#include <stdbool.h>

#define NET_KEY_BYTES     32
#define NET_KEY_FD_ENV    "LOCKSTEP_KEY_FD"
#define NET_KEY_FILE_ENV  "LOCKSTEP_KEY_FILE"
#define NET_KEY_FILE_USER ".config/lockstep/key"
#define NET_KEY_FD_NAME   "lockstep-key " /* of the memfd; its maker's process_id_text() follows */

/* Copies are fine; each copy is wiped with net_key_wipe(). */
typedef struct net_key {
    uint8_t bytes[NET_KEY_BYTES];
    char origin
        [256]; /* the file it came from, for messages about differing keys; "" for a job's own key */
} net_key;

void net_key_wipe(net_key *key);                        /* NULL is allowed */
bool net_key_equal(const net_key *a, const net_key *b); /* in constant time */

/* A fresh random key: one per job. */
LS_MUST_USE ls_status net_key_random(net_key *out);

/* A key for one meeting, from the user's: HMAC(base, purpose, 0, what). Both sides must spell `what` alike ("10.0.0.1:29500"). */
LS_MUST_USE ls_status net_key_derive(const net_key *base, const char *purpose, const char *what,
                                     net_key *out);

/*
 * The user's key: from `path`, else LOCKSTEP_KEY_FILE, else ~/.config/lockstep/key; only the last is made when absent. A key
 * file is 64 hexadecimal digits, owned by this user, mode 0600 or 0400, no symbolic link. LS_EAUTH or LS_EFORMAT names
 * the file, what is wrong and the command that mends it.
 */
LS_MUST_USE ls_status net_key_of_user(const char *path, net_key *out);

/* Where net_key_of_user(NULL) looks: LOCKSTEP_KEY_FILE or ~/.config/lockstep/key. */
LS_MUST_USE ls_status net_key_user_path(char *out, size_t n);

/* Reads or makes (new, 0600, whole or not at all) one key file. */
LS_MUST_USE ls_status net_key_read_file(const char *path, net_key *out);
LS_MUST_USE ls_status net_key_write_file(const char *path, const net_key *key);

/* A memfd with the key in it, CLOEXEC, for a child to inherit; the caller closes it. Its name tells who made it: the agent, as whoever
 * still has it when that process is gone counts as left by a dead job. */
LS_MUST_USE ls_status net_key_to_fd(const net_key *key, int *fd);

/*
 * The key that the starter left behind the descriptor in LOCKSTEP_KEY_FD. *found = false when the variable is not set. A memfd
 * stays open (this program may start the library again), becomes CLOEXEC and is read from its start; a pipe is read once and
 * closed. LS_EAUTH when the descriptor is closed or holds something else.
 */
LS_MUST_USE ls_status net_key_inherit(net_key *out, bool *found);

#endif
