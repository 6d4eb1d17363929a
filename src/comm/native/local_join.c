/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_join.c - finds the ranks of this host and connects with them; join.c calls it.
 *
 * Every rank connects to the address of every other; a rank that cannot be reached, or belongs to
 * another user, is not local, and both sides of a pair see that alike. The higher rank of a pair
 * sends HELLO over its connection and keeps it; the lower answers WELCOME there, and uses its own
 * connection only to notice the higher rank's death. A listener stays open until all pairs of its
 * rank are settled, so no rank meets a closed one. Then each announces its page, and the join is
 * over when all pages are mapped. One loop serves all connections in any order, so no cycle of
 * ranks that wait for each other can arise.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/native/local_internal.h"
#include "net/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK_MS      100 /* between two calls of check() */
#define PENDING_EXTRA 16  /* connections without a HELLO, besides one a rank */

typedef enum pair_state {
    PAIR_REMOTE = 0, /* not local */
    PAIR_AWAITED,    /* the peer is higher and will send HELLO */
    PAIR_HELLO_SENT, /* the peer is lower; HELLO was sent */
    PAIR_JOINED
} pair_state;

typedef struct joining {
    local *l;
    int listener;
    int64_t deadline_ms;
    pair_state *state; /* by world rank */
    /* By world rank: of a pair in HELLO_SENT or JOINED; of an AWAITED peer only to notice its end;
     * -1. */
    int *channel;
    int n_open;   /* pairs that are not settled */
    int *pending; /* accepted, without a message yet, oldest first */
    int n_pending;
    int pending_max;
    struct pollfd *polled;
} joining;

static void send_message(const joining *j, int fd, channel_type type, int to)
{
    const local *l = j->l;
    channel_message m = {.type = type,
                         .a = (uint32_t)l->rank,
                         .b = (uint32_t)to,
                         .c = l->records[l->rank].instance,
                         .d = l->records[to].instance,
                         .e = l->generation};
    bool sent;

    memcpy(m.job, l->job, sizeof(m.job));
    // The first packet of a connection always fits; if the peer has exited, the next read fails.
    if (channel_send(fd, &m, -1, &sent) != LS_OK || !sent)
        ls_log(LS_LOG_DEBUG, "comm", "cannot send to rank %d on this host", to);
}

/* Whether a message is for this rank, from a rank of this job; that rank is its field a. */
static bool is_for_us(const joining *j, const channel_message *m)
{
    const local *l = j->l;

    return m->b == (uint32_t)l->rank && m->a < (uint32_t)l->size && m->a != (uint32_t)l->rank &&
           m->e == l->generation && memcmp(m->job, l->job, sizeof(m->job)) == 0 &&
           m->c == l->records[m->a].instance && m->d == l->records[l->rank].instance;
}

static void settle_pair(joining *j, int rank, int fd, pair_state state)
{
    if (j->channel[rank] != fd)
        file_close(&j->channel[rank]);
    j->state[rank] = state;
    j->channel[rank] = fd;
    j->n_open--;
}

/* --- the outgoing connections --- */

/* Whether the other end of `fd` runs as this user. */
static bool is_same_user(int fd)
{
    uid_t uid;

    return net_peer_user(fd, &uid, NULL) == LS_OK && uid == geteuid();
}

static ls_status try_rank(joining *j, int rank)
{
    const boot_record *r = &j->l->records[rank];
    int fd = -1;
    ls_status st;

    if (r->local.bytes == 0)
        return LS_OK;
    st = net_connect(&r->local, NET_PACKET, j->deadline_ms, &fd);
    if (st == LS_ETIMEOUT || st == LS_ESYSTEM)
        return ls_context(st, "rank %d", rank);
    if (st != LS_OK) // refused: the rank is on another host
        return LS_OK;
    if (!is_same_user(fd)) {
        send_message(j, fd, CHANNEL_REFUSE, rank);
        file_close(&fd);
        return LS_OK;
    }
    j->n_open++;
    j->channel[rank] = fd;
    j->state[rank] = rank > j->l->rank ? PAIR_AWAITED : PAIR_HELLO_SENT;
    if (j->state[rank] == PAIR_HELLO_SENT)
        send_message(j, fd, CHANNEL_HELLO, rank);
    return LS_OK;
}

