/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_mux.c - moves bytes between the sockets of this machine and the frames of one link. Each
 * direction has a bound: a full link pauses the sockets, and a full socket ends its stream. Agents
 * and the head carry the connections of PyTorch's store with it.
 */
#include "net/messages/stream_mux.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/byte_queue.h"
#include "net/socket.h"
#include "net/wire.h"

#define STREAMS_MOST 4096
#define LINK_FULL    ((size_t)4 * 1024 * 1024)  /* queued in the link: the sockets pause */
#define HELD_MOST    ((size_t)16 * 1024 * 1024) /* queued for one socket */
#define HELD_ALL     ((size_t)64 * 1024 * 1024) /* queued for all sockets */
#define PIECE_BYTES  ((size_t)8 * 1024)
#define ID_BYTES     ((size_t)4)

static const char peer[] = "a stream's socket";

typedef struct stream {
    list_node node;
    stream_mux *owner;
    uint32_t id;
    int fd;
    poll_watch *watch; /* NULL = waits for the link only */
    byte_queue out;    /* for the socket */
    bool is_ending;    /* the other side has ended the stream: closes after writing */
} stream;

/* `piece` has ID_BYTES before its n bytes. No memory is needed here: a stream that lacks a piece
 * would not show it. */
static void send_piece(const stream_mux *m, uint32_t id, uint8_t *piece, size_t n)
{
    wire_put_u32(piece, id);
    frame_link_send(m->link, m->type, piece, ID_BYTES + n);
}

static void send_end(const stream_mux *m, uint32_t id)
{
    uint8_t piece[ID_BYTES];

    send_piece(m, id, piece, 0);
}

static void close_stream(stream *s, bool tell)
{
    if (tell)
        send_end(s->owner, s->id);
    s->owner->n_streams--;
    s->owner->held -= byte_queue_size(&s->out);
    list_remove(&s->node);
    poller_close(&s->watch, &s->fd);
    byte_queue_free(&s->out);
    ls_free(s);
}

static bool is_link_full(const stream_mux *m)
{
    return frame_queue_bytes(&m->link->out) > LINK_FULL;
}

static void on_socket(void *arg, unsigned events);

/* An idle socket is not watched at all: its end would be reported again and again. */
static ls_status watch(stream *s)
{
    const unsigned events = (s->is_ending || is_link_full(s->owner) ? 0 : POLL_READ) |
                            (byte_queue_size(&s->out) > 0 ? POLL_WRITE : 0);

    if (events == 0) {
        poller_unwatch(&s->watch);
        return LS_OK;
    }
    if (s->watch == NULL)
        return poller_watch(s->owner->loop, s->fd, events, on_socket, s, &s->watch);
    return poller_change(s->watch, events);
}

static ls_status write_out(stream *s)
{
    const size_t before = byte_queue_size(&s->out);
    const ls_status st = byte_queue_flush(&s->out, s->fd, peer);

    s->owner->held -= before - byte_queue_size(&s->out);
    return st;
}

static ls_status pass_on(stream *s)
{
    uint8_t piece[ID_BYTES + PIECE_BYTES];
    size_t moved;

    LS_TRY(net_recv_some(s->fd, peer, piece + ID_BYTES, PIECE_BYTES, &moved));
    if (moved > 0)
        send_piece(s->owner, s->id, piece, moved);
    return LS_OK;
}

/* Many sockets may be readable in one round: the queue of the link is checked for each. */
static void on_socket(void *arg, unsigned events)
{
    stream *s = arg;
    ls_status st = LS_OK;

    if ((events & (POLL_WRITE | POLL_BROKEN)) != 0)
        st = write_out(s);
    if (st == LS_OK && s->is_ending && byte_queue_size(&s->out) == 0) {
        close_stream(s, false);
        return;
    }
    if (st == LS_OK && (events & (POLL_READ | POLL_BROKEN)) != 0 && !s->is_ending &&
        !is_link_full(s->owner))
        st = pass_on(s);
    if (st == LS_OK)
        st = watch(s);
    if (st != LS_OK)
        close_stream(s, !s->is_ending);
}

static stream *find(const stream_mux *m, uint32_t id)
{
    list_for_each_entry (stream, s, &m->streams, node)
        if (s->id == id)
            return s;
    return NULL;
}

static ls_status add(stream_mux *m, int fd, uint32_t id, stream **out)
{
    stream *s = m->n_streams < STREAMS_MOST ? ls_calloc(1, sizeof(*s)) : NULL;

    if (s == NULL) {
        file_close(&fd);
        return ls_fail(LS_ENOMEM, "no memory for a stream, %d are open", m->n_streams);
    }
    *s = (stream){.owner = m, .id = id, .fd = fd};
    list_append(&m->streams, &s->node);
    m->n_streams++;
    *out = s;
    if (poller_watch(m->loop, fd, POLL_READ, on_socket, s, &s->watch) == LS_OK)
        return LS_OK;
    close_stream(s, false);
    return LS_ESYSTEM;
}

static ls_status open_new(stream_mux *m, uint32_t id, stream **out)
{
    int fd;

    if (m->open == NULL || id <= m->last_id)
        return ls_fail(LS_EPROTO, "a frame of an unknown or closed stream");
    m->last_id = id;
    LS_TRY(m->open(m->self, &fd));
    return add(m, fd, id, out);
}

void stream_mux_init(stream_mux *m, poller *p, frame_link *link, uint32_t type)
{
    m->loop = p;
    m->link = link;
    m->type = type;
    list_init(&m->streams);
}

void stream_mux_close(stream_mux *m)
{
    while (m->loop != NULL && !list_empty(&m->streams))
        close_stream(list_entry(m->streams.next, stream, node), false);
}

ls_status stream_mux_begin(stream_mux *m, int fd)
{
    stream *s;

    return add(m, fd, ++m->last_id, &s);
}

static ls_status take(stream *s, const uint8_t *bytes, size_t n)
{
    stream_mux *m = s->owner;

    if (s->is_ending)
        return ls_fail(LS_EPROTO, "data after the end of a stream");
    if (byte_queue_size(&s->out) + n > HELD_MOST || m->held + n > HELD_ALL)
        return ls_fail(LS_ENOMEM, "a stream's socket does not accept data");
    LS_TRY(byte_queue_add(&s->out, bytes, n));
    m->held += n;
    LS_TRY(write_out(s));
    return watch(s);
}

ls_status stream_mux_receive(stream_mux *m, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t id = wire_read_u32(&r);
    const size_t bytes = r.bytes - r.at;
    stream *s = find(m, id);

    if (r.failed)
        return ls_fail(LS_EPROTO, "a truncated stream frame");
    if (bytes == 0) {
        if (s == NULL)
            return LS_OK;
        s->is_ending = true;
        if (byte_queue_size(&s->out) == 0 || watch(s) != LS_OK)
            close_stream(s, false);
        return LS_OK;
    }
    if (s == NULL && open_new(m, id, &s) != LS_OK) {
        send_end(m, id); /* also for frames that were in flight when it ended here */
        return LS_OK;
    }
    if (take(s, r.data + r.at, bytes) != LS_OK)
        close_stream(s, true);
    return LS_OK;
}

void stream_mux_resume(stream_mux *m)
{
    list_for_each_safe (it, &m->streams) {
        stream *s = list_entry(it, stream, node);

        if (watch(s) != LS_OK)
            close_stream(s, true);
    }
}
