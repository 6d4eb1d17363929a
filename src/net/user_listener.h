/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user_listener.h - listens at 127.0.0.1 or at an address of this host's network, and accepts
 * connections of one user: for programs that have no key (listener.h is for those that do).
 *
 * The kernel reports the user of a connection from this host. For a connection from another host,
 * the owner of the listener asks an authenticated agent there, which asks its own kernel. No byte
 * of a connection is read before that.
 */
#ifndef LS_NET_USER_LISTENER_H
#define LS_NET_USER_LISTENER_H

#include "net/address.h"
#include "net/poller.h"
#include "net/socket.h"

#include <sys/types.h>

typedef struct user_listener user_listener;

typedef struct user_listener_options {
    const char *name; /* the component in log lines; a literal */
    net_address at;   /* where to listen, without its port; none = 127.0.0.1 */
    int port;         /* 0 = a free port of: */
    net_ports ports;
    uid_t user;
    void *self;
    /* A connection from another host: does a process of the user hold its end `client`? The reply
     * is user_listener_answer(), within 5 s; it may be called from in here. NULL: connections from
     * other hosts are refused. */
    void (*ask)(void *self, uint32_t question, const net_address *client,
                const net_address *server);
    /* An accepted connection; fd is nonblocking, and the callee owns it. A failure is logged. Must
     * not close the listener. */
    ls_status (*accepted)(void *self, int fd, const char *peer);
} user_listener_options;

/* LS_ESYSTEM names the address at which it cannot listen. */
LS_MUST_USE ls_status user_listener_open(poller *p, const user_listener_options *opt,
                                         user_listener **out);
void user_listener_close(user_listener *l); /* NULL is allowed */
int user_listener_port(const user_listener *l);

/* The reply to a question; ignored when the question is closed already. */
void user_listener_answer(user_listener *l, uint32_t question, bool is_users);

#endif
