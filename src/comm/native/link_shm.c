/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_shm.c - the stream of a link between two ranks of one host: a ring in shared memory for each
 * direction. join.c creates it.
 *
 * Each ring has one writer, which owns the segment, and one reader. Both counters only grow; their
 * difference is the number of bytes in the ring. A ring outlives its writer as long as the reader
 * has it mapped, so bytes written before an end are still read.
 *
 * A small message that finds the ring empty is posted instead: header and first bytes are one cache
 * line, on which the reader spins. Posts overtake nothing: one is written only when all bytes
 * before it have been read, and bytes are read only when no post precedes them.
 */
#include "comm/native/link_shm.h"

#include "base/alloc.h"
#include "comm/native/segment.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define POSTS        8
#define POST_CHARGED 0x80 /* with the type */
#define POST_DIRECT  0x40
#define POST_TYPE    0x0f

/* A posted message, in this host's byte order. */
typedef struct shm_post {
    _Alignas(64) _Atomic uint64_t ready; /* number of the post, from 1 */
    uint64_t sequence;
    uint64_t credit;
    uint64_t step;
    uint64_t total;
    uint32_t group;
    uint16_t bytes;
    uint8_t type; /* with POST_* */
    uint8_t dtype;
    uint8_t data[LINK_POST_BYTES];
    uint8_t stamp[STAMP_BYTES]; /* not read by shm_take() */
} shm_post;

typedef struct shm_ring {
    _Alignas(64) _Atomic uint64_t written;
    _Atomic uint32_t is_finished;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) _Atomic uint64_t taken; /* posts */
    shm_post posts[POSTS];
    _Alignas(64) uint8_t data[];
} shm_ring;

typedef struct shm_stream {
    local *local;
    int peer;
    size_t ring_bytes; /* a power of two */
    uint64_t seen;     /* the reader's counter when this side last loaded it */
    uint64_t n_posted;
    uint64_t n_posted_taken; /* when this side last loaded it */
    uint64_t n_taken;        /* of the other side's posts */
    shm_ring *out;           /* this rank's segment */
    shm_ring *in;
    segment_view *in_view;
    bool peer_ended;
} shm_stream;

// Rings carry only what teams do not: smaller rings where there are many ranks.
static size_t ring_bytes_for(const local *l)
{
    if (local_count(l) <= 4)
        return 256U << 10;
    return local_count(l) <= 16 ? 64U << 10 : 16U << 10;
}

static ssize_t shm_write(peer_link *l, const struct iovec *iov, int n)
{
    shm_stream *s = l->stream;
    shm_ring *ring = s->out;
    uint64_t at =
        atomic_load_explicit(&ring->written, memory_order_relaxed); // written by this rank only
    const uint64_t start = at;
    uint64_t held = at - s->seen;
    size_t wanted = 0;
    size_t space;

    for (int i = 0; i < n; i++)
        wanted += iov[i].iov_len;
    // Loads the reader's counter, which is in its core's cache, only when the known space is too
    // small. Sequentially consistent: this is the check before a sleep (local.h), when the ring is
    // full. Acquires: the reader copied those bytes out before it moved its counter.
    if (wanted > s->ring_bytes - (size_t)held) {
        s->seen = atomic_load_explicit(&ring->read, memory_order_seq_cst);
        held = at - s->seen;
    }
    if (s->peer_ended || held > s->ring_bytes) {
        l->error = s->peer_ended ? EPIPE : EPROTO;
        return -1;
    }
    space = s->ring_bytes - (size_t)held;
    for (int i = 0; i < n && space > 0; i++) {
        const uint8_t *from = iov[i].iov_base;
        const size_t bytes = iov[i].iov_len < space ? iov[i].iov_len : space;
        const size_t offset = (size_t)at & (s->ring_bytes - 1);
        const size_t first =
            bytes < s->ring_bytes - offset ? bytes : s->ring_bytes - offset; // up to the ring's end

        memcpy(ring->data + offset, from, first);
        memcpy(ring->data, from + first, bytes - first);
        at += bytes;
        space -= bytes;
    }
    if (at != start) {
        // Sequentially consistent towards a reader that prepares to sleep (local.h); releases the
        // bytes.
        atomic_store_explicit(&ring->written, at, memory_order_seq_cst);
        local_ring(s->local, s->peer);
    }
    return (ssize_t)(at - start);
}

