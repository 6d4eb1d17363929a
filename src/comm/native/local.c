/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.c - the channels to the ranks of this host, the peers behind them, and waking sleeping
 * ranks. A channel that breaks in any way ends: nothing on it is understood afterwards. native.c,
 * the links and teams call it.
 */
#include "comm/native/local.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/native/local_internal.h"
#include "net/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_MAX 256 /* messages of one peer before the next peer is read */

/* --- messages --- */

ls_status channel_send(int fd, const channel_message *m, int with_fd, bool *sent)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } space = {.bytes = {0}};
    uint8_t data[CHANNEL_BYTES];
    struct iovec piece = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    ssize_t n;

    wire_put_u32(data, CHANNEL_MAGIC);
    wire_put_u32(data + 4, (uint32_t)m->type);
    wire_put_u32(data + 8, m->a);
    wire_put_u32(data + 12, m->b);
    wire_put_u64(data + 16, m->c);
    wire_put_u64(data + 24, m->d);
    wire_put_u64(data + 32, m->e);
    memcpy(data + 40, m->job, 16);
    if (with_fd >= 0) {
        struct cmsghdr *c;

        message.msg_control = space.bytes;
        message.msg_controllen = sizeof(space.bytes);
        c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &with_fd, sizeof(int));
    }
    do {
        n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    *sent = n == (ssize_t)sizeof(data);
    // ETOOMANYREFS: too many descriptors are in flight; they arrive when peers read.
    if (n >= 0 || errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS)
        return LS_OK;
    return ls_fail(LS_EPEER, "cannot send over a local channel: %s", ls_errno_text(errno));
}

static ls_status decode(const uint8_t *data, size_t bytes, channel_message *m)
{
    if (bytes != CHANNEL_BYTES || wire_get_u32(data) != CHANNEL_MAGIC)
        return ls_fail(LS_EPROTO, "not a message of this version on a local channel");
    m->type = (channel_type)wire_get_u32(data + 4);
    m->a = wire_get_u32(data + 8);
    m->b = wire_get_u32(data + 12);
    m->c = wire_get_u64(data + 16);
    m->d = wire_get_u64(data + 24);
    m->e = wire_get_u64(data + 32);
    memcpy(m->job, data + 40, 16);
    m->job[16] = '\0';
    return LS_OK;
}

/* The passed descriptor, -1: none. The buffer holds one, so the kernel closes any further. */
static int descriptor_in(struct msghdr *message)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    int fd = -1;

    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

ls_status channel_receive(int fd, channel_message *m, int *with_fd, bool *got)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } space;
    uint8_t data[CHANNEL_BYTES + 1];
    struct iovec piece = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = space.bytes,
                             .msg_controllen = sizeof(space.bytes)};
    ssize_t n;
    ls_status st;

    *got = false;
    *with_fd = -1;
    // A peer that closed without reading everything causes one ECONNRESET before the bytes that it
    // sent.
    do {
        n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0 && errno == EAGAIN)
        return LS_OK;
    if (n < 0)
        return ls_fail(LS_EPEER, "cannot receive over a local channel: %s", ls_errno_text(errno));
    if (n == 0)
        return ls_fail(LS_EPEER, "the other side closed the local channel");
    *with_fd = descriptor_in(&message);
    st = decode(data, (size_t)n, m);
    *got = st == LS_OK;
    if (st != LS_OK)
        file_close(with_fd);
    return st;
}

/* --- the peers --- */

local_peer *local_find_peer(const local *l, int rank)
{
    if (rank < 0 || rank >= l->size || l->peer_of[rank] < 0)
        return NULL;
    return l->peers[l->peer_of[rank]];
}

ls_status local_check(const local *l)
{
    return l->host == NULL || l->host->check == NULL ? LS_OK : l->host->check(l->host->self);
}

bool local_has(const local *l, int rank)
{
    return rank == l->rank || local_find_peer(l, rank) != NULL;
}

int local_count(const local *l)
{
    return l->count;
}

const int *local_ranks(const local *l)
{
    return l->ranks;
}

int local_rank(const local *l)
{
    return l->rank;
}

bool local_is_thread(const local *l, int rank)
{
    const local_peer *p = local_find_peer(l, rank);

    return p != NULL && p->is_thread;
}

/* --- sleeping and waking --- */

