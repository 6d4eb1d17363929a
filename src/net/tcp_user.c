/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_user.c - asks the kernel's socket monitor about one connection; where it is not built in,
 * searches /proc/net/tcp or tcp6. user_listener.c decides with it.
 *
 * A socket that its process has closed remains for a while without an owner: both sources show it
 * with inode 0 and user 0, which must not be taken for root.
 */
#include "net/tcp_user.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The end in question and the other end, as the kernel stores them. */
typedef struct tcp_ends {
    int family;
    uint32_t near[4]; /* IPv4: one word */
    uint32_t remote[4];
    uint16_t near_port;
    uint16_t remote_port;
} tcp_ends;

static ls_status no_owner(const tcp_ends *e)
{
    return ls_fail(LS_ENOTFOUND, "no process of this host has port %d", (int)ntohs(e->near_port));
}

static bool read_end(const net_address *a, uint32_t words[4], uint16_t *port)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (net_address_family(a) == NET_IPV4) {
        memcpy(&v4, &a->socket, sizeof(v4));
        words[0] = v4.sin_addr.s_addr;
        *port = v4.sin_port;
    } else if (net_address_family(a) == NET_IPV6) {
        memcpy(&v6, &a->socket, sizeof(v6));
        memcpy(words, &v6.sin6_addr, sizeof(v6.sin6_addr));
        *port = v6.sin6_port;
    }
    return net_address_family(a) == NET_IPV4 || net_address_family(a) == NET_IPV6;
}

static ls_status make_ends(const net_address *near, const net_address *remote, tcp_ends *e)
{
    *e = (tcp_ends){.family = net_address_family(near) == NET_IPV4 ? AF_INET : AF_INET6};
    if (net_address_family(near) != net_address_family(remote) ||
        !read_end(near, e->near, &e->near_port) || !read_end(remote, e->remote, &e->remote_port))
        return ls_fail(LS_EINVAL, "not a TCP connection");
    return LS_OK;
}

static ls_status find_ends(int fd, tcp_ends *e)
{
    net_address near;
    net_address remote;
    ls_status st = net_address_of_peer(fd, &near);

    if (st == LS_OK)
        st = net_address_of_socket(fd, &remote);
    if (st != LS_OK && errno == ENOTCONN)
        return ls_fail(LS_ENOTFOUND, "the connection is closed");
    return st == LS_OK ? make_ends(&near, &remote, e) : st;
}

/* --- the socket monitor --- */

typedef struct diag_question {
    struct nlmsghdr header;
    struct inet_diag_req_v2 body;
} diag_question;

typedef union diag_answer {
    struct nlmsghdr header;
    char bytes[4096];
} diag_answer;

static ls_status read_answer(const tcp_ends *e, const diag_answer *answer, ssize_t n, uid_t *uid)
{
    const struct nlmsghdr *header = &answer->header;
    const size_t body_bytes = n < (ssize_t)sizeof(*header) ? 0 : (size_t)n - NLMSG_HDRLEN;
    struct nlmsgerr error;
    struct inet_diag_msg found;

    if (header->nlmsg_type == NLMSG_ERROR && body_bytes >= sizeof(error)) {
        memcpy(&error, answer->bytes + NLMSG_HDRLEN, sizeof(error));
        if (error.error == -ENOENT)
            return no_owner(e);
        errno = -error.error;
        return ls_fail_errno("the kernel's socket monitor");
    }
    if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || body_bytes < sizeof(found))
        return ls_fail(LS_ESYSTEM, "the kernel's socket monitor does not reply");
    memcpy(&found, answer->bytes + NLMSG_HDRLEN, sizeof(found));
    /* Without such a connection the kernel returns the socket that listens at that port. */
    if (found.idiag_inode == 0 || found.id.idiag_dport != e->remote_port)
        return no_owner(e);
    *uid = found.idiag_uid;
    return LS_OK;
}

