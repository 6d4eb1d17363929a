/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.c - send and receive between two ranks of a group.
 *
 * Messages of one (sender, receiver, tag) arrive in the order they were sent, because links keep
 * order and receives are served in the order they were posted. Small messages are sent at once.
 * Large ones are announced, so that a receive from any source can match them; the receiver answers
 * READY, and the payload follows in pieces. Within a host the receiver reads a large payload from
 * the sender's memory where it can and that is faster (offer_way.h). native.c starts operations
 * here, match.c passes the messages that come in.
 */
#include "comm/backends/native/p2p/direct.h"

#include "comm/backends/native/errors.h"
#include "comm/backends/native/p2p/match.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <inttypes.h>
#include <string.h>

#define PIECE_BYTES  (256U << 10)
#define PIECES_AHEAD 2
/* From this size on both sides copy, where each can reach the other's memory. */
#define SPLIT_BYTES ((size_t)512 << 10)

// --- works ---

static void finish_work(transfer *t)
{
    native_end_work(t->owner);
}

/* The message that is timed does not come the way that was chosen. */
static void stop_timing(transfer *t)
{
    if (t->timed != NULL)
        offer_way_gave_up(t->timed);
    t->timed = NULL;
}

void direct_release(native_work *w)
{
    stop_timing(&w->direct);
    segment_release(w->direct.view);
    w->direct.view = NULL;
    list_append(&w->group->state->free_directs, &w->node);
}

// Whether sender and receiver have the same type and count; breaks the group if not.
static bool agrees(const transfer *t, native_peer *p, const message *m)
{
    // Equal types and bytes are equal counts.
    if (m->dtype == stamp_dtype(t->stamp) && m->total == t->total &&
        (m->type != MESSAGE_DATA || m->bytes == t->total))
        return true;
    errors_stamp_mismatch(t->group, p, m->stamp, t->stamp);
    return false;
}

// --- sending ---

static void queue_pieces(transfer *t)
{
    while (t->queued < t->bytes && t->queued - t->moved < (size_t)PIECE_BYTES * PIECES_AHEAD) {
        const size_t left = t->bytes - t->queued;
        const size_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;

        // Before the call: the piece may be sent at once, and direct_sent() is called then.
        t->queued += bytes;
        match_queue_payload(t, t->from + t->queued - bytes, bytes, MESSAGE_PIECE, false);
    }
}

void direct_sent(transfer *t, size_t bytes)
{
    if (t->queued == 0 && (t->is_offered || !t->is_send))
        return; // an offer, or the answer to one
    t->moved += bytes;
    if (t->moved == t->bytes)
        t->finished(t);
    else
        queue_pieces(t);
}

// Whether the receiver can read the payload from this rank's memory.
static bool can_offer(transfer *t)
{
    native_state *s = t->group->state;
    segment_ref ref = {0};

    if (t->bytes == 0 || t->group->team == NULL)
        return false;
    if (!segment_find(s->local, t->from, t->bytes, &ref) && !team_can_read(t->group->team))
        return false;
    t->offered = (message_offer){.address = (uintptr_t)t->from, .offset = ref.offset, .id = ref.id};
    return true;
}

static void start_send(transfer *t)
{
    native_peer *p = t->peer;

    LS_ASSERT(p != NULL); // only receives may have any source
    if (p->link->is_ended || p->link->is_cut) {
        errors_lost_peer(t->group, p, t->stamp);
        return;
    }
    t->sequence = p->next_message++;
    if (t->bytes <= MESSAGE_EAGER_BYTES && match_charge(p, t->bytes)) {
        t->queued = t->bytes;
        match_queue_payload(t, t->from, t->bytes, MESSAGE_DATA, true);
        return;
    }
    list_append(&p->awaiting, &t->node);
    t->is_offered = can_offer(t);
    if (t->is_offered) {
        match_queue_payload(t, (const uint8_t *)&t->offered, MESSAGE_OFFER_BYTES, MESSAGE_OFFER,
                            false);
    } else {
        match_queue_control(p, MESSAGE_ANNOUNCE, t);
    }
}

