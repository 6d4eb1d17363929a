/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.c - bringing messages and receives together.
 *
 * A message of at most MESSAGE_EAGER_BYTES goes at once and is charged to the sender's credit until it has found its
 * receive; what comes early is kept, so the memory for it is bounded by the credit and the stream never has to stop. Without
 * credit, and for larger payloads, the sender waits for READY, which a posted receive sends. So no message ever blocks another,
 * whatever groups and operations are under way.
 */
#include "comm/native/mesh.h"
#include "comm/native/native.h"

#include "base/alloc.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define CHARGE(bytes) (MESSAGE_HEADER_BYTES + (uint64_t)(bytes))

void match_init(native_peer *p)
{
    list_init(&p->receives);
    list_init(&p->awaiting);
    list_init(&p->pieces);
    list_init(&p->parcels);
}

bool match_is_hot(const native_peer *p)
{
    return p->into != NULL || p->incoming != NULL || !list_empty(&p->receives) ||
           !list_empty(&p->awaiting) || !list_empty(&p->pieces);
}

// The stamp of our operation with this number, NULL when it has not started yet or is long over.
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
        mesh_need(p);
}

void match_greet(native_peer *p)
{
    link_item *item = pool_new_item(p->state);
    message nothing = {.type = MESSAGE_CREDIT, .credit = p->consumed};

    if (item != NULL) // else the next message says it
        queue_item(p, item, &nothing);
}

static bool post(native_peer *p, const message *m, const uint8_t *payload)
{
    if (!link_post(p->link, m, payload))
        return false;
    p->reported = p->consumed;
    return true;
}

// So many bytes of it have gone out.
static void went(transfer *t, size_t bytes)
{
    if (t->is_direct)
        direct_sent(t, bytes);
    else
        t->finished(t);
}

static void no_memory(native_group *g)
{
    native_break(g, CAUSE_FAULT, g->state->rank, "rank %d has no memory for a message",
                 g->state->rank);
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
    item = pool_new_item(p->state);
    if (item == NULL) {
        no_memory(t->group);
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
        went(t, bytes);
        return;
    }
    item = pool_new_item(p->state);
    if (item == NULL) {
        no_memory(t->group);
        pool_drop_transfer(p->state, t);
        return;
    }
    item->payload = from;
    item->bytes = bytes;
    item->owner = t;
    queue_item(p, item, &m);
}