static ls_status ask_monitor(const tcp_ends *e, uid_t *uid)
{
    diag_question question = {
        .header = {.nlmsg_len = sizeof(question),
                   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                   .nlmsg_flags = NLM_F_REQUEST},
        .body = {.sdiag_family = (uint8_t)e->family,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = ~0U,
                 .id = {.idiag_sport = e->near_port,
                        .idiag_dport = e->remote_port,
                        .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    diag_answer answer;
    ssize_t n;
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    ls_status st;

    if (fd < 0)
        return ls_fail_errno("the kernel's socket monitor");
    memcpy(question.body.id.idiag_src, e->near, sizeof(e->near));
    memcpy(question.body.id.idiag_dst, e->remote, sizeof(e->remote));
    /* The kernel replies within the call: the reply is there or never comes. */
    n = send(fd, &question, sizeof(question), 0);
    if (n >= 0)
        n = recv(fd, &answer, sizeof(answer), MSG_DONTWAIT);
    st = n < 0 ? ls_fail_errno("the kernel's socket monitor") : read_answer(e, &answer, n, uid);
    file_close(&fd);
    return st;
}

/* --- /proc/net/tcp and tcp6 --- */

enum { END_BYTES = 4 * 8 + 1 + 4 + 1 };

/* "0100007F:1F90": each word of the address as a number in host byte order, then the port. */
static void write_end(const tcp_ends *e, const uint32_t words[4], uint16_t port, char *out)
{
    const int n = e->family == AF_INET ? 1 : 4;

    for (int i = 0; i < n; i++)
        text_format(out + (ptrdiff_t)8 * i, 9, "%08" PRIX32, words[i]);
    text_format(out + (ptrdiff_t)8 * n, 6, ":%04X", (unsigned)ntohs(port));
}

/* Whether this line is that end's; "sl: local remote state tx:rx tr:when retransmits uid timeout
 * inode ...". */
static bool is_their_line(const char *line, const char *both, uid_t *uid, uint64_t *inode)
{
    const char *rest = strstr(line, both);

    return rest != NULL && sscanf(rest + strlen(both), // NOLINT(cert-err34-c): the kernel writes it
                                  " %*x %*x:%*x %*x:%*x %*x %u %*d %" SCNu64, uid, inode) == 2;
}

static ls_status search_proc(const tcp_ends *e, uid_t *uid)
{
    FILE *table = fopen(e->family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6", "re");
    char near[END_BYTES];
    char remote[END_BYTES];
    char both[2 * END_BYTES + 4];
    uint64_t inode = 0;
    bool found = false;
    char line[512];

    if (table == NULL)
        return ls_fail_errno("/proc/net/tcp");
    write_end(e, e->near, e->near_port, near);
    write_end(e, e->remote, e->remote_port, remote);
    text_format(both, sizeof(both), ": %s %s ", near, remote);
    while (!found && fgets(line, sizeof(line), table) != NULL)
        found = is_their_line(line, both, uid, &inode);
    (void)fclose(table);
    return found && inode != 0 ? LS_OK : no_owner(e);
}

/* --- both --- */

static ls_status ask_both(const tcp_ends *e, uid_t *uid)
{
    const ls_status st = ask_monitor(e, uid);

    return st == LS_ESYSTEM ? search_proc(e, uid) : st;
}

ls_status net_tcp_user_from_proc(int fd, uid_t *uid)
{
    tcp_ends e;

    LS_TRY(find_ends(fd, &e));
    return search_proc(&e, uid);
}

ls_status net_tcp_user(int fd, uid_t *uid)
{
    tcp_ends e;

    LS_TRY(find_ends(fd, &e));
    return ask_both(&e, uid);
}

ls_status net_tcp_user_of(const net_address *near, const net_address *remote, uid_t *uid)
{
    tcp_ends e;

    LS_TRY(make_ends(near, remote, &e));
    return ask_both(&e, uid);
}
