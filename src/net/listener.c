/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.c - accepting and proving. Strangers get few slots (STRANGERS_MAX) and little time: the rest waits in the listen queue,
 * and when all slots are taken and somebody waits, the stranger whose chance ended first makes room. Somebody with the key
 * proves it within milliseconds, so a thousand silent connections in front of it cost a fraction of a second.
 */
#include "net/listener.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#define STRANGERS_MAX 64
/* How long a stranger may take when others wait; before it came its turn, it had time enough to send a hello. */
#define HELLO_CHANCE_MS 5
#define PROOF_CHANCE_MS 50

#define PROVE_MS        5000
#define ACCEPTS_A_ROUND 64
#define NO_FDS_PAUSE_MS 50
#define BACKLOG         4096
#define USER_TIMEOUT_MS 5000
#define LOG_PAUSE_MS    1000

typedef struct listening_socket {
    list_node node;
    listener *owner;
    int fd;
    poll_watch *watch;
} listening_socket;

/* Somebody whose handshake is under way. */
typedef struct stranger {
    list_node node; /* in listener.strangers */
    listener *owner;
    poll_watch *watch;
    poll_timer limit;
    int64_t since_ms;   /* accepted */
    listener_peer peer; /* what it will be */
    handshake shake;
} stranger;

struct listener {
    poller *loop;
    listener_options opt;
    list_node listeners;
    list_node strangers; /* oldest first */
    int n_strangers;
    int spare_fd;      /* given up to get rid of a connection when descriptors run out */
    poll_timer resume; /* listening again after a pause */
    bool is_paused;
    int64_t last_refusal_ms; /* rate limits of log lines */
    int64_t last_descriptors_ms;
    uint64_t n_refused;
};

/* One line a second, however many strangers come. */
static void log_refusal(listener *d, const char *peer, const char *why)
{
    d->n_refused++;
    if (!log_every(&d->last_refusal_ms, LOG_PAUSE_MS))
        return;
    if (d->n_refused == 1)
        ls_log(LS_LOG_WARN, d->opt.name, "refused a connection of %s: %s", peer, why);
    else
        ls_log(LS_LOG_WARN, d->opt.name, "refused %llu connections, the last of %s: %s",
               (unsigned long long)d->n_refused, peer, why);
    d->n_refused = 0;
}

/* --- proving --- */

static void free_stranger(stranger *s)
{
    poller_timer_cancel(&s->limit);
    poller_unwatch(s->watch);
    file_close(&s->peer.fd);
    handshake_wipe(&s->shake);
    if (!list_empty(&s->node)) {
        list_remove(&s->node);
        s->owner->n_strangers--;
    }
    ls_free(s);
}

static void drop_late(void *arg)
{
    free_stranger(arg);
}

static void let_in(stranger *s)
{
    const listener_options *opt = &s->owner->opt;
    listener_peer peer = s->peer;

    peer.claim = s->shake.peer;
    handshake_seals(&s->shake, &peer.seals);
    s->peer.fd = -1; // the owner's now
    free_stranger(s);
    opt->accepted(opt->self, &peer);
    seal_pair_wipe(&peer.seals);
}

static void prove(stranger *s)
{
    short events;
    ls_status st = handshake_step(&s->shake, s->peer.fd, &events);

    if (st == LS_OK && s->shake.state == HANDSHAKE_DONE) {
        let_in(s);
        return;
    }
    if (st == LS_OK)
        st = poller_change(s->watch, events == POLLOUT ? POLL_WRITE : POLL_READ);
    if (st == LS_OK)
        return;
    if (st == LS_EPEER) /* who dials several addresses drops the others once one of them answers */
        ls_log(LS_LOG_DEBUG, s->owner->opt.name, "%s", ls_last_error());
    else
        log_refusal(s->owner, s->peer.name, ls_last_error());
    free_stranger(s);
}

static void stranger_event(void *arg, unsigned events)
{
    LS_UNUSED(events);
    prove(arg);
}

