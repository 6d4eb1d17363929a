/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - listens, accepts and transfers bytes with deadlines (socket.h); connect.c has the
 * other half of that header. Each call retries EINTR and names its peer or address in errors. Used
 * by every module that has a socket.
 */
#include "net/socket.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/file.h"
#include "net/port_holder.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define KEEPALIVE_IDLE_S     2
#define KEEPALIVE_INTERVAL_S 1
#define KEEPALIVE_PROBES     3
#define KEEPALIVE_MOST       127 /* probes that the system allows */
#define RESEND_MS            1000
#define RESEND_MOST_MS       120000 /* that the system allows */
#define SILENCE_USUAL_MS     5000   /* config_check() reports a wrong setting */

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 // since Linux 6.15
#endif

static int open_socket(const net_address *a, net_kind kind)
{
    const int type = kind == NET_PACKET ? SOCK_SEQPACKET : SOCK_STREAM;

    return socket(a->socket.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Sets one integer option; `what` names it in the error. */
static ls_status set_option(int fd, int level, int option, int value, const char *what)
{
    if (setsockopt(fd, level, option, &value, sizeof(value)) != 0)
        return ls_fail_errno("socket option %s", what);
    return LS_OK;
}

/* A listening descriptor, or -1 with errno. */
static int listen_at(const net_address *at, net_kind kind, int backlog)
{
    const int on = 1;
    const int off = 0;
    int fd = open_socket(at, kind);
    int error;

    if (fd < 0)
        return -1;
    if (net_address_family(at) != NET_UNIX &&
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
        goto fail;
    if (net_address_family(at) == NET_IPV6 && net_address_is_any(at) &&
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0)
        goto fail;
    if (bind(fd, (const struct sockaddr *)(const void *)&at->socket, at->bytes) == 0 &&
        listen(fd, backlog) == 0)
        return fd;

fail:
    error = errno;
    file_close(&fd);
    errno = error;
    return -1;
}

static ls_status listen_once(const net_address *at, net_kind kind, int backlog, int *fd,
                             net_address *bound)
{
    char text[NET_ADDRESS_TEXT_MAX];
    net_address v4;
    ls_status st;

    *fd = -1;
    if (net_address_family(at) == NET_NONE)
        return ls_fail(LS_EINVAL, "no address to listen at");
    *fd = listen_at(at, kind, backlog);
    if (*fd < 0 && net_address_family(at) == NET_IPV6 && net_address_is_any(at) &&
        (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) { // a host without IPv6
        LS_TRY(net_address_decode("0.0.0.0:0", &v4));
        net_address_set_port(&v4, net_address_port(at));
        *fd = listen_at(&v4, kind, backlog);
    }
    if (*fd < 0)
        return ls_fail_errno("cannot listen at %s", net_address_text(text, sizeof(text), at));
    if (bound != NULL) {
        st = net_address_of_socket(*fd, bound);
        if (st != LS_OK) {
            file_close(fd);
            return st;
        }
    }
    return LS_OK;
}

ls_status net_listen(const net_address *at, net_kind kind, int backlog, int *fd, net_address *bound)
{
    return port_holder_explain(listen_once(at, kind, backlog, fd, bound), at);
}

ls_status net_listen_in(const net_address *at, net_ports range, int offset, net_kind kind,
                        int backlog, int *fd, net_address *bound)
{
    const int n_ports = range.last - range.first + 1;
    net_address here = *at;
    ls_status st = LS_OK;

    if (range.first == 0)
        return net_listen(at, kind, backlog, fd, bound);
    for (int i = 0; i < n_ports; i++) {
        net_address_set_port(&here, range.first + (offset + i) % n_ports);
        st = listen_once(&here, kind, backlog, fd, bound);
        if (st != LS_ESYSTEM)
            return st;
    }
    return ls_context(port_holder_explain(st, &here), "no port of --port-range %d-%d is free",
                      range.first, range.last);
}

void net_reserve_fd(int *fd)
{
    if (*fd < 0)
        *fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

ls_status net_accept(int listen_fd, int *fd)
{
    for (;;) {
        *fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (*fd >= 0)
            return LS_OK;
        switch (errno) {
        case EAGAIN:
            return LS_OK;
        case EINTR:
        case ECONNABORTED: // these and the network errors concern one lost connection
        case EPROTO:
        case ENETDOWN:
        case ENOPROTOOPT:
        case EHOSTDOWN:
        case ENONET:
        case EHOSTUNREACH:
        case EOPNOTSUPP:
        case ENETUNREACH:
        case EPERM:
            continue;
        default:
            return ls_fail_errno("cannot accept a connection");
        }
    }
}

ls_status net_wait(int fd, short events, int64_t deadline_ms)
{
    struct pollfd p = {.fd = fd, .events = events};

    for (;;) {
        const int left = ls_deadline_left(deadline_ms);
        const int n = poll(&p, 1, left);

        if (n > 0)
            return LS_OK;
        if (n == 0 && ls_deadline_left(deadline_ms) == 0)
            return ls_fail(LS_ETIMEOUT, "timed out");
        if (n < 0 && errno != EINTR)
            return ls_fail_errno("cannot wait for a socket");
    }
}

ls_status net_set_blocking(int fd, bool blocking)
{
    const int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0)
        return ls_fail_errno("cannot make descriptor %d %s", fd,
                             blocking ? "blocking" : "nonblocking");
    return LS_OK;
}

ls_status net_set_cloexec(int fd, bool cloexec)
{
    if (fcntl(fd, F_SETFD, cloexec ? FD_CLOEXEC : 0) != 0)
        return ls_fail_errno("cannot set close-on-exec of descriptor %d", fd);
    return LS_OK;
}

int net_silence_ms(void)
{
    int64_t ms;

    return config_int(CONFIG_HEARTBEAT_MS, &ms) == LS_OK ? (int)ms : SILENCE_USUAL_MS;
}

ls_status net_set_silence(int64_t ms)
{
    const config_entry *setting = &config_table()[CONFIG_HEARTBEAT_MS];
    char text[32];

    if (ms < setting->min || ms > setting->max)
        return ls_fail(LS_EINVAL, "%g s: must be %g to %g", (double)ms / 1e3,
                       (double)setting->min / 1e3, (double)setting->max / 1e3);
    if (ms == net_silence_ms())
        return LS_OK;
    text_format(text, sizeof(text), "%lld", (long long)ms);
    if (setenv(setting->name, text, 1) != 0) // NOLINT(concurrency-mt-unsafe): see socket.h
        return ls_fail_errno("setting %s", setting->name);
    return LS_OK;
}

ls_status net_set_stream_options(int fd, int user_timeout_ms)
{
    const int resend_ms = RESEND_MS;
    net_address own;

    LS_TRY(net_address_of_socket(fd, &own));
    if (net_address_family(&own) == NET_UNIX)
        return LS_OK;
    LS_TRY(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
    LS_TRY(set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
    LS_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S, "TCP_KEEPIDLE"));
    LS_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S, "TCP_KEEPINTVL"));
    LS_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES, "TCP_KEEPCNT"));
    // An older kernel doubles the time between two attempts.
    (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &resend_ms, sizeof(resend_ms));
    return set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms, "TCP_USER_TIMEOUT");
}

