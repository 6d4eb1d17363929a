/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_conn.c - the connections of a hub: entering, sending, dispatch of frames by state, and
 * closing. The reaper frees closed connections, so callers may close one while they walk over all.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#define HELLO_MS 5000

/* --- ending --- */

void hub_reap(void *arg)
{
    hub *h = arg;

    while (!list_empty(&h->dead)) {
        hub_conn *c = list_entry(h->dead.next, hub_conn, node);

        list_remove(&c->node);
        hub_rank_gone(c);
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
    hub_store_end_wait(c);
    poller_timer_cancel(&c->limit);
    frame_link_close(&c->link);
    list_remove(&c->node);
    list_append(&h->dead, &c->node);
    // The loss of a rank sends messages to all, so the reaper handles it and not this call.
    if (!h->reaper.is_set)
        poller_timer_set(h->loop, &h->reaper, ls_now_ms(), hub_reap, h);
}

static void on_ended(void *arg, const char *why)
{
    hub_conn *c = arg;

    if (!c->link.is_closed_by_peer && c->state != CONN_CLOSING)
        ls_log(LS_LOG_WARN, "hub", "closed the connection of %s: %s", c->peer, why);
    conn_drop(c);
}

static void hello_timed_out(void *arg)
{
    hub_conn *c = arg;

    ls_log(LS_LOG_WARN, "hub", "%s authenticated but sent no hello within %d s", c->peer,
           HELLO_MS / 1000);
    conn_drop(c);
}

/* --- sending --- */

void conn_send(hub_conn *c, uint32_t type, const void *body, size_t bytes)
{
    if (c->state != CONN_DEAD && c->state != CONN_CLOSING)
        frame_link_send(&c->link, type, body, bytes);
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
    conn_send_body(c, HUB_MESSAGE_REFUSED);
    if (c->state == CONN_DEAD)
        return;
    c->state = CONN_CLOSING;
    poller_timer_cancel(&c->limit);
    frame_link_finish(&c->link);
}

/* --- receiving --- */

static ls_status on_frame(void *arg, const frame *f)
{
    hub_conn *c = arg;

    c->owner->n_frames++;
    switch (c->state) {
    case CONN_UNIDENTIFIED:
        return hub_rank_hello(c, f);
    case CONN_RANK:
        if ((f->type >= HUB_MESSAGE_SET && f->type <= HUB_MESSAGE_COUNT) ||
            f->type == HUB_MESSAGE_GATHER)
            return hub_store_request(c, f);
        return hub_rank_message(c, f);
    case CONN_STORE:
        return hub_store_request(c, f);
    case CONN_CLOSING: // the rest of its input is ignored
    case CONN_DEAD:
        break;
    }
    return LS_OK;
}

/* --- entering --- */

void hub_enter(void *arg, const listener_peer *peer)
{
    hub *h = arg;
    hub_conn *c = ls_calloc(1, sizeof(*c));
    int fd = peer->fd;

    if (c == NULL) {
        file_close(&fd);
        return;
    }
    c->owner = h;
    c->peer_pid = peer->pid;
    c->rank = -1;
    text_format(c->peer, sizeof(c->peer), "%s", peer->name);
    c->link.self = c;
    c->link.message = on_frame;
    c->link.ended = on_ended;
    if (frame_link_open(&c->link, h->loop, fd, c->peer, HUB_MESSAGE_BODY_MAX,
                        HUB_MESSAGE_QUEUE_MAX) != LS_OK) {
        ls_log(LS_LOG_WARN, "hub", "refused a connection from %s: %s", c->peer, ls_last_error());
        frame_link_close(&c->link);
        ls_free(c);
        return;
    }
    frame_link_seal(&c->link, &peer->seals);
    list_append(&h->conns, &c->node);
    h->n_conns++;
    c->state = h->opt.world_size == 0 ? CONN_STORE : CONN_UNIDENTIFIED;
    if (c->state == CONN_UNIDENTIFIED)
        poller_timer_set(h->loop, &c->limit, ls_now_ms() + HELLO_MS, hello_timed_out, c);
}