static bool is_answered_by(const transfer *t, const message *m)
{
    return t->is_direct && t->sequence == m->sequence && t->group->info->id == m->group;
}

static ls_status on_answer(native_peer *p, const message *m, uint8_t **target)
{
    list_for_each (node, &p->awaiting) {
        transfer *t = list_entry(node, transfer, node);

        if (!is_answered_by(t, m))
            continue;
        if (m->type != MESSAGE_READY && !t->is_offered)
            return ls_fail(LS_EPROTO, "answer to an offer that was not made");
        if (m->type == MESSAGE_SHARED) {
            p->receiving = t;
            *target = (uint8_t *)&t->offered;
            return LS_OK;
        }
        if (!agrees(t, p, m))
            return LS_OK;
        list_remove(&t->node);
        if (t->bytes == 0 || m->type == MESSAGE_TAKEN)
            t->finished(t);
        else
            queue_pieces(t);
        return LS_OK;
    }
    return ls_fail(LS_EPROTO, "answer to a message that was not announced");
}

/* The receiver's part of a message that both sides copy: whole cache lines. */
static size_t first_half(const transfer *t)
{
    return t->bytes / 2 / 64 * 64;
}

// The sender's part of a message that both sides copy.
static void write_half(transfer *t)
{
    local *l = t->group->state->local;
    const segment_ref ref = {.offset = t->offered.offset, .id = t->offered.id};
    const size_t at = first_half(t);
    segment_view *view = NULL;
    void *to = NULL;

    t->must_write = false;
    if (segment_resolve(l, t->peer->rank, ref, t->bytes, &view, &to) != LS_OK) {
        native_break(t->group, CAUSE_FAULT, t->peer->rank, "a message to rank %d: %s",
                     t->peer->rank, ls_last_error());
        return;
    }
    if (to == NULL) {
        t->must_write = true;
        t->group->state->has_unwritten = true;
        return;
    }
    memcpy((uint8_t *)to + at, t->from + at, t->bytes - at);
    segment_release(view);
    match_queue_control(t->peer, MESSAGE_WRITTEN, t);
}

static bool write_pending(native_peer *p)
{
    bool moved = false;

    list_for_each (node, &p->awaiting) {
        transfer *t = list_entry(node, transfer, node);

        if (!t->must_write)
            continue;
        write_half(t); // leaves the list as it is
        moved |= !t->must_write;
    }
    return moved;
}

bool direct_progress(native_state *s)
{
    bool moved = false;

    if (!s->has_unwritten)
        return false;
    s->has_unwritten = false;
    for (int i = 0; i < s->size; i++)
        moved |= write_pending(&s->peers[i]);
    return moved;
}

// --- receiving ---

static void set_source(transfer *t, native_peer *p)
{
    native_work *w = t->owner;
    const native_group *g = t->group;

    t->peer = p;
    for (int i = 0; i < g->info->size; i++)
        if (g->peers[i] == p)
            w->work->source = i;
}

static void request_payload(transfer *t)
{
    match_queue_control(t->peer, MESSAGE_READY, t);
    if (t->bytes == 0) {
        t->finished(t);
        return;
    }
    t->in_pieces = true;
    list_append(&t->peer->pieces, &t->node);
}

// The receive has found an announced message.
static void request_announced(transfer *t, native_peer *p, const message *m)
{
    set_source(t, p);
    t->sequence = m->sequence;
    request_payload(t);
}

static int member_of(const native_group *g, const native_peer *p)
{
    int i = 0;

    while (g->peers[i] != p)
        i++;
    return i;
}

