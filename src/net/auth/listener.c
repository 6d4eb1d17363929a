/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.c - accepts connections and authenticates them. Unauthenticated peers share few slots
 * and have little time; further connections wait in the listen queue, and when all slots are in use
 * the peer with the oldest expired chance loses its slot. A peer with the key authenticates within
 * milliseconds, so a thousand silent connections before it delay it by a fraction of a second.
 * Where thousands of ranks connect at once there are more slots, and as much more time, so that a
 * rank on a busy machine does not lose its slot to the others. The hub, the head, the mesh and the
 * probes of networks listen with it.
 */
#include "net/auth/listener.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/socket.h"

#include <poll.h>
#include <unistd.h>

#define SLOTS_LEAST 64
#define SLOTS_MOST  1024
/* The time of an unauthenticated peer while others wait, in proportion to the number of slots.
 * While it waited in the queue it could send its hello, unless thousands come from few machines. */
#define HELLO_CHANCE_MS     5
#define HANDSHAKE_CHANCE_MS 50
#define CHANCE_FACTOR_MAX   8

#define HANDSHAKE_MS    5000
#define ACCEPTS_A_ROUND 64
#define NO_FDS_PAUSE_MS 50
#define BACKLOG         4096
#define LOG_PAUSE_MS    1000

typedef struct listening_socket {
    list_node node;
    listener *owner;
    int fd;
    poll_watch *watch;
} listening_socket;

/* A connection whose handshake is in progress. */
typedef struct pending_peer {
    list_node node; /* in listener.pending */
    listener *owner;
    poll_watch *watch;
    poll_timer limit;
    int64_t since_ms;   /* time of accept */
    listener_peer peer; /* the peer that `accepted` gets */
    handshake shake;
} pending_peer;

struct listener {
    poller *loop;
    listener_options opt;
    list_node listeners;
    list_node pending; /* oldest first */
    int n_pending;
    int n_slots;
    /* Peers since the last change of `chance_factor`: how many lost their slots, and how many
     * authenticated. */
    int n_evicted;
    int n_accepted;
    int chance_factor; /* multiplies the chance of a peer */
    int spare_fd;      /* closed to accept and end a connection when descriptors run out */
    poll_timer resume; /* of the listening after a pause */
    bool is_paused;
    bool is_full;            /* ... because no slot was free */
    int64_t last_refusal_ms; /* rate limits of log lines */
    int64_t last_descriptors_ms;
    uint64_t n_refused;
};

/* At most one line a second. */
static void log_refusal(listener *l, const char *peer, const char *why)
{
    l->n_refused++;
    if (!log_every(&l->last_refusal_ms, LOG_PAUSE_MS))
        return;
    if (l->n_refused == 1)
        ls_log(LS_LOG_WARN, l->opt.name, "refused a connection from %s: %s", peer, why);
    else
        ls_log(LS_LOG_WARN, l->opt.name, "refused %llu connections, the last from %s: %s",
               (unsigned long long)l->n_refused, peer, why);
    l->n_refused = 0;
}

/* --- the handshake --- */

static void resume_listening(void *arg);

static void free_slot(listener *l)
{
    l->n_pending--;
    if (l->is_full && l->n_pending <= l->n_slots / 2)
        poller_timer_set(l->loop, &l->resume, ls_now_ms(), resume_listening, l);
}

static void free_pending(pending_peer *s)
{
    poller_timer_cancel(&s->limit);
    poller_close(&s->watch, &s->peer.fd);
    handshake_wipe(&s->shake);
    if (!list_empty(&s->node)) {
        list_remove(&s->node);
        free_slot(s->owner);
    }
    ls_free(s);
}

static void drop_expired(void *arg)
{
    free_pending(arg);
}

static void hand_over(pending_peer *s)
{
    const listener_options *opt = &s->owner->opt;
    listener_peer peer = s->peer;

    peer.claim = s->shake.peer;
    handshake_seals(&s->shake, &peer.seals);
    s->peer.fd = -1; // now the owner's
    s->owner->n_accepted++;
    free_pending(s);
    opt->accepted(opt->self, &peer);
    seal_pair_wipe(&peer.seals);
}

static void advance(pending_peer *s)
{
    short events;
    ls_status st = handshake_step(&s->shake, s->peer.fd, &events);

    if (st == LS_OK && s->shake.state == HANDSHAKE_DONE) {
        hand_over(s);
        return;
    }
    if (st == LS_OK)
        st = poller_change(s->watch, events == POLLOUT ? POLL_WRITE : POLL_READ);
    if (st == LS_OK)
        return;
    /* A client that dials several addresses drops the others once one replies. */
    if (st == LS_EPEER)
        ls_log(LS_LOG_DEBUG, s->owner->opt.name, "%s", ls_last_error());
    else
        log_refusal(s->owner, s->peer.name, ls_last_error());
    free_pending(s);
}

