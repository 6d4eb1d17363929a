/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.c - brings messages and receives together.
 *
 * A message of at most MESSAGE_EAGER_BYTES is sent at once and charged to the sender's credit until
 * it has found its receive; a message that comes before its receive is saved. So the credit bounds
 * the memory for saved messages, and the stream never has to stop. Without credit, and for larger
 * payloads, the sender waits for READY, which a posted receive sends. So no message ever blocks
 * another, whatever groups and operations are under way. exec.c and direct.c send and receive,
 * links call the sink.
 */
#include "comm/backends/native/p2p/match.h"

#include "comm/backends/native/errors.h"
#include "comm/backends/native/p2p/direct.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

#define CREDIT_BYTES   (1U << 20) /* charged bytes to one peer that may wait for their receives */
#define UNEXPECTED_MAX 65536      /* messages of one peer that may wait for their receives */
#define CHARGE(bytes)  (MESSAGE_HEADER_BYTES + (uint64_t)(bytes))

void match_init(native_peer *p)
{
    list_init(&p->receives);
    list_init(&p->awaiting);
    list_init(&p->pieces);
    list_init(&p->unexpected);
}

bool match_is_expecting(const native_peer *p)
{
    return p->receiving != NULL || p->receiving_unexpected != NULL || !list_empty(&p->receives) ||
           !list_empty(&p->awaiting) || !list_empty(&p->pieces);
}

// The stamp of this rank's operation with this number; NULL: it has not started, or ended long ago.
static const uint8_t *stamp_of(const native_group *g, uint64_t sequence, bool *is_over)
{
    *is_over = false;
    list_for_each (node, &g->works) {
        const native_work *w = list_entry(node, native_work, node);

        if (w->work->op.stamp.sequence == sequence)
            return w->stamp;
    }
    for (int i = 0; i < NATIVE_HISTORY; i++)
        if (g->history[i] == sequence && sequence != 0) {
            *is_over = true;
            return g->history_stamps[i];
        }
    return NULL;
}

// --- sending ---

static void queue_item(native_peer *p, link_item *item, const message *m)
{
    message_encode(m, item->header);
    p->reported = p->consumed;
    link_send(p->link, item);
    if (p->link->ops == NULL)
        mesh_connect(p->state->mesh, p->rank);
}

void match_send_credit(native_peer *p)
{
    link_item *item = message_pool_new_item(&p->state->pool);
    const message empty = {.type = MESSAGE_CREDIT, .credit = p->consumed};

    if (item != NULL) // else the next message carries it
        queue_item(p, item, &empty);
}

void match_queue_left(native_peer *p, const native_group *g)
{
    link_item *item = message_pool_new_item(&p->state->pool);
    const message left = {.type = MESSAGE_LEFT,
                          .group = g->info->id,
                          .sequence = MESSAGE_NO_SEQUENCE,
                          .step = g->next_sequence,
                          .credit = p->consumed};

    if (item != NULL) // else the end of the link shows it
        queue_item(p, item, &left);
}

bool match_has_left(const native_group *g, const native_peer *p, uint64_t *next_sequence)
{
    list_for_each (node, &p->unexpected) {
        const unexpected_message *u = list_entry(node, unexpected_message, node);

        *next_sequence = u->m.step;
        if (u->m.type == MESSAGE_LEFT && u->m.group == g->info->id)
            return true;
    }
    return false;
}

static bool post(native_peer *p, const message *m, const uint8_t *payload)
{
    if (!link_post(p->link, m, payload))
        return false;
    p->reported = p->consumed;
    return true;
}

static void send_done(transfer *t, size_t bytes)
{
    if (t->is_direct)
        direct_sent(t, bytes);
    else
        t->finished(t);
}

void match_queue_control(native_peer *p, message_type type, const transfer *t)
{
    const message m = {.type = type,
                       .is_direct = t->is_direct,
                       .group = t->group->info->id,
                       .sequence = t->sequence,
                       .step = t->step,
                       .total = t->total,
                       .credit = p->consumed,
                       .dtype = stamp_dtype(t->stamp),
                       .stamp = t->stamp};
    link_item *item;

    if (post(p, &m, NULL))
        return;
    item = message_pool_new_item(&p->state->pool);
    if (item == NULL) {
        native_break_no_memory(t->group);
        return;
    }
    queue_item(p, item, &m);
}

