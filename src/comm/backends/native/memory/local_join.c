/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_join.c - finds the ranks of this host and joins them to one memory; join.c calls it.
 *
 * Each rank connects to the lowest rank that it can reach and that belongs to the same user: all
 * ranks of a host agree on it, the leader, which is the one that reaches no lower rank. The leader
 * finds out which higher ranks are local by connecting to each, and keeps such a connection until
 * the rank's HELLO has come, only to notice its death; that rank never accepts it. When all have
 * sent HELLO, the leader creates the host memory (local_internal.h) and passes it to each. Each
 * fills in its page and sends READY, the leader sends GO to all, and the join is over.
 *
 * A rank listens until then, so the leader finds it. The leader serves all connections in any
 * order, and the others wait for the leader only, so no cycle of ranks that wait for each other can
 * arise. A rank that dies, or the time that is over, ends the join of all: the leader sends the
 * others the number of the rank.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/backends/native/memory/link_shm.h"
#include "comm/backends/native/memory/local_internal.h"
#include "net/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK_MS      100  /* between two calls of check() */
#define RETRY_MS      5    /* after too many descriptors were in flight */
#define LEADER_MS     500  /* for which others wait longer than the leader, which names a rank */
#define REASON_MS     2000 /* until the leader has reported why it failed */
#define PENDING_EXTRA 16   /* connections without a HELLO, besides one a rank */
#define IN_FLIGHT_MAX 64   /* descriptors of the host memory */
#define MAILBOX_BYTES (1 << 20)
#define PAGE_BYTES    ((size_t)4096)

typedef enum pair_state {
    PAIR_REMOTE = 0, /* not local, or this rank */
    PAIR_AWAITED,    /* will send HELLO */
    PAIR_GREETED,    /* HELLO has come */
    PAIR_SENT,       /* the host memory was sent */
    PAIR_READY
} pair_state;

/* The states and channels of others are the leader's, except the leader's own channel. */
typedef struct joining {
    local *l;
    int listener;
    int64_t deadline_ms;
    int leader;        /* world rank */
    pair_state *state; /* by world rank */
    int *channel;      /* by world rank; of an AWAITED rank only to notice its end; -1 */
    int *pending;      /* accepted, without a message yet, oldest first */
    int n_pending;
    int pending_max;
    int culprit; /* the rank because of which the join fails, -1: unknown */
    int blocked; /* the errno for which the last message was not sent, else 0 */
    struct pollfd *polled;
} joining;

/* Whether the message was sent. */
static bool send_message(joining *j, int to, channel_type type, uint64_t e, int with_fd)
{
    const local *l = j->l;
    channel_message m = {.type = type,
                         .a = (uint32_t)l->rank,
                         .b = (uint32_t)to,
                         .c = l->records[l->rank].instance,
                         .d = l->records[to].instance,
                         .e = e};

    memcpy(m.job, l->job, sizeof(m.job));
    // If the peer has exited, the next read fails.
    if (channel_send(j->channel[to], NULL, &m, with_fd, &j->blocked) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "cannot send to rank %d on this host", to);
    return j->blocked == 0;
}

/* Whether a message is for this rank, from a rank of this job; that rank is its field a. */
static bool is_for_us(const joining *j, const channel_message *m)
{
    const local *l = j->l;

    return m->b == (uint32_t)l->rank && m->a < (uint32_t)l->size && m->a != (uint32_t)l->rank &&
           memcmp(m->job, l->job, sizeof(m->job)) == 0 && m->c == l->records[m->a].instance &&
           m->d == l->records[l->rank].instance;
}

/* Whether the other end of `fd` runs as this user. */
static bool is_same_user(int fd)
{
    uid_t uid;

    return net_peer_user(fd, &uid, NULL) == LS_OK && uid == geteuid();
}

/* Connects to a rank if it is on this host; else *fd is -1. */
static ls_status reach(const joining *j, int rank, int *fd)
{
    const boot_record *r = &j->l->records[rank];
    ls_status st;

    *fd = -1;
    if (r->local.bytes == 0)
        return LS_OK;
    st = net_connect(&r->local, NET_PACKET, j->deadline_ms, fd);
    if (st == LS_ETIMEOUT || st == LS_ESYSTEM)
        return ls_context(st, "rank %d", rank);
    if (st == LS_OK && !is_same_user(*fd))
        file_close(fd);
    return LS_OK; // refused: the rank is on another host
}