// The sender's memory, mapped here; NULL: it is not shared, or not mapped yet.
static const uint8_t *map_offered(transfer *t)
{
    const segment_ref ref = {.offset = t->offered.offset, .id = t->offered.id};
    void *from = NULL;

    if (ref.id != 0)
        (void)!segment_resolve(t->group->state->local, t->peer->rank, ref, t->bytes, &t->view,
                               &from);
    return from;
}

// The way of this message; NULL: it is read.
static offer_way *way_of(const transfer *t)
{
    native_peer *p = t->peer;

    if (p->ways == NULL)
        p->ways = ls_calloc(1, sizeof(*p->ways)); // without memory all are read
    return p->ways != NULL ? offer_ways_find(p->ways, t->bytes, t->offered.id != 0) : NULL;
}

// Whether the receiver requests the pieces of a message that it could read.
static bool takes_pieces(transfer *t)
{
    offer_way *way = way_of(t);
    bool is_timed = false;
    const bool in_pieces = way != NULL && offer_way_takes_pieces(way, &is_timed);

    t->timed = is_timed ? way : NULL;
    t->since = is_timed ? ls_now_ns() : 0;
    return in_pieces;
}

static void end_timing(transfer *t)
{
    if (t->timed != NULL)
        offer_way_ended(t->timed, t->bytes, ls_now_ns() - t->since);
    t->timed = NULL;
}

// This rank has read its part of the payload. A sender that has given up the message may have
// changed it meanwhile.
static void receive_done(transfer *t)
{
    char buf[96];

    if (team_gave_up(t->group->team, member_of(t->group, t->peer))) {
        native_break(t->group, CAUSE_FAULT, -1,
                     "%s gave up a message of %zu bytes before rank %d had read it",
                     native_peer_text(t->peer, buf, sizeof(buf)), t->bytes, t->group->state->rank);
        return;
    }
    end_timing(t);
    backend_count(t->peer->received, t->bytes);
    match_queue_control(t->peer, MESSAGE_TAKEN, t);
    t->finished(t);
}

// Both sides can reach the other's memory: the sender, which would only wait, copies the other
// half.
static bool split_copy(transfer *t, const uint8_t *from)
{
    segment_ref ref = {0};

    if (t->bytes < SPLIT_BYTES || !segment_find(t->group->state->local, t->to, t->bytes, &ref))
        return false;
    t->offered = (message_offer){.offset = ref.offset, .id = ref.id};
    t->in_pieces = true;
    list_append(&t->peer->pieces, &t->node);
    match_queue_payload(t, (const uint8_t *)&t->offered, MESSAGE_OFFER_BYTES, MESSAGE_SHARED,
                        false);
    memcpy(t->to, from, first_half(t));
    return true;
}

// One copy, straight from the sender's memory: through a mapping where it is shared, which is
// faster than a system call for such pages. Where it cannot be read, or pieces are faster, the
// receiver requests them.
static void read_offer(transfer *t)
{
    team *members = t->group->team;
    const uint8_t *from;

    t->is_offered = false;
    if (members == NULL || takes_pieces(t)) {
        request_payload(t);
        return;
    }
    from = map_offered(t);
    if (from != NULL && split_copy(t, from))
        return;
    if (from != NULL) {
        memmove(t->to, from, t->bytes); // threads of one process: they may overlap
        receive_done(t);
    } else if (team_read(members, member_of(t->group, t->peer),
                         (const char *)(uintptr_t)t->offered.address, (char *)t->to, t->bytes)) {
        receive_done(t);
    } else {
        stop_timing(t);
        request_payload(t);
    }
}

static transfer *find_piece(const native_peer *p, const message *m, bool is_shared)
{
    list_for_each (node, &p->pieces) {
        transfer *t = list_entry(node, transfer, node);

        if (is_answered_by(t, m) && (t->view != NULL) == is_shared)
            return t;
    }
    return NULL;
}

static ls_status on_written(native_peer *p, const message *m)
{
    transfer *t = find_piece(p, m, true);

    if (t == NULL)
        return ls_fail(LS_EPROTO, "half of a message was written that was not shared");
    list_remove(&t->node);
    receive_done(t);
    return LS_OK;
}

