/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_holder.h - finds the process that holds a TCP port of this machine, from /proc/net/tcp, tcp6
 * and the descriptors of all processes that this user may inspect.
 */
#ifndef LS_NET_PORT_HOLDER_H
#define LS_NET_PORT_HOLDER_H

#include "base/status.h"
#include "net/address.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PORT_HOLDER_TEXT_BYTES 512

typedef struct port_holder {
    uid_t uid;
    uint64_t inode;    /* of the socket */
    bool is_listening; /* false: it is the local port of a connection */
    pid_t pid;         /* 0: not visible to this user, or in another container */
    char command[160]; /* printable command line, or program name */
    char job[32];      /* the job of the process; "" = none */
    bool is_leftover;  /* the launcher of that job is dead */
} port_holder;

/* False when no process listens there. `root` is the prefix of "/proc". */
bool port_holder_find(const char *root, int port, port_holder *out);

/* Parses a line of /proc/net/tcp or tcp6: true for a socket with this local port that a process
 * holds; then sets its uid, inode and state. */
bool port_holder_parse(const char *line, int port, port_holder *out);

/* "pid 4711 (python3 train.py) of bob, 3 h old, of job 0123456789abcdef" */
const char *port_holder_text(const char *root, const port_holder *holder, char *buf, size_t n);

/* The command that frees the port, or that finds the holder where it is unknown. */
const char *port_holder_fix(const port_holder *holder, int port, char *buf, size_t n);

/* For a listen call at `at` that failed with EADDRINUSE: appends the holder of the port and the
 * command that frees it to the error text. Other errors are left alone. Preserves errno; returns
 * st. */
LS_MUST_USE ls_status port_holder_explain(ls_status st, const net_address *at);

#endif
