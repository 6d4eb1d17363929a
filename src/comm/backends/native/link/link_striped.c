/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_striped.c - the stream of a link over several others, where one connection does not fill the
 * line. mesh_streams.c creates it.
 *
 * Block i of BLOCK_BYTES of the stream is written to stream i mod n, in each direction. So both
 * ends know where each byte is without any header, and nothing arrives out of order: the system's
 * buffers of all streams keep them busy together.
 *
 * The descriptor to poll is an epoll of its own. It holds all streams: the next one to be read for
 * reading, those that are full for writing, and the others for errors.
 */
#include "comm/backends/native/link/link.h"

#include "base/alloc.h"
#include "base/text.h"
#include "comm/backends/native/link/pieces.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK_BYTES ((size_t)64 * 1024)
#define PIECES_MAX  16 /* in one call from link.c */
#define CHECK_EVERY 64 /* reads without bytes between checks for failed streams */

/* The progress of one direction. */
typedef struct cursor {
    int stream;
    size_t left; /* of its block */
} cursor;

typedef struct striped_stream {
    int n;
    peer_link *streams[LINK_STREAMS_MAX]; /* NULL: not added yet */
    uint32_t watched[LINK_STREAMS_MAX];   /* epoll events of each */
    cursor out;
    cursor in;
    bool write_failed; /* a write to a stream failed */
    bool has_ended;    /* nothing more can be read */
    unsigned n_idle;
} striped_stream;

static void advance(const striped_stream *s, cursor *c, size_t bytes)
{
    c->left -= bytes;
    if (c->left > 0)
        return;
    c->stream = (c->stream + 1) % s->n;
    c->left = BLOCK_BYTES;
}

static void striped_finish(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->streams[i] != NULL)
            s->streams[i]->ops->finish(s->streams[i]);
}

// --- writing ---

static ssize_t fail_write(peer_link *l, striped_stream *s, const peer_link *stream)
{
    s->write_failed = true;
    l->error = stream->error;
    return -1;
}

// Sends what streams have taken but not sent, whichever stream is next: the peer may wait for it.
static bool push(peer_link *l, striped_stream *s)
{
    l->unsent = 0;
    for (int i = 0; i < s->n; i++) {
        peer_link *stream = s->streams[i];

        if (stream == NULL || stream->unsent == 0)
            continue;
        if (stream->ops->write(stream, NULL, 0) < 0) {
            (void)fail_write(l, s, stream);
            return false;
        }
        l->unsent += stream->unsent;
    }
    return true;
}

static ssize_t striped_write(peer_link *l, const struct iovec *iov, int n)
{
    striped_stream *s = l->stream;
    pieces p = {.iov = iov, .n = n};
    size_t moved = 0;

    LS_ASSERT(n <= PIECES_MAX);
    if (!push(l, s))
        return -1;
    for (;;) {
        peer_link *stream = s->streams[s->out.stream];
        struct iovec block[PIECES_MAX];
        size_t bytes;
        const int n_block = pieces_cut(&p, s->out.left, block, &bytes);
        ssize_t done;

        if (n_block == 0 || stream == NULL || stream->unsent > 0)
            return (ssize_t)moved;
        done = stream->ops->write(stream, block, n_block);
        if (done < 0)
            return fail_write(l, s, stream);
        l->unsent += stream->unsent;
        moved += (size_t)done;
        advance(s, &s->out, (size_t)done);
        if ((size_t)done < bytes)
            return (ssize_t)moved;
    }
}

// --- reading ---

// Lets the peer notice, and keeps the polled descriptor readable until the end is reported.
static void end_reading(peer_link *l, striped_stream *s, const peer_link *stream)
{
    s->has_ended = true;
    if (stream->error != 0)
        l->error = stream->error;
    if (stream->fault[0] != '\0')
        text_format(l->fault, sizeof(l->fault), "%s", stream->fault);
    striped_finish(l);
    shutdown(stream->fd, SHUT_RD);
}

/* Checks for a stream that has failed out of turn: the next bytes may never come. An orderly end
 * comes to all streams, while others may still hold bytes. */
static void check_failed_streams(peer_link *l, striped_stream *s)
{
    struct epoll_event events[LINK_STREAMS_MAX];
    const int n = epoll_wait(l->fd, events, LINK_STREAMS_MAX, 0);

    for (int i = 0; i < n; i++) {
        peer_link *stream = s->streams[events[i].data.u32];
        socklen_t bytes = sizeof(stream->error);

        if ((events[i].events & (EPOLLERR | EPOLLHUP)) == 0)
            continue;
        if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &stream->error, &bytes) == 0 &&
            (stream->error != 0 || s->write_failed)) {
            end_reading(l, s, stream);
            return;
        }
    }
}