void match_queue_payload(transfer *t, const uint8_t *from, size_t bytes, message_type type,
                         bool is_charged)
{
    native_peer *p = t->peer;
    const message m = {.type = type,
                       .is_charged = is_charged,
                       .is_direct = t->is_direct,
                       .group = t->group->info->id,
                       .sequence = t->sequence,
                       .step = t->step,
                       .bytes = bytes,
                       .total = t->total,
                       .credit = p->consumed,
                       .dtype = stamp_dtype(t->stamp),
                       .stamp = t->stamp};
    link_item *item;

    if (post(p, &m, from)) {
        send_done(t, bytes);
        return;
    }
    item = message_pool_new_item(&p->state->pool);
    if (item == NULL) {
        native_break_no_memory(t->group);
        message_pool_drop_transfer(&p->state->pool, t);
        return;
    }
    item->payload = from;
    item->bytes = bytes;
    item->owner = t;
    queue_item(p, item, &m);
}

static bool has_credit(const native_peer *p, size_t bytes)
{
    return p->charged - p->credit + CHARGE(bytes) <= CREDIT_BYTES;
}

bool match_charge(native_peer *p, size_t bytes)
{
    if (!has_credit(p, bytes))
        return false;
    p->charged += CHARGE(bytes);
    return true;
}

bool match_post(native_peer *p, const message *m, const uint8_t *payload)
{
    if (!has_credit(p, (size_t)m->bytes) || !post(p, m, payload))
        return false;
    p->charged += CHARGE(m->bytes);
    return true;
}

bool match_take(native_peer *p, link_request *request, uint8_t *to)
{
    uint64_t credit;

    request->credit_min = p->credit;
    request->credit_max = p->charged;
    if (!link_take(p->link, request, to, &credit))
        return false;
    p->credit = credit;
    backend_count(p->received, (size_t)request->bytes);
    match_return_credit(p, &(message){.is_charged = true, .bytes = request->bytes});
    return true;
}

void match_return_credit(native_peer *p, const message *m)
{
    if (!m->is_charged)
        return;
    p->consumed += CHARGE(m->bytes);
    if (p->consumed - p->reported >= CREDIT_BYTES / 4)
        match_send_credit(p);
}

static unexpected_message *find_unexpected(const native_peer *p, const transfer *t, bool want_ready)
{
    if (p->n_unexpected == 0)
        return NULL;
    list_for_each (node, &p->unexpected) {
        unexpected_message *u = list_entry(node, unexpected_message, node);

        if (u->m.group == t->group->info->id && u->m.sequence == t->sequence &&
            u->m.step == t->step && (u->m.type == MESSAGE_READY) == want_ready &&
            u->claimer == NULL)
            return u;
    }
    return NULL;
}

// Whether message and transfer mean the same; breaks the group if not.
static bool agrees(transfer *t, native_peer *p, const message *m)
{
    if (!errors_same_operation(m->stamp, t->stamp)) {
        errors_stamp_mismatch(t->group, p, m->stamp, t->stamp);
        return false;
    }
    if (m->total != t->total) {
        errors_size_mismatch(t->group, p, m->total, t->total, t->stamp);
        return false;
    }
    if (m->type == MESSAGE_DATA && m->bytes != t->bytes) {
        errors_size_mismatch(t->group, p, m->bytes, t->bytes, t->stamp);
        return false;
    }
    return true;
}

void match_send(transfer *t)
{
    native_peer *p = t->peer;
    unexpected_message *ready;

    if (p->link->is_ended || p->link->is_cut) {
        errors_lost_peer(t->group, p, t->stamp);
        message_pool_drop_transfer(&p->state->pool, t);
        return;
    }
    if (t->bytes <= MESSAGE_EAGER_BYTES) {
        if (match_charge(p, t->bytes)) {
            match_queue_payload(t, t->from, t->bytes, MESSAGE_DATA, true);
            return;
        }
        match_queue_control(p, MESSAGE_ANNOUNCE, t);
        list_append(&p->awaiting, &t->node);
        return;
    }
    if (t->announce)
        match_queue_control(p, MESSAGE_ANNOUNCE, t);
    ready = find_unexpected(p, t, true);
    if (ready == NULL) {
        list_append(&p->awaiting, &t->node);
        return;
    }
    if (agrees(t, p, &ready->m))
        match_queue_payload(t, t->from, t->bytes, MESSAGE_DATA, false);
    else
        message_pool_drop_transfer(&p->state->pool, t);
    match_free_unexpected(ready);
}

// --- receiving ---

