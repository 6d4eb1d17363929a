/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - sockets with deadlines. All descriptors are CLOEXEC, and no call raises SIGPIPE.
 *
 * `deadline_ms` is a point in time (ls_deadline_ms); a call that waits for it accepts blocking and
 * nonblocking descriptors. `peer` is the name that error texts use.
 *
 * net/: addresses, sockets, keys, interfaces and the event loop, below everything that exchanges
 * bytes. All headers are open.
 */
#ifndef LS_NET_SOCKET_H
#define LS_NET_SOCKET_H

#include "net/address.h"

#include <sys/types.h>

typedef enum net_kind {
    NET_STREAM = 0,
    NET_PACKET /* SOCK_SEQPACKET: unix sockets only, preserves message boundaries */
} net_kind;

/* Listens with SO_REUSEADDR, never SO_REUSEPORT; nonblocking. Port 0 selects a free port; *bound
 * (may be NULL) gets the actual address. The IPv6 wildcard address also accepts IPv4. LS_ESYSTEM
 * names the address, and the holder of a TCP port that is in use (port_holder.h); errno is
 * EADDRINUSE then. */
LS_MUST_USE ls_status net_listen(const net_address *at, net_kind kind, int backlog, int *fd,
                                 net_address *bound);

/* --port-range; zeros = any port. */
typedef struct net_ports {
    int first;
    int last;
} net_ports;

/* As net_listen(), at the first free port of a range. The search starts at the port number `offset`
 * of the range and wraps around, so that processes with different offsets do not compete. */
LS_MUST_USE ls_status net_listen_in(const net_address *at, net_ports range, int offset,
                                    net_kind kind, int backlog, int *fd, net_address *bound);

/* Accepts one pending connection, nonblocking; *fd = -1 when there is none. LS_ESYSTEM when
 * descriptors ran out (errno is EMFILE or ENFILE) or the listener is broken. Skips connections that
 * ended in the queue. */
LS_MUST_USE ls_status net_accept(int listen_fd, int *fd);

/* Opens a descriptor to close when the process has run out of them, unless *fd >= 0 already. */
void net_reserve_fd(int *fd);

/* Connects once; the result is nonblocking. LS_EPEER: refused or unreachable; LS_ETIMEOUT. Both
 * name `to`. */
LS_MUST_USE ls_status net_connect(const net_address *to, net_kind kind, int64_t deadline_ms,
                                  int *fd);

/* As net_connect(), but retries until the deadline while nothing listens there yet. */
LS_MUST_USE ls_status net_connect_retry(const net_address *to, net_kind kind, int64_t deadline_ms,
                                        int *fd);

/* The pause before the next attempt: doubled, up to most_ms, where pause_ms was the last one (0:
 * none), and *wait_ms at random between half of it and all of it, so that thousands of ranks that
 * one listener could not take do not come again at the same time. Returns the pause. */
int net_retry_pause_ms(int pause_ms, int first_ms, int most_ms, int *wait_ms);

/* Connects to all candidates at once (addresses of one listener, NET_STREAM) and keeps the first
 * connection, candidate *which. LS_EPEER or LS_ETIMEOUT lists every candidate with its error. At
 * most 64 candidates. */
LS_MUST_USE ls_status net_connect_any(const net_address *to, int n, int64_t deadline_ms, int *fd,
                                      int *which);

/* For callers with a poller: net_connect_start() starts a connection, net_connect_result() returns
 * its result after *fd has become writable. Both return an errno value, 0 when connected; start
 * returns EINPROGRESS while the connection is pending, and *fd = -1 on failure. */
int net_connect_start(const net_address *to, net_kind kind, int *fd);
int net_connect_result(int fd);

/* The status and error text of net_connect() for such an errno value. */
ls_status net_connect_failed(const net_address *to, int error);

LS_MUST_USE ls_status net_set_blocking(int fd, bool blocking);
LS_MUST_USE ls_status net_set_cloexec(int fd, bool cloexec);

/* For TCP: no delay; keepalive after 2 s idle (then every 1 s) and TCP_USER_TIMEOUT of
 * user_timeout_ms, which detect a dead host; lost bytes are sent again at least every second, so
 * that a connection survives a short outage. Does nothing to unix sockets. */
LS_MUST_USE ls_status net_set_stream_options(int fd, int user_timeout_ms);

/* The same for connections whose peer may read nothing for any time, which TCP_USER_TIMEOUT takes
 * for its end. The owner detects a dead host with net_is_unanswered(), called about every second
 * while it waits; the system does so later. */
LS_MUST_USE ls_status net_set_link_options(int fd, int silence_ms);
/* Whether the peer's system has sent nothing for silence_ms although it has to acknowledge
 * something. */
bool net_is_unanswered(int fd, int silence_ms);

/* After so long a host that sends nothing is lost: LOCKSTEP_HEARTBEAT_MS of this process. */
int net_silence_ms(void);
/* LS_EINVAL: out of bounds. Not while other threads read the environment, unless it is the same. */
LS_MUST_USE ls_status net_set_silence(int64_t ms);

/* Transfers exactly `bytes`. LS_EPEER: the connection ended or broke; LS_ETIMEOUT. Both name `peer`
 * and the progress. */
LS_MUST_USE ls_status net_send_all(int fd, const char *peer, const void *data, size_t bytes,
                                   int64_t deadline_ms);
LS_MUST_USE ls_status net_recv_all(int fd, const char *peer, void *data, size_t bytes,
                                   int64_t deadline_ms);

/* One nonblocking transfer: *moved bytes, 0 when it would block. recv: LS_EPEER with "closed the
 * connection" at the end of the stream. */
LS_MUST_USE ls_status net_send_some(int fd, const char *peer, const void *data, size_t bytes,
                                    size_t *moved);
LS_MUST_USE ls_status net_recv_some(int fd, const char *peer, void *data, size_t bytes,
                                    size_t *moved);

/* Waits until fd is readable (POLLIN) or writable (POLLOUT) or has failed; LS_ETIMEOUT. */
LS_MUST_USE ls_status net_wait(int fd, short events, int64_t deadline_ms);

/* The user and process at the other end of a unix socket. Either pointer may be NULL; pid is 0 for
 * a process outside of this process's pid namespace. */
LS_MUST_USE ls_status net_peer_user(int fd, uid_t *uid, pid_t *pid);

#endif