/* A lower rank's answer. */
static ls_status read_answer(joining *j, int rank)
{
    channel_message m;
    bool got;
    int with_fd;
    int fd = j->channel[rank];
    const ls_status st = channel_receive(fd, &m, &with_fd, &got);

    file_close(&with_fd);
    if (st != LS_OK)
        return ls_context(st, "rank %d on this host", rank);
    if (!got)
        return LS_OK;
    if (m.type == CHANNEL_REFUSE) {
        settle_pair(j, rank, -1, PAIR_REMOTE);
        return LS_OK;
    }
    if (m.type != CHANNEL_WELCOME || !is_for_us(j, &m) || m.a != (uint32_t)rank)
        return ls_fail(LS_EPROTO, "rank %d on this host answered for another job", rank);
    settle_pair(j, rank, fd, PAIR_JOINED);
    return LS_OK;
}

/* --- the incoming connections --- */

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

/* Reads a pending connection; true when it is settled: joined, or closed. */
static bool read_pending(joining *j, int fd)
{
    channel_message m;
    bool got;
    int with_fd;
    const ls_status st = channel_receive(fd, &m, &with_fd, &got);
    int rank;

    file_close(&with_fd);
    if (st == LS_OK && !got)
        return false;
    if (st == LS_OK && is_for_us(j, &m)) {
        rank = (int)m.a;
        if (m.type == CHANNEL_REFUSE && j->state[rank] == PAIR_AWAITED)
            settle_pair(j, rank, -1, PAIR_REMOTE);
        if (m.type == CHANNEL_HELLO && j->state[rank] == PAIR_AWAITED && is_same_user(fd)) {
            send_message(j, fd, CHANNEL_WELCOME, rank);
            settle_pair(j, rank, fd, PAIR_JOINED);
            return true;
        }
        if (m.type == CHANNEL_HELLO)
            send_message(j, fd, CHANNEL_REFUSE, rank);
    }
    file_close(&fd);
    return true;
}

static void read_all_pending(joining *j)
{
    for (int i = 0; i < j->n_pending;) {
        if (read_pending(j, j->pending[i]))
            remove_pending(j, i);
        else
            i++;
    }
}

/* --- the loop --- */

static ls_status fail_timeout(const joining *j)
{
    for (int r = 0; r < j->l->size; r++) {
        if (j->state[r] == PAIR_AWAITED || j->state[r] == PAIR_HELLO_SENT)
            return ls_fail(LS_ETIMEOUT, "rank %d is on this host but did not answer in time", r);
    }
    return ls_fail(LS_EINTERNAL, "no rank is awaited");
}

/*
 * The connection to an awaited rank has ended. If that rank no longer listens, it has died: ranks
 * listen until this pair is settled. Otherwise it closed the connection because it had too many
 * pending ones.
 */
