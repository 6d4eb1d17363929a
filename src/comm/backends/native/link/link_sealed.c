/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_sealed.c - the stream of a link over a connected socket, in records that no third party can
 * change (or read).
 *
 * Both directions go through a buffer of one record. A read never takes content of a second record,
 * so all bytes that are still to be handled are in the socket or counted in `buffered`.
 * mesh_streams.c creates it.
 */
#include "comm/backends/native/link/link.h"

#include "base/alloc.h"
#include "base/text.h"
#include "comm/backends/native/link/pieces.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECORDS_A_CALL 16
#define AHEAD_BYTES    SEAL_HEAD_BYTES /* the next record's head, read in the same call */

typedef struct sealed_stream {
    seal_pair seals;
    uint8_t out[SEAL_RECORD_MAX + SEAL_OVERHEAD];
    size_t out_at; /* where the link's `unsent` bytes are */
    uint8_t in[SEAL_RECORD_MAX + SEAL_OVERHEAD + AHEAD_BYTES];
    size_t in_held;
    size_t in_record; /* of the opened record at the front, 0: it is not complete */
    size_t in_at;     /* where the link's `buffered` bytes of it are */
} sealed_stream;

static int fail_stream(peer_link *l, int error)
{
    l->error = error;
    return -1;
}

// --- writing ---

// False when the stream has failed. Bytes that the socket did not take stay in `unsent`.
static bool push(peer_link *l, sealed_stream *s)
{
    while (l->unsent > 0) {
        const ssize_t n = send(l->fd, s->out + s->out_at, l->unsent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n < 0) {
            l->error = errno;
            return false;
        }
        s->out_at += (size_t)n;
        l->unsent -= (size_t)n;
    }
    return true;
}

static size_t copy_from_pieces(pieces *p, uint8_t *out)
{
    size_t done = 0;
    size_t n = 1;

    while (done < SEAL_RECORD_MAX && n > 0) {
        uint8_t *piece;

        n = pieces_next(p, SEAL_RECORD_MAX - done, &piece);
        if (n > 0)
            memcpy(out + done, piece, n);
        done += n;
    }
    return done;
}

static ssize_t sealed_write(peer_link *l, const struct iovec *iov, int n)
{
    sealed_stream *s = l->stream;
    pieces p = {.iov = iov, .n = n};
    size_t moved = 0;

    if (!push(l, s))
        return -1;
    for (int i = 0; i < RECORDS_A_CALL && l->unsent == 0; i++) {
        const size_t bytes = copy_from_pieces(&p, s->out + SEAL_HEAD_BYTES);

        if (bytes == 0)
            break;
        s->out_at = 0;
        l->unsent = seal_close(&s->seals.out, s->out, bytes);
        if (!push(l, s))
            return -1;
        moved += bytes;
    }
    return (ssize_t)moved;
}

// --- reading ---

// As in link.c: a protocol error with a text.
static int fail_record(peer_link *l)
{
    text_printable(l->fault, sizeof(l->fault), ls_last_error());
    l->ops->finish(l);
    return fail_stream(l, EPROTO);
}

// Opens the record at the front, if all of it has come.
static bool open_record(peer_link *l, sealed_stream *s)
{
    if (seal_open(&s->seals.in, s->in, s->in_held, &s->in_record, &l->buffered) != LS_OK)
        return false;
    s->in_at = SEAL_HEAD_BYTES;
    return true;
}

// 1: a record is open; 0: nothing more has come; -1: the stream has ended.
static int fetch_record(peer_link *l, sealed_stream *s)
{
    for (;;) {
        size_t needed;
        ssize_t n;

        if (!open_record(l, s))
            return fail_record(l);
        if (s->in_record > 0)
            return 1;
        needed = seal_needed(s->in, s->in_held);
        if (s->in_held >= SEAL_HEAD_BYTES)
            needed += AHEAD_BYTES;
        n = recv(l->fd, s->in + s->in_held, needed - s->in_held, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : fail_stream(l, errno);
        if (n == 0) // an orderly end comes between records
            return s->in_held > 0 ? fail_stream(l, ECONNRESET) : -1;
        s->in_held += (size_t)n;
    }
}

static size_t copy_to_pieces(peer_link *l, sealed_stream *s, pieces *p)
{
    size_t moved = 0;

    while (l->buffered > 0) {
        uint8_t *piece;
        const size_t n = pieces_next(p, l->buffered, &piece);

        if (n == 0)
            return moved;
        memcpy(piece, s->in + s->in_at, n);
        s->in_at += n;
        l->buffered -= n;
        moved += n;
    }
    s->in_held -= s->in_record;
    memmove(s->in, s->in + s->in_record, s->in_held); // at most the next record's head
    s->in_record = 0;
    return moved;
}

static ssize_t sealed_read(peer_link *l, const struct iovec *iov, int n)
{
    sealed_stream *s = l->stream;
    pieces p = {.iov = iov, .n = n};

    if (l->buffered == 0) {
        const int have = fetch_record(l, s);

        if (have <= 0)
            return have;
    }
    return (ssize_t)copy_to_pieces(l, s, &p);
}

// --- the rest ---

static bool sealed_is_delivered(peer_link *l)
{
    return l->unsent == 0 && link_socket_is_drained(l);
}

static void sealed_close(peer_link *l)
{
    sealed_stream *s = l->stream;

    close(l->fd);
    seal_pair_wipe(&s->seals);
    ls_free(s);
}

static const link_ops sealed_ops = {
    .write = sealed_write,
    .read = sealed_read,
    .is_delivered = sealed_is_delivered,
    .is_unanswered = link_socket_is_unanswered,
    .finish = link_socket_finish,
    .close = sealed_close,
};

ls_status link_sealed_create(int fd, const seal_pair *seals, const link_sink *sink, peer_link **out)
{
    sealed_stream *s = ls_calloc(1, sizeof(*s));

    if (s == NULL) {
        close(fd);
        return ls_fail(LS_ENOMEM, "no memory for a link");
    }
    s->seals = *seals;
    return link_create(&sealed_ops, s, fd, sink, out);
}
