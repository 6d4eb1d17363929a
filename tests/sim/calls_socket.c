/* SPDX-License-Identifier: Apache-2.0 */
/* calls_socket.c - the calls that make, connect and describe sockets. See calls.c. */
#include "sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

static object *new_socket(int domain, int type)
{
    object *o = object_new(OBJECT_SOCKET);

    o->family = domain;
    o->is_packet = (type & 0xf) == SOCK_SEQPACKET;
    o->flags = (type & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0;
    return o;
}

int __wrap_socket(int domain, int type, int protocol)
{
    (void)protocol;
    begin_call();
    if (call_fails(CALL_SOCKET))
        return fail(EMFILE);
    if (domain != AF_INET && domain != AF_UNIX)
        return fail(EAFNOSUPPORT);
    return fd_of(new_socket(domain, type));
}

static int make_pair(int fds[2], int domain, int type, bool is_pipe, int flags)
{
    object *a;
    object *b;

    begin_call();
    if (call_fails(CALL_PIPE))
        return fail(EMFILE);
    a = new_socket(domain, type);
    b = new_socket(domain, type);
    a->is_pipe = b->is_pipe = is_pipe;
    a->flags |= flags;
    b->flags |= flags;
    stream_pair(a, b);
    fds[0] = fd_of(a);
    fds[1] = fd_of(b);
    return 0;
}

int __wrap_socketpair(int domain, int type, int protocol, int fds[2])
{
    (void)protocol;
    return make_pair(fds, domain, type, false, 0);
}

int __wrap_pipe2(int fds[2], int flags)
{
    return make_pair(fds, AF_UNIX, SOCK_STREAM, true, flags & O_NONBLOCK);
}

int __wrap_bind(int fd, const struct sockaddr *at, socklen_t bytes)
{
    object *o = object_of(fd);

    begin_call();
    if (o == NULL)
        return -1;
    return call_fails(CALL_BIND) ? fail(EADDRINUSE) : net_bind(o, at, bytes);
}

int __wrap_listen(int fd, int backlog)
{
    object *o = object_of(fd);

    (void)backlog;
    if (o == NULL)
        return -1;
    o->kind = OBJECT_LISTENER;
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *peer, socklen_t *bytes, int flags)
{
    object *o = object_of(fd);
    object *first;
    int new_fd;

    (void)peer;
    (void)bytes;
    begin_call();
    if (o == NULL)
        return -1;
    if (o->n_pending == 0)
        return fail(EAGAIN);
    if (call_fails(CALL_ACCEPT))
        return fail(EMFILE);
    first = o->pending[0];
    memmove(o->pending, o->pending + 1, (size_t)--o->n_pending * sizeof(*o->pending));
    first->flags = (flags & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0;
    first->pid = W->current->pid;
    new_fd = fd_of(first);
    return new_fd;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    object *o = object_of(fd);

    begin_call();
    if (o == NULL)
        return -1;
    return call_fails(CALL_CONNECT) ? fail(ENETUNREACH) : net_start_connect(o, to, bytes);
}

int __wrap_shutdown(int fd, int how)
{
    object *o = object_of(fd);

    if (o == NULL || o->kind != OBJECT_STREAM || o->peer == NULL)
        return fail(ENOTCONN);
    if (how != SHUT_RD)
        stream_shut(o);
    return 0;
}

static int give_address(const struct sockaddr_storage *a, int family, struct sockaddr *out,
                        socklen_t *bytes)
{
    const socklen_t all = family == AF_INET   ? sizeof(struct sockaddr_in)
                          : a->ss_family == 0 ? sizeof(sa_family_t)
                                              : sizeof(struct sockaddr_un);
    struct sockaddr_storage copy = *a;

    copy.ss_family = (sa_family_t)family;
    memcpy(out, &copy, all < *bytes ? all : *bytes);
    if (family == AF_UNIX && a->ss_family != 0) /* abstract: its length counts */
        *bytes = (socklen_t)(sizeof(sa_family_t) + 1 +
                             strlen(((const struct sockaddr_un *)(const void *)a)->sun_path + 1));
    else
        *bytes = all;
    return 0;
}

int __wrap_getsockname(int fd, struct sockaddr *out, socklen_t *bytes)
{
    const object *o = object_of(fd);

    return o == NULL ? -1 : give_address(&o->at, o->family, out, bytes);
}

int __wrap_getpeername(int fd, struct sockaddr *out, socklen_t *bytes)
{
    const object *o = object_of(fd);

    if (o == NULL)
        return -1;
    if (o->kind != OBJECT_STREAM || !o->is_connected || (o->error != 0 && o->error != EPIPE))
        return fail(ENOTCONN);
    return give_address(&o->to, o->family, out, bytes);
}

int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *bytes)
{
    object *o = object_of(fd);
    const struct ucred peer = {
        .pid = o != NULL && o->peer != NULL ? o->peer->pid : 0, .uid = geteuid(), .gid = getegid()};

    if (o == NULL)
        return -1;
    if (level == SOL_SOCKET && option == SO_PEERCRED) {
        memcpy(value, &peer, sizeof(peer));
        return 0;
    }
    memset(value, 0, *bytes);
    if (level == IPPROTO_TCP && option == TCP_INFO) {
        const uint32_t silence_ms = (uint32_t)(net_silence(o) / MS);
        const struct tcp_info info = {.tcpi_unacked = silence_ms > 0,
                                      .tcpi_last_ack_recv = silence_ms,
                                      .tcpi_last_data_recv = silence_ms};

        memcpy(value, &info, *bytes < sizeof(info) ? *bytes : sizeof(info));
    }
    if (level == SOL_SOCKET && option == SO_ERROR) {
        memcpy(value, &o->error, sizeof(o->error));
        if (o->error != 0)
            o->error = EPIPE;
    }
    return 0;
}

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
    object *o = object_of(fd);
    int number = 0;

    if (o == NULL)
        return -1;
    memcpy(&number, value, bytes < sizeof(number) ? bytes : sizeof(number));
    if (level == IPPROTO_TCP && option == TCP_USER_TIMEOUT)
        net_set_user_timeout(o, number * MS);
    return 0;
}

/* One network, 10.0.0.0/24, and loopback. */
typedef struct interface_list {
    struct ifaddrs entries[2];
    struct sockaddr_in at[2];
    struct sockaddr_in mask[2];
} interface_list;

int __wrap_getifaddrs(struct ifaddrs **out)
{
    interface_list *l = sim_alloc(sizeof(*l));
    const uint32_t at[2] = {0x7f000001U, 0x0a000001U + (uint32_t)W->current->host};
    const uint32_t masks[2] = {0xff000000U, 0xffffff00U};
    static char names[2][8] = {"lo", "eth0"};

    for (int i = 0; i < 2; i++) {
        l->at[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(at[i])};
        l->mask[i] =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(masks[i])};
        l->entries[i] =
            (struct ifaddrs){.ifa_next = i == 0 ? &l->entries[1] : NULL,
                             .ifa_name = names[i],
                             .ifa_flags = IFF_UP | IFF_RUNNING | (i == 0 ? IFF_LOOPBACK : 0U),
                             .ifa_addr = (struct sockaddr *)(void *)&l->at[i],
                             .ifa_netmask = (struct sockaddr *)(void *)&l->mask[i]};
    }
    *out = l->entries;
    return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *list)
{
    sim_free(list);
}
