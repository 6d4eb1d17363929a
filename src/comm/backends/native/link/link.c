/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - cuts a byte stream into messages, in both directions, for every kind of stream. A
 * payload is never copied when its target is known in time: it is read straight to it. match.c is
 * the sink; native.c flushes and receives.
 */
#include "comm/backends/native/link/link.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>
#include <unistd.h>

#define BATCH_ITEMS 8
#define CALL_BYTES  (2U << 20) /* moved by one call, so that no link starves the others */
#define LARGE_BYTES 16384 /* a payload with more bytes left than this is read without staging */
/* Read after a large payload, or from memory: the next header, and hardly any payload that is
 * copied twice. */
#define BESIDE_BYTES 256

ls_status link_idle_create(const link_sink *sink, peer_link **out)
{
    peer_link *l;

    LS_TRY(LS_NEW(&l, 1, "for a link"));
    l->fd = -1;
    l->sink = *sink;
    list_init(&l->out);
    *out = l;
    return LS_OK;
}

ls_status link_create(const link_ops *ops, void *stream, int fd, const link_sink *sink,
                      peer_link **out)
{
    uint8_t *staging = ops->has_begun != NULL ? NULL : ls_calloc(1, LINK_STAGING_BYTES);

    if ((staging == NULL && ops->has_begun == NULL) || link_idle_create(sink, out) != LS_OK) {
        peer_link closing = {.ops = ops, .stream = stream, .fd = fd};

        ops->close(&closing);
        ls_free(staging);
        return ls_fail(LS_ENOMEM, "no memory for a link");
    }
    (*out)->ops = ops;
    (*out)->stream = stream;
    (*out)->fd = fd;
    (*out)->staging = staging;
    return LS_OK;
}

void link_take_stream(peer_link *l, peer_link *from)
{
    LS_ASSERT(l->ops == NULL && list_empty(&from->out));
    l->ops = from->ops;
    l->stream = from->stream;
    l->fd = from->fd;
    l->staging = from->staging;
    ls_free(from);
}

static void give_back(peer_link *l, link_item *item)
{
    list_remove(&item->node);
    l->sink.sent(l->sink.self, item);
}

void link_destroy(peer_link *l)
{
    if (l == NULL)
        return;
    while (!list_empty(&l->out))
        give_back(l, list_entry(l->out.next, link_item, node));
    if (l->ops != NULL)
        l->ops->close(l);
    ls_free(l->staging);
    ls_free(l);
}

void link_forked(const peer_link *l)
{
    if (l->ops != NULL && l->ops->forked != NULL)
        l->ops->forked(l);
    else if (l->fd >= 0)
        close(l->fd);
}

bool link_post(peer_link *l, const message *m, const uint8_t *payload)
{
    return l->ops != NULL && l->ops->post != NULL && m->bytes <= LINK_POST_BYTES &&
           list_empty(&l->out) && !l->is_cut && l->ops->post(l, m, payload);
}

bool link_take(peer_link *l, const link_request *request, uint8_t *to, uint64_t *credit)
{
    return l->ops != NULL && l->ops->take != NULL && !l->is_ended && !l->in_payload &&
           l->ops->take(l, request, to, credit);
}

void link_send(peer_link *l, link_item *item)
{
    item->done = 0;
    list_append(&l->out, &item->node);
}

bool link_has_output(const peer_link *l)
{
    return !list_empty(&l->out) || l->unsent > 0;
}

bool link_is_arriving(const peer_link *l)
{
    return !l->is_ended && (l->in_payload || l->staged_end > l->staged_at);
}

bool link_is_delivered(peer_link *l)
{
    return l->ops == NULL ? !link_has_output(l) : l->ops->is_delivered(l);
}

