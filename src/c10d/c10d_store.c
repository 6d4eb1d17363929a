/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_store.c - the listener and the connections of a c10d store, and their bounds; the agent
 * creates it. The store never blocks on a client: what a socket does not take is queued, and a
 * client that sends many requests at once takes turns with the others.
 */
#include "c10d/c10d_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/wire.h"

#define LOG_PAUSE_MS 1000
#define SILENCE_MS   100 /* a client sends such a request in one piece */
#define COMPONENT    "store"

/* --- the end of a connection --- */

static void free_conn(c10d_conn *c)
{
    byte_queue_free(&c->in);
    byte_queue_free(&c->out);
    list_remove(&c->node);
    ls_free(c);
}

static void reap(void *arg)
{
    c10d_store *s = arg;

    while (!list_empty(&s->dead))
        free_conn(list_entry(s->dead.next, c10d_conn, node));
}

/* The reaper frees the memory later: the caller may be walking over waits or requests. */
void c10d_drop(c10d_conn *c, const char *why)
{
    c10d_store *s = c->owner;

    if (c->fd < 0)
        return;
    if (why != NULL && log_every(&s->last_drop_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_WARN, COMPONENT, "closed the connection of %s: %s", c->peer, why);
    c10d_wait_end(c);
    poller_timer_cancel(&c->again);
    poller_timer_cancel(&c->silence);
    poller_close(&c->watch, &c->fd);
    s->buffered -= c->buffered;
    s->n_conns--;
    list_remove(&c->node);
    list_append(&s->dead, &c->node);
    if (!s->reaper.is_set)
        poller_timer_set(s->loop, &s->reaper, ls_now_ms(), reap, s);
}

/* --- answers --- */

void c10d_answer(c10d_conn *c, const void *data, size_t bytes)
{
    if (c->fd >= 0 && byte_queue_size(&c->out) + bytes > C10D_ANSWERS_MAX &&
        byte_queue_flush(&c->out, c->fd, c->peer) != LS_OK)
        c10d_drop(c, NULL);
    if (c->fd < 0)
        return;
    if (byte_queue_size(&c->out) + bytes > C10D_ANSWERS_MAX)
        c10d_drop(c, "it does not read its answers, or requests too much at once");
    else if (byte_queue_add(&c->out, data, bytes) != LS_OK)
        c10d_drop(c, ls_last_error());
}

void c10d_answer_u8(c10d_conn *c, uint8_t v)
{
    c10d_answer(c, &v, 1);
}

void c10d_answer_i64(c10d_conn *c, int64_t v)
{
    uint8_t wire[8];

    wire_put_u64(wire, (uint64_t)v);
    c10d_answer(c, wire, sizeof(wire));
}

void c10d_answer_bytes(c10d_conn *c, kv_bytes v)
{
    c10d_answer_i64(c, (int64_t)v.bytes);
    c10d_answer(c, v.data, v.bytes);
}

static void count_buffers(c10d_conn *c)
{
    c10d_store *s = c->owner;
    const size_t now = c->in.capacity + c->out.capacity + c->wait.bytes;

    s->buffered += now - c->buffered;
    c->buffered = now;
    if (s->buffered > C10D_BUFFERS_MAX)
        c10d_drop(c, "the buffers of all connections together are full");
}

/* Reading pauses while whole requests are left, so one read bounds their memory. */
static void update_events(c10d_conn *c)
{
    const unsigned events = (c->again.is_set ? 0U : (unsigned)POLL_READ) |
                            (byte_queue_size(&c->out) > 0 ? (unsigned)POLL_WRITE : 0U);

    if (events == c->events)
        return;
    c->events = events;
    if (poller_change(c->watch, events) != LS_OK)
        c10d_drop(c, ls_last_error());
}

void c10d_flush(c10d_conn *c)
{
    if (c->fd < 0)
        return;
    if (byte_queue_flush(&c->out, c->fd, c->peer) != LS_OK)
        c10d_drop(c, NULL);
    if (c->fd >= 0)
        count_buffers(c);
    if (c->fd >= 0)
        update_events(c);
}

/* --- requests --- */

static void serve(void *conn);

static ls_status serve_some(c10d_conn *c, bool *more)
{
    *more = true;
    for (int i = 0; i < C10D_ROUND_MAX && *more && c->fd >= 0; i++) {
        c10d_request request;
        size_t used;

        LS_TRY(c10d_parse(&c->parser, c->in.data + c->in.start, byte_queue_size(&c->in), &request,
                          &used));
        if (used > 0)
            LS_TRY(c10d_execute(c, &request));
        c->in.start += used;
        *more = used > 0 && byte_queue_size(&c->in) > 0;
    }
    return LS_OK;
}

static void was_silent(void *conn)
{
    c10d_conn *c = conn;

    c10d_decide(&c->parser);
    serve(c);
}

/* Serves the next C10D_ROUND_MAX requests; the rest waits for the next round. */
static void serve(void *conn)
{
    c10d_conn *c = conn;
    bool more;

    if (serve_some(c, &more) != LS_OK)
        c10d_drop(c, ls_last_error());
    if (c->fd >= 0 && more)
        poller_timer_set(c->owner->loop, &c->again, ls_now_ms(), serve, c);
    poller_timer_cancel(&c->silence);
    if (c->fd >= 0 && c10d_is_undecided(&c->parser))
        poller_timer_set(c->owner->loop, &c->silence, ls_now_ms() + SILENCE_MS, was_silent, c);
    byte_queue_trim(&c->in);
    c10d_flush(c);
}

static void conn_event(void *arg, unsigned events)
{
    c10d_conn *c = arg;
    size_t moved;

    if ((events & POLL_WRITE) != 0)
        c10d_flush(c);
    if (c->fd < 0 || c->again.is_set || (events & (POLL_READ | POLL_BROKEN)) == 0)
        return;
    if (byte_queue_fill(&c->in, c->fd, c->peer, &moved) != LS_OK)
        c10d_drop(c, NULL);
    else if (moved > 0)
        serve(c);
}

/* --- the listener --- */

static ls_status make_conn(c10d_store *s, int fd, c10d_conn **out)
{
    c10d_conn *c = ls_calloc(1, sizeof(*c));
    ls_status st;

    if (c == NULL) {
        file_close(&fd);
        return ls_fail(LS_ENOMEM, "no memory for a connection");
    }
    *c = (c10d_conn){.owner = s, .fd = fd, .events = POLL_READ};
    text_format(c->peer, sizeof(c->peer), "a client");
    st = poller_watch(s->loop, fd, POLL_READ, conn_event, c, &c->watch);
    if (st != LS_OK) {
        file_close(&c->fd);
        ls_free(c);
        return st;
    }
    list_append(&s->conns, &c->node);
    s->n_conns++;
    s->was_used = true;
    *out = c;
    return LS_OK;
}

ls_status c10d_store_adopt(c10d_store *s, int fd)
{
    c10d_conn *c;

    return make_conn(s, fd, &c);
}

static ls_status accept_client(void *self, int fd, const char *peer)
{
    c10d_store *s = self;
    c10d_conn *c;

    if (s->n_conns >= C10D_CONNS_MAX) {
        file_close(&fd);
        return ls_fail(LS_ENOMEM, "%zu connections are open", C10D_CONNS_MAX);
    }
    LS_TRY(make_conn(s, fd, &c));
    text_format(c->peer, sizeof(c->peer), "%s", peer);
    return LS_OK;
}

/* --- creation --- */

ls_status c10d_store_create_closed(poller *p, c10d_store **out)
{
    c10d_store *s;

    LS_TRY(LS_NEW(&s, 1, "for a store"));
    s->loop = p;
    list_init(&s->conns);
    list_init(&s->dead);
    list_init(&s->waits);
    *out = s;
    return LS_OK;
}

ls_status c10d_store_create(poller *p, const c10d_store_options *opt, c10d_store **out)
{
    user_listener_options options = {
        .name = COMPONENT, .port = opt->port, .user = opt->user, .accepted = accept_client};
    c10d_store *s = NULL;
    ls_status st;

    LS_TRY(c10d_store_create_closed(p, &s));
    options.self = s;
    st = user_listener_open(p, &options, &s->listener);
    if (st != LS_OK) {
        c10d_store_destroy(s);
        return st;
    }
    *out = s;
    return LS_OK;
}

void c10d_store_destroy(c10d_store *s)
{
    if (s == NULL)
        return;
    while (!list_empty(&s->conns))
        c10d_drop(list_entry(s->conns.next, c10d_conn, node), NULL);
    reap(s);
    poller_timer_cancel(&s->reaper);
    user_listener_close(s->listener);
    table_free(&s->table);
    c10d_queues_free(&s->queues);
    ls_free(s);
}

bool c10d_store_was_used(const c10d_store *s)
{
    return s->was_used;
}

int c10d_store_port(const c10d_store *s)
{
    return user_listener_port(s->listener);
}