static ls_status check_awaited(joining *j, int rank)
{
    char byte;

    if (recv(j->channel[rank], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN)
        return LS_OK;
    file_close(&j->channel[rank]);
    if (net_connect(&j->l->records[rank].local, NET_PACKET, j->deadline_ms, &j->channel[rank]) !=
        LS_OK)
        return ls_fail(LS_EPEER, "rank %d on this host ended while it was joining", rank);
    return LS_OK;
}

static ls_status wait_for_any(joining *j)
{
    int n = 0;
    int left_ms;

    j->polled[n++] = (struct pollfd){.fd = j->listener, .events = POLLIN};
    for (int i = 0; i < j->n_pending; i++)
        j->polled[n++] = (struct pollfd){.fd = j->pending[i], .events = POLLIN};
    for (int r = 0; r < j->l->size; r++) {
        if (j->state[r] == PAIR_HELLO_SENT || j->state[r] == PAIR_AWAITED)
            j->polled[n++] = (struct pollfd){.fd = j->channel[r], .events = POLLIN};
    }
    left_ms = ls_deadline_left(j->deadline_ms);
    if (left_ms == 0)
        return fail_timeout(j);
    (void)poll(j->polled, (nfds_t)n, left_ms < 0 || left_ms > CHECK_MS ? CHECK_MS : left_ms);
    return local_check(j->l);
}

/* Reads the connections of the pairs that are not settled. */
static ls_status read_pairs(joining *j)
{
    for (int r = 0; r < j->l->size; r++) {
        if (j->state[r] == PAIR_HELLO_SENT)
            LS_TRY(read_answer(j, r));
        else if (j->state[r] == PAIR_AWAITED)
            LS_TRY(check_awaited(j, r));
    }
    return LS_OK;
}

static ls_status join_pairs(joining *j)
{
    for (int r = 0; r < j->l->size; r++) {
        if (r != j->l->rank)
            LS_TRY(try_rank(j, r));
    }
    while (j->n_open > 0) {
        LS_TRY(accept_all(j));
        read_all_pending(j);
        LS_TRY(read_pairs(j));
        if (j->n_open > 0)
            LS_TRY(wait_for_any(j));
    }
    return LS_OK;
}

static ls_status joining_init(joining *j, local *l, const comm_boot *boot)
{
    const size_t size = (size_t)boot->size;

    *j = (joining){.l = l, .listener = boot->local_fd, .deadline_ms = boot->deadline_ms};
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

/* --- from pairs to peers --- */

static ls_status make_peers(joining *j)
{
    local *l = j->l;
    int n = 0;

    for (int r = 0; r < l->size; r++) {
        local_peer *p;

        l->peer_of[r] = -1;
        if (r == l->rank)
            l->ranks[l->count++] = r;
        if (j->state[r] != PAIR_JOINED)
            continue;
        p = ls_calloc(1, sizeof(*p));
        if (p == NULL)
            return ls_fail(LS_ENOMEM, "no memory for rank %d", r);
        p->rank = r;
        p->fd = j->channel[r];
        j->channel[r] = -1;
        p->is_thread = l->records[r].instance == l->records[l->rank].instance;
        l->peer_of[r] = n;
        l->peers[n++] = p;
        l->ranks[l->count++] = r;
    }
    return LS_OK;
}

static ls_status share_pages(local *l, int64_t deadline_ms)
{
    void *memory = NULL;

    LS_TRY(segment_create(l, SEGMENT_KEY_CONTROL, sizeof(local_page), &memory));
    l->page = memory;
    for (int i = 0; i < l->count - 1; i++) {
        local_peer *p = l->peers[i];

        LS_TRY(segment_wait(l, p->rank, SEGMENT_KEY_CONTROL, sizeof(local_page), deadline_ms,
                            &p->page_view, &memory));
        p->page = memory;
    }
    return LS_OK;
}

static ls_status make_local(const comm_boot *boot, const comm_host *host, local **out)
{
    local *l = ls_calloc(1, sizeof(*l));

    if (l == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks of this host", boot->size);
    *out = l;
    l->host = host;
    l->rank = boot->rank;
    l->size = boot->size;
    memcpy(l->job, boot->job, sizeof(l->job));
    l->generation = boot->generation;
    l->records = boot->records;
    l->ranks = ls_calloc((size_t)boot->size, sizeof(*l->ranks));
    l->peers = ls_calloc((size_t)boot->size, sizeof(local_peer *));
    l->peer_of = ls_calloc((size_t)boot->size, sizeof(*l->peer_of));
    if (l->ranks == NULL || l->peers == NULL || l->peer_of == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks of this host", boot->size);
    return LS_OK;
}

ls_status local_join(const comm_boot *boot, const comm_host *host, local **out)
{
    joining j = {.listener = boot->local_fd};
    local *l = NULL;
    ls_status st = make_local(boot, host, &l);

    if (st == LS_OK)
        st = joining_init(&j, l, boot);
    if (st == LS_OK && boot->local_fd >= 0)
        st = join_pairs(&j);
    if (st == LS_OK)
        st = make_peers(&j);
    j.l = l;
    joining_end(&j);
    if (st == LS_OK)
        st = share_pages(l, boot->deadline_ms);
    if (st != LS_OK) {
        local_leave(l);
        return st;
    }
    *out = l;
    return LS_OK;
}
