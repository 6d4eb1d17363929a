/* SPDX-License-Identifier: Apache-2.0 */
/* link_tcp.c - the stream of a link over a connected socket. mesh_streams.c creates it. */
#include "comm/backends/native/link/link.h"

#include "base/alloc.h"
#include "net/socket.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static ssize_t tcp_result(peer_link *l, ssize_t moved)
{
    if (moved >= 0)
        return moved;
    if (errno == EAGAIN || errno == EINTR)
        return 0;
    l->error = errno;
    return -1;
}

/* Copying this few bytes costs less than a list of parts costs the kernel. */
#define GATHER_BYTES 1280

static size_t gather(const struct iovec *iov, int n, uint8_t to[GATHER_BYTES])
{
    size_t bytes = 0;

    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len > GATHER_BYTES - bytes)
            return 0;
        memcpy(to + bytes, iov[i].iov_base, iov[i].iov_len);
        bytes += iov[i].iov_len;
    }
    return bytes;
}

static ssize_t tcp_write(peer_link *l, const struct iovec *iov, int n)
{
    struct iovec parts[16];
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = (size_t)n};
    uint8_t small[GATHER_BYTES];
    const size_t bytes = gather(iov, n, small);

    LS_ASSERT(n <= (int)LS_COUNT_OF(parts));
    if (bytes > 0)
        return tcp_result(l, send(l->fd, small, bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
    for (int i = 0; i < n; i++)
        parts[i] = iov[i];
    return tcp_result(l, sendmsg(l->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static ssize_t tcp_read(peer_link *l, const struct iovec *iov, int n)
{
    struct iovec parts[2];
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = (size_t)n};
    ssize_t moved;

    LS_ASSERT(n <= (int)LS_COUNT_OF(parts));
    for (int i = 0; i < n; i++)
        parts[i] = iov[i];
    moved = n == 1 ? recv(l->fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT)
                   : recvmsg(l->fd, &header, MSG_DONTWAIT);
    if (moved == 0) // keeps the error of a failed write
        return -1;
    return tcp_result(l, moved);
}

// The queue counts bytes that the peer's kernel has not acknowledged; after finish() also the FIN.
bool link_socket_is_drained(peer_link *l)
{
    int queued = 0;

    return ioctl(l->fd, SIOCOUTQ, &queued) != 0 || queued == 0;
}

bool link_socket_is_unanswered(const peer_link *l, int silence_ms)
{
    return net_is_unanswered(l->fd, silence_ms);
}

void link_socket_finish(peer_link *l)
{
    shutdown(l->fd, SHUT_WR);
}

static void tcp_close(peer_link *l)
{
    close(l->fd);
}

static const link_ops tcp_ops = {
    .write = tcp_write,
    .read = tcp_read,
    .is_delivered = link_socket_is_drained,
    .is_unanswered = link_socket_is_unanswered,
    .finish = link_socket_finish,
    .close = tcp_close,
};

ls_status link_tcp_create(int fd, const link_sink *sink, peer_link **out)
{
    return link_create(&tcp_ops, NULL, fd, sink, out);
}
