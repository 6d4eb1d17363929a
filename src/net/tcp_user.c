/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_user.c - the kernel's socket monitor answers for one connection; where it is not built in, /proc/net/tcp is searched.
 *
 * A socket that its process has closed lives on for a while and belongs to nobody: both sources show it with inode 0, and with
 * user 0, which must not be taken for root.
 */
#include "net/tcp_user.h"

#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Our end and the other one, as the kernel stores them. */
typedef struct ends {
    struct sockaddr_in own;
    struct sockaddr_in peer;
} ends;

static ls_status nobody(const ends *e)
{
    return ls_fail(LS_ENOTFOUND, "no process of this host holds port %d any more",
                   (int)ntohs(e->peer.sin_port));
}

static ls_status find_ends(int fd, ends *e)
{
    socklen_t own_bytes = sizeof(e->own);
    socklen_t peer_bytes = sizeof(e->peer);

    memset(e, 0, sizeof(*e));
    if (getsockname(fd, (struct sockaddr *)&e->own, &own_bytes) != 0 ||
        getpeername(fd, (struct sockaddr *)&e->peer, &peer_bytes) != 0) {
        if (errno == ENOTCONN)
            return ls_fail(LS_ENOTFOUND, "it is not connected any more");
        return ls_fail_errno("the ends of a connection");
    }
    if (e->own.sin_family != AF_INET)
        return ls_fail(LS_EINVAL, "not an IPv4 connection");
    return LS_OK;
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

static ls_status read_answer(const ends *e, const diag_answer *answer, ssize_t n, uid_t *uid)
{
    const struct nlmsghdr *header = &answer->header;
    const size_t body_bytes = n < (ssize_t)sizeof(*header) ? 0 : (size_t)n - NLMSG_HDRLEN;
    struct nlmsgerr error;
    struct inet_diag_msg found;

    if (header->nlmsg_type == NLMSG_ERROR && body_bytes >= sizeof(error)) {
        memcpy(&error, answer->bytes + NLMSG_HDRLEN, sizeof(error));
        if (error.error == -ENOENT)
            return nobody(e);
        errno = -error.error;
        return ls_fail_errno("the kernel's socket monitor");
    }
    if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || body_bytes < sizeof(found))
        return ls_fail(LS_ESYSTEM, "the kernel's socket monitor gives no answer");
    memcpy(&found, answer->bytes + NLMSG_HDRLEN, sizeof(found));
    /* Where there is no such connection, somebody who listens at that port is found instead. */
    if (found.idiag_inode == 0 || found.id.idiag_dport != e->own.sin_port)
        return nobody(e);
    *uid = found.idiag_uid;
    return LS_OK;
}

static ls_status ask_monitor(const ends *e, uid_t *uid)
{
    const diag_question question = {
        .header = {.nlmsg_len = sizeof(question),
                   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                   .nlmsg_flags = NLM_F_REQUEST},
        .body = {.sdiag_family = AF_INET,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = ~0U,
                 .id = {.idiag_sport = e->peer.sin_port,
                        .idiag_dport = e->own.sin_port,
                        .idiag_src = {e->peer.sin_addr.s_addr},
                        .idiag_dst = {e->own.sin_addr.s_addr},
                        .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    diag_answer answer;
    ssize_t n;
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    ls_status st;

    if (fd < 0)
        return ls_fail_errno("the kernel's socket monitor");
    /* The kernel answers within the call that asks, so the answer is there or never comes. */
    n = send(fd, &question, sizeof(question), 0);
    if (n >= 0)
        n = recv(fd, &answer, sizeof(answer), MSG_DONTWAIT);
    st = n < 0 ? ls_fail_errno("the kernel's socket monitor") : read_answer(e, &answer, n, uid);
    file_close(&fd);
    return st;
}

/* --- /proc/net/tcp --- */

/* Whether this line is the other end's; "sl local remote state tx:rx tr:when retransmits uid timeout inode ...". */
static bool is_their_line(const char *line, const ends *e, uid_t *uid, uint64_t *inode)
{
    uint32_t address[2];
    uint32_t port[2];

    return sscanf(line, // NOLINT(cert-err34-c): the kernel writes it
                  " %*d: %8" SCNx32 ":%4" SCNx32 " %8" SCNx32 ":%4" SCNx32
                  " %*x %*x:%*x %*x:%*x %*x %u %*d %" SCNu64,
                  &address[0], &port[0], &address[1], &port[1], uid, inode) == 6 &&
           address[0] == e->peer.sin_addr.s_addr && port[0] == ntohs(e->peer.sin_port) &&
           address[1] == e->own.sin_addr.s_addr && port[1] == ntohs(e->own.sin_port);
}

static ls_status search_proc(const ends *e, uid_t *uid)
{
    FILE *table = fopen("/proc/net/tcp", "re");
    uint64_t inode = 0;
    bool found = false;
    char line[512];

    if (table == NULL)
        return ls_fail_errno("/proc/net/tcp");
    while (!found && fgets(line, sizeof(line), table) != NULL)
        found = is_their_line(line, e, uid, &inode);
    (void)fclose(table);
    return found && inode != 0 ? LS_OK : nobody(e);
}

ls_status net_tcp_user_from_proc(int fd, uid_t *uid)
{
    ends e;

    LS_TRY(find_ends(fd, &e));
    return search_proc(&e, uid);
}

ls_status net_tcp_user(int fd, uid_t *uid)
{
    ends e;
    ls_status st;

    LS_TRY(find_ends(fd, &e));
    st = ask_monitor(&e, uid);
    return st == LS_ESYSTEM ? search_proc(&e, uid) : st;
}