void direct_claim_unexpected(unexpected_message *u, transfer *t)
{
    if (u->m.type == MESSAGE_OFFER) {
        memcpy(&t->offered, u->data, sizeof(t->offered));
        match_free_unexpected(u);
        read_offer(t);
        return;
    }
    if (t->bytes > 0)
        memcpy(t->to, u->data, t->bytes);
    match_free_unexpected(u);
    t->finished(t);
}

static bool fits(const transfer *t, const native_peer *p, const message *m)
{
    return (t->peer == NULL || t->peer == p) && t->step == m->step &&
           t->group->info->id == m->group;
}

static void start_receive(transfer *t)
{
    native_state *s = t->group->state;

    list_for_each (node, &s->unexpected) {
        unexpected_message *u = list_entry(node, unexpected_message, node);
        native_peer *p = u->peer;

        if (u->claimer != NULL || !fits(t, p, &u->m))
            continue;
        if (!agrees(t, p, &u->m))
            return;
        if (u->m.type == MESSAGE_ANNOUNCE) {
            request_announced(t, p, &u->m);
            match_free_unexpected(u);
            return;
        }
        set_source(t, p);
        t->sequence = u->m.sequence;
        match_return_credit(p, &u->m);
        u->claimer = t;
        if (u->is_complete)
            direct_claim_unexpected(u, t);
        return;
    }
    if (t->peer != NULL && t->peer->link->is_ended) {
        errors_lost_peer(t->group, t->peer, t->stamp);
        return;
    }
    if (t->peer == NULL && match_all_ended(t->group)) {
        errors_lost_peer(t->group, t->group->peers[t->group->info->rank == 0 ? 1 : 0], t->stamp);
        return;
    }
    list_append(&t->group->receives, &t->node);
    if (t->peer != NULL)
        mesh_expect(s->mesh, t->peer->rank);
}

bool direct_try_receive(transfer *t)
{
    link_request request = {.group = t->group->info->id,
                            .dtype = stamp_dtype(t->stamp),
                            .step = t->step,
                            .bytes = t->bytes};

    if (!match_take(t->peer, &request, t->to))
        return false;
    list_remove(&t->node);
    set_source(t, t->peer);
    t->finished(t);
    return true;
}

static ls_status on_message(native_peer *p, native_group *g, const message *m, uint8_t **target)
{
    if (g != NULL) {
        list_for_each (node, &g->receives) {
            transfer *t = list_entry(node, transfer, node);

            if (!fits(t, p, m))
                continue;
            match_return_credit(p, m);
            if (!agrees(t, p, m))
                return LS_OK;
            list_remove(&t->node);
            if (m->type == MESSAGE_ANNOUNCE) {
                request_announced(t, p, m);
                return LS_OK;
            }
            set_source(t, p);
            t->sequence = m->sequence;
            p->receiving = t;
            t->is_offered = m->type == MESSAGE_OFFER;
            *target = t->is_offered ? (uint8_t *)&t->offered : t->to;
            return LS_OK;
        }
    }
    if (m->type == MESSAGE_DATA && !m->is_charged)
        return ls_fail(LS_EPROTO, "payload that was not requested");
    return match_save_unexpected(p, m, &p->state->unexpected, target);
}

static ls_status on_piece(native_peer *p, const message *m, uint8_t **target)
{
    transfer *t = find_piece(p, m, false);

    if (t == NULL)
        return ls_fail(LS_EPROTO, "piece of a message that was not requested");
    if (m->bytes > t->bytes - t->moved)
        return ls_fail(LS_EPROTO, "message longer than announced");
    p->receiving = t;
    *target = t->to + t->moved;
    return LS_OK;
}