bool link_withdraw(peer_link *l, link_item *item)
{
    size_t sent;

    if (item->done == 0) {
        list_remove(&item->node);
        return true;
    }
    if (item->copy != NULL || item->bytes == 0)
        return false;
    sent = item->done < MESSAGE_HEADER_BYTES ? 0 : item->done - MESSAGE_HEADER_BYTES;
    item->copy = ls_calloc(1, item->bytes);
    if (item->copy == NULL) {
        l->is_cut = true;
        l->ops->finish(l);
        return false;
    }
    memcpy(item->copy + sent, item->payload + sent, item->bytes - sent);
    item->payload = item->copy;
    return false;
}

void link_drop_payload(peer_link *l)
{
    l->target = NULL;
}

// Removes n written bytes from the front of the queue.
static void advance(peer_link *l, size_t n)
{
    while (n > 0) {
        link_item *item = list_entry(l->out.next, link_item, node);
        const size_t left = MESSAGE_HEADER_BYTES + item->bytes - item->done;

        if (n < left) {
            item->done += n;
            return;
        }
        item->done += left;
        n -= left;
        give_back(l, item);
    }
}

static int fill_iov(peer_link *l, struct iovec *iov, size_t *bytes)
{
    int n = 0;
    int items = 0;

    *bytes = 0;
    list_for_each (node, &l->out) {
        link_item *item = list_entry(node, link_item, node);
        size_t skip = item->done;

        if (items++ == BATCH_ITEMS)
            break;
        if (skip < MESSAGE_HEADER_BYTES) {
            iov[n].iov_base = item->header + skip;
            iov[n].iov_len = MESSAGE_HEADER_BYTES - skip;
            *bytes += iov[n++].iov_len;
            skip = MESSAGE_HEADER_BYTES;
        }
        if (item->bytes > 0) {
            // iovec has no const; the stream only reads.
            memcpy(&iov[n].iov_base, &item->payload, sizeof(iov[n].iov_base));
            iov[n].iov_base = (uint8_t *)iov[n].iov_base + (skip - MESSAGE_HEADER_BYTES);
            iov[n].iov_len = item->bytes - (skip - MESSAGE_HEADER_BYTES);
            *bytes += iov[n++].iov_len;
        }
    }
    return n;
}

static void settle(peer_link *l)
{
    if (l->ops->settle != NULL)
        l->ops->settle(l);
}

bool link_flush(peer_link *l)
{
    size_t total = 0;

    // A cut link has output left but never moves.
    if (l->ops == NULL || l->is_cut)
        return false;
    l->is_full = false;
    while (link_has_output(l) && !l->is_ended && total < CALL_BYTES) {
        struct iovec iov[2 * BATCH_ITEMS];
        size_t wanted;
        const int n = fill_iov(l, iov, &wanted);
        const ssize_t moved = l->ops->write(l, iov, n);

        if (moved < 0) {
            // The peer's last messages are still to be read. If it still runs, finish() lets it
            // notice.
            l->is_cut = true;
            l->ops->finish(l);
            break;
        }
        advance(l, (size_t)moved);
        total += (size_t)moved;
        if ((size_t)moved < wanted || l->unsent > 0) {
            l->is_full = true;
            break;
        }
    }
    settle(l);
    return total > 0 || l->is_cut;
}

static bool fail_link(peer_link *l)
{
    l->is_ended = true;
    l->ops->finish(l); // lets the peer notice
    text_printable(l->fault, sizeof(l->fault), ls_last_error());
    return false;
}

static bool payload_complete(peer_link *l)
{
    if (l->in_done < l->in_bytes)
        return true;
    l->in_payload = false;
    return l->sink.end(l->sink.self) == LS_OK ? true : fail_link(l);
}

