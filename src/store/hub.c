/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.c - connections. Strangers get few slots (UNPROVED_MAX) and little time: the rest waits in the listen queue, and when
 * all slots are taken and somebody waits, the oldest stranger that has had its chance makes room. Somebody with the key
 * proves it within milliseconds, so a thousand silent connections in front of it cost a fraction of a second.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define UNPROVED_MAX 64
#define SILENT_CHANCE_MS                                                                           \
    5 /* when others wait, for a hello: the queue has left time enough to send one */
#define PROOF_CHANCE_MS 50 /* when others wait, for the proof */
#define PROVE_MS        5000
#define INTRODUCE_MS    5000
#define REFUSE_MS       2000
#define ACCEPTS_A_ROUND 64
#define READS_A_ROUND   4
#define NO_FDS_PAUSE_MS 50
#define BACKLOG         4096
#define USER_TIMEOUT_MS 5000
#define LOG_PAUSE_MS    1000

static void conn_event(void *arg, unsigned events);
static void listener_event(void *arg, unsigned events);

/* --- ending connections --- */

static void reap(void *arg)
{
    hub *h = arg;

    while (!list_empty(&h->dead)) {
        hub_conn *c = list_entry(h->dead.next, hub_conn, node);

        list_remove(&c->node);
        hub_rank_gone(c);
        frame_reader_free(&c->in);
        frame_queue_free(&c->out);
        ls_free(c);
    }
}

static void free_shake(hub_conn *c)
{
    if (c->shake != NULL)
        handshake_wipe(c->shake);
    ls_free(c->shake);
    c->shake = NULL;
}

void conn_drop(hub_conn *c)
{
    hub *h = c->owner;

    if (c->state == CONN_DEAD)
        return;
    if (c->state == CONN_PROVING)
        h->n_unproved--;
    else
        h->n_proved--;
    c->state = CONN_DEAD;
    hub_store_forget(c);
    free_shake(c);
    poller_timer_cancel(&c->limit);
    poller_unwatch(c->watch);
    c->watch = NULL;
    file_close(&c->fd);
    list_remove(&c->node);
    list_append(&h->dead, &c->node);
    // Not here: the caller may be in the middle of a walk over ranks, and the loss of one makes messages to all.
    if (!h->reaper.is_set)
        poller_timer_set(h->loop, &h->reaper, ls_now_ms(), reap, h);
}

static void drop_late(void *arg)
{
    hub_conn *c = arg;

    if (c->state == CONN_NAMELESS)
        ls_log(LS_LOG_WARN, "hub", "%s proved the key but did not say who it is", c->peer);
    conn_drop(c);
}

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

/* --- sending --- */

static void update_events(hub_conn *c)
{
    const bool wants_write = frame_queue_bytes(&c->out) > 0;

    if (wants_write == c->wants_write)
        return;
    c->wants_write = wants_write;
    if (poller_change(c->watch, wants_write ? POLL_READ | POLL_WRITE : POLL_READ) != LS_OK)
        conn_drop(c);
}

static void flush(hub_conn *c)
{
    if (frame_queue_flush(&c->out, c->fd, c->peer) != LS_OK) {
        conn_drop(c);
        return;
    }
    if (c->state == CONN_CLOSING && frame_queue_bytes(&c->out) == 0) {
        conn_drop(c);
        return;
    }
    update_events(c);
}

void conn_send(hub_conn *c, uint32_t type, const void *body, size_t bytes)
{
    if (c->state == CONN_DEAD || c->state == CONN_CLOSING)
        return;
    if (frame_queue_add(&c->out, type, body, bytes) != LS_OK) {
        ls_log(LS_LOG_WARN, "hub", "%s does not read what it is sent and is dropped: %s", c->peer,
               ls_last_error());
        conn_drop(c);
        return;
    }
    flush(c);
}

void conn_send_body(hub_conn *c, uint32_t type)
{
    const wire_writer *w = &c->owner->body;

    if (wire_writer_status(w) == LS_OK)
        conn_send(c, type, w->data, w->bytes);
    else
        conn_drop(c);
}

void conn_refuse(hub_conn *c, const char *why)
{
    hub *h = c->owner;

    if (c->state == CONN_DEAD || c->state == CONN_CLOSING)
        return;
    ls_log(LS_LOG_WARN, "hub", "refused %s: %s", c->peer, why);
    wire_writer_reset(&h->body);
    wire_write_text(&h->body, why);
    conn_send_body(c, MESSAGE_REFUSED);
    if (c->state == CONN_DEAD)
        return;
    c->state = CONN_CLOSING;
    poller_timer_set(h->loop, &c->limit, ls_now_ms() + REFUSE_MS, drop_late, c);
    flush(c);
}