static ls_status fail_ended(joining *j, int rank)
{
    j->culprit = rank;
    return ls_fail(LS_EPEER, "rank %d on this host ended while it was joining", rank);
}

static ls_status fail_silent(joining *j, int rank)
{
    j->culprit = rank;
    if (j->blocked == ETOOMANYREFS)
        return ls_fail(LS_ETIMEOUT,
                       "cannot pass shared memory to rank %d: this user has too many descriptors "
                       "in flight; raise ulimit -n",
                       rank);
    return ls_fail(LS_ETIMEOUT, "rank %d is on this host but did not answer in time", rank);
}

/* Polls `n` descriptors; for a moment only where something is to be sent again. */
static ls_status wait_for_any(const joining *j, int n)
{
    const int most = j->blocked != 0 ? RETRY_MS : CHECK_MS;
    const int left_ms = ls_deadline_left(j->deadline_ms);

    (void)poll(j->polled, (nfds_t)n, left_ms < 0 || left_ms > most ? most : left_ms);
    return local_check(j->l);
}

/* --- the host memory --- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static local_layout make_layout(int count)
{
    const size_t n = (size_t)count;
    local_layout out = {.states = sizeof(local_page)};

    out.requests = round_up(out.states + n, 64);
    out.segments = round_up(out.requests + n * sizeof(uint64_t), 64);
    out.page_bytes = round_up(out.segments + SEGMENTS_MAX * sizeof(segment_entry), PAGE_BYTES);
    out.pages = round_up(sizeof(local_host) + n * sizeof(int32_t), PAGE_BYTES);
    out.rings = out.pages + n * out.page_bytes;
    out.bytes = out.rings + n * n * link_shm_ring_bytes(count);
    return out;
}

static ls_status make_mailbox(local *l, net_address *at)
{
    const int bytes = MAILBOX_BYTES;

    LS_TRY(net_address_fresh_unix("mailbox", at));
    l->mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->mailbox < 0 || bind(l->mailbox, (struct sockaddr *)&at->socket, at->bytes) != 0)
        return ls_fail_errno("cannot make a mailbox for ranks of this host");
    // net.core.wmem_max bounds it.
    (void)setsockopt(l->mailbox, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    return LS_OK;
}

static ls_status fill_page(local *l)
{
    local_page *p = local_page_of(l, l->index);

    LS_TRY(make_mailbox(l, &p->mailbox));
    atomic_store_explicit(&p->drains, 1, memory_order_relaxed);
    l->page = p;
    return LS_OK;
}

/* The leader's: the members and their number are known. */
static ls_status create_memory(joining *j)
{
    local *l = j->l;
    net_key random;
    local_host *h;

    l->layout = make_layout(l->count);
    LS_TRY(segment_map_create(segment_token(), l->layout.bytes, false, &l->memory));
    h = local_host_of(l);
    LS_TRY(net_key_random(&random));
    memcpy(&h->secret, random.bytes, sizeof(h->secret));
    h->n = (uint32_t)l->count;
    for (int i = 0; i < l->count; i++)
        h->ranks[i] = l->ranks[i];
    return fill_page(l);
}

static ls_status fail_region(const joining *j)
{
    return ls_fail(LS_EPROTO, "rank %d describes the ranks of this host wrongly", j->leader);
}

/* Maps what the leader has sent: to a thread of its process a token, to others the number of ranks
 * and the descriptor. Takes fd. */
static ls_status attach_memory(joining *j, const channel_message *m, int fd)
{
    local *l = j->l;
    uint64_t n = m->e;

    if (l->records[j->leader].instance == l->records[l->rank].instance) {
        file_close(&fd);
        l->memory = segment_map_share(m->e);
        if (l->memory == NULL)
            return fail_ended(j, j->leader);
        n = local_host_of(l)->n;
    }
    if (n < 2 || n > (uint64_t)l->size || (l->memory == NULL && fd < 0)) {
        file_close(&fd);
        return fail_region(j);
    }
    l->count = (int)n;
    l->layout = make_layout(l->count);
    if (l->memory == NULL)
        LS_TRY(segment_map_attach(fd, l->layout.bytes, false, j->leader, &l->memory));
    return LS_OK;
}

