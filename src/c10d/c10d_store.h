/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_store.h - a server for PyTorch's TCPStore clients: the agent hosts it, so the port is bound
 * before the first rank starts.
 *
 * It listens at 127.0.0.1 or nowhere, and serves one user: the protocol has no authentication, and
 * PyTorch trusts the content. A client that breaks the protocol, exceeds a bound or does not read
 * its answers is disconnected; no client can delay another. Each generation of a job needs a new
 * store.
 *
 * c10d/: PyTorch's store, for the head of a job, through this header only.
 */
#ifndef LS_C10D_C10D_STORE_H
#define LS_C10D_C10D_STORE_H

#include "net/poller.h"

#include <sys/types.h>

typedef struct c10d_store c10d_store;

typedef struct c10d_store_options {
    int port;   /* 0: a free one */
    uid_t user; /* only this user's connections are served */
} c10d_store_options;

/* Listens and serves on that poller. LS_ESYSTEM names the address that cannot be bound. */
LS_MUST_USE ls_status c10d_store_create(poller *p, const c10d_store_options *opt, c10d_store **out);

/* A store that does not listen: c10d_store_adopt() adds its connections. */
LS_MUST_USE ls_status c10d_store_create_closed(poller *p, c10d_store **out);

void c10d_store_destroy(c10d_store *s); /* closes all connections; NULL is allowed */

int c10d_store_port(const c10d_store *s);
bool c10d_store_was_used(const c10d_store *s); /* had a connection */

/* Serves a connection that the caller has authenticated. Takes fd. */
LS_MUST_USE ls_status c10d_store_adopt(c10d_store *s, int fd);

#endif
