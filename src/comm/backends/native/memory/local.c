/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.c - the memory of this host, messages between its ranks, their ends, and waking sleeping
 * ranks. local_internal.h describes the parts. native.c, the links and teams call it.
 */
#include "comm/backends/native/memory/local.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "comm/backends/native/memory/link_shm.h"
#include "comm/backends/native/memory/local_internal.h"
#include "net/wire.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_MAX     256 /* messages of one call */
#define RETRY_MS     2   /* after a mailbox was full */
#define PROBE_MS     200 /* between two looks at the mailboxes of all peers */
#define FULL_WAIT_MS 50  /* for this rank's own messages to be read, before a doorbell is dropped */

/* --- messages --- */

static void encode(const channel_message *m, uint8_t *data)
{
    wire_put_u32(data, CHANNEL_MAGIC);
    wire_put_u32(data + 4, (uint32_t)m->type);
    wire_put_u32(data + 8, m->a);
    wire_put_u32(data + 12, m->b);
    wire_put_u64(data + 16, m->c);
    wire_put_u64(data + 24, m->d);
    wire_put_u64(data + 32, m->e);
    memcpy(data + 40, m->job, 16);
}

ls_status channel_send(int fd, const net_address *to, const channel_message *m, int with_fd,
                       int *blocked)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } space = {.bytes = {0}};
    uint8_t data[CHANNEL_BYTES];
    struct iovec piece = {.iov_base = data, .iov_len = sizeof(data)};
    net_address address;
    struct msghdr packet = {.msg_iov = &piece, .msg_iovlen = 1};
    ssize_t n;

    encode(m, data);
    if (to != NULL) {
        address = *to; // msghdr has no const
        packet.msg_name = &address.socket;
        packet.msg_namelen = address.bytes;
    }
    if (with_fd >= 0) {
        struct cmsghdr *c;

        packet.msg_control = space.bytes;
        packet.msg_controllen = sizeof(space.bytes);
        c = CMSG_FIRSTHDR(&packet);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &with_fd, sizeof(int));
    }
    do {
        n = sendmsg(fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    *blocked = n < 0 ? errno : 0;
    // ETOOMANYREFS: of this user, too many descriptors are in flight (getrlimit, RLIMIT_NOFILE).
    if (n >= 0 || errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS)
        return LS_OK;
    return ls_fail(LS_EPEER, "cannot send to a rank of this host: %s", ls_errno_text(errno));
}

static ls_status decode(const uint8_t *data, size_t bytes, channel_message *m)
{
    if (bytes != CHANNEL_BYTES || wire_get_u32(data) != CHANNEL_MAGIC)
        return ls_fail(LS_EPROTO, "not a message of this version of Lockstep");
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

/* The passed descriptor, -1: none. */
static int descriptor_in(struct msghdr *packet)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(packet);
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
    struct msghdr packet = {.msg_iov = &piece,
                            .msg_iovlen = 1,
                            .msg_control = space.bytes,
                            // Of one descriptor; CMSG_SPACE() has space for two. The kernel closes
                            // any further.
                            .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t n;
    ls_status st;

    *got = false;
    *with_fd = -1;
    // A peer that closed without reading everything causes one ECONNRESET before the bytes that it
    // sent.
    do {
        n = recvmsg(fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0 && errno == EAGAIN)
        return LS_OK;
    if (n < 0)
        return ls_fail(LS_EPEER, "cannot receive from a rank of this host: %s",
                       ls_errno_text(errno));
    *with_fd = descriptor_in(&packet);
    if (n == 0 && *with_fd < 0)
        return ls_fail(LS_EPEER, "the other side closed the connection");
    st = decode(data, (size_t)n, m);
    *got = st == LS_OK;
    if (st != LS_OK)
        file_close(with_fd);
    return st;
}

/* --- the host memory --- */

local_host *local_host_of(const local *l)
{
    return l->memory->base;
}

static char *page_at(const local *l, int index)
{
    return (char *)l->memory->base + l->layout.pages + (size_t)index * l->layout.page_bytes;
}

local_page *local_page_of(const local *l, int index)
{
    return (void *)page_at(l, index);
}

_Atomic uint64_t *local_requests_of(const local *l, int index)
{
    return (void *)(page_at(l, index) + l->layout.requests);
}

segment_entry *local_segments_of(const local *l, int index)
{
    return (void *)(page_at(l, index) + l->layout.segments);
}

static void *ring_at(const local *l, int writer, int reader)
{
    const size_t number = (size_t)writer * (size_t)l->count + (size_t)reader;

    return (char *)l->memory->base + l->layout.rings + number * link_shm_ring_bytes(l->count);
}

static int index_of(const local *l, int peer)
{
    return l->peers[l->peer_of[peer]]->index;
}

void *local_ring_to(const local *l, int peer)
{
    return ring_at(l, l->index, index_of(l, peer));
}

void *local_ring_from(const local *l, int peer)
{
    return ring_at(l, index_of(l, peer), l->index);
}

static _Atomic unsigned char *state_at(const local *l, int writer, int reader)
{
    return (_Atomic unsigned char *)(page_at(l, reader) + l->layout.states) + writer;
}

_Atomic unsigned char *local_state_to(const local *l, int peer)
{
    return state_at(l, l->index, index_of(l, peer));
}

_Atomic unsigned char *local_state_from(const local *l, int peer)
{
    return state_at(l, index_of(l, peer), l->index);
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

/* Whether all that this rank has sent so far is read; what its peers have not read counts against
 * its own buffer. */
static bool wait_for_buffer(const local *l)
{
    struct pollfd fd = {.fd = l->mailbox, .events = POLLOUT};

    return poll(&fd, 1, 0) == 0 && poll(&fd, 1, FULL_WAIT_MS) > 0;
}

/*
 * At most one doorbell lies in a mailbox, or a few when several ranks send at the same time: so
 * their number is bounded for the sender, too. A doorbell is left out only if one was sent since
 * the owner last emptied its mailbox: it lies there, or was read by an emptying that is not
 * complete yet, after which the owner checks everything.
 */
static void send_bell(local *l, local_peer *p)
{
    const channel_message bell = {.type = CHANNEL_BELL, .e = local_host_of(l)->secret};
    const unsigned drains = atomic_load_explicit(&p->page->drains, memory_order_seq_cst);
    char saved[LS_ERROR_BYTES];
    int blocked;

    if (atomic_load_explicit(&p->page->rung, memory_order_seq_cst) == drains)
        return;
    ls_error_save(saved);
    // A full mailbox wakes its owner as well.
    do {
        if (channel_send(l->mailbox, &p->page->mailbox, &bell, -1, &blocked) != LS_OK)
            ls_error_restore(saved);
    } while (blocked == EAGAIN && wait_for_buffer(l));
    atomic_store_explicit(&p->page->rung, drains, memory_order_seq_cst);
}

void local_ring(local *l, int peer)
{
    local_peer *p = local_find_peer(l, peer);

    // Pairs with the increment in local_prepare_sleep(): of "change, then read sleepers" here and
    // "raise sleepers, then check for changes" there, one sees the other.
    if (p == NULL || atomic_load_explicit(&p->page->sleepers, memory_order_seq_cst) == 0)
        return;
    if (!atomic_load_explicit(&p->ended, memory_order_relaxed))
        send_bell(l, p);
}

void local_notify(local *l, local_peer *p)
{
    atomic_fetch_add_explicit(&p->page->events, 1, memory_order_seq_cst);
    local_ring(l, p->rank);
}

void local_prepare_sleep(local *l)
{
    atomic_fetch_add_explicit(&l->page->sleepers, 1, memory_order_seq_cst); // see local_ring()
}

void local_end_sleep(local *l)
{
    atomic_fetch_sub_explicit(&l->page->sleepers, 1, memory_order_relaxed);
}

/* The page's cache line changes only when this rank has moved. */
bool local_shares_processor(local *l)
{
    const int own = sched_getcpu() + 1;
    bool shares = false;

    if (l->page == NULL || own == 0)
        return false;
    if (atomic_load_explicit(&l->page->processor, memory_order_relaxed) != own)
        atomic_store_explicit(&l->page->processor, own, memory_order_relaxed);
    for (int i = 0; i + 1 < l->count && !shares; i++) {
        const local_peer *p = l->peers[i];

        shares = !atomic_load_explicit(&p->ended, memory_order_relaxed) &&
                 atomic_load_explicit(&p->page->processor, memory_order_relaxed) == own;
    }
    return shares;
}

int local_poll_fds(const local *l, struct pollfd fds[LOCAL_FDS_MAX])
{
    fds[0] = (struct pollfd){.fd = l->mailbox, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = l->ends_fd, .events = POLLIN};
    return LOCAL_FDS_MAX;
}

static bool must_probe(const local *l)
{
    return l->next_probe_ms != INT64_MAX && ls_now_ms() >= l->next_probe_ms;
}

bool local_has_events(const local *l)
{
    return l->page != NULL &&
           (atomic_load_explicit(&l->page->events, memory_order_seq_cst) != l->seen_events ||
            atomic_load_explicit(&local_host_of(l)->removals, memory_order_relaxed) !=
                l->seen_removals ||
            l->has_unsent || l->n_unreported > 0 || must_probe(l));
}

int64_t local_due_ms(const local *l)
{
    return l->has_unsent ? ls_now_ms() + RETRY_MS : l->next_probe_ms;
}

/* --- receiving --- */

static void on_end(local *l, local_peer *p)
{
    if (atomic_load_explicit(&p->ended, memory_order_relaxed))
        return;
    atomic_store_explicit(&p->ended, true, memory_order_relaxed);
    l->n_unreported++;
    l->n_requested -= p->requested != 0;
    p->requested = 0;
    if (p->index == 0)
        l->next_probe_ms = 0;
}

/* The process behind a connection has ended, or it has sent what no rank sends. The leader notifies
 * the others; their mailboxes get a doorbell in any case, because a killed rank may have died while
 * it sent one. */
static void on_connection_end(local *l, local_peer *p)
{
    file_close(&p->fd); // leaves the epoll set, too
    atomic_store_explicit(&p->page->has_ended, 1, memory_order_seq_cst);
    for (int i = 0; l->index == 0 && i < l->count - 1; i++) {
        local_peer *other = l->peers[i];

        if (other == p || atomic_load_explicit(&other->ended, memory_order_relaxed))
            continue;
        atomic_store_explicit(&other->page->rung,
                              atomic_load_explicit(&other->page->drains, memory_order_seq_cst) - 1,
                              memory_order_seq_cst);
        local_notify(l, other);
    }
}

static void read_connections(local *l)
{
    struct epoll_event events[16];
    const int n = epoll_wait(l->ends_fd, events, LS_COUNT_OF(events), 0);

    for (int i = 0; i < n; i++) {
        local_peer *p = events[i].data.ptr;
        char byte;

        if (recv(p->fd, &byte, 1, MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR)) {
            on_connection_end(l, p);
            on_end(l, p);
        }
    }
}

static void read_mailbox(local *l)
{
    channel_message m;
    bool got = true;

    for (int i = 0; i < READ_MAX && got; i++) {
        int fd = -1;
        const ls_status st = channel_receive(l->mailbox, &m, &fd, &got);

        // Any user can send here: what is not a message, or lacks the secret, is dropped.
        got |= st == LS_EPROTO || st == LS_EPEER;
        if (st == LS_OK && got && m.type == CHANNEL_SEGMENT && m.e == local_host_of(l)->secret)
            segment_on_message(l, &m, fd);
        else
            file_close(&fd);
    }
}

static void see_ends(local *l)
{
    for (int i = 0; i < l->count - 1; i++) {
        local_peer *p = l->peers[i];

        if (atomic_load_explicit(&p->page->has_ended, memory_order_seq_cst) != 0)
            on_end(l, p);
    }
}

/* After the leader's end. Connecting leaves nothing in a mailbox, and wakes no rank. */
static void probe_peers(local *l)
{
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    for (int i = 0; fd >= 0 && i < l->count - 1; i++) {
        const net_address *to = &l->peers[i]->page->mailbox;

        if (!atomic_load_explicit(&l->peers[i]->ended, memory_order_relaxed) &&
            connect(fd, (const struct sockaddr *)&to->socket, to->bytes) != 0 &&
            errno == ECONNREFUSED)
            on_end(l, l->peers[i]);
    }
    if (fd >= 0)
        close(fd);
    l->next_probe_ms = ls_now_ms() + PROBE_MS;
}

bool local_receive(local *l)
{
    char saved[LS_ERROR_BYTES];
    unsigned events;
    unsigned removals;

    if (l->page == NULL)
        return false;
    ls_error_save(saved);
    events = atomic_load_explicit(&l->page->events, memory_order_seq_cst);
    removals = atomic_load_explicit(&local_host_of(l)->removals, memory_order_seq_cst);
    read_mailbox(l);
    atomic_fetch_add_explicit(&l->page->drains, 1, memory_order_seq_cst); // see send_bell()
    read_connections(l);
    if (events != l->seen_events || l->has_unsent) {
        l->seen_events = events;
        see_ends(l);
        segment_serve(l);
    }
    if (removals != l->seen_removals) {
        l->seen_removals = removals;
        segment_sweep(l);
    }
    if (must_probe(l))
        probe_peers(l);
    ls_error_restore(saved);
    return atomic_load_explicit(&l->page->events, memory_order_seq_cst) != events;
}

bool local_has_ended(const local *l, int peer)
{
    const local_peer *p = local_find_peer(l, peer);

    return p != NULL && atomic_load_explicit(&p->ended, memory_order_relaxed);
}

bool local_next_ended(local *l, int *rank)
{
    for (int i = 0; i < l->count - 1 && l->n_unreported > 0; i++) {
        local_peer *p = l->peers[i];

        if (!p->is_reported && atomic_load_explicit(&p->ended, memory_order_relaxed)) {
            p->is_reported = true;
            l->n_unreported--;
            *rank = p->rank;
            return true;
        }
    }
    return false;
}

/* --- the end --- */

void local_forked(const local *l)
{
    for (int i = 0; i < l->count - 1; i++) {
        if (l->peers[i]->fd >= 0)
            close(l->peers[i]->fd);
    }
    for (int i = 0; l->own != NULL && i < SEGMENTS_MAX; i++) {
        if (l->own[i].map != NULL && l->own[i].map->fd >= 0)
            close(l->own[i].map->fd);
    }
    if (l->mailbox >= 0)
        close(l->mailbox);
    if (l->ends_fd >= 0)
        close(l->ends_fd);
}

static void mark_end(local *l)
{
    atomic_store_explicit(&l->page->has_ended, 1, memory_order_seq_cst);
    for (int i = 0; i < l->count - 1; i++) {
        if (!atomic_load_explicit(&l->peers[i]->ended, memory_order_relaxed))
            local_notify(l, l->peers[i]);
    }
}

void local_leave(local *l)
{
    if (l == NULL)
        return;
    if (l->ends_fd >= 0)
        mark_end(l);
    // A half-built object has peers before it has a count.
    for (int i = 0; l->peers != NULL && i < l->size && l->peers[i] != NULL; i++) {
        local_peer *p = l->peers[i];

        file_close(&p->fd);
        segment_free_views(p);
        ls_free(p);
    }
    segment_free_own(l);
    file_close(&l->mailbox);
    file_close(&l->ends_fd);
    segment_map_release(l->memory);
    ls_free(l->peers);
    ls_free(l->peer_of);
    ls_free(l->ranks);
    ls_free(l);
}
