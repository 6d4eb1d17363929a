/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream_mux.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/byte_queue.h"
#include "net/socket.h"
#include "net/wire.h"

#define STREAMS_MOST 4096
#define LINK_FULL    ((size_t)4 * 1024 * 1024) /* bytes that wait in the link: the sockets wait, too */
#define HELD_MOST    ((size_t)16 * 1024 * 1024) /* bytes that wait for one socket */
#define PIECE_BYTES  ((size_t)8 * 1024)

static const char peer[] = "a stream's socket";

typedef struct stream {
    list_node node;
    stream_mux *owner;
    uint32_t id;
    int fd;
    poll_watch *watch;
    byte_queue out; /* for the socket */
} stream;

static void send_piece(stream_mux *m, uint32_t id, const uint8_t *bytes, size_t n)
{
    wire_writer w = {0};

    wire_write_u32(&w, id);
    wire_write_raw(&w, bytes, n);
    if (wire_writer_status(&w) == LS_OK)
        frame_link_send(m->link, m->type, w.data, w.bytes);
    wire_writer_free(&w);
}

static void close_stream(stream *s, bool tell)
{
    if (tell)
        send_piece(s->owner, s->id, NULL, 0);
    s->owner->n_streams--;
    list_remove(&s->node);
    poller_unwatch(s->watch);
    file_close(&s->fd);
    byte_queue_free(&s->out);
    ls_free(s);
}

static ls_status watch(stream *s)
{
    const bool full = frame_queue_bytes(&s->owner->link->out) > LINK_FULL;

    return poller_change(s->watch,
                         (full ? 0 : POLL_READ) | (byte_queue_held(&s->out) > 0 ? POLL_WRITE : 0));
}

static ls_status pass_on(stream *s)
{
    uint8_t bytes[PIECE_BYTES];
    size_t moved;

    LS_TRY(net_recv_some(s->fd, peer, bytes, sizeof(bytes), &moved));
    if (moved > 0)
        send_piece(s->owner, s->id, bytes, moved);
    return LS_OK;
}

static void on_socket(void *arg, unsigned events)
{
    stream *s = arg;
    ls_status st = LS_OK;

    if ((events & POLL_WRITE) != 0)
        st = byte_queue_flush(&s->out, s->fd, peer);
    if (st == LS_OK && (events & (POLL_READ | POLL_BROKEN)) != 0)
        st = pass_on(s);
    if (st == LS_OK)
        st = watch(s);
    if (st != LS_OK)
        close_stream(s, true);
}

static stream *find(const stream_mux *m, uint32_t id)
{
    list_for_each (it, &m->streams) {
        stream *s = list_entry(it, stream, node);

        if (s->id == id)
            return s;
    }
    return NULL;
}

static ls_status add(stream_mux *m, int fd, uint32_t id, stream **out)
{
    stream *s = m->n_streams < STREAMS_MOST ? ls_calloc(1, sizeof(*s)) : NULL;

    if (s == NULL) {
        file_close(&fd);
        return ls_fail(LS_ENOMEM, "no room for one more stream, %d are open", m->n_streams);
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
        return ls_fail(LS_EPROTO, "a stream that nobody has begun, or that is over");
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

void stream_mux_end(stream_mux *m)
{
    while (m->loop != NULL && !list_empty(&m->streams))
        close_stream(list_entry(m->streams.next, stream, node), false);
}

ls_status stream_mux_begin(stream_mux *m, int fd)
{
    stream *s;

    return add(m, fd, ++m->last_id, &s);
}

ls_status stream_mux_hear(stream_mux *m, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t id = wire_read_u32(&r);
    const size_t bytes = r.bytes - r.at;
    stream *s = find(m, id);

    if (r.failed)
        return ls_fail(LS_EPROTO, "half a piece of a stream");
    if (bytes == 0) {
        if (s != NULL)
            close_stream(s, false);
        return LS_OK;
    }
    if (s == NULL && open_new(m, id, &s) != LS_OK) {
        send_piece(m, id, NULL, 0); /* also for what was still under way when it ended here */
        return LS_OK;
    }
    if (byte_queue_held(&s->out) + bytes > HELD_MOST ||
        byte_queue_add(&s->out, r.data + r.at, bytes) != LS_OK ||
        byte_queue_flush(&s->out, s->fd, peer) != LS_OK || watch(s) != LS_OK)
        close_stream(s, true);
    return LS_OK;
}

void stream_mux_resume(stream_mux *m)
{
    list_for_each (it, &m->streams) {
        stream *s = list_entry(it, stream, node);

        if (watch(s) == LS_OK)
            continue;
        close_stream(s, true);
        return; /* its neighbours are looked at again when they next move */
    }
}