/* --- accepting --- */

/* A name for messages, and who it is where the kernel knows. */
static ls_status name_peer(const listener *d, listener_peer *g)
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
    if (d->opt.key == NULL && !d->opt.insecure && uid != geteuid())
        return ls_fail(LS_EAUTH, "it belongs to user %u", (unsigned)uid);
    return LS_OK;
}

static ls_status prepare(stranger *s)
{
    const listener *d = s->owner;
    const handshake_claim expected = handshake_claim_for(s->peer.fd, &d->opt.expected);

    LS_TRY(name_peer(d, &s->peer));
    LS_TRY(net_set_stream_options(s->peer.fd, USER_TIMEOUT_MS));
    LS_TRY(handshake_server(&s->shake, d->opt.key, &expected, s->peer.name));
    return poller_watch(d->loop, s->peer.fd, POLL_READ, stranger_event, s, &s->watch);
}

/* Takes fd. */
static void take_stranger(listener *d, int fd)
{
    stranger *s = ls_calloc(1, sizeof(*s));

    if (s == NULL) {
        file_close(&fd);
        return;
    }
    list_init(&s->node);
    s->owner = d;
    s->since_ms = ls_now_ms();
    s->peer.fd = fd;
    text_format(s->peer.name, sizeof(s->peer.name), "somebody");
    if (prepare(s) != LS_OK) {
        log_refusal(d, s->peer.name, ls_last_error());
        free_stranger(s);
        return;
    }
    list_append(&d->strangers, &s->node);
    d->n_strangers++;
    poller_timer_set(d->loop, &s->limit, s->since_ms + PROVE_MS, drop_late, s);
    prove(s); // whoever waited in the queue has sent its hello already
}

/* When this stranger has had its chance. */
static int64_t chance_ends(const stranger *s)
{
    return s->since_ms + (s->shake.step == 0 ? HELLO_CHANCE_MS : PROOF_CHANCE_MS);
}

/* Frees a slot if a stranger's chance is over; otherwise *next_ms is when the first one's will be. */
static bool evict_one(listener *d, int64_t *next_ms)
{
    const int64_t now_ms = ls_now_ms();
    stranger *first = NULL;

    *next_ms = INT64_MAX;
    list_for_each (it, &d->strangers) {
        stranger *s = list_entry(it, stranger, node);

        if (chance_ends(s) < *next_ms) {
            first = s;
            *next_ms = chance_ends(s);
        }
    }
    if (first == NULL || *next_ms > now_ms)
        return false;
    log_refusal(d, first->peer.name, "silent while others wait");
    free_stranger(first);
    return true;
}

static void set_listening(listener *d, bool on)
{
    d->is_paused = !on;
    list_for_each (it, &d->listeners) {
        listening_socket *l = list_entry(it, listening_socket, node);

        if (poller_change(l->watch, on ? POLL_READ : 0) != LS_OK)
            ls_log(LS_LOG_ERROR, d->opt.name, "cannot listen any more: %s", ls_last_error());
    }
}

static void resume_listening(void *arg)
{
    set_listening(arg, true);
}

static void pause_listening(listener *d, int64_t until_ms)
{
    set_listening(d, false);
    poller_timer_set(d->loop, &d->resume, until_ms, resume_listening, d);
}