// Handles the staged bytes; false when the link has ended.
static bool parse_staged(peer_link *l)
{
    for (;;) {
        const size_t have = l->staged_end - l->staged_at;
        message m;

        if (l->in_payload) {
            const size_t want = l->in_bytes - l->in_done;
            const size_t n = have < want ? have : want;

            if (l->target != NULL && n > 0)
                memcpy(l->target + l->in_done, l->staging + l->staged_at, n);
            l->staged_at += n;
            l->in_done += n;
            if (!payload_complete(l))
                return false;
            if (l->in_payload)
                return true;
            continue;
        }
        if (have < MESSAGE_HEADER_BYTES)
            return true;
        l->target = NULL;
        if (message_decode(l->staging + l->staged_at, &m) != LS_OK ||
            l->sink.begin(l->sink.self, &m, &l->target) != LS_OK)
            return fail_link(l);
        l->staged_at += MESSAGE_HEADER_BYTES;
        l->in_done = 0;
        l->in_bytes = (size_t)m.bytes;
        l->in_payload = true;
    }
}

static void compact(peer_link *l)
{
    if (l->staged_at == 0)
        return;
    memmove(l->staging, l->staging + l->staged_at, l->staged_end - l->staged_at);
    l->staged_end -= l->staged_at;
    l->staged_at = 0;
}

// A post is a whole message, and never interrupts a message of the stream.
static bool take_posts(peer_link *l)
{
    bool any = false;
    const uint8_t *payload;
    message m;

    if (l->ops->peek == NULL)
        return false;
    while (!l->is_ended && !l->in_payload && l->ops->peek(l, &m, &payload)) {
        any = true;
        l->target = NULL;
        if (message_check(&m) != LS_OK || l->sink.begin(l->sink.self, &m, &l->target) != LS_OK) {
            (void)fail_link(l);
            break;
        }
        if (l->target != NULL && m.bytes > 0)
            memcpy(l->target, payload, m.bytes);
        l->in_bytes = (size_t)m.bytes;
        l->ops->drop(l);
        if (l->sink.end(l->sink.self) != LS_OK)
            (void)fail_link(l);
    }
    return any;
}

// False: there is nothing to read, or no memory for it; then the link has ended.
static bool prepare_staging(peer_link *l)
{
    if (l->is_ended || !l->ops->has_begun(l))
        return false;
    l->staging = ls_calloc(1, LINK_STAGING_BYTES);
    if (l->staging == NULL) {
        (void)ls_fail(LS_ENOMEM, "no memory for a link");
        (void)fail_link(l);
    }
    return l->staging != NULL;
}

static bool receive_stream(peer_link *l)
{
    size_t total = 0;

    if (l->staging == NULL && !prepare_staging(l))
        return false;
    while (!l->is_ended && (total < CALL_BYTES || l->buffered > 0)) {
        struct iovec iov[2];
        int n = 0;
        size_t direct = 0;
        size_t wanted;
        ssize_t moved;

        compact(l);
        if (l->in_payload && l->target != NULL) {
            direct = l->in_bytes - l->in_done;
            iov[n++] = (struct iovec){.iov_base = l->target + l->in_done, .iov_len = direct};
        }
        iov[n++] = (struct iovec){.iov_base = l->staging + l->staged_end,
                                  .iov_len = direct > LARGE_BYTES || l->ops->is_memory
                                                 ? BESIDE_BYTES
                                                 : LINK_STAGING_BYTES - l->staged_end};
        wanted = direct + iov[n - 1].iov_len;
        moved = l->ops->read(l, iov, n);
        if (moved < 0) {
            l->is_ended = true;
            return true;
        }
        if (moved == 0)
            break;
        total += (size_t)moved;
        if ((size_t)moved < direct) {
            l->in_done += (size_t)moved;
        } else {
            l->in_done += direct;
            l->staged_end += (size_t)moved - direct;
            if (!parse_staged(l))
                return true;
        }
        if ((size_t)moved < wanted)
            break; // the stream is empty: another read would be wasted
    }
    return total > 0;
}

bool link_receive(peer_link *l)
{
    bool moved;

    if (l->ops == NULL)
        return false;
    if (take_posts(l))
        return true;
    moved = receive_stream(l);
    settle(l);
    return moved;
}