static ssize_t striped_read(peer_link *l, const struct iovec *iov, int n)
{
    striped_stream *s = l->stream;
    pieces p = {.iov = iov, .n = n};
    size_t moved = 0;

    LS_ASSERT(n <= PIECES_MAX);
    while (!s->has_ended) {
        peer_link *stream = s->streams[s->in.stream];
        struct iovec block[PIECES_MAX];
        size_t bytes;
        const int n_block = pieces_cut(&p, s->in.left, block, &bytes);
        ssize_t done;

        if (n_block == 0 || stream == NULL)
            break;
        done = stream->ops->read(stream, block, n_block);
        if (done < 0) {
            end_reading(l, s, stream);
            break;
        }
        moved += (size_t)done;
        advance(s, &s->in, (size_t)done);
        if ((size_t)done < bytes)
            break;
    }
    l->buffered = s->streams[s->in.stream] == NULL ? 0 : s->streams[s->in.stream]->buffered;
    if (moved == 0 && !s->has_ended && ++s->n_idle % CHECK_EVERY == 0)
        check_failed_streams(l, s);
    return moved == 0 && s->has_ended ? -1 : (ssize_t)moved;
}

// --- polling ---

static uint32_t to_watch(const peer_link *l, const striped_stream *s, int i)
{
    const bool is_full = l->is_full && !l->is_cut;
    uint32_t events = 0;

    if (i == s->in.stream)
        events |= EPOLLIN;
    if (is_full && (i == s->out.stream || s->streams[i]->unsent > 0))
        events |= EPOLLOUT;
    return events;
}

static int watch(const peer_link *l, striped_stream *s, int i, int action)
{
    struct epoll_event event = {.events = to_watch(l, s, i), .data = {.u32 = (uint32_t)i}};

    s->watched[i] = event.events;
    return epoll_ctl(l->fd, action, s->streams[i]->fd, &event);
}

static void striped_settle(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->streams[i] != NULL && s->watched[i] != to_watch(l, s, i))
            (void)watch(l, s, i, EPOLL_CTL_MOD);
}

// --- the rest ---

static bool striped_is_delivered(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->streams[i] != NULL && !s->streams[i]->ops->is_delivered(s->streams[i]))
            return false;
    return true;
}

static bool striped_is_unanswered(const peer_link *l, int silence_ms)
{
    const striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->streams[i] != NULL && s->streams[i]->ops->is_unanswered(s->streams[i], silence_ms))
            return true;
    return false;
}

static void striped_forked(const peer_link *l)
{
    const striped_stream *s = l->stream;

    close(l->fd);
    for (int i = 0; i < s->n; i++)
        if (s->streams[i] != NULL)
            link_forked(s->streams[i]);
}

static void striped_close(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        link_destroy(s->streams[i]);
    close(l->fd);
    ls_free(s);
}

static const link_ops striped_ops = {
    .write = striped_write,
    .read = striped_read,
    .is_delivered = striped_is_delivered,
    .is_unanswered = striped_is_unanswered,
    .finish = striped_finish,
    .close = striped_close,
    .settle = striped_settle,
    .forked = striped_forked,
};

ls_status link_striped_create(int n, const link_sink *sink, peer_link **out)
{
    striped_stream *s;
    int fd;

    LS_ASSERT(n >= 2 && n <= LINK_STREAMS_MAX);
    LS_TRY(LS_NEW(&s, 1, "for a link"));
    fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0) {
        ls_free(s);
        return ls_fail_errno("epoll_create1");
    }
    s->n = n;
    s->in.left = BLOCK_BYTES;
    s->out.left = BLOCK_BYTES;
    return link_create(&striped_ops, s, fd, sink, out);
}

ls_status link_striped_add(peer_link *l, int number, peer_link *stream)
{
    striped_stream *s = l->stream;
    ls_status st;

    LS_ASSERT(!link_striped_has(l, number));
    s->streams[number] = stream;
    if (watch(l, s, number, EPOLL_CTL_ADD) == 0)
        return LS_OK;
    st = ls_fail_errno("epoll_ctl");
    s->streams[number] = NULL;
    link_destroy(stream);
    return st;
}

bool link_striped_has(const peer_link *l, int number)
{
    const striped_stream *s = l->stream;

    LS_ASSERT(l->ops == &striped_ops && number >= 0 && number < s->n);
    return s->streams[number] != NULL;
}
