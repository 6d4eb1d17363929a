/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_barrier.c - barrier: members of a group that wait for each other outside of its operations,
 * to create another group or in a monitored barrier. The hub answers all of them when the last one
 * has come, or names those that are missing; the group itself stays as it is. hub_ranks.c calls it.
 *
 * A failed barrier is kept until all its members have received the failure, so that a late one
 * receives it at once.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "hub/control.h"

#include <string.h>

#define BARRIERS_MAX 4096
#define LISTED_MAX   16  /* ranks of a list in an error */
#define SUSPENDED_MS 500 /* a timer that fires later by this: the process was suspended */

typedef enum arrival_state { ARRIVAL_EMPTY = 0, ARRIVAL_WAITS, ARRIVAL_ANSWERED } arrival_state;

/* Of one member. */
typedef struct arrival {
    arrival_state state;
    uint64_t ticket;
} arrival;

typedef struct hub_barrier {
    list_node node; /* in hub.barriers, oldest first */
    hub *owner;
    uint32_t parent;
    uint32_t id; /* of the group that is created; reports of the wait have it too */
    char what[HUB_BARRIER_BYTES];
    int *members;
    arrival *arrivals;
    int n_members;
    int n_came;
    int first; /* the rank that came first */
    int64_t since_ms;
    poll_timer limit;
    ls_status status; /* LS_OK: it has not failed */
    char text[HUB_MESSAGE_TEXT_MAX];
} hub_barrier;

/* A rank's message. */
typedef struct meet_message {
    uint64_t ticket;
    uint32_t parent;
    int64_t timeout_ms;
    int64_t report_in_ms;
    char what[HUB_BARRIER_BYTES];
    int *members;
    int n_members;
} meet_message;

/* --- the list of barriers --- */

static hub_barrier *find_barrier(hub *h, uint32_t parent, const char *what)
{
    list_for_each (it, &h->barriers) {
        hub_barrier *m = list_entry(it, hub_barrier, node);

        if (m->parent == parent && text_equal(m->what, what))
            return m;
    }
    return NULL;
}

static void free_barrier(hub_barrier *m)
{
    list_remove(&m->node);
    m->owner->n_barriers--;
    poller_timer_cancel(&m->limit);
    hub_watch_end_group(m->owner, m->id);
    ls_free(m->members);
    ls_free(m->arrivals);
    ls_free(m);
}

void hub_meet_end_group(hub *h, uint32_t group)
{
    list_for_each_safe (it, &h->barriers) {
        hub_barrier *m = list_entry(it, hub_barrier, node);

        if (group == GROUP_ALL || m->parent == group)
            free_barrier(m);
    }
}

/* Frees the oldest failed barrier if there are too many. False: none has failed. */
static bool can_add(hub *h)
{
    for (list_node *it = h->barriers.next; h->n_barriers == BARRIERS_MAX && it != &h->barriers;
         it = it->next) {
        hub_barrier *m = list_entry(it, hub_barrier, node);

        if (m->status == LS_OK)
            continue;
        free_barrier(m);
        break;
    }
    return h->n_barriers < BARRIERS_MAX;
}

static ls_status make_barrier(hub *h, meet_message *from, int first, hub_barrier **out)
{
    const kv_bytes key = {.data = (const uint8_t *)CONTROL_GROUPS_KEY,
                          .bytes = strlen(CONTROL_GROUPS_KEY)};
    hub_barrier *m;
    int64_t next;

    if (!can_add(h))
        return ls_fail(LS_ENOMEM, "over %d groups are created at the same time", BARRIERS_MAX);
    LS_TRY(table_add(&h->table, key, 1, &next));
    if (next < 1 || next > (int64_t)GROUP_ID_END)
        return ls_fail(LS_EUNSUPPORTED, "no ids of groups are left");
    m = ls_calloc(1, sizeof(*m));
    if (m != NULL)
        m->arrivals = ls_calloc((size_t)from->n_members, sizeof(*m->arrivals));
    if (m == NULL || m->arrivals == NULL) {
        ls_free(m);
        return ls_fail(LS_ENOMEM, "no memory for a group of %d ranks", from->n_members);
    }
    m->owner = h;
    m->parent = from->parent;
    m->id = (uint32_t)(next - 1);
    m->members = from->members;
    m->n_members = from->n_members;
    from->members = NULL;
    m->first = first;
    m->since_ms = ls_now_ms();
    text_format(m->what, sizeof(m->what), "%s", from->what);
    list_append(&h->barriers, &m->node);
    h->n_barriers++;
    *out = m;
    return LS_OK;
}