static bool has_credit(const native_peer *p, size_t bytes)
{
    return p->charged - p->credit + CHARGE(bytes) <= NATIVE_CREDIT;
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

bool match_take(native_peer *p, link_wanted *wanted, uint8_t *to)
{
    uint64_t credit;

    wanted->credit_min = p->credit;
    wanted->credit_max = p->charged;
    if (!link_take(p->link, wanted, to, &credit))
        return false;
    p->credit = credit;
    match_consumed(p, &(message){.is_charged = true, .bytes = wanted->bytes});
    return true;
}

void match_consumed(native_peer *p, const message *m)
{
    if (!m->is_charged)
        return;
    p->consumed += CHARGE(m->bytes);
    if (p->consumed - p->reported >= NATIVE_CREDIT / 4)
        match_greet(p); // which carries the credit
}

static parcel *find_parcel(const native_peer *p, const transfer *t, bool want_ready)
{
    if (p->n_parcels == 0)
        return NULL;
    list_for_each (node, &p->parcels) {
        parcel *c = list_entry(node, parcel, node);

        if (c->m.group == t->group->info->id && c->m.sequence == t->sequence &&
            c->m.step == t->step && (c->m.type == MESSAGE_READY) == want_ready && c->taker == NULL)
            return c;
    }
    return NULL;
}

// Whether message and transfer mean the same; breaks the group if not.
static bool agrees(transfer *t, native_peer *p, const message *m)
{
    if (!blame_stamps_agree(m->stamp, t->stamp)) {
        blame_stamps(t->group, p, m->stamp, t->stamp);
        return false;
    }
    if (m->total != t->total) {
        blame_bytes(t->group, p, m->total, t->total, t->stamp);
        return false;
    }
    if (m->type == MESSAGE_DATA && m->bytes != t->bytes) {
        blame_bytes(t->group, p, m->bytes, t->bytes, t->stamp);
        return false;
    }
    return true;
}

void match_send(transfer *t)
{
    native_peer *p = t->peer;
    parcel *ready;

    if (p->link->is_ended || p->link->is_cut) {
        blame_peer(t->group, p, t->stamp);
        pool_drop_transfer(p->state, t);
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
    ready = find_parcel(p, t, true);
    if (ready == NULL) {
        list_append(&p->awaiting, &t->node);
        return;
    }
    if (agrees(t, p, &ready->m))
        match_queue_payload(t, t->from, t->bytes, MESSAGE_DATA, false);
    else
        pool_drop_transfer(p->state, t);
    pool_free_parcel(ready);
}

// --- receiving ---

void match_receive(transfer *t)
{
    native_peer *p = t->peer;
    parcel *c = find_parcel(p, t, false);
    bool is_asked = t->bytes > MESSAGE_EAGER_BYTES;

    if (c != NULL && !agrees(t, p, &c->m)) {
        pool_drop_transfer(p->state, t);
        return;
    }
    if (c != NULL && c->m.type == MESSAGE_DATA) {
        match_consumed(p, &c->m);
        if (!c->is_complete) {
            c->taker = t;
            return;
        }
        if (t->bytes > 0)
            memcpy(t->to, c->data, t->bytes);
        pool_free_parcel(c);
        t->finished(t);
        return;
    }
    if (c != NULL) { // announced
        is_asked = true;
        pool_free_parcel(c);
    }
    if (p->link->is_ended) {
        blame_peer(t->group, p, t->stamp);
        pool_drop_transfer(p->state, t);
        return;
    }
    list_append(&p->receives, &t->node);
    if (is_asked)
        match_queue_control(p, MESSAGE_READY, t);
    else
        mesh_expect(p);
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

ls_status match_keep(native_peer *p, const message *m, list_node *list, uint8_t **place)
{
    parcel *c;

    // The peer's own credit keeps an honest one at half of this.
    if (m->is_charged && p->held + CHARGE(m->bytes) > 2 * (uint64_t)NATIVE_CREDIT)
        return ls_fail(LS_EPROTO, "more unasked payload than agreed");
    if (p->n_parcels == NATIVE_PARCELS)
        return ls_fail(LS_EPROTO, "more than %d messages before their receives", NATIVE_PARCELS);
    c = pool_new_parcel(p->state, (size_t)m->bytes);
    if (c == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a message of %" PRIu64 " bytes", m->bytes);
    c->peer = p;
    c->m = *m;
    c->m.stamp = memcpy(c->stamp, m->stamp, STAMP_BYTES);
    c->is_complete = m->bytes == 0;
    list_append(list, &c->node);
    p->n_parcels++;
    p->held += m->is_charged ? CHARGE(m->bytes) : 0;
    if (!c->is_complete) {
        p->incoming = c;
        *place = c->data;
    }
    return LS_OK;
}

static ls_status keep_early(native_peer *p, native_group *g, const message *m, uint8_t **place)
{
    bool is_over = false;
    const uint8_t *ours = g == NULL ? NULL : stamp_of(g, m->sequence, &is_over);

    if (ours != NULL && (is_over || !blame_stamps_agree(m->stamp, ours))) {
        match_consumed(p, m);
        if (blame_stamps_agree(m->stamp, ours))
            blame_surplus(g, p, m, ours);
        else
            blame_stamps(g, p, m->stamp, ours);
        return LS_OK;
    }
    if (m->type == MESSAGE_DATA && !m->is_charged)
        return ls_fail(LS_EPROTO, "payload that nobody asked for");
    return match_keep(p, m, &p->parcels, place);
}

static ls_status on_ready(native_peer *p, native_group *g, const message *m)
{
    transfer *t = find_transfer(&p->awaiting, m);
    uint8_t *nowhere = NULL;

    if (t == NULL)
        return keep_early(p, g, m, &nowhere);
    if (!agrees(t, p, m))
        return LS_OK;
    list_remove(&t->node);
    match_queue_payload(t, t->from, t->bytes, MESSAGE_DATA, false);
    return LS_OK;
}

static ls_status on_announce(native_peer *p, native_group *g, const message *m)
{
    transfer *t = find_transfer(&p->receives, m);
    uint8_t *nowhere = NULL;

    if (t == NULL)
        return keep_early(p, g, m, &nowhere);
    if (agrees(t, p, m) &&
        t->bytes <= MESSAGE_EAGER_BYTES) // larger ones have asked when they were posted
        match_queue_control(p, MESSAGE_READY, t);
    return LS_OK;
}

static ls_status on_data(native_peer *p, native_group *g, const message *m, uint8_t **place)
{
    transfer *t = find_transfer(&p->receives, m);

    if (t == NULL)
        return keep_early(p, g, m, place);
    match_consumed(p, m);
    if (!agrees(t, p, m))
        return LS_OK;
    list_remove(&t->node);
    p->into = t;
    *place = t->to;
    return LS_OK;
}

static ls_status on_begin(void *self, const message *m, uint8_t **place)
{
    native_peer *p = self;
    native_group *g;

    if (m->credit > p->charged || m->credit < p->credit)
        return ls_fail(LS_EPROTO, "credit for %" PRIu64 " bytes of %" PRIu64, m->credit,
                       p->charged);
    p->credit = m->credit;
    p->into = NULL;
    p->incoming = NULL;
    if (m->type == MESSAGE_CREDIT)
        return LS_OK;
    g = native_find_group(p->state, m->group);
    if (g == NULL ? native_was_closed(p->state, m->group) : g->is_broken) {
        match_consumed(p, m);
        return LS_OK;
    }
    if (m->is_direct)
        return direct_begin(p, g, m, place);
    switch (m->type) {
    case MESSAGE_READY:
        return on_ready(p, g, m);
    case MESSAGE_ANNOUNCE:
        return on_announce(p, g, m);
    case MESSAGE_DATA:
        return on_data(p, g, m, place);
    case MESSAGE_PIECE:
    case MESSAGE_CREDIT:
    case MESSAGE_OFFER:
    case MESSAGE_TAKEN:
    case MESSAGE_SHARED:
    case MESSAGE_WRITTEN:
        break;
    }
    return ls_fail(LS_EPROTO, "piece of a collective");
}

static void take_parcel(parcel *c)
{
    transfer *t = c->taker;

    c->is_complete = true;
    if (t == NULL)
        return;
    if (t->is_direct) {
        direct_parcel_taken(c, t);
        return;
    }
    memcpy(t->to, c->data, t->bytes);
    pool_free_parcel(c);
    t->finished(t);
}

static ls_status on_end(void *self)
{
    native_peer *p = self;
    transfer *t = p->into;
    parcel *c = p->incoming;

    p->into = NULL;
    p->incoming = NULL;
    if (t != NULL && t->is_direct)
        direct_received(t, p->link->in_bytes);
    else if (t != NULL)
        t->finished(t);
    else if (c != NULL)
        take_parcel(c);
    return LS_OK;
}

static void on_sent(void *self, link_item *item)
{
    native_peer *p = self;
    transfer *t = item->owner;
    const size_t bytes = item->bytes;

    pool_free_item(p->state, item);
    if (t != NULL)
        went(t, bytes);
}

link_sink match_sink(native_peer *p)
{
    return (link_sink){.begin = on_begin, .end = on_end, .sent = on_sent, .self = p};
}

// --- the end of groups, operations and peers ---

static void cancel_list(native_state *s, list_node *list, const native_group *g)
{
    for (list_node *node = list->next, *next; node != list; node = next) {
        transfer *t = list_entry(node, transfer, node);

        next = node->next;
        if (t->group != g)
            continue;
        list_remove(node);
        pool_drop_transfer(s, t);
    }
}

static void cancel_items(native_peer *p, const native_group *g)
{
    list_node *list = &p->link->out;

    for (list_node *node = list->next, *next; node != list; node = next) {
        link_item *item = list_entry(node, link_item, node);
        transfer *t = item->owner;
        message m;

        next = node->next;
        if (t == NULL || t->group != g)
            continue;
        item->owner = NULL;
        if (link_withdraw(p->link, item)) {
            if (message_decode(item->header, &m) == LS_OK && m.is_charged)
                p->charged -= CHARGE(item->bytes);
            pool_free_item(p->state, item);
        }
        // A direct transfer may have several items; it belongs to its work.
        pool_drop_transfer(p->state, t);
    }
}

static void cancel_parcels(native_state *s, list_node *list, const native_group *g)
{
    for (list_node *node = list->next, *next; node != list; node = next) {
        parcel *c = list_entry(node, parcel, node);

        next = node->next;
        if (c->taker == NULL || c->taker->group != g)
            continue;
        pool_drop_transfer(s, c->taker);
        pool_free_parcel(c);
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
        cancel_parcels(s, &p->parcels, g);
        if (p->into != NULL && p->into->group == g) {
            link_drop_payload(p->link);
            pool_drop_transfer(s, p->into);
            p->into = NULL;
        }
    }
    cancel_parcels(s, &s->parcels, g);
    cancel_list(s, &g->receives, g);
}

static void break_list(list_node *list, native_peer *p)
{
    list_for_each (node, list) {
        transfer *t = list_entry(node, transfer, node);

        blame_peer(t->group, p, t->stamp);
    }
}

bool match_all_gone(const native_group *g)
{
    for (int i = 0; i < g->info->size; i++)
        if (g->peers[i]->link != NULL && !g->peers[i]->link->is_ended)
            return false;
    return true;
}

static void break_receivers(native_group *g, native_peer *p)
{
    list_for_each (node, &g->receives) {
        transfer *t = list_entry(node, transfer, node);

        if (t->peer == p || (t->peer == NULL && match_all_gone(g)))
            blame_peer(g, p, t->stamp);
    }
}

void match_peer_gone(native_peer *p)
{
    parcel *c = p->incoming;

    break_list(&p->receives, p);
    break_list(&p->awaiting, p);
    break_list(&p->pieces, p);
    if (p->into != NULL)
        blame_peer(p->into->group, p, p->into->stamp);
    if (c != NULL && c->taker != NULL)
        blame_peer(c->taker->group, p, c->taker->stamp);
    else if (c != NULL)
        pool_free_parcel(c);
    list_for_each (node, &p->link->out) {
        const transfer *t = list_entry(node, link_item, node)->owner;

        if (t != NULL)
            blame_peer(t->group, p, t->stamp);
    }
    list_for_each (node, &p->state->groups)
        break_receivers(list_entry(node, native_group, node), p);
}

void match_check_early(native_work *w)
{
    native_group *g = w->group;

    for (int i = 0; i < g->info->size; i++) {
        native_peer *p = g->peers[i];

        if (p->n_parcels == 0)
            continue;
        list_for_each (node, &p->parcels) {
            const parcel *c = list_entry(node, parcel, node);

            if (c->m.group == g->info->id && c->m.sequence == w->work->op.stamp.sequence &&
                !blame_stamps_agree(c->m.stamp, w->stamp))
                blame_stamps(g, p, c->m.stamp, w->stamp);
        }
    }
}

void match_check_left(native_work *w)
{
    const native_group *g = w->group;

    for (int i = 0; i < g->info->size; i++) {
        const native_peer *p = g->peers[i];

        if (p->n_parcels == 0)
            continue;
        list_for_each (node, &p->parcels) {
            const parcel *c = list_entry(node, parcel, node);

            if (c->m.group == g->info->id && c->m.sequence == w->work->op.stamp.sequence)
                blame_surplus(w->group, p, &c->m, w->stamp);
        }
    }
}

static void forget_list(list_node *list, uint32_t id)
{
    for (list_node *node = list->next, *next; node != list; node = next) {
        parcel *c = list_entry(node, parcel, node);

        next = node->next;
        if (c->m.group != id)
            continue;
        match_consumed(c->peer, &c->m);
        pool_free_parcel(c);
    }
}

void match_forget_group(native_state *s, uint32_t id)
{
    for (int i = 0; i < s->size; i++)
        if (s->peers[i].n_parcels > 0)
            forget_list(&s->peers[i].parcels, id);
    forget_list(&s->parcels, id);
}
