/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user_listener.h - listens at 127.0.0.1 or at an address of this host's network, and admits
 * connections of one user: for programs that know no key (listener.h is for those that do).
 *
 * The kernel says which user a connection from this host belongs to. For one from another host the
 * owner of the listener asks an authenticated agent there, which asks its own kernel. Nothing of a
 * connection is read before that.
 */
#ifndef LS_NET_USER_LISTENER_H
#define LS_NET_USER_LISTENER_H

#include "net/address.h"
#include "net/poller.h"
#include "net/socket.h"

#include <sys/types.h>

typedef struct user_listener user_listener;

typedef struct user_listener_options {
    const char *name; /* of the component, in log lines; a literal */
    net_address at;   /* where to listen, its port does not count; none: 127.0.0.1 */
    int port;         /* 0: a free one of: */
    net_ports ports;
    uid_t user;
    void *self;
    /*
     * A connection from another host: does a process of the user hold its end `client`? The answer
     * is user_listener_answer(), within 5 s, also from in here. NULL: connections from other hosts are
     * refused.
     */
    void (*ask)(void *self, uint32_t question, const net_address *client,
                const net_address *server);
    /* Somebody has come; fd is nonblocking and the callee's. A failure is logged. Must not destroy the listener. */
    ls_status (*accepted)(void *self, int fd, const char *peer);
} user_listener_options;

/* LS_ESYSTEM names the address that cannot be had. */
LS_MUST_USE ls_status user_listener_open(poller *p, const user_listener_options *opt,
                                         user_listener **out);
void user_listener_close(user_listener *d); /* NULL is allowed */
int user_listener_port(const user_listener *d);

/* The answer to a question; one that is not open any more is ignored. */
void user_listener_answer(user_listener *d, uint32_t question, bool is_users);

#endif
