/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_store.h - a store that unmodified PyTorch programs take for their TCPStore: the agent hosts
 * it, so that no rank has to, and the port is bound before the first rank starts.
 *
 * It listens at 127.0.0.1 or nowhere, and serves one user: the protocol has no key, and what
 * PyTorch keeps in the store it believes. A client that does not follow the protocol, wants more
 * than its bounds or does not read its answers is dropped; none can delay the others. Each
 * generation of a job needs a fresh store.
 */
#ifndef LS_STORE_C10D_STORE_H
#define LS_STORE_C10D_STORE_H

#include "net/poller.h"

#include <sys/types.h>

typedef struct c10d_store c10d_store;

typedef struct c10d_store_options {
    int port;   /* 0: a free one */
    uid_t user; /* whose connections are served */
} c10d_store_options;

/* Listens, and serves on that poller from then on. LS_ESYSTEM names the address that cannot be
 * had. */
LS_MUST_USE ls_status c10d_store_create(poller *p, const c10d_store_options *opt, c10d_store **out);

/* A store that does not listen: connections come by c10d_store_adopt(). */
LS_MUST_USE ls_status c10d_store_create_closed(poller *p, c10d_store **out);

void c10d_store_destroy(c10d_store *s); /* closes all connections; NULL is allowed */

int c10d_store_port(const c10d_store *s);
bool c10d_store_was_used(const c10d_store *s); /* a connection has come */

/* Serves a connection that somebody else vouches for. Takes fd. */
LS_MUST_USE ls_status c10d_store_adopt(c10d_store *s, int fd);

#endif
