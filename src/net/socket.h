/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - sockets with deadlines. Every descriptor made here is CLOEXEC, and no call raises SIGPIPE.
 *
 * `deadline_ms` is a point in time (ls_deadline_ms); a call that waits for it works on blocking and nonblocking
 * descriptors alike. `peer` is the name that error texts use.
 */
#ifndef LS_NET_SOCKET_H
#define LS_NET_SOCKET_H

#include "net/address.h"

#include <sys/types.h>

typedef enum net_kind {
    NET_STREAM = 0,
    NET_PACKET /* SOCK_SEQPACKET, unix sockets only: keeps message boundaries */
} net_kind;

/*
 * Listens with SO_REUSEADDR, never SO_REUSEPORT; nonblocking. Port 0 takes a free one; *bound gets the real address
 * (may be NULL). `at` being every interface over IPv6 also takes IPv4. LS_ESYSTEM names the address,
 * and the holder of a TCP port that is in use (port_holder.h); errno is EADDRINUSE then.
 */
LS_MUST_USE ls_status net_listen(const net_address *at, net_kind kind, int backlog, int *fd,
                                 net_address *bound);

/* --port-range; zeros: any port. */
typedef struct net_ports {
    int first;
    int last;
} net_ports;

/* The same at the first free port of a range, looked for from its offset-th on and round, so that processes of one machine
 * that differ in `offset` do not try the same one. */
LS_MUST_USE ls_status net_listen_in(const net_address *at, net_ports range, int offset,
                                    net_kind kind, int backlog, int *fd, net_address *bound);

/* Takes one waiting connection, nonblocking; *fd = -1 when there is none. LS_ESYSTEM when descriptors ran out (errno is
 * EMFILE or ENFILE then) or the listener is broken. A connection that vanished in the queue is skipped. */
LS_MUST_USE ls_status net_accept(int listener, int *fd);

/* Connects once; the result is nonblocking. LS_EPEER: refused or unreachable; LS_ETIMEOUT. Both name `to`. */
LS_MUST_USE ls_status net_connect(const net_address *to, net_kind kind, int64_t deadline_ms,
                                  int *fd);

/* As net_connect(), but keeps trying until the deadline while nobody listens there (yet). */
LS_MUST_USE ls_status net_connect_retry(const net_address *to, net_kind kind, int64_t deadline_ms,
                                        int *fd);

/* Connects to all candidates at once (a listener's addresses, so of one kind: NET_STREAM), keeps the first that answers; *which
 * is its index. LS_EPEER or LS_ETIMEOUT lists every candidate with its own reason. At most 64 candidates. */
LS_MUST_USE ls_status net_connect_any(const net_address *to, int n, int64_t deadline_ms, int *fd,
                                      int *which);

/* For who waits on a poller: starts a connection, and says how it has ended once *fd is writable. Both give errno's number, 0 when
 * connected; starting gives EINPROGRESS while it is on its way, and *fd = -1 on failure. */
int net_connect_start(const net_address *to, net_kind kind, int *fd);
int net_connect_result(int fd);

/* That number as net_connect() fails with it. */
ls_status net_connect_failed(const net_address *to, int error);

LS_MUST_USE ls_status net_set_blocking(int fd, bool blocking);
LS_MUST_USE ls_status net_set_cloexec(int fd, bool cloexec);

/* For TCP: no delay, keepalive after 2 s idle (then every 1 s), and TCP_USER_TIMEOUT of user_timeout_ms, so that a vanished
 * host is noticed. Does nothing to unix sockets. */
LS_MUST_USE ls_status net_set_stream_options(int fd, int user_timeout_ms);

/* Moves exactly `bytes`. LS_EPEER: the connection ended or broke; LS_ETIMEOUT. Both name `peer` and how far it came. */
LS_MUST_USE ls_status net_send_all(int fd, const char *peer, const void *data, size_t bytes,
                                   int64_t deadline_ms);
LS_MUST_USE ls_status net_recv_all(int fd, const char *peer, void *data, size_t bytes,
                                   int64_t deadline_ms);

/* One nonblocking transfer: *moved bytes, 0 when it would block. recv: LS_EPEER with "closed the connection" at the end. */
LS_MUST_USE ls_status net_send_some(int fd, const char *peer, const void *data, size_t bytes,
                                    size_t *moved);
LS_MUST_USE ls_status net_recv_some(int fd, const char *peer, void *data, size_t bytes,
                                    size_t *moved);

/* Waits until fd is readable (POLLIN) or writable (POLLOUT) or has failed; LS_ETIMEOUT. */
LS_MUST_USE ls_status net_wait(int fd, short events, int64_t deadline_ms);

/* Who is at the other end of a unix socket. Either result may be NULL; pid is 0 when that process is in no namespace we see. */
LS_MUST_USE ls_status net_peer_user(int fd, uid_t *uid, pid_t *pid);

#endif
