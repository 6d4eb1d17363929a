/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user_door.h - listens at 127.0.0.1 and lets in connections of one user of this host: for programs that know no key (door.h is for
 * those that do).
 */
#ifndef LS_NET_USER_DOOR_H
#define LS_NET_USER_DOOR_H

#include "base/status.h"
#include "net/poller.h"

#include <sys/types.h>

typedef struct user_door user_door;

typedef struct user_door_options {
    const char *name; /* of the component, in log lines; a literal */
    int port;         /* 0: a free one */
    uid_t user;
    void *self;
    /* Somebody has come; fd is nonblocking and the callee's. A failure is logged. Must not destroy the door. */
    ls_status (*enter)(void *self, int fd, const char *peer);
} user_door_options;

/* LS_ESYSTEM names the address that cannot be had. */
LS_MUST_USE ls_status user_door_open(poller *p, const user_door_options *opt, user_door **out);
void user_door_close(user_door *d); /* NULL is allowed */
int user_door_port(const user_door *d);

#endif