void local_ring(local *l, int peer)
{
    const channel_message bell = {.type = CHANNEL_BELL};
    local_peer *p = local_find_peer(l, peer);
    bool sent;

    // Pairs with the increment in local_prepare_sleep(): of "change, then read sleepers" here and
    // "raise sleepers, then check for changes" there, one sees the other.
    if (p == NULL || atomic_load_explicit(&p->page->sleepers, memory_order_seq_cst) == 0)
        return;
    // A full channel holds doorbells enough, and a broken one wakes its reader by itself.
    if (!atomic_load_explicit(&p->ended, memory_order_relaxed)) {
        char saved[LS_ERROR_BYTES];

        ls_error_save(saved);
        if (channel_send(p->fd, &bell, -1, &sent) != LS_OK)
            ls_error_restore(saved);
    }
}

void local_prepare_sleep(local *l)
{
    atomic_fetch_add_explicit(&l->page->sleepers, 1, memory_order_seq_cst); // see local_ring()
}

void local_end_sleep(local *l)
{
    atomic_fetch_sub_explicit(&l->page->sleepers, 1, memory_order_relaxed);
}

int local_poll_fds(const local *l, struct pollfd *fds, int max)
{
    int n = 0;

    // An end that another call noticed keeps poll() awake until it has been reported.
    for (int i = 0; i < l->count - 1 && n < max; i++) {
        const local_peer *p = l->peers[i];
        const bool is_full = atomic_load_explicit(&p->is_full, memory_order_relaxed);

        if (!atomic_load_explicit(&p->end_reported, memory_order_relaxed))
            fds[n++] = (struct pollfd){.fd = p->fd, .events = is_full ? POLLIN | POLLOUT : POLLIN};
    }
    return n;
}

/* --- receiving --- */

static ls_status handle(local_peer *p, const channel_message *m, int fd)
{
    if (m->type == CHANNEL_SEGMENT)
        return segment_on_announced(p, m, fd);
    file_close(&fd);
    if (m->type == CHANNEL_GONE)
        return segment_on_removed(p, m->a);
    if (m->type == CHANNEL_BELL)
        return LS_OK;
    return ls_fail(LS_EPROTO, "message of unknown type %d on a local channel", (int)m->type);
}

bool local_read_peer(local_peer *p)
{
    char saved[LS_ERROR_BYTES];
    int i;

    if (atomic_load_explicit(&p->ended, memory_order_relaxed))
        return false;
    ls_error_save(saved);
    for (i = 0; i < READ_MAX; i++) {
        channel_message m;
        bool got;
        int fd;
        ls_status st = channel_receive(p->fd, &m, &fd, &got);

        if (st == LS_OK && !got)
            break;
        if (st == LS_OK)
            st = handle(p, &m, fd);
        // After any error nothing further on a channel can be understood.
        if (st != LS_OK) {
            p->end_status = st;
            text_format(p->end_text, sizeof(p->end_text), "%s", ls_last_error());
            atomic_store_explicit(&p->ended, true, memory_order_relaxed);
            break;
        }
    }
    ls_error_restore(saved);
    return i == READ_MAX;
}

void local_receive(local *l)
{
    for (int i = 0; i < l->count - 1; i++)
        (void)local_read_peer(l->peers[i]);
    local_flush(l);
}

void local_flush(local *l)
{
    if (!l->pending)
        return;
    segment_announce_all(l);
}

bool local_has_ended(const local *l, int peer)
{
    const local_peer *p = local_find_peer(l, peer);

    return p != NULL && atomic_load_explicit(&p->ended, memory_order_relaxed);
}

const char *local_end_text(const local *l, int peer)
{
    const local_peer *p = local_find_peer(l, peer);

    return p != NULL ? p->end_text : "";
}

bool local_next_ended(local *l, int *rank)
{
    for (int i = 0; i < l->count - 1; i++) {
        local_peer *p = l->peers[i];

        if (!atomic_load_explicit(&p->end_reported, memory_order_relaxed) &&
            atomic_load_explicit(&p->ended, memory_order_relaxed)) {
            atomic_store_explicit(&p->end_reported, true, memory_order_relaxed);
            *rank = p->rank;
            return true;
        }
    }
    return false;
}

void local_forked(const local *l)
{
    for (int i = 0; i < l->count - 1; i++)
        close(l->peers[i]->fd);
    for (int i = 0; i < l->n_own; i++) {
        if (l->own[i].map->fd >= 0)
            close(l->own[i].map->fd);
    }
}

void local_leave(local *l)
{
    if (l == NULL)
        return;
    // A half-built object has peers before it has a count.
    for (int i = 0; l->peers != NULL && i < l->size && l->peers[i] != NULL; i++) {
        local_peer *p = l->peers[i];

        file_close(&p->fd);
        segment_free_views(p);
        ls_free(p);
    }
    segment_free_own(l);
    ls_free(l->peers);
    ls_free(l->peer_of);
    ls_free(l->ranks);
    ls_free(l);
}