void match_receive(transfer *t)
{
    native_peer *p = t->peer;
    unexpected_message *u = find_unexpected(p, t, false);
    bool needs_ready = t->bytes > MESSAGE_EAGER_BYTES;

    if (u != NULL && !agrees(t, p, &u->m)) {
        message_pool_drop_transfer(&p->state->pool, t);
        return;
    }
    if (u != NULL && u->m.type == MESSAGE_DATA) {
        match_return_credit(p, &u->m);
        if (!u->is_complete) {
            u->claimer = t;
            return;
        }
        if (t->bytes > 0)
            memcpy(t->to, u->data, t->bytes);
        match_free_unexpected(u);
        t->finished(t);
        return;
    }
    if (u != NULL) { // announced
        needs_ready = true;
        match_free_unexpected(u);
    }
    if (p->link->is_ended) {
        errors_lost_peer(t->group, p, t->stamp);
        message_pool_drop_transfer(&p->state->pool, t);
        return;
    }
    list_append(&p->receives, &t->node);
    if (needs_ready)
        match_queue_control(p, MESSAGE_READY, t);
    else
        mesh_expect(p->state->mesh, p->rank);
}

static transfer *find_transfer(list_node *list, const message *m)
{
    list_for_each (node, list) {
        transfer *t = list_entry(node, transfer, node);

        if (t->group->info->id == m->group && t->sequence == m->sequence && !t->is_direct &&
            t->step == m->step)
            return t;
    }
    return NULL;
}