/* Takes over the list of members from the host memory. */
static ls_status read_members(joining *j)
{
    local *l = j->l;
    const local_host *h = local_host_of(l);

    l->index = 0;
    for (int i = 0; i < l->count; i++) {
        l->ranks[i] = h->ranks[i];
        if (l->ranks[i] < 0 || l->ranks[i] >= l->size || (i > 0 && l->ranks[i] <= l->ranks[i - 1]))
            return fail_region(j);
        if (l->ranks[i] == l->rank)
            l->index = i;
    }
    return l->index > 0 && l->ranks[0] == j->leader ? LS_OK : fail_region(j);
}

/* --- the leader: connections from others --- */

static void remove_pending(joining *j, int i)
{
    j->n_pending--;
    memmove(&j->pending[i], &j->pending[i + 1], (size_t)(j->n_pending - i) * sizeof(*j->pending));
}

/* The oldest of another user, or else the oldest of all. */
static void evict_pending(joining *j)
{
    int i = 0;

    while (i < j->n_pending && is_same_user(j->pending[i]))
        i++;
    i = i < j->n_pending ? i : 0;
    file_close(&j->pending[i]);
    remove_pending(j, i);
}

static ls_status accept_all(joining *j)
{
    for (;;) {
        int fd = -1;

        LS_TRY(net_accept(j->listener, &fd));
        if (fd < 0)
            return LS_OK;
        if (j->n_pending == j->pending_max)
            evict_pending(j);
        j->pending[j->n_pending++] = fd;
    }
}

/* Reads a pending connection; true when it is settled: taken, or closed. */
static bool read_pending(joining *j, int fd)
{
    channel_message m;
    bool got;
    int with_fd;
    const ls_status st = channel_receive(fd, &m, &with_fd, &got);

    file_close(&with_fd);
    if (st == LS_OK && !got)
        return false;
    if (st == LS_OK && is_for_us(j, &m) && m.type == CHANNEL_HELLO && m.e == j->l->generation &&
        j->state[m.a] < PAIR_GREETED && (int)m.a > j->l->rank && is_same_user(fd)) {
        file_close(&j->channel[m.a]);
        j->channel[m.a] = fd;
        j->state[m.a] = PAIR_GREETED;
        return true;
    }
    file_close(&fd);
    return true;
}

static ls_status greet_all(joining *j)
{
    LS_TRY(accept_all(j));
    for (int i = 0; i < j->n_pending;) {
        if (read_pending(j, j->pending[i]))
            remove_pending(j, i);
        else
            i++;
    }
    return LS_OK;
}

/*
 * The connection to an awaited rank has ended. If that rank no longer listens, it has died: ranks
 * listen until they have joined. Otherwise it closed the connection because it had too many
 * pending ones.
 */