static arrival *arrival_of(const hub_barrier *m, int rank)
{
    for (int i = 0; i < m->n_members; i++) {
        if (m->members[i] == rank)
            return &m->arrivals[i];
    }
    return NULL;
}

/* --- answers --- */

static void answer(hub_conn *c, uint64_t ticket, ls_status status, uint32_t id, const char *text)
{
    wire_writer *w = &c->owner->body;

    wire_writer_reset(w);
    wire_write_u64(w, ticket);
    wire_write_u32(w, (uint32_t)status);
    wire_write_u32(w, id);
    wire_write_text(w, text);
    conn_send_body(c, HUB_MESSAGE_MET);
}

/* Also frees the barrier when all members have their answer. */
static void answer_all(hub_barrier *m)
{
    hub *h = m->owner;
    int n_answered = 0;

    hub_watch_end_group(h, m->id);
    poller_timer_cancel(&m->limit);
    for (int i = 0; i < m->n_members; i++) {
        arrival *p = &m->arrivals[i];
        hub_conn *c = h->ranks[m->members[i]].conn;

        if (p->state == ARRIVAL_WAITS) {
            p->state = ARRIVAL_ANSWERED;
            if (c != NULL)
                answer(c, p->ticket, m->status, m->id, m->text);
        }
        n_answered += p->state == ARRIVAL_ANSWERED;
    }
    if (n_answered == m->n_members)
        free_barrier(m);
}

static void fail_barrier(hub_barrier *m, ls_status status, const char *text)
{
    m->status = status;
    text_format(m->text, sizeof(m->text), "%s", text);
    answer_all(m);
}

static void limit_is_due(void *arg)
{
    hub_barrier *m = arg;
    const int64_t gap_ms = ls_now_ms() - m->limit.due_ms;
    text_buf t = {0};

    if (gap_ms >= SUSPENDED_MS) { // the ranks were suspended as well
        m->since_ms += gap_ms;
        poller_timer_set(m->owner->loop, &m->limit, ls_now_ms() + gap_ms, limit_is_due, m);
        return;
    }
    text_append(&t, "%s timed out after %.1f s: %d of %d ranks have arrived", m->what,
                (double)(ls_now_ms() - m->since_ms) / 1e3, m->n_came, m->n_members);
    hub_watch_append_missing(&t, m->owner, m->id);
    fail_barrier(m, LS_ETIMEOUT, text_str(&t));
    text_free(&t);
}

/* --- members that come --- */

static void append_list(text_buf *t, const int *members, int n)
{
    for (int i = 0; i < n && i < LISTED_MAX; i++)
        text_append(t, " %d", members[i]);
    if (n > LISTED_MAX)
        text_append(t, " and %d more", n - LISTED_MAX);
}

static bool has_same_members(const hub_barrier *m, const meet_message *from)
{
    return m->n_members == from->n_members &&
           memcmp(m->members, from->members, (size_t)m->n_members * sizeof(*m->members)) == 0;
}

/* Both sides receive it. */
static void fail_mismatch(hub_barrier *m, const hub_conn *c, const meet_message *from)
{
    text_buf t = {0};

    text_append(&t, "%s: rank %d names ranks", m->what, m->first);
    append_list(&t, m->members, m->n_members);
    text_append(&t, ", rank %d names ranks", c->rank);
    append_list(&t, from->members, from->n_members);
    m->status = LS_EMISMATCH;
    text_format(m->text, sizeof(m->text), "%s", text_str(&t));
    text_free(&t);
}

