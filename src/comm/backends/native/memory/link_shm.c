/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_shm.c - the stream of a link between two ranks of one host: a ring in shared memory for each
 * direction. native.c creates it with the first message.
 *
 * Each ring has one writer and one reader. Both counters only grow; their difference is the number
 * of bytes in the ring. A ring outlives its writer, so bytes written before an end are still read.
 * Until the writer has something to write, neither side touches the ring, which then takes no
 * memory; the reader polls one byte instead (RING_OPEN, RING_FINISHED), beside those of its other
 * links.
 *
 * A small message that finds the ring empty is posted instead: header and first bytes are one cache
 * line, on which the reader spins. Posts overtake nothing: one is written only when all bytes
 * before it have been read, and bytes are read only when no post precedes them.
 */
#include "comm/backends/native/memory/link_shm.h"

#include "base/alloc.h"
#include "comm/backends/native/memory/copy.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define POSTS        8
#define PAGE_BYTES   ((size_t)4096)
#define PIECE_BYTES  ((size_t)16384)
#define PUBLISHED    4    /* when a quarter of the ring is read; less when nothing is left */
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
    uint64_t n_read;   /* of `in`; its counter follows: publish_read() */
    uint64_t n_read_published;
    uint64_t n_posted;
    uint64_t n_posted_taken;          /* when this side last loaded it */
    uint64_t n_taken;                 /* of the other side's posts */
    copy_way way;                     /* into `out` */
    shm_ring *out;                    /* NULL: nothing was written yet */
    shm_ring *in;                     /* NULL: not open when last seen */
    _Atomic unsigned char *out_state; /* RING_*, written by this rank only */
    _Atomic unsigned char *in_state;
    bool peer_ended;
} shm_stream;

enum { RING_OPEN = 1, RING_FINISHED = 2 };

// Rings carry only what teams do not: smaller rings where there are many ranks. That of two ranks
// is larger than a second-level cache, so that what the reader has read has left it when it is
// written again; where more ranks share a cache it would be slower.
static size_t data_bytes(int n_ranks)
{
    if (n_ranks <= 2)
        return 2U << 20;
    if (n_ranks <= 4)
        return 256U << 10;
    return n_ranks <= 16 ? 64U << 10 : 16U << 10;
}