static void on_pending(void *arg, unsigned events)
{
    LS_UNUSED(events);
    advance(arg);
}

/* --- accepting --- */

/* Names the peer for messages, with its process where the kernel knows it. */
static ls_status identify_peer(const listener *l, listener_peer *g)
{
    net_address peer;
    uid_t uid;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_TRY(net_address_of_peer(g->fd, &peer));
    if (net_address_family(&peer) != NET_UNIX) {
        text_format(g->name, sizeof(g->name), "%s", net_address_text(text, sizeof(text), &peer));
        return LS_OK;
    }
    LS_TRY(net_peer_user(g->fd, &uid, &g->pid));
    text_format(g->name, sizeof(g->name), "process %d", (int)g->pid);
    if (l->opt.key == NULL && !l->opt.insecure && uid != geteuid())
        return ls_fail(LS_EAUTH, "the connection belongs to user %u", (unsigned)uid);
    return LS_OK;
}

static ls_status begin_handshake(pending_peer *s)
{
    const listener *l = s->owner;
    const handshake_claim expected = handshake_claim_for(s->peer.fd, &l->opt.expected);

    LS_TRY(identify_peer(l, &s->peer));
    LS_TRY(net_set_stream_options(s->peer.fd, net_silence_ms()));
    LS_TRY(handshake_server(&s->shake, l->opt.key, &expected, s->peer.name));
    return poller_watch(l->loop, s->peer.fd, POLL_READ, on_pending, s, &s->watch);
}

/* Takes fd. */
static void add_pending(listener *l, int fd)
{
    pending_peer *s = ls_calloc(1, sizeof(*s));

    if (s == NULL) {
        file_close(&fd);
        return;
    }
    list_init(&s->node);
    s->owner = l;
    s->since_ms = ls_now_ms();
    s->peer.fd = fd;
    text_format(s->peer.name, sizeof(s->peer.name), "an unknown peer");
    if (begin_handshake(s) != LS_OK) {
        log_refusal(l, s->peer.name, ls_last_error());
        free_pending(s);
        return;
    }
    list_append(&l->pending, &s->node);
    l->n_pending++;
    poller_timer_set(l->loop, &s->limit, s->since_ms + HANDSHAKE_MS, drop_expired, s);
    advance(s); // a peer that waited in the queue has sent its hello already
}

/* When other connections may take the peer's slot. */
static int64_t chance_ends(const pending_peer *s)
{
    const int n_slots = s->owner->n_slots;
    const bool is_hello = s->shake.step == 0 && n_slots == SLOTS_LEAST;

    return s->since_ms + (int64_t)(is_hello ? HELLO_CHANCE_MS : HANDSHAKE_CHANCE_MS) * n_slots /
                             SLOTS_LEAST * s->owner->chance_factor;
}

/* Where the machines of expected peers are so busy that most come too late, all would come again,
 * and too late again. */
static void adapt_chance(listener *l)
{
    if (l->n_slots == SLOTS_LEAST || ++l->n_evicted < l->n_slots / 4)
        return;
    if (l->n_accepted < l->n_evicted && l->chance_factor < CHANCE_FACTOR_MAX)
        l->chance_factor *= 2;
    else if (l->n_accepted >= l->n_evicted && l->chance_factor > 1)
        l->chance_factor /= 2;
    l->n_evicted = 0;
    l->n_accepted = 0;
}

/* Frees the slot of a peer whose chance is over; otherwise *next_ms is when the first chance
 * ends. */
static bool evict_one(listener *l, int64_t *next_ms)
{
    const int64_t now_ms = ls_now_ms();
    pending_peer *first = NULL;

    *next_ms = INT64_MAX;
    list_for_each_entry (pending_peer, s, &l->pending, node)
        if (chance_ends(s) < *next_ms) {
            first = s;
            *next_ms = chance_ends(s);
        }
    if (first == NULL || *next_ms > now_ms)
        return false;
    log_refusal(l, first->peer.name, "no handshake while other connections wait");
    adapt_chance(l);
    free_pending(first);
    return true;
}

static void set_listening(listener *l, bool on)
{
    l->is_paused = !on;
    l->is_full = false;
    list_for_each_entry (listening_socket, sock, &l->listeners, node)
        if (poller_change(sock->watch, on ? POLL_READ : 0) != LS_OK)
            ls_log(LS_LOG_ERROR, l->opt.name, "cannot listen: %s", ls_last_error());
}

static void resume_listening(void *arg)
{
    set_listening(arg, true);
}

static void pause_listening(listener *l, int64_t until_ms)
{
    set_listening(l, false);
    poller_timer_set(l->loop, &l->resume, until_ms, resume_listening, l);
}