static ls_status check_awaited(joining *j, int rank)
{
    char byte;

    if (recv(j->channel[rank], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN)
        return LS_OK;
    file_close(&j->channel[rank]);
    LS_TRY(reach(j, rank, &j->channel[rank]));
    return j->channel[rank] >= 0 ? LS_OK : fail_ended(j, rank);
}

static int first_in(const joining *j, pair_state state)
{
    int r = 0;

    while (r < j->l->size && j->state[r] != state)
        r++;
    return r < j->l->size ? r : -1;
}

static ls_status wait_for_others(joining *j, pair_state awaited)
{
    int n = 0;

    j->polled[n++] = (struct pollfd){.fd = j->listener, .events = POLLIN};
    for (int i = 0; i < j->n_pending; i++)
        j->polled[n++] = (struct pollfd){.fd = j->pending[i], .events = POLLIN};
    for (int r = 0; r < j->l->size; r++) {
        if (j->channel[r] >= 0)
            j->polled[n++] = (struct pollfd){.fd = j->channel[r], .events = POLLIN};
    }
    if (ls_deadline_left(j->deadline_ms) == 0)
        return fail_silent(j, first_in(j, awaited));
    return wait_for_any(j, n);
}

/* Until all ranks of this host have sent HELLO. */
static ls_status await_greetings(joining *j)
{
    for (int r = j->l->rank + 1; r < j->l->size; r++) {
        LS_TRY(greet_all(j));
        if (j->state[r] != PAIR_REMOTE)
            continue;
        LS_TRY(reach(j, r, &j->channel[r]));
        if (j->channel[r] >= 0)
            j->state[r] = PAIR_AWAITED;
    }
    for (;;) {
        LS_TRY(greet_all(j));
        for (int r = 0; r < j->l->size; r++) {
            if (j->state[r] == PAIR_AWAITED)
                LS_TRY(check_awaited(j, r));
        }
        if (first_in(j, PAIR_AWAITED) < 0)
            return LS_OK;
        LS_TRY(wait_for_others(j, PAIR_AWAITED));
    }
}

/* --- the leader: passing the memory --- */

static void send_memory(joining *j)
{
    const local *l = j->l;
    int in_flight = 0;

    j->blocked = 0;
    for (int r = 0; r < l->size; r++)
        in_flight += j->state[r] == PAIR_SENT;
    for (int r = 0; r < l->size && in_flight < IN_FLIGHT_MAX; r++) {
        const bool is_thread = l->records[r].instance == l->records[l->rank].instance;

        if (j->state[r] != PAIR_GREETED)
            continue;
        if (!send_message(j, r, CHANNEL_REGION,
                          is_thread ? l->memory->token : (uint64_t)(unsigned)l->count,
                          is_thread ? -1 : l->memory->fd))
            return;
        j->state[r] = PAIR_SENT;
        in_flight++;
    }
}

static ls_status read_ready(joining *j, int rank)
{
    channel_message m;
    bool got;
    int with_fd;
    const ls_status st = channel_receive(j->channel[rank], &m, &with_fd, &got);

    file_close(&with_fd);
    if (st == LS_EPEER)
        return fail_ended(j, rank);
    if (st != LS_OK)
        return ls_context(st, "rank %d on this host", rank);
    if (got && (m.type != CHANNEL_READY || !is_for_us(j, &m) || j->state[rank] != PAIR_SENT))
        return ls_fail(LS_EPROTO, "rank %d on this host answered for another job", rank);
    if (got)
        j->state[rank] = PAIR_READY;
    return LS_OK;
}

static ls_status pass_memory(joining *j)
{
    int missing;

    for (;;) {
        send_memory(j);
        for (int r = 0; r < j->l->size; r++) {
            if (j->channel[r] >= 0)
                LS_TRY(read_ready(j, r));
        }
        missing = first_in(j, PAIR_GREETED) >= 0 ? PAIR_GREETED : PAIR_SENT;
        if (first_in(j, (pair_state)missing) < 0)
            return LS_OK;
        // What has come meanwhile may permit to send more at once.
        if (missing == PAIR_GREETED && first_in(j, PAIR_SENT) < 0 && j->blocked == 0)
            continue;
        LS_TRY(wait_for_others(j, (pair_state)missing));
    }
}

static void list_members(joining *j)
{
    local *l = j->l;

    for (int r = 0; r < l->size; r++) {
        if (r == l->rank || j->state[r] != PAIR_REMOTE)
            l->ranks[l->count++] = r;
    }
}

/* Sends the other ranks the number of the rank because of which the join fails. */
static void notify_failure(joining *j)
{
    for (int r = 0; r < j->l->size; r++) {
        if (j->state[r] >= PAIR_GREETED && r != j->culprit)
            (void)send_message(j, r, CHANNEL_FAILED, (uint64_t)(int64_t)j->culprit, -1);
    }
}

static ls_status lead_unless_alone(joining *j)
{
    LS_TRY(await_greetings(j));
    list_members(j);
    if (j->l->count == 1)
        return LS_OK;
    LS_TRY(create_memory(j));
    LS_TRY(pass_memory(j));
    segment_map_close_fd(j->l->memory);
    for (int i = 1; i < j->l->count; i++) {
        if (!send_message(j, j->l->ranks[i], CHANNEL_GO, 0, -1))
            return fail_ended(j, j->l->ranks[i]);
    }
    return LS_OK;
}

static ls_status lead(joining *j)
{
    const ls_status st = lead_unless_alone(j);
    char kept[LS_ERROR_BYTES];

    if (st != LS_OK) {
        ls_error_save(kept);
        notify_failure(j);
        ls_error_restore(kept);
    }
    return st;
}

/* --- the other ranks --- */

static ls_status fail_as_notified(joining *j, const channel_message *m)
{
    int64_t reason_deadline_ms;

    if (m->e < (uint64_t)j->l->size && (int)m->e == j->l->rank)
        return ls_fail(LS_ETIMEOUT, "rank %d no longer waits for this rank", j->leader);
    if (m->e < (uint64_t)j->l->size)
        return ls_fail(LS_EPEER,
                       "rank %d on this host ended or did not answer while it was joining",
                       (int)m->e);
    // The job learns the leader's own reason, and check() fails with it.
    reason_deadline_ms = ls_deadline_ms(REASON_MS);
    while (ls_deadline_left(reason_deadline_ms) > 0) {
        LS_TRY(local_check(j->l));
        (void)poll(NULL, 0, RETRY_MS);
    }
    return ls_fail(LS_EPEER, "rank %d on this host could not join", j->leader);
}

/* Waits for the leader's next message, which must be of this type. */
static ls_status await_leader(joining *j, channel_type type, channel_message *m, int *with_fd)
{
    bool got = false;

    for (;;) {
        const ls_status st = channel_receive(j->channel[j->leader], m, with_fd, &got);

        if (st == LS_EPEER)
            return fail_ended(j, j->leader);
        if (st != LS_OK)
            return ls_context(st, "rank %d on this host", j->leader);
        if (got)
            break;
        if (ls_deadline_left(j->deadline_ms) == 0)
            return fail_silent(j, j->leader);
        j->polled[0] = (struct pollfd){.fd = j->channel[j->leader], .events = POLLIN};
        LS_TRY(wait_for_any(j, 1));
    }
    if (is_for_us(j, m) && m->a == (uint32_t)j->leader && m->type == type)
        return LS_OK;
    file_close(with_fd);
    if (is_for_us(j, m) && m->type == CHANNEL_FAILED)
        return fail_as_notified(j, m);
    return ls_fail(LS_EPROTO, "rank %d on this host answered for another job", j->leader);
}

static ls_status follow(joining *j)
{
    channel_message m;
    int fd;

    // The leader's time ends first: the leader knows which rank is missing.
    if (j->deadline_ms != INT64_MAX)
        j->deadline_ms += LEADER_MS;
    if (!send_message(j, j->leader, CHANNEL_HELLO, j->l->generation, -1))
        return fail_ended(j, j->leader);
    LS_TRY(await_leader(j, CHANNEL_REGION, &m, &fd));
    LS_TRY(attach_memory(j, &m, fd));
    LS_TRY(read_members(j));
    LS_TRY(fill_page(j->l));
    if (!send_message(j, j->leader, CHANNEL_READY, 0, -1))
        return fail_ended(j, j->leader);
    LS_TRY(await_leader(j, CHANNEL_GO, &m, &fd));
    file_close(&fd);
    return LS_OK;
}

static ls_status find_leader(joining *j)
{
    for (int r = 0; r < j->l->rank; r++) {
        LS_TRY(reach(j, r, &j->channel[r]));
        if (j->channel[r] >= 0) {
            j->leader = r;
            return LS_OK;
        }
    }
    j->leader = j->l->rank;
    return LS_OK;
}

static ls_status joining_init(joining *j, local *l, const comm_boot *boot)
{
    const size_t size = (size_t)boot->size;

    *j = (joining){.l = l,
                   .listener = boot->local_fd,
                   .deadline_ms = boot->deadline_ms,
                   .leader = boot->rank,
                   .culprit = -1};
    j->pending_max = boot->size + PENDING_EXTRA;
    j->state = ls_calloc(size, sizeof(*j->state));
    j->channel = ls_calloc(size, sizeof(*j->channel));
    j->pending = ls_calloc((size_t)j->pending_max, sizeof(*j->pending));
    j->polled = ls_calloc((size_t)j->pending_max + size + 1, sizeof(*j->polled));
    if (j->state == NULL || j->channel == NULL || j->pending == NULL || j->polled == NULL)
        return ls_fail(LS_ENOMEM, "no memory to find %d ranks on this host", boot->size);
    for (size_t r = 0; r < size; r++)
        j->channel[r] = -1;
    return LS_OK;
}

/* Closes everything that was not handed over to a peer. */
static void joining_end(joining *j)
{
    for (int i = 0; i < j->n_pending; i++)
        file_close(&j->pending[i]);
    for (int r = 0; j->channel != NULL && r < j->l->size; r++)
        file_close(&j->channel[r]);
    file_close(&j->listener);
    ls_free(j->state);
    ls_free(j->channel);
    ls_free(j->pending);
    ls_free(j->polled);
}

/* --- from the members to peers --- */

static ls_status make_peer(joining *j, int index, local_peer **out)
{
    local *l = j->l;
    const int rank = l->ranks[index];
    local_peer *p;

    LS_TRY(LS_NEW(&p, 1, "for rank %d", rank));
    p->rank = rank;
    p->index = index;
    p->fd = j->channel[rank];
    j->channel[rank] = -1;
    p->is_thread = l->records[rank].instance == l->records[l->rank].instance;
    p->page = local_page_of(l, index);
    *out = p;
    return p->page->mailbox.bytes <= sizeof(p->page->mailbox.socket)
               ? LS_OK
               : ls_fail(LS_EPROTO, "rank %d has no mailbox", rank);
}

static ls_status make_peers(joining *j)
{
    local *l = j->l;
    int n = 0;

    for (int i = 0; i < l->count; i++) {
        if (i == l->index)
            continue;
        LS_TRY(make_peer(j, i, &l->peers[n]));
        l->peer_of[l->ranks[i]] = n++;
    }
    return LS_OK;
}

static ls_status watch_ends(local *l)
{
    l->ends_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->ends_fd < 0)
        return ls_fail_errno("epoll_create1");
    for (int i = 0; i < l->count - 1; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = l->peers[i]}};

        if (l->peers[i]->fd >= 0 &&
            epoll_ctl(l->ends_fd, EPOLL_CTL_ADD, l->peers[i]->fd, &event) != 0)
            return ls_fail_errno("epoll_ctl");
    }
    return LS_OK;
}

