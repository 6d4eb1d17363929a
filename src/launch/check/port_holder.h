/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_holder.h - which process listens at a TCP port of this machine.
 */
#ifndef LS_LAUNCH_PORT_HOLDER_H
#define LS_LAUNCH_PORT_HOLDER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct port_holder {
    uid_t uid;
    uint64_t inode; /* of the socket */
    pid_t pid;      /* 0: not to be seen from here */
    char program[64];
} port_holder;

/* False: nobody listens there. `root` is what stands before "/proc". */
bool port_holder_find(const char *root, int port, port_holder *out);

/* A line of /proc/net/tcp or tcp6: whether a listener at this port; then also whose. */
bool port_holder_parse(const char *line, int port, port_holder *out);

#endif