ls_status match_save_unexpected(native_peer *p, const message *m, list_node *list, uint8_t **target)
{
    unexpected_message *u;

    // A correct peer's own credit keeps it at half of this.
    if (m->is_charged && p->unexpected_bytes + CHARGE(m->bytes) > 2 * (uint64_t)CREDIT_BYTES)
        return ls_fail(LS_EPROTO, "more payload without a receive than its credit allows");
    if (p->n_unexpected == UNEXPECTED_MAX)
        return ls_fail(LS_EPROTO, "more than %d messages before their receives", UNEXPECTED_MAX);
    u = message_pool_new_unexpected(&p->state->pool, (size_t)m->bytes);
    if (u == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a message of %" PRIu64 " bytes", m->bytes);
    u->peer = p;
    u->m = *m;
    u->m.stamp = memcpy(u->stamp, m->stamp, STAMP_BYTES);
    u->is_complete = m->bytes == 0;
    list_append(list, &u->node);
    p->n_unexpected++;
    p->unexpected_bytes += m->is_charged ? CHARGE(m->bytes) : 0;
    if (!u->is_complete) {
        p->receiving_unexpected = u;
        *target = u->data;
    }
    return LS_OK;
}

static ls_status save_unexpected(native_peer *p, native_group *g, const message *m,
                                 uint8_t **target)
{
    bool is_over = false;
    const uint8_t *ours = g == NULL ? NULL : stamp_of(g, m->sequence, &is_over);

    if (ours != NULL && (is_over || !errors_same_operation(m->stamp, ours))) {
        match_return_credit(p, m);
        if (errors_same_operation(m->stamp, ours))
            errors_extra_message(g, p, m, ours);
        else
            errors_stamp_mismatch(g, p, m->stamp, ours);
        return LS_OK;
    }
    if (m->type == MESSAGE_DATA && !m->is_charged)
        return ls_fail(LS_EPROTO, "payload that was not requested");
    return match_save_unexpected(p, m, &p->unexpected, target);
}

static ls_status on_ready(native_peer *p, native_group *g, const message *m)
{
    transfer *t = find_transfer(&p->awaiting, m);
    uint8_t *unused = NULL;

    if (t == NULL)
        return save_unexpected(p, g, m, &unused);
    if (!agrees(t, p, m))
        return LS_OK;
    list_remove(&t->node);
    match_queue_payload(t, t->from, t->bytes, MESSAGE_DATA, false);
    return LS_OK;
}

static ls_status on_announce(native_peer *p, native_group *g, const message *m)
{
    transfer *t = find_transfer(&p->receives, m);
    uint8_t *unused = NULL;

    if (t == NULL)
        return save_unexpected(p, g, m, &unused);
    if (agrees(t, p, m) && t->bytes <= MESSAGE_EAGER_BYTES) // larger ones sent READY when posted
        match_queue_control(p, MESSAGE_READY, t);
    return LS_OK;
}

static ls_status on_data(native_peer *p, native_group *g, const message *m, uint8_t **target)
{
    transfer *t = find_transfer(&p->receives, m);

    if (t == NULL)
        return save_unexpected(p, g, m, target);
    match_return_credit(p, m);
    if (!agrees(t, p, m))
        return LS_OK;
    list_remove(&t->node);
    p->receiving = t;
    *target = t->to;
    return LS_OK;
}

static ls_status on_begin(void *self, const message *m, uint8_t **target)
{
    native_peer *p = self;
    native_group *g;

    if (m->credit > p->charged || m->credit < p->credit)
        return ls_fail(LS_EPROTO, "credit for %" PRIu64 " bytes of %" PRIu64, m->credit,
                       p->charged);
    p->credit = m->credit;
    p->receiving = NULL;
    p->receiving_unexpected = NULL;
    if (m->type == MESSAGE_CREDIT)
        return LS_OK;
    if (m->type == MESSAGE_DATA || m->type == MESSAGE_PIECE)
        backend_count(p->received, (size_t)m->bytes);
    g = native_find_group(p->state, m->group);
    if (g == NULL ? native_is_closed(p->state, m->group) : g->is_broken) {
        match_return_credit(p, m);
        return LS_OK;
    }
    if (m->is_direct)
        return direct_on_message(p, g, m, target);
    switch (m->type) {
    case MESSAGE_READY:
        return on_ready(p, g, m);
    case MESSAGE_ANNOUNCE:
        return on_announce(p, g, m);
    case MESSAGE_DATA:
        return on_data(p, g, m, target);
    case MESSAGE_LEFT:
        return match_save_unexpected(p, m, &p->unexpected, target);
    case MESSAGE_PIECE:
    case MESSAGE_CREDIT:
    case MESSAGE_OFFER:
    case MESSAGE_TAKEN:
    case MESSAGE_SHARED:
    case MESSAGE_WRITTEN:
        break;
    }
    return ls_fail(LS_EPROTO, "piece of a message in a collective");
}

void match_free_unexpected(unexpected_message *u)
{
    native_peer *p = u->peer;

    list_remove(&u->node);
    p->n_unexpected--;
    p->unexpected_bytes -= u->m.is_charged ? CHARGE(u->m.bytes) : 0;
    if (p->receiving_unexpected == u) { // its payload is still coming in
        p->receiving_unexpected = NULL;
        link_drop_payload(p->link);
    }
    message_pool_free_unexpected(&p->state->pool, u);
}

void match_free(native_peer *p)
{
    while (!list_empty(&p->unexpected))
        match_free_unexpected(list_entry(p->unexpected.next, unexpected_message, node));
}

static void complete_unexpected(unexpected_message *u)
{
    transfer *t = u->claimer;

    u->is_complete = true;
    if (t == NULL)
        return;
    if (t->is_direct) {
        direct_claim_unexpected(u, t);
        return;
    }
    memcpy(t->to, u->data, t->bytes);
    match_free_unexpected(u);
    t->finished(t);
}

static ls_status on_end(void *self)
{
    native_peer *p = self;
    transfer *t = p->receiving;
    unexpected_message *u = p->receiving_unexpected;

    p->receiving = NULL;
    p->receiving_unexpected = NULL;
    if (t != NULL && t->is_direct)
        direct_received(t, p->link->in_bytes);
    else if (t != NULL)
        t->finished(t);
    else if (u != NULL)
        complete_unexpected(u);
    return LS_OK;
}

static void on_sent(void *self, link_item *item)
{
    native_peer *p = self;
    transfer *t = item->owner;
    const size_t bytes = item->bytes;

    message_pool_free_item(&p->state->pool, item);
    if (t != NULL)
        send_done(t, bytes);
}

link_sink match_sink(native_peer *p)
{
    return (link_sink){.begin = on_begin, .end = on_end, .sent = on_sent, .self = p};
}

// --- ending groups, operations and peers ---

static void cancel_list(native_state *s, list_node *list, const native_group *g)
{
    list_for_each_safe (node, list) {
        transfer *t = list_entry(node, transfer, node);

        if (t->group != g)
            continue;
        list_remove(node);
        message_pool_drop_transfer(&s->pool, t);
    }
}

static void cancel_items(native_peer *p, const native_group *g)
{
    list_node *list = &p->link->out;

    list_for_each_safe (node, list) {
        link_item *item = list_entry(node, link_item, node);
        transfer *t = item->owner;
        message m;

        if (t == NULL || t->group != g)
            continue;
        item->owner = NULL;
        if (link_withdraw(p->link, item)) {
            if (message_decode(item->header, &m) == LS_OK && m.is_charged)
                p->charged -= CHARGE(item->bytes);
            message_pool_free_item(&p->state->pool, item);
        }
        // A direct transfer may have several items; it belongs to its work.
        message_pool_drop_transfer(&p->state->pool, t);
    }
}

static void cancel_unexpected(native_state *s, list_node *list, const native_group *g)
{
    list_for_each_safe (node, list) {
        unexpected_message *u = list_entry(node, unexpected_message, node);

        if (u->claimer == NULL || u->claimer->group != g)
            continue;
        message_pool_drop_transfer(&s->pool, u->claimer);
        match_free_unexpected(u);
    }
}

void match_cancel(native_group *g)
{
    native_state *s = g->state;

    for (int i = 0; i < g->info->size; i++) {
        native_peer *p = g->peers[i];

        if (p->link == NULL)
            continue;
        cancel_list(s, &p->receives, g);
        cancel_list(s, &p->awaiting, g);
        cancel_list(s, &p->pieces, g);
        cancel_items(p, g);
        cancel_unexpected(s, &p->unexpected, g);
        if (p->receiving != NULL && p->receiving->group == g) {
            link_drop_payload(p->link);
            message_pool_drop_transfer(&s->pool, p->receiving);
            p->receiving = NULL;
        }
    }
    cancel_unexpected(s, &s->unexpected, g);
    cancel_list(s, &g->receives, g);
}

static void break_list(list_node *list, native_peer *p)
{
    list_for_each (node, list) {
        transfer *t = list_entry(node, transfer, node);

        errors_lost_peer(t->group, p, t->stamp);
    }
}

bool match_all_ended(const native_group *g)
{
    for (int i = 0; i < g->info->size; i++) {
        const native_peer *p = g->peers[i];

        if (p->link == NULL ? p->is_local : !p->link->is_ended)
            return false;
    }
    return true;
}

static void break_receivers(native_group *g, native_peer *p)
{
    list_for_each (node, &g->receives) {
        transfer *t = list_entry(node, transfer, node);

        if (t->peer == p || (t->peer == NULL && match_all_ended(g)))
            errors_lost_peer(g, p, t->stamp);
    }
}

void match_peer_gone(native_peer *p)
{
    unexpected_message *u = p->receiving_unexpected;

    break_list(&p->receives, p);
    break_list(&p->awaiting, p);
    break_list(&p->pieces, p);
    if (p->receiving != NULL)
        errors_lost_peer(p->receiving->group, p, p->receiving->stamp);
    if (u != NULL && u->claimer != NULL)
        errors_lost_peer(u->claimer->group, p, u->claimer->stamp);
    else if (u != NULL)
        match_free_unexpected(u);
    list_for_each (node, &p->link->out) {
        const transfer *t = list_entry(node, link_item, node)->owner;

        if (t != NULL)
            errors_lost_peer(t->group, p, t->stamp);
    }
    list_for_each (node, &p->state->groups)
        break_receivers(list_entry(node, native_group, node), p);
}

typedef void (*unexpected_fn)(native_work *w, native_peer *p, const unexpected_message *u);

static void for_each_unexpected(native_work *w, unexpected_fn check)
{
    const native_group *g = w->group;

    for (int i = 0; i < g->info->size; i++) {
        native_peer *p = g->peers[i];

        if (p->n_unexpected == 0)
            continue;
        list_for_each (node, &p->unexpected) {
            const unexpected_message *u = list_entry(node, unexpected_message, node);

            if (u->m.group == g->info->id && u->m.sequence == w->work->op.stamp.sequence)
                check(w, p, u);
        }
    }
}

static void check_stamp(native_work *w, native_peer *p, const unexpected_message *u)
{
    if (!errors_same_operation(u->m.stamp, w->stamp))
        errors_stamp_mismatch(w->group, p, u->m.stamp, w->stamp);
}

void match_check_unexpected(native_work *w)
{
    for_each_unexpected(w, check_stamp);
}

static void refuse_leftover(native_work *w, native_peer *p, const unexpected_message *u)
{
    errors_extra_message(w->group, p, &u->m, w->stamp);
}

void match_check_leftover(native_work *w)
{
    for_each_unexpected(w, refuse_leftover);
}

static void free_group_messages(list_node *list, uint32_t id)
{
    list_for_each_safe (node, list) {
        unexpected_message *u = list_entry(node, unexpected_message, node);

        if (u->m.group != id)
            continue;
        match_return_credit(u->peer, &u->m);
        match_free_unexpected(u);
    }
}

void match_free_group(native_state *s, uint32_t id)
{
    for (int i = 0; i < s->size; i++)
        if (s->peers[i].n_unexpected > 0)
            free_group_messages(&s->peers[i].unexpected, id);
    free_group_messages(&s->unexpected, id);
}
