/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_door.c - accepting and proving. Strangers get few slots (UNPROVED_MAX) and little time: the rest waits in the listen queue,
 * and when all slots are taken and somebody waits, the stranger whose chance ended first makes room. Somebody with the key
 * proves it within milliseconds, so a thousand silent connections in front of it cost a fraction of a second.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#define UNPROVED_MAX 64
/* How long a stranger may take when others wait; before it came its turn, it had time enough to send a hello. */
#define HELLO_CHANCE_MS 5
#define PROOF_CHANCE_MS 50

#define PROVE_MS        5000
#define INTRODUCE_MS    5000
#define ACCEPTS_A_ROUND 64
#define NO_FDS_PAUSE_MS 50
#define BACKLOG         4096
#define USER_TIMEOUT_MS 5000
#define LOG_PAUSE_MS    1000

/* One line a second, however many strangers come. */
static void log_refusal(hub *h, const char *peer, const char *why)
{
    h->n_refused++;
    if (!log_every(&h->last_refusal_ms, LOG_PAUSE_MS))
        return;
    if (h->n_refused == 1)
        ls_log(LS_LOG_WARN, "hub", "refused a connection of %s: %s", peer, why);
    else
        ls_log(LS_LOG_WARN, "hub", "refused %llu connections, the last of %s: %s",
               (unsigned long long)h->n_refused, peer, why);
    h->n_refused = 0;
}

/* --- proving --- */

static ls_status become_proved(hub_conn *c)
{
    hub *h = c->owner;

    conn_free_shake(c);
    list_remove(&c->node);
    list_append(&h->proved, &c->node);
    h->n_unproved--;
    h->n_proved++;
    LS_TRY(poller_change(c->watch, POLL_READ));
    if (h->opt.world_size == 0) {
        c->state = CONN_STORE;
        poller_timer_cancel(&c->limit);
    } else {
        c->state = CONN_NAMELESS;
        poller_timer_set(h->loop, &c->limit, ls_now_ms() + INTRODUCE_MS, conn_drop_late, c);
    }
    return LS_OK;
}

static void prove(hub_conn *c)
{
    hub *h = c->owner;
    short events;
    ls_status st = handshake_step(c->shake, c->fd, &events);

    if (st == LS_OK && c->shake->state == HANDSHAKE_DONE) {
        st = become_proved(c);
        if (st == LS_OK)
            conn_receive(c); // its first frame may have come along
    } else if (st == LS_OK) {
        st = poller_change(c->watch, events == POLLOUT ? POLL_WRITE : POLL_READ);
    }
    if (st != LS_OK && c->state != CONN_DEAD) {
        log_refusal(h, c->peer, ls_last_error());
        conn_drop(c);
    }
}

static void conn_event(void *arg, unsigned events)
{
    hub_conn *c = arg;

    if (c->state == CONN_PROVING) {
        prove(c);
        return;
    }
    if ((events & POLL_WRITE) != 0)
        conn_flush(c);
    if (c->state != CONN_DEAD && (events & (POLL_READ | POLL_BROKEN)) != 0)
        conn_receive(c);
}

/* --- accepting --- */

/* A name for messages, and who it is where the kernel knows. */
static ls_status name_peer(hub_conn *c)
{
    net_address peer;
    uid_t uid;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_TRY(net_address_of_peer(c->fd, &peer));
    if (net_address_family(&peer) != NET_UNIX) {
        text_format(c->peer, sizeof(c->peer), "%s", net_address_text(text, sizeof(text), &peer));
        return LS_OK;
    }
    LS_TRY(net_peer_user(c->fd, &uid, &c->peer_pid));
    text_format(c->peer, sizeof(c->peer), "process %d", (int)c->peer_pid);
    if (c->owner->opt.key == NULL && !c->owner->opt.insecure && uid != geteuid())
        return ls_fail(LS_EAUTH, "it belongs to user %u", (unsigned)uid);
    return LS_OK;
}

static ls_status make_conn(hub *h, int fd, hub_conn **out)
{
    hub_conn *c = ls_calloc(1, sizeof(*c));
    ls_status st;

    if (c == NULL) {
        file_close(&fd);
        return ls_fail(LS_ENOMEM, "no memory for a connection");
    }
    list_init(&c->node);
    c->owner = h;
    c->fd = fd;
    c->rank = -1;
    c->since_ms = ls_now_ms();
    c->heard_ms = c->since_ms;
    frame_reader_init(&c->in, MESSAGE_BODY_MAX);
    frame_queue_init(&c->out, MESSAGE_QUEUE_MAX);
    text_format(c->peer, sizeof(c->peer), "somebody");
    st = name_peer(c);
    if (st == LS_OK)
        st = net_set_stream_options(fd, USER_TIMEOUT_MS);
    if (st == LS_OK)
        st = poller_watch(h->loop, fd, POLL_READ, conn_event, c, &c->watch);
    if (st != LS_OK) {
        log_refusal(h, c->peer, ls_last_error());
        file_close(&c->fd);
        ls_free(c);
        return st;
    }
    *out = c;
    return LS_OK;
}

