/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - connects once, or until something listens, or to all addresses of a peer at once: the
 * first connection wins, so a dead network costs no time. Called by dial.c, store/ and comm/.
 */
#include "net/socket.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define CANDIDATES_MAX 64

int net_connect_start(const net_address *to, net_kind kind, int *fd)
{
    const int type = kind == NET_PACKET ? SOCK_SEQPACKET : SOCK_STREAM;
    int error;

    *fd = socket(to->socket.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return errno;
    if (connect(*fd, (const struct sockaddr *)(const void *)&to->socket, to->bytes) == 0)
        return 0;
    error = errno == EINTR ? EINPROGRESS : errno; // an interrupted connect continues
    if (error != EINPROGRESS)
        file_close(fd);
    return error;
}

/* A TCP socket can connect to itself when the port is free and ephemeral; nothing listens there
 * then. */
int net_connect_result(int fd)
{
    net_address own;
    net_address peer;
    int error = 0;
    socklen_t bytes = sizeof(error);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        return errno;
    if (error != 0)
        return error;
    if (net_address_of_socket(fd, &own) != LS_OK || net_address_of_peer(fd, &peer) != LS_OK)
        return ENOTCONN;
    if (net_address_family(&own) != NET_UNIX && net_address_equal(&own, &peer))
        return ECONNREFUSED;
    return 0;
}

int net_retry_pause_ms(int pause_ms, int first_ms, int most_ms, int *wait_ms)
{
    const uint64_t random = ls_hash3((uint64_t)getpid(), (uint64_t)ls_now_ns(), (uint64_t)pause_ms);
    const int doubled = pause_ms < most_ms / 2 ? 2 * pause_ms : most_ms;
    const int pause = pause_ms == 0 ? first_ms : doubled;

    *wait_ms = pause - (int)(random % ((uint64_t)pause / 2 + 1));
    return pause;
}

/* One attempt; 0 or an errno value. A unix listener with a full queue gives EAGAIN. */
static int connect_once(const net_address *to, net_kind kind, int64_t deadline_ms, int *fd)
{
    int error = net_connect_start(to, kind, fd);

    if (error == EINPROGRESS)
        error = net_wait(*fd, POLLOUT, deadline_ms) == LS_OK ? 0 : ETIMEDOUT;
    if (error == 0)
        error = net_connect_result(*fd);
    if (error != 0)
        file_close(fd);
    return error;
}

ls_status net_connect_failed(const net_address *to, int error)
{
    char text[NET_ADDRESS_TEXT_MAX];

    net_address_text(text, sizeof(text), to);
    if (error == ETIMEDOUT)
        return ls_fail(LS_ETIMEOUT, "cannot connect to %s: timed out", text);
    if (error == EMFILE || error == ENFILE || error == EAFNOSUPPORT || error == EACCES ||
        error == EPERM)
        return ls_fail(LS_ESYSTEM, "cannot connect to %s: %s", text, ls_errno_text(error));
    return ls_fail(LS_EPEER, "cannot connect to %s: %s", text, ls_errno_text(error));
}

/* Whether a later attempt may find a listener. */
static bool may_come_up(int error)
{
    switch (error) {
    case ECONNREFUSED:
    case ENOENT: // the path of a unix socket
    case EAGAIN: // the listener's queue is full
    case ECONNRESET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
        return true;
    default:
        return false;
    }
}

static int connect_until(const net_address *to, net_kind kind, bool wait_for_listener,
                         int64_t deadline_ms, int *fd)
{
    int pause_ms = 0;

    for (;;) {
        const int error = connect_once(to, kind, deadline_ms, fd);
        const int left = ls_deadline_left(deadline_ms);
        int wait_ms;

        if (error == 0 || left == 0 || !may_come_up(error) ||
            (!wait_for_listener && error != EAGAIN))
            return error;
        pause_ms = net_retry_pause_ms(pause_ms, 1, 100, &wait_ms);
        poll(NULL, 0, left > 0 && left < wait_ms ? left : wait_ms);
    }
}

ls_status net_connect(const net_address *to, net_kind kind, int64_t deadline_ms, int *fd)
{
    const int error = connect_until(to, kind, false, deadline_ms, fd);

    return error == 0 ? LS_OK : net_connect_failed(to, error);
}

ls_status net_connect_retry(const net_address *to, net_kind kind, int64_t deadline_ms, int *fd)
{
    const int error = connect_until(to, kind, true, deadline_ms, fd);

    return error == 0 ? LS_OK : net_connect_failed(to, error);
}

/* One candidate. fd >= 0: pending; otherwise `error` is its result. */
typedef struct attempt {
    int fd;
    int error;
} attempt;

static void attempt_settle(attempt *a)
{
    a->error = net_connect_result(a->fd);
    if (a->error != 0)
        file_close(&a->fd);
}

/* Waits for the pending candidates; false when none is left or the deadline has passed. *winner:
 * the connected candidate, or unchanged. */
static bool attempts_wait(attempt *tries, int n, int64_t deadline_ms, int *winner)
{
    struct pollfd polls[CANDIDATES_MAX];
    int n_pending = 0;

    for (int i = 0; i < n; i++) {
        polls[i] = (struct pollfd){.fd = tries[i].fd, .events = POLLOUT};
        n_pending += tries[i].fd >= 0;
    }
    if (n_pending == 0)
        return false;
    if (poll(polls, (nfds_t)n, ls_deadline_left(deadline_ms)) <= 0)
        return ls_deadline_left(deadline_ms) != 0; // interrupted: poll again
    for (int i = 0; i < n; i++) {
        if (polls[i].revents == 0)
            continue;
        attempt_settle(&tries[i]);
        if (tries[i].error == 0) {
            *winner = i;
            return false;
        }
    }
    return true;
}

static ls_status all_failed(const net_address *to, const attempt *tries, int n)
{
    text_buf list = {0};
    char text[NET_ADDRESS_TEXT_MAX];
    bool any_timed_out = false;
    ls_status st;

    for (int i = 0; i < n; i++) {
        const bool timed_out = tries[i].fd >= 0 || tries[i].error == ETIMEDOUT;

        any_timed_out = any_timed_out || timed_out;
        text_append(&list, "%s%s: %s", i == 0 ? "" : "; ",
                    net_address_text(text, sizeof(text), &to[i]),
                    timed_out ? "timed out" : ls_errno_text(tries[i].error));
    }
    st = ls_fail(any_timed_out ? LS_ETIMEOUT : LS_EPEER, "no address accepts a connection: %s",
                 text_str(&list));
    text_free(&list);
    return st;
}

ls_status net_connect_any(const net_address *to, int n, int64_t deadline_ms, int *fd, int *which)
{
    attempt tries[CANDIDATES_MAX];
    int winner = -1;
    ls_status st = LS_OK;

    *fd = -1;
    if (n < 1 || n > CANDIDATES_MAX)
        return ls_fail(LS_EINVAL, "%d addresses to try, expected 1 to %d", n, CANDIDATES_MAX);
    for (int i = 0; i < n; i++) {
        tries[i].error =
            winner < 0 ? net_connect_start(&to[i], NET_STREAM, &tries[i].fd) : ECANCELED;
        if (winner >= 0)
            tries[i].fd = -1;
        if (tries[i].error == 0 && tries[i].fd >= 0) {
            attempt_settle(&tries[i]);
            winner = tries[i].error == 0 ? i : -1;
        }
    }
    while (winner < 0 && attempts_wait(tries, n, deadline_ms, &winner))
        continue;
    if (winner >= 0) {
        *which = winner;
        *fd = tries[winner].fd;
        tries[winner].fd = -1;
    } else {
        st = all_failed(to, tries, n);
    }
    for (int i = 0; i < n; i++)
        file_close(&tries[i].fd);
    return st;
}