static ls_status make_local(const comm_boot *boot, const comm_host *host, local **out)
{
    local *l;

    LS_TRY(LS_NEW(&l, 1, "for %d ranks of this host", boot->size));
    *out = l;
    l->host = host;
    l->rank = boot->rank;
    l->size = boot->size;
    l->mailbox = -1;
    l->ends_fd = -1;
    l->next_probe_ms = INT64_MAX;
    memcpy(l->job, boot->job, sizeof(l->job));
    l->generation = boot->generation;
    l->records = boot->records;
    l->ranks = ls_calloc((size_t)boot->size, sizeof(*l->ranks));
    l->peers = ls_calloc((size_t)boot->size, sizeof(local_peer *));
    l->peer_of = ls_calloc((size_t)boot->size, sizeof(*l->peer_of));
    if (l->ranks == NULL || l->peers == NULL || l->peer_of == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks of this host", boot->size);
    for (int r = 0; r < boot->size; r++)
        l->peer_of[r] = -1;
    return LS_OK;
}

/* Without a listener, this rank is alone. */
static ls_status join_or_stay_alone(joining *j)
{
    if (j->listener < 0) {
        list_members(j);
        return LS_OK;
    }
    LS_TRY(find_leader(j));
    LS_TRY(j->leader == j->l->rank ? lead(j) : follow(j));
    LS_TRY(make_peers(j));
    return j->l->count > 1 ? watch_ends(j->l) : LS_OK;
}

ls_status local_join(const comm_boot *boot, const comm_host *host, local **out)
{
    joining j = {.listener = boot->local_fd};
    local *l = NULL;
    ls_status st = make_local(boot, host, &l);

    if (st == LS_OK)
        st = joining_init(&j, l, boot);
    if (st == LS_OK)
        st = join_or_stay_alone(&j);
    j.l = l;
    joining_end(&j);
    if (st != LS_OK) {
        local_leave(l);
        return st;
    }
    *out = l;
    return LS_OK;
}