// Whether the reader has read all bytes, and there is space for a post.
static bool can_post(shm_stream *s)
{
    shm_ring *ring = s->out;
    const uint64_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);

    // Loads both counters only when the known values do not suffice, as in shm_write(). Acquire is
    // enough: a message that cannot be posted is queued, and shm_write() loads again before a
    // sleep.
    if (s->seen != at)
        s->seen = atomic_load_explicit(&ring->read, memory_order_acquire);
    if (s->n_posted - s->n_posted_taken >= POSTS)
        s->n_posted_taken = atomic_load_explicit(&ring->taken, memory_order_acquire);
    return s->seen == at && s->n_posted - s->n_posted_taken < POSTS && !s->peer_ended;
}

static bool shm_post_message(peer_link *l, const message *m, const uint8_t *payload)
{
    shm_stream *s = l->stream;
    shm_post *p = &s->out->posts[s->n_posted % POSTS];

    if (!can_post(s))
        return false;
    p->sequence = m->sequence;
    p->credit = m->credit;
    p->step = m->step;
    p->total = m->total;
    p->group = m->group;
    p->bytes = (uint16_t)m->bytes;
    p->type = (uint8_t)((unsigned)m->type | (m->is_charged ? POST_CHARGED : 0) |
                        (m->is_direct ? POST_DIRECT : 0));
    p->dtype = m->dtype;
    if (m->bytes > 0)
        memcpy(p->data, payload, m->bytes);
    memcpy(p->stamp, m->stamp, STAMP_BYTES);
    // As in shm_write().
    atomic_store_explicit(&p->ready, ++s->n_posted, memory_order_seq_cst);
    local_ring(s->local, s->peer);
    return true;
}

// Sequentially consistent: the check before a sleep (local.h); acquires the message.
static bool has_post(const shm_stream *s)
{
    return atomic_load_explicit(&s->in->posts[s->n_taken % POSTS].ready, memory_order_seq_cst) ==
           s->n_taken + 1;
}

static bool shm_peek(peer_link *l, message *m, const uint8_t **payload)
{
    const shm_stream *s = l->stream;
    const shm_post *p = &s->in->posts[s->n_taken % POSTS];

    if (!has_post(s))
        return false;
    *m = (message){.type = (message_type)(p->type & POST_TYPE),
                   .is_charged = (p->type & POST_CHARGED) != 0,
                   .is_direct = (p->type & POST_DIRECT) != 0,
                   .group = p->group,
                   .sequence = p->sequence,
                   .step = p->step,
                   .bytes = p->bytes <= LINK_POST_BYTES ? p->bytes : UINT64_MAX,
                   .total = p->total,
                   .credit = p->credit,
                   .dtype = p->dtype,
                   .stamp = p->stamp};
    *payload = p->data;
    return true;
}

static void shm_drop(peer_link *l)
{
    shm_stream *s = l->stream;

    // Release: this side has read the post before the writer overwrites it.
    atomic_store_explicit(&s->in->taken, ++s->n_taken, memory_order_release);
}

static bool shm_take(peer_link *l, const link_request *request, uint8_t *to, uint64_t *credit)
{
    const shm_stream *s = l->stream;
    const shm_post *p = &s->in->posts[s->n_taken % POSTS];

    if (!has_post(s) || p->type != ((unsigned)MESSAGE_DATA | POST_CHARGED | POST_DIRECT) ||
        p->group != request->group || p->step != request->step || p->dtype != request->dtype ||
        p->bytes != request->bytes || p->total != request->bytes || p->bytes > LINK_POST_BYTES ||
        p->credit < request->credit_min || p->credit > request->credit_max)
        return false;
    *credit = p->credit;
    if (request->bytes > 0)
        memcpy(to, p->data, (size_t)request->bytes);
    shm_drop(l);
    return true;
}