/* No descriptor is left. The reserved one serves to accept one connection and to close it, so that
 * its client gets an error; then accepting pauses. */
static void out_of_descriptors(listener *l, int listen_fd)
{
    int fd;

    if (log_every(&l->last_descriptors_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_ERROR, l->opt.name, "cannot accept connections, and tries again: %s",
               ls_last_error());
    file_close(&l->spare_fd);
    if (net_accept(listen_fd, &fd) == LS_OK)
        file_close(&fd);
    net_reserve_fd(&l->spare_fd);
    pause_listening(l, ls_now_ms() + NO_FDS_PAUSE_MS);
}

static void listener_event(void *arg, unsigned events)
{
    listening_socket *sock = arg;
    listener *l = sock->owner;

    LS_UNUSED(events);
    for (int i = 0; i < ACCEPTS_A_ROUND && !l->is_paused; i++) {
        int64_t next_ms;
        int fd = -1;

        if (l->n_pending >= l->n_slots && !evict_one(l, &next_ms)) {
            pause_listening(l, next_ms);
            l->is_full = true;
            return;
        }
        if (net_accept(sock->fd, &fd) != LS_OK) {
            out_of_descriptors(l, sock->fd);
            return;
        }
        if (fd < 0)
            return;
        add_pending(l, fd);
    }
}

/* --- create, listen and destroy --- */

ls_status listener_create(poller *p, const listener_options *opt, listener **out)
{
    listener *l;

    *out = NULL;
    LS_TRY(LS_NEW(&l, 1, "for a listener"));
    l->loop = p;
    l->opt = *opt;
    l->n_slots = opt->n_expected < SLOTS_LEAST  ? SLOTS_LEAST
                 : opt->n_expected > SLOTS_MOST ? SLOTS_MOST
                                                : opt->n_expected;
    l->chance_factor = 1;
    l->spare_fd = -1;
    list_init(&l->listeners);
    list_init(&l->pending);
    net_reserve_fd(&l->spare_fd);
    *out = l;
    return LS_OK;
}

void listener_destroy(listener *l)
{
    if (l == NULL)
        return;
    while (!list_empty(&l->pending))
        free_pending(list_entry(l->pending.next, pending_peer, node));
    while (!list_empty(&l->listeners)) {
        listening_socket *sock = list_entry(l->listeners.next, listening_socket, node);

        list_remove(&sock->node);
        poller_close(&sock->watch, &sock->fd);
        ls_free(sock);
    }
    poller_timer_cancel(&l->resume);
    file_close(&l->spare_fd);
    ls_free(l);
}

void listener_forked(const listener *l)
{
    list_for_each_entry (const pending_peer, s, &l->pending, node)
        close(s->peer.fd);
    list_for_each_entry (const listening_socket, sock, &l->listeners, node)
        close(sock->fd);
    if (l->spare_fd >= 0)
        close(l->spare_fd);
}

int listener_pending(const listener *l)
{
    return l->n_pending;
}

/* Whether TCP is allowed without a key. */
static ls_status check_insecure(const listener *l)
{
    if (!l->opt.insecure)
        return ls_fail(LS_EAUTH, "without a key a %s listens at a unix socket only (or --insecure)",
                       l->opt.name);
    if (l->opt.expected.security != NET_AUTH)
        return ls_fail(LS_EAUTH, "LOCKSTEP_SECURITY=%s needs a key (no --insecure)",
                       net_security_text(l->opt.expected.security));
    return LS_OK;
}

ls_status listener_listen_take(listener *l, int fd)
{
    listening_socket *sock = ls_calloc(1, sizeof(*sock));
    net_address at;
    ls_status st;

    if (sock == NULL) {
        st = ls_fail(LS_ENOMEM, "no memory for a listener");
        goto fail;
    }
    st = net_address_of_socket(fd, &at);
    if (st != LS_OK)
        goto fail;
    if (l->opt.key == NULL && net_address_family(&at) != NET_UNIX)
        st = check_insecure(l);
    if (st != LS_OK)
        goto fail;
    st = net_set_blocking(fd, false);
    if (st != LS_OK)
        goto fail;
    sock->owner = l;
    sock->fd = fd;
    st =
        poller_watch(l->loop, fd, l->is_paused ? 0 : POLL_READ, listener_event, sock, &sock->watch);
    if (st != LS_OK)
        goto fail;
    list_append(&l->listeners, &sock->node);
    return LS_OK;

fail:
    ls_free(sock);
    file_close(&fd);
    return st;
}

ls_status listener_listen(listener *l, const net_address *at, net_address *bound)
{
    int fd = -1;

    LS_TRY(net_listen(at, NET_STREAM, BACKLOG, &fd, bound));
    return listener_listen_take(l, fd);
}