ls_status net_set_link_options(int fd, int silence_ms)
{
    // The system gives up after 15 attempts (tcp_retries2).
    const int slow_ms = silence_ms < RESEND_MOST_MS * 10 ? silence_ms / 10 : RESEND_MOST_MS;
    const int resend_ms = slow_ms < RESEND_MS ? RESEND_MS : slow_ms;
    const int probe_s = 1 + silence_ms / 1000 / KEEPALIVE_MOST;
    net_address own;

    LS_TRY(net_set_stream_options(fd, 0));
    LS_TRY(net_address_of_socket(fd, &own));
    if (net_address_family(&own) == NET_UNIX)
        return LS_OK;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &resend_ms, sizeof(resend_ms));
    LS_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s, "TCP_KEEPINTVL"));
    return set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_MOST, "TCP_KEEPCNT");
}

bool net_is_unanswered(int fd, int silence_ms)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return false;
    // One lost probe is no sign: before Linux 6.15 the next one may be sent two minutes later.
    return (info.tcpi_unacked > 0 || info.tcpi_probes > 1) &&
           info.tcpi_last_ack_recv >= (uint32_t)silence_ms &&
           info.tcpi_last_data_recv >= (uint32_t)silence_ms;
}

ls_status net_send_some(int fd, const char *peer, const void *data, size_t bytes, size_t *moved)
{
    *moved = 0;
    for (;;) {
        const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0) {
            *moved = (size_t)n;
            return LS_OK;
        }
        if (errno == EAGAIN)
            return LS_OK;
        if (errno != EINTR)
            return ls_fail(LS_EPEER, "cannot send to %s: %s", peer, ls_errno_text(errno));
    }
}

ls_status net_recv_some(int fd, const char *peer, void *data, size_t bytes, size_t *moved)
{
    *moved = 0;
    if (bytes == 0)
        return LS_OK;
    for (;;) {
        const ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);

        if (n > 0) {
            *moved = (size_t)n;
            return LS_OK;
        }
        if (n == 0)
            return ls_fail(LS_EPEER, "%s closed the connection", peer);
        if (errno == EAGAIN)
            return LS_OK;
        if (errno != EINTR)
            return ls_fail(LS_EPEER, "cannot receive from %s: %s", peer, ls_errno_text(errno));
    }
}

/* Waits before the next transfer; `verb` is for the error text. */
static ls_status wait_more(int fd, short events, int64_t deadline_ms, const char *verb,
                           const char *peer)
{
    const ls_status st = net_wait(fd, events, deadline_ms);

    if (st == LS_ETIMEOUT)
        return ls_fail(st, "%s %s timed out", verb, peer);
    return ls_context(st, "%s %s", verb, peer);
}

ls_status net_send_all(int fd, const char *peer, const void *data, size_t bytes,
                       int64_t deadline_ms)
{
    const uint8_t *at = data;
    size_t done = 0;
    size_t moved;
    ls_status st = LS_OK;

    while (done < bytes && st == LS_OK) {
        st = net_send_some(fd, peer, at + done, bytes - done, &moved);
        done += moved;
        if (st == LS_OK && moved == 0)
            st = wait_more(fd, POLLOUT, deadline_ms, "sending to", peer);
    }
    return ls_context(st, "%zu of %zu bytes sent", done, bytes);
}

ls_status net_recv_all(int fd, const char *peer, void *data, size_t bytes, int64_t deadline_ms)
{
    uint8_t *at = data;
    size_t done = 0;
    size_t moved;
    ls_status st = LS_OK;

    while (done < bytes && st == LS_OK) {
        st = net_recv_some(fd, peer, at + done, bytes - done, &moved);
        done += moved;
        if (st == LS_OK && moved == 0)
            st = wait_more(fd, POLLIN, deadline_ms, "receiving from", peer);
    }
    return ls_context(st, "%zu of %zu bytes received", done, bytes);
}

ls_status net_peer_user(int fd, uid_t *uid, pid_t *pid)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return ls_fail_errno("cannot read the credentials of a unix socket's peer");
    if (uid != NULL)
        *uid = peer.uid;
    if (pid != NULL)
        *pid = peer.pid;
    return LS_OK;
}