static void start_proving(hub_conn *c)
{
    hub *h = c->owner;

    c->state = CONN_PROVING;
    list_append(&h->unproved, &c->node);
    h->n_unproved++;
    c->shake = ls_calloc(1, sizeof(*c->shake));
    if (c->shake == NULL ||
        handshake_server(c->shake, h->opt.key, &h->expected, c->peer) != LS_OK) {
        conn_drop(c);
        return;
    }
    poller_timer_set(h->loop, &c->limit, c->since_ms + PROVE_MS, conn_drop_late, c);
    prove(c); // whoever waited in the queue has sent its hello already
}

ls_status hub_adopt(hub *h, int fd)
{
    hub_conn *c = NULL;
    const ls_status st = make_conn(h, fd, &c);

    if (c == NULL)
        return st;
    c->state = CONN_PROVING;
    list_append(&h->unproved, &c->node);
    h->n_unproved++;
    return become_proved(c);
}

/* When this stranger has had its chance. */
static int64_t chance_ends(const hub_conn *c)
{
    return c->since_ms + (c->shake->step == 0 ? HELLO_CHANCE_MS : PROOF_CHANCE_MS);
}

/* Frees a slot if a stranger's chance is over; otherwise *next_ms is when the first one's will be. */
static bool evict_one(hub *h, int64_t *next_ms)
{
    const int64_t now_ms = ls_now_ms();
    hub_conn *first = NULL;

    *next_ms = INT64_MAX;
    list_for_each (it, &h->unproved) {
        hub_conn *c = list_entry(it, hub_conn, node);

        if (chance_ends(c) < *next_ms) {
            first = c;
            *next_ms = chance_ends(c);
        }
    }
    if (first == NULL || *next_ms > now_ms)
        return false;
    log_refusal(h, first->peer, "silent while others wait");
    conn_drop(first);
    return true;
}

static void set_listening(hub *h, bool on)
{
    h->is_paused = !on;
    list_for_each (it, &h->listeners) {
        hub_listener *l = list_entry(it, hub_listener, node);

        if (poller_change(l->watch, on ? POLL_READ : 0) != LS_OK)
            ls_log(LS_LOG_ERROR, "hub", "cannot listen any more: %s", ls_last_error());
    }
}

static void resume_listening(void *arg)
{
    set_listening(arg, true);
}

static void pause_listening(hub *h, int64_t until_ms)
{
    set_listening(h, false);
    poller_timer_set(h->loop, &h->resume, until_ms, resume_listening, h);
}

void hub_open_spare(hub *h)
{
    if (h->spare_fd < 0)
        h->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* No descriptor is left. The spare one serves to take a connection out of the queue and end it, so that it knows; then a pause. */
static void out_of_descriptors(hub *h, int listener)
{
    int fd;

    if (log_every(&h->last_descriptors_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_ERROR, "hub", "connections cannot be taken for now: %s", ls_last_error());
    file_close(&h->spare_fd);
    if (net_accept(listener, &fd) == LS_OK)
        file_close(&fd);
    hub_open_spare(h);
    pause_listening(h, ls_now_ms() + NO_FDS_PAUSE_MS);
}

static void listener_event(void *arg, unsigned events)
{
    hub_listener *l = arg;
    hub *h = l->owner;

    LS_UNUSED(events);
    for (int i = 0; i < ACCEPTS_A_ROUND && !h->is_paused; i++) {
        int64_t next_ms;
        hub_conn *c = NULL;
        int fd = -1;

        if (h->n_unproved >= UNPROVED_MAX && !evict_one(h, &next_ms)) {
            pause_listening(h, next_ms);
            return;
        }
        if (net_accept(l->fd, &fd) != LS_OK) {
            out_of_descriptors(h, l->fd);
            return;
        }
        if (fd < 0)
            return;
        if (make_conn(h, fd, &c) == LS_OK && c != NULL)
            start_proving(c);
    }
}

ls_status hub_listen_take(hub *h, int fd)
{
    hub_listener *l = ls_calloc(1, sizeof(*l));
    net_address at;
    ls_status st;

    if (l == NULL) {
        st = ls_fail(LS_ENOMEM, "no memory for a listener");
        goto fail;
    }
    st = net_address_of_socket(fd, &at);
    if (st != LS_OK)
        goto fail;
    if (h->opt.key == NULL && !h->opt.insecure && net_address_family(&at) != NET_UNIX) {
        st = ls_fail(LS_EAUTH, "without a key a hub listens at a unix socket only (or --insecure)");
        goto fail;
    }
    st = net_set_blocking(fd, false);
    if (st != LS_OK)
        goto fail;
    l->owner = h;
    l->fd = fd;
    st = poller_watch(h->loop, fd, h->is_paused ? 0 : POLL_READ, listener_event, l, &l->watch);
    if (st != LS_OK)
        goto fail;
    list_append(&h->listeners, &l->node);
    return LS_OK;

fail:
    ls_free(l);
    file_close(&fd);
    return st;
}

ls_status hub_listen(hub *h, const net_address *at, net_address *bound)
{
    int fd = -1;

    LS_TRY(net_listen(at, NET_STREAM, BACKLOG, &fd, bound));
    return hub_listen_take(h, fd);
}
