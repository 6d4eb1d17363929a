/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame_link.c - reads and writes the frames of one connection when the poller reports it.
 * Callbacks for the end and for an empty queue come from the event loop only, so a caller may send
 * while it walks over links. Used by the hub, the head and the agents.
 */
#include "net/messages/frame_link.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "net/socket.h"

#include <sys/socket.h>

enum { FINISH_MS = 2000, READS_A_ROUND = 4 };

static void stop(frame_link *l)
{
    poller_close(&l->watch, &l->fd);
}

static void tell_end(void *arg)
{
    frame_link *l = arg;

    stop(l);
    l->ended(l->self, l->why);
}

/* Ends the link later: the sender may be iterating over links. */
static void end_soon(frame_link *l, bool is_closed_by_peer, const char *why)
{
    if (l->why[0] != 0)
        return;
    l->is_closed_by_peer = is_closed_by_peer;
    text_format(l->why, sizeof(l->why), "%s", why[0] != 0 ? why : "closed");
    stop(l);
    poller_timer_set(l->loop, &l->end, ls_now_ms(), tell_end, l);
}

static void finish_is_over(void *arg)
{
    frame_link *l = arg;

    text_format(l->why, sizeof(l->why), "it does not read");
    tell_end(l);
}

/* The peer has closed the connection. Reading finds the end behind the frames that the peer sent
 * before: a rank that fails reports the cause and exits. */
static void cut(frame_link *l)
{
    l->is_send_failed = true;
    if (poller_change(l->watch, POLL_READ) != LS_OK)
        end_soon(l, false, ls_last_error());
}

static void flush(frame_link *l)
{
    bool needs_write;

    if (frame_queue_flush(&l->out, l->fd, l->peer) != LS_OK) {
        if (l->is_finishing)
            end_soon(l, true, ls_last_error());
        else
            cut(l);
        return;
    }
    needs_write = frame_queue_bytes(&l->out) > 0;
    /* Closing now could discard bytes in flight. */
    if (!needs_write && l->is_finishing)
        (void)shutdown(l->fd, SHUT_WR);
    if (needs_write == l->needs_write)
        return;
    l->needs_write = needs_write;
    if (poller_change(l->watch, needs_write ? POLL_READ | POLL_WRITE : POLL_READ) != LS_OK)
        end_soon(l, false, ls_last_error());
    else if (!needs_write && l->drained != NULL)
        l->drained(l->self);
}

static ls_status hand_on(frame_link *l)
{
    frame f;
    bool have = true;

    while (have && l->fd >= 0 && !l->is_finishing) {
        LS_TRY(frame_reader_next(&l->in, &f, &have));
        if (have)
            LS_TRY(l->message(l->self, &f));
    }
    return LS_OK;
}

static void receive(frame_link *l)
{
    size_t moved = 1;
    bool is_closed_by_peer = false;
    ls_status st = LS_OK;

    for (int i = 0; i < READS_A_ROUND && moved > 0 && st == LS_OK && l->fd >= 0 && !l->is_finishing;
         i++) {
        st = frame_reader_fill(&l->in, l->fd, l->peer, &moved);
        is_closed_by_peer = st == LS_EPEER;
        if (moved > 0)
            l->received_ms = ls_now_ms();
        if (st == LS_OK)
            st = hand_on(l);
    }
    if (st != LS_OK && l->fd >= 0)
        end_soon(l, is_closed_by_peer, ls_last_error());
}

/* Until the peer has closed its end as well. */
static void discard(frame_link *l)
{
    uint8_t bytes[4096];
    size_t moved;

    if (net_recv_some(l->fd, l->peer, bytes, sizeof(bytes), &moved) != LS_OK)
        end_soon(l, true, "closed");
}

static void on_event(void *arg, unsigned events)
{
    frame_link *l = arg;

    if ((events & POLL_WRITE) != 0 && !l->is_send_failed)
        flush(l);
    if (l->fd < 0 || (events & (POLL_READ | POLL_BROKEN)) == 0)
        return;
    if (l->is_finishing)
        discard(l);
    else
        receive(l);
}

ls_status frame_link_open(frame_link *l, poller *p, int fd, const char *peer, size_t body_max,
                          size_t queue_max)
{
    l->loop = p;
    l->fd = fd;
    l->peer = peer;
    l->received_ms = ls_now_ms();
    l->needs_write = false;
    l->is_finishing = false;
    l->is_send_failed = false;
    l->why[0] = 0;
    l->is_closed_by_peer = false;
    frame_reader_init(&l->in, body_max);
    frame_queue_init(&l->out, queue_max);
    if (poller_watch(p, fd, POLL_READ, on_event, l, &l->watch) == LS_OK)
        return LS_OK;
    file_close(&l->fd);
    return ls_context(LS_ESYSTEM, "%s", peer);
}

void frame_link_seal(frame_link *l, const seal_pair *seals)
{
    l->in.seal = seals->in;
    l->out.seal = seals->out;
}

void frame_link_send(frame_link *l, uint32_t type, const void *body, size_t bytes)
{
    if (l->watch == NULL || l->is_finishing || l->is_send_failed)
        return;
    if (frame_queue_add(&l->out, type, body, bytes) != LS_OK)
        end_soon(l, false, "it does not read what it is sent");
    else if (!l->needs_write)
        flush(l);
}

void frame_link_fail(frame_link *l, const char *why)
{
    if (l->watch != NULL && !l->is_finishing)
        end_soon(l, false, why);
}

void frame_link_finish(frame_link *l)
{
    if (l->watch == NULL || l->is_finishing)
        return;
    l->is_finishing = true;
    poller_timer_set(l->loop, &l->end, ls_now_ms() + FINISH_MS, finish_is_over, l);
    if (!l->needs_write && !l->is_send_failed)
        flush(l);
}

void frame_link_close(frame_link *l)
{
    if (l->loop == NULL)
        return;
    poller_timer_cancel(&l->end);
    stop(l);
    frame_reader_free(&l->in);
    frame_queue_free(&l->out);
    l->loop = NULL;
}
