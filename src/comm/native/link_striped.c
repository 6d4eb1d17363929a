/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_striped.c - the stream of a link over several others, its strands, where one connection does not fill the line.
 *
 * Block i of BLOCK_BYTES of the stream is written to strand i mod n, in each direction. So both ends know where each byte is, nothing says
 * it on the wire, and nothing comes out of order: the system's buffers of all strands are what keeps them busy together.
 *
 * The descriptor to poll is an epoll of our own. It holds all strands: the one that is to be read next for reading, those that are
 * full for writing, and the others for errors.
 */
#include "comm/native/link.h"

#include "base/alloc.h"
#include "base/text.h"
#include "comm/native/pieces.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK_BYTES ((size_t)64 * 1024)
#define PIECES_MAX  16 /* of a call of link.c */
#define LOOK_EVERY  64 /* reads in vain between looks for strands that broke out of turn */

/* How far one direction is. */
typedef struct course {
    int strand;
    size_t left; /* of its block */
} course;

typedef struct striped_stream {
    int n;
    peer_link *strands[LINK_STRANDS_MAX]; /* NULL: not there yet */
    uint32_t watched[LINK_STRANDS_MAX];   /* what the epoll has of each */
    course out;
    course in;
    bool is_torn;   /* a strand could not be written to */
    bool has_ended; /* nothing more can be read */
    unsigned n_idle;
} striped_stream;

static void advance(const striped_stream *s, course *c, size_t bytes)
{
    c->left -= bytes;
    if (c->left > 0)
        return;
    c->strand = (c->strand + 1) % s->n;
    c->left = BLOCK_BYTES;
}

static void striped_finish(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->strands[i] != NULL)
            s->strands[i]->ops->finish(s->strands[i]);
}

// --- writing ---

static ssize_t tear(peer_link *l, striped_stream *s, const peer_link *strand)
{
    s->is_torn = true;
    l->error = strand->error;
    return -1;
}

// What strands have taken but still hold goes out whosever turn it is: the peer may be waiting for just that.
static bool push(peer_link *l, striped_stream *s)
{
    l->unsent = 0;
    for (int i = 0; i < s->n; i++) {
        peer_link *strand = s->strands[i];

        if (strand == NULL || strand->unsent == 0)
            continue;
        if (strand->ops->write(strand, NULL, 0) < 0) {
            (void)tear(l, s, strand);
            return false;
        }
        l->unsent += strand->unsent;
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
        peer_link *strand = s->strands[s->out.strand];
        struct iovec block[PIECES_MAX];
        size_t bytes;
        const int n_block = pieces_cut(&p, s->out.left, block, &bytes);
        ssize_t done;

        if (n_block == 0 || strand == NULL || strand->unsent > 0)
            return (ssize_t)moved;
        done = strand->ops->write(strand, block, n_block);
        if (done < 0)
            return tear(l, s, strand);
        l->unsent += strand->unsent;
        moved += (size_t)done;
        advance(s, &s->out, (size_t)done);
        if ((size_t)done < bytes)
            return (ssize_t)moved;
    }
}

// --- reading ---

// The peer is to notice, and what is polled stays readable until the end has been told.
static void end_reading(peer_link *l, striped_stream *s, const peer_link *strand)
{
    s->has_ended = true;
    if (strand->error != 0)
        l->error = strand->error;
    if (strand->fault[0] != '\0')
        text_format(l->fault, sizeof(l->fault), "%s", strand->fault);
    striped_finish(l);
    shutdown(strand->fd, SHUT_RD);
}

/* A strand that has broken while it is another one's turn: what is waited for may never come. Not an orderly end, which comes to all
 * strands, with bytes in others still to be read. */