/* --- receiving --- */

static ls_status handle_frame(hub_conn *c, const frame *f)
{
    switch (c->state) {
    case CONN_NAMELESS:
        return hub_rank_hello(c, f);
    case CONN_RANK:
        if (f->type >= MESSAGE_SET && f->type <= MESSAGE_COUNT)
            return hub_store_request(c, f);
        return hub_rank_message(c, f);
    case CONN_STORE:
        return hub_store_request(c, f);
    case CONN_PROVING:
    case CONN_CLOSING: // what it says now no longer matters
    case CONN_DEAD:
        break;
    }
    return LS_OK;
}

static ls_status handle_frames(hub_conn *c)
{
    frame f;
    bool have = true;

    while (have && c->state != CONN_DEAD) {
        LS_TRY(frame_reader_next(&c->in, &f, &have));
        if (have)
            LS_TRY(handle_frame(c, &f));
    }
    return LS_OK;
}

static void receive(hub_conn *c)
{
    size_t moved = 1;
    ls_status st = LS_OK;

    for (int i = 0; i < READS_A_ROUND && moved > 0 && st == LS_OK && c->state != CONN_DEAD; i++) {
        st = frame_reader_fill(&c->in, c->fd, c->peer, &moved);
        if (moved > 0)
            c->heard_ms = ls_now_ms();
        if (st == LS_OK)
            st = handle_frames(c);
    }
    if (st == LS_OK || c->state == CONN_DEAD)
        return;
    if (st != LS_EPEER)
        ls_log(LS_LOG_WARN, "hub", "%s is dropped: %s", c->peer, ls_last_error());
    conn_drop(c);
}

/* --- proving --- */

static ls_status become_proved(hub_conn *c)
{
    hub *h = c->owner;

    free_shake(c);
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
        poller_timer_set(h->loop, &c->limit, ls_now_ms() + INTRODUCE_MS, drop_late, c);
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
            receive(c); // its first frame may have come along
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
        flush(c);
    if (c->state != CONN_DEAD && (events & (POLL_READ | POLL_BROKEN)) != 0)
        receive(c);
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
    poller_timer_set(h->loop, &c->limit, c->since_ms + PROVE_MS, drop_late, c);
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
    return c->since_ms + (c->shake->step == 0 ? SILENT_CHANCE_MS : PROOF_CHANCE_MS);
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

static void open_spare(hub *h)
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
    open_spare(h);
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

/* --- life --- */

ls_status hub_create(poller *p, const hub_options *opt, hub **out)
{
    hub *h = ls_calloc(1, sizeof(*h));
    ls_status st;

    *out = NULL;
    if (h == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a hub");
    h->loop = p;
    h->opt = *opt;
    h->grace_ms = opt->death_grace_ms;
    h->spare_fd = -1;
    h->expected = (handshake_claim){
        .purpose = opt->world_size == 0 ? NET_PURPOSE_STORE : NET_PURPOSE_CONTROL,
        .to = HANDSHAKE_ANYONE,
        .generation = opt->generation,
    };
    memcpy(h->expected.job, opt->job, sizeof(opt->job));
    list_init(&h->listeners);
    list_init(&h->unproved);
    list_init(&h->proved);
    list_init(&h->dead);
    list_init(&h->waits);
    list_init(&h->held);
    list_init(&h->ops);
    st = hub_ranks_create(h);
    if (st != LS_OK) {
        hub_destroy(h);
        return st;
    }
    open_spare(h);
    *out = h;
    return LS_OK;
}

void hub_destroy(hub *h)
{
    if (h == NULL)
        return;
    h->opt.events = (hub_events){0};
    while (!list_empty(&h->unproved))
        conn_drop(list_entry(h->unproved.next, hub_conn, node));
    while (!list_empty(&h->proved))
        conn_drop(list_entry(h->proved.next, hub_conn, node));
    poller_timer_cancel(&h->reaper);
    reap(h);
    while (!list_empty(&h->listeners)) {
        hub_listener *l = list_entry(h->listeners.next, hub_listener, node);

        list_remove(&l->node);
        poller_unwatch(l->watch);
        file_close(&l->fd);
        ls_free(l);
    }
    poller_timer_cancel(&h->resume);
    hub_ranks_free(h);
    table_free(&h->table);
    wire_writer_free(&h->body);
    file_close(&h->spare_fd);
    ls_free(h);
}

void hub_count(const hub *h, int *n_open, int *n_unproved)
{
    *n_open = h->n_unproved + h->n_proved;
    *n_unproved = h->n_unproved;
}