static ssize_t shm_read(peer_link *l, const struct iovec *iov, int n)
{
    shm_stream *s = l->stream;
    shm_ring *ring = s->in;
    uint64_t at =
        atomic_load_explicit(&ring->read, memory_order_relaxed); // written by this rank only
    const bool is_over =
        s->peer_ended || atomic_load_explicit(&ring->is_finished, memory_order_seq_cst) != 0;
    // Both sequentially consistent: the check before a sleep (local.h). This load acquires the
    // bytes.
    const uint64_t held = atomic_load_explicit(&ring->written, memory_order_seq_cst) - at;
    const uint64_t start = at;
    size_t left = (size_t)held;

    if (held > s->ring_bytes) {
        l->error = EPROTO;
        return -1;
    }
    if (has_post(s))
        return 0;
    if (held == 0 && is_over) {
        l->error = 0;
        return -1;
    }
    for (int i = 0; i < n && left > 0; i++) {
        uint8_t *to = iov[i].iov_base;
        const size_t bytes = iov[i].iov_len < left ? iov[i].iov_len : left;
        const size_t offset = (size_t)at & (s->ring_bytes - 1);
        const size_t first = bytes < s->ring_bytes - offset ? bytes : s->ring_bytes - offset;

        memcpy(to, ring->data + offset, first);
        memcpy(to + first, ring->data, bytes - first);
        at += bytes;
        left -= bytes;
    }
    if (at != start) {
        // As in shm_write(): the writer may sleep because the ring was full.
        atomic_store_explicit(&ring->read, at, memory_order_seq_cst);
        local_ring(s->local, s->peer);
    }
    return (ssize_t)(at - start);
}

// The peer can read the ring even after this process has exited.
static bool shm_is_delivered(peer_link *l)
{
    LS_UNUSED(l);
    return true;
}

static void shm_finish(peer_link *l)
{
    shm_stream *s = l->stream;

    // Releases the last bytes.
    atomic_store_explicit(&s->out->is_finished, 1, memory_order_seq_cst);
    local_ring(s->local, s->peer);
}

static void shm_close(peer_link *l)
{
    shm_stream *s = l->stream;

    segment_release(s->in_view);
    segment_destroy(s->local, s->out);
    ls_free(s);
}

static const link_ops shm_ops = {
    .write = shm_write,
    .read = shm_read,
    .post = shm_post_message,
    .peek = shm_peek,
    .drop = shm_drop,
    .take = shm_take,
    .is_delivered = shm_is_delivered,
    .finish = shm_finish,
    .close = shm_close,
};

static uint64_t key_for(int reader)
{
    return SEGMENT_KEY_LINK | (uint64_t)(unsigned)reader;
}

ls_status link_shm_create(local *l, int peer, const link_sink *sink, peer_link **out)
{
    shm_stream *s = ls_calloc(1, sizeof(*s));
    void *memory = NULL;
    ls_status st;

    if (s == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a link to rank %d", peer);
    s->local = l;
    s->peer = peer;
    s->ring_bytes = ring_bytes_for(l);
    st = segment_create(l, key_for(peer), sizeof(shm_ring) + s->ring_bytes, &memory);
    if (st != LS_OK) {
        ls_free(s);
        return st;
    }
    s->out = memory;
    return link_create(&shm_ops, s, -1, sink, out);
}

ls_status link_shm_attach(peer_link *l, int64_t deadline_ms)
{
    shm_stream *s = l->stream;
    void *memory = NULL;

    LS_TRY(segment_wait(s->local, s->peer, key_for(local_rank(s->local)),
                        sizeof(shm_ring) + s->ring_bytes, deadline_ms, &s->in_view, &memory));
    s->in = memory;
    return LS_OK;
}

void link_shm_peer_ended(peer_link *l)
{
    shm_stream *s = l->stream;

    s->peer_ended = true;
}
