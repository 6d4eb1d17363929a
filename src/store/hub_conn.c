/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_conn.c - what every connection of a hub has: a beginning, frames in and out, and an end. A hub never waits for a client: what a socket
 * does not take is queued, and a client whose queue is full is dropped.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#define INTRODUCE_MS  5000
#define REFUSE_MS     2000
#define READS_A_ROUND 4

/* --- ending connections --- */

void hub_reap(void *arg)
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

void conn_drop(hub_conn *c)
{
    hub *h = c->owner;

    if (c->state == CONN_DEAD)
        return;
    h->n_conns--;
    c->state = CONN_DEAD;
    hub_store_forget(c);
    poller_timer_cancel(&c->limit);
    poller_unwatch(c->watch);
    c->watch = NULL;
    file_close(&c->fd);
    list_remove(&c->node);
    list_append(&h->dead, &c->node);
    // Not here: the caller may be in the middle of a walk over ranks, and the loss of one makes messages to all.
    if (!h->reaper.is_set)
        poller_timer_set(h->loop, &h->reaper, ls_now_ms(), hub_reap, h);
}

static void drop_late(void *arg)
{
    hub_conn *c = arg;

    if (c->state == CONN_NAMELESS)
        ls_log(LS_LOG_WARN, "hub", "%s proved the key but did not say who it is", c->peer);
    conn_drop(c);
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

/* --- entering --- */

static void conn_event(void *arg, unsigned events)
{
    hub_conn *c = arg;

    if ((events & POLL_WRITE) != 0)
        flush(c);
    if (c->state != CONN_DEAD && (events & (POLL_READ | POLL_BROKEN)) != 0)
        receive(c);
}

static void start_talking(hub_conn *c)
{
    hub *h = c->owner;

    list_append(&h->conns, &c->node);
    h->n_conns++;
    if (h->opt.world_size == 0) {
        c->state = CONN_STORE;
    } else {
        c->state = CONN_NAMELESS;
        poller_timer_set(h->loop, &c->limit, ls_now_ms() + INTRODUCE_MS, drop_late, c);
    }
    receive(c); // its first frame may have come along
}

void hub_enter(void *arg, const door_guest *guest)
{
    hub *h = arg;
    hub_conn *c = ls_calloc(1, sizeof(*c));
    int fd = guest->fd;

    if (c == NULL) {
        file_close(&fd);
        return;
    }
    list_init(&c->node);
    c->owner = h;
    c->fd = fd;
    c->peer_pid = guest->pid;
    c->rank = -1;
    c->heard_ms = ls_now_ms();
    text_format(c->peer, sizeof(c->peer), "%s", guest->peer);
    frame_reader_init(&c->in, MESSAGE_BODY_MAX);
    frame_queue_init(&c->out, MESSAGE_QUEUE_MAX);
    frame_reader_seal(&c->in, &guest->seals.in);
    frame_queue_seal(&c->out, &guest->seals.out);
    if (poller_watch(h->loop, fd, POLL_READ, conn_event, c, &c->watch) != LS_OK) {
        ls_log(LS_LOG_WARN, "hub", "refused a connection of %s: %s", c->peer, ls_last_error());
        file_close(&c->fd);
        frame_reader_free(&c->in);
        frame_queue_free(&c->out);
        ls_free(c);
        return;
    }
    start_talking(c);
}