static void open_spare(listener *d)
{
    if (d->spare_fd < 0)
        d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* No descriptor is left. The spare one serves to take a connection out of the queue and end it, so that it knows; then a pause. */
static void out_of_descriptors(listener *d, int listen_fd)
{
    int fd;

    if (log_every(&d->last_descriptors_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_ERROR, d->opt.name, "connections cannot be taken for now: %s",
               ls_last_error());
    file_close(&d->spare_fd);
    if (net_accept(listen_fd, &fd) == LS_OK)
        file_close(&fd);
    open_spare(d);
    pause_listening(d, ls_now_ms() + NO_FDS_PAUSE_MS);
}

static void listener_event(void *arg, unsigned events)
{
    listening_socket *l = arg;
    listener *d = l->owner;

    LS_UNUSED(events);
    for (int i = 0; i < ACCEPTS_A_ROUND && !d->is_paused; i++) {
        int64_t next_ms;
        int fd = -1;

        if (d->n_strangers >= STRANGERS_MAX && !evict_one(d, &next_ms)) {
            pause_listening(d, next_ms);
            return;
        }
        if (net_accept(l->fd, &fd) != LS_OK) {
            out_of_descriptors(d, l->fd);
            return;
        }
        if (fd < 0)
            return;
        take_stranger(d, fd);
    }
}

/* --- life --- */

ls_status listener_create(poller *p, const listener_options *opt, listener **out)
{
    listener *d = ls_calloc(1, sizeof(*d));

    *out = NULL;
    if (d == NULL)
        return ls_fail(LS_ENOMEM, "no memory for what listens");
    d->loop = p;
    d->opt = *opt;
    d->spare_fd = -1;
    list_init(&d->listeners);
    list_init(&d->strangers);
    open_spare(d);
    *out = d;
    return LS_OK;
}

void listener_destroy(listener *d)
{
    if (d == NULL)
        return;
    while (!list_empty(&d->strangers))
        free_stranger(list_entry(d->strangers.next, stranger, node));
    while (!list_empty(&d->listeners)) {
        listening_socket *l = list_entry(d->listeners.next, listening_socket, node);

        list_remove(&l->node);
        poller_unwatch(l->watch);
        file_close(&l->fd);
        ls_free(l);
    }
    poller_timer_cancel(&d->resume);
    file_close(&d->spare_fd);
    ls_free(d);
}

void listener_forked(const listener *d)
{
    list_for_each (it, &d->strangers) {
        close(list_entry(it, stranger, node)->peer.fd);
    }
    list_for_each (it, &d->listeners) {
        close(list_entry(it, listening_socket, node)->fd);
    }
    if (d->spare_fd >= 0)
        close(d->spare_fd);
}

int listener_pending(const listener *d)
{
    return d->n_strangers;
}

/* Whether TCP is allowed where there is no key. */
static ls_status check_keyless(const listener *d)
{
    if (!d->opt.insecure)
        return ls_fail(LS_EAUTH, "without a key a %s listens at a unix socket only (or --insecure)",
                       d->opt.name);
    if (d->opt.expected.security != NET_AUTH)
        return ls_fail(LS_EAUTH, "LOCKSTEP_SECURITY=%s needs a key (no --insecure)",
                       net_security_text(d->opt.expected.security));
    return LS_OK;
}

ls_status listener_listen_take(listener *d, int fd)
{
    listening_socket *l = ls_calloc(1, sizeof(*l));
    net_address at;
    ls_status st;

    if (l == NULL) {
        st = ls_fail(LS_ENOMEM, "no memory for a listener");
        goto fail;
    }
    st = net_address_of_socket(fd, &at);
    if (st != LS_OK)
        goto fail;
    if (d->opt.key == NULL && net_address_family(&at) != NET_UNIX)
        st = check_keyless(d);
    if (st != LS_OK)
        goto fail;
    st = net_set_blocking(fd, false);
    if (st != LS_OK)
        goto fail;
    l->owner = d;
    l->fd = fd;
    st = poller_watch(d->loop, fd, d->is_paused ? 0 : POLL_READ, listener_event, l, &l->watch);
    if (st != LS_OK)
        goto fail;
    list_append(&d->listeners, &l->node);
    return LS_OK;

fail:
    ls_free(l);
    file_close(&fd);
    return st;
}

ls_status listener_listen(listener *d, const net_address *at, net_address *bound)
{
    int fd = -1;

    LS_TRY(net_listen(at, NET_STREAM, BACKLOG, &fd, bound));
    return listener_listen_take(d, fd);
}
