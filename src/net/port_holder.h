/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_holder.h - which process holds a TCP port of this machine, from /proc/net/tcp, tcp6 and the
 * descriptors of all processes that this user may look at.
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
    bool is_listening; /* false: the port is the local one of a connection */
    pid_t pid;         /* 0: this user may not see it, or it is in another container */
    char command[160]; /* its command line, or the name of the program; printable */
    char job[32];      /* the job that it belongs to; "": none */
    bool is_leftover;  /* the launcher of that job is dead */
} port_holder;

/* False: no process listens there. `root` is what stands before "/proc". */
bool port_holder_find(const char *root, int port, port_holder *out);

/* A line of /proc/net/tcp or tcp6: whether it is a socket with this local port that a process has;
 * then its uid, inode and state. */
bool port_holder_parse(const char *line, int port, port_holder *out);

/* "pid 4711 (python3 train.py) of bob, 3 h old, of job 0123456789abcdef" */
const char *port_holder_text(const char *root, const port_holder *holder, char *buf, size_t n);

/* The command that frees the port, or that names the holder where it is not known. */
const char *port_holder_fix(const port_holder *holder, int port, char *buf, size_t n);

/*
 * After listening at `at` has failed with errno EADDRINUSE: appends the holder of the port and what
 * to do to the error text. Anything else stays as it is. Keeps errno; gives st.
 */
LS_MUST_USE ls_status port_holder_explain(ls_status st, const net_address *at);

#endif