static void fail_left(hub_barrier *m, int rank)
{
    char text[HUB_MESSAGE_TEXT_MAX];

    text_format(text, sizeof(text), "rank %d (pid %d) left the job, but rank %d waits for it: %s",
                rank, (int)m->owner->ranks[rank].pid, m->first, m->what);
    fail_barrier(m, LS_EPEER, text);
}

void hub_meet_rank_gone(hub *h, int rank)
{
    list_for_each_safe (it, &h->barriers) {
        hub_barrier *m = list_entry(it, hub_barrier, node);
        arrival *p = arrival_of(m, rank);

        if (p == NULL)
            continue;
        if (p->state == ARRIVAL_WAITS)
            m->n_came--;
        p->state = ARRIVAL_ANSWERED;
        if (m->status == LS_OK && h->ranks[rank].has_left)
            fail_left(m, rank);
    }
}

/* The first member that has left the job; -1: none. */
static int find_left(const hub_barrier *m)
{
    for (int i = 0; i < m->n_members; i++) {
        const hub_rank *r = &m->owner->ranks[m->members[i]];

        if (r->has_left && r->conn == NULL)
            return m->members[i];
    }
    return -1;
}

static void enter(hub_barrier *m, hub_conn *c, arrival *p, const meet_message *from)
{
    hub *h = m->owner;
    int left;

    p->state = ARRIVAL_WAITS;
    p->ticket = from->ticket;
    if (++m->n_came == m->n_members) {
        answer_all(m);
        return;
    }
    left = find_left(m);
    if (left >= 0) {
        fail_left(m, left);
        return;
    }
    if (m->n_came == 1 && from->timeout_ms >= 0)
        poller_timer_set(h->loop, &m->limit, ls_deadline_ms(from->timeout_ms), limit_is_due, m);
    hub_watch_stage(c, m->id, m->what, m->members, m->n_members, from->report_in_ms);
}

static void come(hub_conn *c, meet_message *from)
{
    hub *h = c->owner;
    hub_barrier *m = find_barrier(h, from->parent, from->what);
    arrival *p = m == NULL ? NULL : arrival_of(m, c->rank);
    ls_status st = LS_OK;

    if (p != NULL && p->state == ARRIVAL_WAITS) {
        answer(c, from->ticket, LS_EINVAL, 0, "another thread of this rank waits in it");
        return;
    }
    // It has received the failure: this is the next barrier of the same name.
    if (p != NULL && m->status != LS_OK && p->state == ARRIVAL_ANSWERED) {
        free_barrier(m);
        m = NULL;
    }
    if (m == NULL)
        st = make_barrier(h, from, c->rank, &m);
    if (m == NULL) {
        answer(c, from->ticket, st, 0, ls_last_error());
        return;
    }
    p = arrival_of(m, c->rank);
    if (m->status == LS_OK && from->members != NULL && !has_same_members(m, from))
        fail_mismatch(m, c, from);
    if (p == NULL) {
        answer(c, from->ticket, m->status, 0, m->text);
        answer_all(m);
    } else if (m->status != LS_OK) {
        p->state = ARRIVAL_WAITS;
        p->ticket = from->ticket;
        answer_all(m);
    } else {
        enter(m, c, p, from);
    }
}

ls_status hub_meet_message(hub_conn *c, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    meet_message m = {.members = NULL};
    char what[HUB_BARRIER_BYTES];

    m.ticket = wire_read_u64(&r);
    m.parent = wire_read_u32(&r);
    m.timeout_ms = wire_read_i64(&r);
    m.report_in_ms = wire_read_i64(&r);
    wire_read_text(&r, what, sizeof(what));
    if (r.failed || m.timeout_ms > INT64_MAX / 4 || m.report_in_ms < 0 ||
        m.report_in_ms > INT64_MAX / 4)
        return ls_fail(LS_EPROTO, "a malformed barrier");
    text_printable(m.what, sizeof(m.what), what);
    LS_TRY(hub_watch_read_members(c, &r, &m.members, &m.n_members));
    if (!hub_is_broken(c->owner, m.parent)) // else it receives the cause
        come(c, &m);
    ls_free(m.members);
    return LS_OK;
}