static void look_for_broken(peer_link *l, striped_stream *s)
{
    struct epoll_event events[LINK_STRANDS_MAX];
    const int n = epoll_wait(l->fd, events, LINK_STRANDS_MAX, 0);

    for (int i = 0; i < n; i++) {
        peer_link *strand = s->strands[events[i].data.u32];
        socklen_t bytes = sizeof(strand->error);

        if ((events[i].events & (EPOLLERR | EPOLLHUP)) == 0)
            continue;
        if (getsockopt(strand->fd, SOL_SOCKET, SO_ERROR, &strand->error, &bytes) == 0 &&
            (strand->error != 0 || s->is_torn)) {
            end_reading(l, s, strand);
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
        peer_link *strand = s->strands[s->in.strand];
        struct iovec block[PIECES_MAX];
        size_t bytes;
        const int n_block = pieces_cut(&p, s->in.left, block, &bytes);
        ssize_t done;

        if (n_block == 0 || strand == NULL)
            break;
        done = strand->ops->read(strand, block, n_block);
        if (done < 0) {
            end_reading(l, s, strand);
            break;
        }
        moved += (size_t)done;
        advance(s, &s->in, (size_t)done);
        if ((size_t)done < bytes)
            break;
    }
    l->unread = s->strands[s->in.strand] == NULL ? 0 : s->strands[s->in.strand]->unread;
    if (moved == 0 && !s->has_ended && ++s->n_idle % LOOK_EVERY == 0)
        look_for_broken(l, s);
    return moved == 0 && s->has_ended ? -1 : (ssize_t)moved;
}

// --- polling ---

static uint32_t to_watch(const peer_link *l, const striped_stream *s, int i)
{
    const bool is_full = l->wants_write && !l->is_cut;
    uint32_t events = 0;

    if (i == s->in.strand)
        events |= EPOLLIN;
    if (is_full && (i == s->out.strand || s->strands[i]->unsent > 0))
        events |= EPOLLOUT;
    return events;
}

static int watch(const peer_link *l, striped_stream *s, int i, int action)
{
    struct epoll_event event = {.events = to_watch(l, s, i), .data = {.u32 = (uint32_t)i}};

    s->watched[i] = event.events;
    return epoll_ctl(l->fd, action, s->strands[i]->fd, &event);
}

static void striped_settle(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->strands[i] != NULL && s->watched[i] != to_watch(l, s, i))
            (void)watch(l, s, i, EPOLL_CTL_MOD);
}

// --- the rest ---

static bool striped_is_delivered(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        if (s->strands[i] != NULL && !s->strands[i]->ops->is_delivered(s->strands[i]))
            return false;
    return true;
}

static void striped_forked(const peer_link *l)
{
    const striped_stream *s = l->stream;

    close(l->fd);
    for (int i = 0; i < s->n; i++)
        if (s->strands[i] != NULL)
            link_forked(s->strands[i]);
}

static void striped_close(peer_link *l)
{
    striped_stream *s = l->stream;

    for (int i = 0; i < s->n; i++)
        link_destroy(s->strands[i]);
    close(l->fd);
    ls_free(s);
}

static const link_ops striped_ops = {
    .write = striped_write,
    .read = striped_read,
    .is_delivered = striped_is_delivered,
    .finish = striped_finish,
    .close = striped_close,
    .settle = striped_settle,
    .forked = striped_forked,
};

ls_status link_striped_create(int n, const link_sink *sink, peer_link **out)
{
    striped_stream *s = ls_calloc(1, sizeof(*s));
    int fd;

    LS_ASSERT(n >= 2 && n <= LINK_STRANDS_MAX);
    if (s == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a link");
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

ls_status link_striped_add(peer_link *l, int number, peer_link *strand)
{
    striped_stream *s = l->stream;
    ls_status st;

    LS_ASSERT(!link_striped_has(l, number));
    s->strands[number] = strand;
    if (watch(l, s, number, EPOLL_CTL_ADD) == 0)
        return LS_OK;
    st = ls_fail_errno("epoll_ctl");
    s->strands[number] = NULL;
    link_destroy(strand);
    return st;
}

bool link_striped_has(const peer_link *l, int number)
{
    const striped_stream *s = l->stream;

    LS_ASSERT(l->ops == &striped_ops && number >= 0 && number < s->n);
    return s->strands[number] != NULL;
}