size_t link_shm_ring_bytes(int n_ranks)
{
    return (sizeof(shm_ring) + data_bytes(n_ranks) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static void set_state(const shm_stream *s, unsigned bits)
{
    // Sequentially consistent towards a reader that prepares to sleep (local.h). Nothing else
    // writes it meanwhile.
    atomic_fetch_or_explicit(s->out_state, (unsigned char)bits, memory_order_seq_cst);
}

static shm_ring *out_ring(shm_stream *s)
{
    if (s->out == NULL) {
        s->out = local_ring_to(s->local, s->peer);
        set_state(s, RING_OPEN);
    }
    return s->out;
}

// Sequentially consistent: the check before a sleep.
static unsigned in_state(const shm_stream *s)
{
    return atomic_load_explicit(s->in_state, memory_order_seq_cst);
}

// NULL: nothing was written yet.
static shm_ring *in_ring(shm_stream *s)
{
    if (s->in == NULL && (in_state(s) & RING_OPEN) != 0) {
        s->in = local_ring_from(s->local, s->peer);
        s->n_read = atomic_load_explicit(&s->in->read, memory_order_relaxed);
        s->n_read_published = s->n_read;
    }
    return s->in;
}

static ssize_t shm_write(peer_link *l, const struct iovec *iov, int n)
{
    shm_stream *s = l->stream;
    shm_ring *ring = out_ring(s);
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
        size_t left = iov[i].iov_len < space ? iov[i].iov_len : space;

        space -= left;
        while (left > 0) {
            const size_t offset = (size_t)at & (s->ring_bytes - 1);
            const size_t to_end = s->ring_bytes - offset;
            size_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;

            bytes = bytes < to_end ? bytes : to_end;
            copy_shared(&s->way, ring->data + offset, from, bytes);
            from += bytes;
            left -= bytes;
            at += bytes;
            // A reader that spins takes this piece while the next one is written.
            if (left > 0)
                atomic_store_explicit(&ring->written, at, memory_order_release);
        }
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
    const shm_ring *ring = s->out;
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
    shm_post *p = &out_ring(s)->posts[s->n_posted % POSTS];

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
    shm_stream *s = l->stream;
    const shm_post *p;

    if (in_ring(s) == NULL || !has_post(s))
        return false;
    p = &s->in->posts[s->n_taken % POSTS];
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
    shm_stream *s = l->stream;
    const shm_post *p;

    if (in_ring(s) == NULL || !has_post(s))
        return false;
    p = &s->in->posts[s->n_taken % POSTS];
    if (p->type != ((unsigned)MESSAGE_DATA | POST_CHARGED | POST_DIRECT) ||
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

/* As in shm_write(): the writer may sleep because the ring was full. */
static void publish_read(shm_stream *s)
{
    atomic_store_explicit(&s->in->read, s->n_read, memory_order_seq_cst);
    s->n_read_published = s->n_read;
    local_ring(s->local, s->peer);
}

static void shm_settle(peer_link *l)
{
    shm_stream *s = l->stream;

    if (s->n_read != s->n_read_published)
        publish_read(s);
}

static ssize_t shm_read(peer_link *l, const struct iovec *iov, int n)
{
    shm_stream *s = l->stream;
    const bool is_over = s->peer_ended || (in_state(s) & RING_FINISHED) != 0;
    shm_ring *ring = in_ring(s);
    const uint64_t start = s->n_read;
    uint64_t at = start;
    uint64_t held;
    size_t left;

    if (ring == NULL) {
        l->error = 0;
        return is_over ? -1 : 0;
    }
    // As in_state(). Acquires the bytes.
    held = atomic_load_explicit(&ring->written, memory_order_seq_cst) - at;
    left = (size_t)held;
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
    s->n_read = at;
    if (at - s->n_read_published >= s->ring_bytes / PUBLISHED)
        publish_read(s);
    return (ssize_t)(at - start);
}

static bool shm_has_begun(const peer_link *l)
{
    const shm_stream *s = l->stream;

    return s->peer_ended || in_state(s) != 0;
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

    set_state(s, RING_FINISHED); // releases the last bytes
    local_ring(s->local, s->peer);
}

static void shm_close(peer_link *l)
{
    ls_free(l->stream);
}

static const link_ops shm_ops = {
    .write = shm_write,
    .read = shm_read,
    .post = shm_post_message,
    .peek = shm_peek,
    .drop = shm_drop,
    .take = shm_take,
    .is_memory = true,
    .has_begun = shm_has_begun,
    .is_delivered = shm_is_delivered,
    .settle = shm_settle,
    .finish = shm_finish,
    .close = shm_close,
};

ls_status link_shm_create(local *l, int peer, const link_sink *sink, peer_link **out)
{
    shm_stream *s;

    LS_TRY(LS_NEW(&s, 1, "for a link to rank %d", peer));
    s->local = l;
    s->peer = peer;
    s->ring_bytes = data_bytes(local_count(l));
    s->out_state = local_state_to(l, peer);
    s->in_state = local_state_from(l, peer);
    s->peer_ended = local_has_ended(l, peer);
    return link_create(&shm_ops, s, -1, sink, out);
}

static unsigned state_from(const local *l, int peer)
{
    return atomic_load_explicit(local_state_from(l, peer), memory_order_seq_cst);
}

bool link_shm_is_open(const local *l, int peer)
{
    return (state_from(l, peer) & RING_OPEN) != 0;
}

bool link_shm_is_over(const local *l, int peer)
{
    return (state_from(l, peer) & RING_FINISHED) != 0 || local_has_ended(l, peer);
}

void link_shm_finish_unused(local *l, int peer)
{
    atomic_fetch_or_explicit(local_state_to(l, peer), (unsigned char)RING_FINISHED,
                             memory_order_seq_cst);
    local_ring(l, peer);
}

void link_shm_peer_ended(peer_link *l)
{
    shm_stream *s = l->stream;

    s->peer_ended = true;
}