void direct_received(transfer *t, size_t bytes)
{
    if (t->is_send) {
        write_half(t);
        return;
    }
    if (t->is_offered) {
        read_offer(t);
        return;
    }
    t->moved += bytes;
    if (t->moved < t->bytes)
        return;
    if (t->in_pieces)
        list_remove(&t->node);
    end_timing(t);
    t->finished(t);
}

ls_status direct_on_message(native_peer *p, native_group *g, const message *m, uint8_t **target)
{
    switch (m->type) {
    case MESSAGE_READY:
    case MESSAGE_TAKEN:
    case MESSAGE_SHARED:
        return on_answer(p, m, target);
    case MESSAGE_WRITTEN:
        return on_written(p, m);
    case MESSAGE_PIECE:
        return on_piece(p, m, target);
    case MESSAGE_DATA:
    case MESSAGE_ANNOUNCE:
    case MESSAGE_OFFER:
        return on_message(p, g, m, target);
    case MESSAGE_CREDIT:
    case MESSAGE_LEFT:
        break;
    }
    return ls_fail(LS_EPROTO, "credit in a message of a group");
}

/* Sends without a native_work if the message can be posted. */
static bool send_at_once(native_group *g, const coll *op)
{
    native_peer *p = g->peers[op->root];
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    uint8_t stamp[STAMP_BYTES];

    if (bytes > LINK_POST_BYTES || !p->is_local || p->link->is_ended || p->link->is_cut)
        return false;
    stamp_encode(&op->stamp, stamp);
    if (!match_post(p,
                    &(message){.type = MESSAGE_DATA,
                               .is_charged = true,
                               .is_direct = true,
                               .group = g->info->id,
                               .sequence = p->next_message,
                               .step = (uint64_t)op->tag,
                               .bytes = bytes,
                               .total = bytes,
                               .credit = p->consumed,
                               .dtype = (uint8_t)op->dtype,
                               .stamp = stamp},
                    op->src))
        return false;
    p->next_message++;
    return true;
}

/* Receives without a native_work if no earlier receive waits and the message has come. */
static bool receive_at_once(native_group *g, const coll *op)
{
    link_request request = {.group = g->info->id,
                            .dtype = (uint8_t)op->dtype,
                            .step = (uint64_t)op->tag,
                            .bytes = op->count * ls_dtype_size(op->dtype)};

    return op->root != LS_ANY_SOURCE && request.bytes <= LINK_POST_BYTES &&
           list_empty(&g->receives) && list_empty(&g->state->unexpected) &&
           match_take(g->peers[op->root], &request, op->dst);
}

void direct_start(native_group *g, backend_work *work)
{
    native_state *s = g->state;
    const coll *op = &work->op;
    native_work *w;
    transfer *t;

    if (op->root == g->info->rank) {
        s->host->done(s->host->self, work, LS_EINVAL, "a rank cannot send to itself");
        return;
    }
    if (op->root != LS_ANY_SOURCE && native_link(g->peers[op->root]) != LS_OK) {
        s->host->done(s->host->self, work, LS_ENOMEM, ls_last_error());
        return;
    }
    if (op->kind == COLL_SEND ? send_at_once(g, op) : receive_at_once(g, op)) {
        work->source = op->root;
        s->host->done(s->host->self, work, LS_OK, NULL);
        return;
    }
    w = native_new_work(g, work, &s->free_directs, &g->directs);
    if (w == NULL)
        return;
    w->is_direct = true;
    t = &w->direct;
    *t = (transfer){.group = g,
                    .peer = op->root == LS_ANY_SOURCE ? NULL : g->peers[op->root],
                    .is_send = op->kind == COLL_SEND,
                    .is_direct = true,
                    .step = (uint64_t)op->tag,
                    .bytes = op->count * ls_dtype_size(op->dtype),
                    .stamp = w->stamp,
                    .from = op->src,
                    .to = op->dst,
                    .finished = finish_work,
                    .owner = w};
    t->total = t->bytes;
    if (t->is_send)
        start_send(t);
    else
        start_receive(t);
}
