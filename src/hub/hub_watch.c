/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_watch.c - operations in which ranks wait. Ranks report only waits of 20 ms and more, so a job
 * without delays sends nothing. From the reports the hub detects ranks that wait in different
 * operations of the same number, writes the wait report that names the missing ranks, and knows
 * which ranks must receive the leaves of a group.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "host/process_id.h"

#include <string.h>

#define REPORT_MIN_MS  20
#define SUSPENDED_MS   500 /* a timer that fires later by this: the process was suspended */
#define REPORT_MAX_MS  ((int64_t)3600 * 1000)
#define OPS_PER_RANK   64
#define DESCRIBED_MAX  16 /* ranks that a report describes; others are counted */
#define STAMP_TEXT_MAX 160

/* --- the list of operations --- */

/* The waiting rank and its own number identify a point-to-point message. */
static hub_op *find_op(hub *h, const op_stamp *stamp, uint64_t number, int rank)
{
    list_for_each (it, &h->ops) {
        hub_op *op = list_entry(it, hub_op, node);

        if (stamp_is_message(stamp) ? op->only_rank == rank && op->number == number
                                    : op->only_rank < 0 && op->id.group == stamp->group &&
                                          op->id.sequence == stamp->sequence)
            return op;
    }
    return NULL;
}

static op_entry *find_entry(const hub_op *op, int rank)
{
    for (int i = 0; i < op->n_entries; i++) {
        if (op->entries[i].rank == rank)
            return &op->entries[i];
    }
    return NULL;
}

static void free_op(hub_op *op)
{
    list_remove(&op->node);
    op->owner->n_ops--;
    poller_timer_cancel(&op->report_timer);
    ls_free(op->members);
    ls_free(op->entries);
    ls_free(op);
}

static hub_op *make_op(hub *h, const op_stamp *stamp, uint64_t number, int rank, const int *members,
                       int n_members)
{
    hub_op *op;

    if (h->n_ops >= OPS_PER_RANK * h->opt.world_size)
        return NULL;
    op = ls_calloc(1, sizeof(*op));
    if (op == NULL)
        return NULL;
    op->owner = h;
    op->id = *stamp;
    op->only_rank = stamp_is_message(stamp) ? rank : -1;
    op->number = number;
    op->since_ms = INT64_MAX;
    list_append(&h->ops, &op->node);
    h->n_ops++;
    op->n_members = n_members;
    op->members = ls_calloc((size_t)n_members, sizeof(*op->members));
    op->entries = ls_calloc((size_t)n_members, sizeof(*op->entries));
    if (op->members == NULL || op->entries == NULL) {
        free_op(op);
        return NULL;
    }
    memcpy(op->members, members, (size_t)n_members * sizeof(*members));
    return op;
}

/* This rank's entry, or a new one; NULL when more ranks report than the group has members. */
static op_entry *entry_of(hub_op *op, int rank)
{
    op_entry *e = find_entry(op, rank);

    if (e != NULL || op->n_entries == op->n_members)
        return e;
    e = &op->entries[op->n_entries++];
    *e = (op_entry){.rank = rank};
    return e;
}

void hub_watch_end_group(hub *h, uint32_t group)
{
    list_for_each_safe (it, &h->ops) {
        hub_op *op = list_entry(it, hub_op, node);

        if (group == GROUP_ALL || op->id.group == group)
            free_op(op);
    }
}

static void stop_waiting(hub_op *op, op_entry *e)
{
    if (e == NULL || !e->is_waiting)
        return;
    e->is_waiting = false;
    op->n_waiting--;
    if (op->n_waiting == 0)
        free_op(op);
}

void hub_watch_remove_rank(hub *h, int rank)
{
    list_for_each_safe (it, &h->ops) {
        hub_op *op = list_entry(it, hub_op, node);

        stop_waiting(op, find_entry(op, rank));
    }
}

/* --- ranks that disagree --- */

static bool break_if_different(hub_op *op, const op_entry *mine)
{
    for (int i = 0; op->only_rank < 0 && i < op->n_entries; i++) {
        const op_entry *other = &op->entries[i];

        if (stamp_equal(&other->stamp, &mine->stamp))
            continue;
        hub_break_mismatch(op->owner, other->rank, &other->stamp, mine->rank, &mine->stamp);
        return true;
    }
    return false;
}

void hub_watch_send_leave(hub *h, uint32_t group)
{
    if (h->has_untracked_op) {
        hub_broadcast_body(h, HUB_MESSAGE_LEFT_GROUP);
        return;
    }
    list_for_each (it, &h->ops) {
        const hub_op *op = list_entry(it, hub_op, node);

        for (int i = 0; op->id.group == group && i < op->n_entries; i++) {
            const hub_rank *r = &h->ranks[op->entries[i].rank];

            if (op->entries[i].is_waiting && r->conn != NULL)
                conn_send_body(r->conn, HUB_MESSAGE_LEFT_GROUP);
        }
    }
}

/* --- the wait report --- */

/* "0 2-7" of the members whose arrival is `arrived`. */
static void append_ranks(text_buf *t, const hub_op *op, bool arrived)
{
    int first = -1;
    int last = -1;

    for (int i = 0; i <= op->n_members; i++) {
        const int rank = i < op->n_members ? op->members[i] : -1;

        if (rank >= 0 && (find_entry(op, rank) != NULL) != arrived)
            continue;
        if (first >= 0 && rank == last + 1) {
            last = rank;
            continue;
        }
        if (first >= 0 && last > first)
            text_append(t, " %d-%d", first, last);
        else if (first >= 0)
            text_append(t, " %d", first);
        first = rank;
        last = rank;
    }
}

/* Another operation in which this rank waits, NULL: none known. */
static const op_entry *waits_elsewhere(const hub_op *but, int rank)
{
    list_for_each (it, &but->owner->ops) {
        const hub_op *op = list_entry(it, hub_op, node);
        const op_entry *e = op == but ? NULL : find_entry(op, rank);

        if (e != NULL && e->is_waiting)
            return e;
    }
    return NULL;
}

/* The state of the rank's process; "" when unknown. */
static const char *process_text(const hub *h, int rank, char *buf, size_t n)
{
    const hub_events *events = &h->opt.events;
    const hub_rank *r = &h->ranks[rank];

    buf[0] = 0;
    if (events->describe != NULL)
        events->describe(events->self, rank, buf, n);
    if (buf[0] == 0 && r->conn != NULL && r->local_pid > 0)
        text_format(buf, n, "%s", process_state_text(process_state(r->local_pid)));
    return buf;
}

/* Why a rank may not have arrived. */
static void append_doing(text_buf *t, const hub_op *op, int rank)
{
    const hub *h = op->owner;
    const hub_rank *r = &h->ranks[rank];
    const op_entry *elsewhere = waits_elsewhere(op, rank);
    char stamp[STAMP_TEXT_MAX];
    char text[128];

    process_text(h, rank, text, sizeof(text));
    if (r->conn == NULL) {
        text_append(t, !r->has_joined ? "has not joined" : r->has_left ? "left the job" : "lost");
        text_append(t, "%s%s", text[0] == 0 ? "" : ", ", text);
        return;
    }
    text_append(t, "pid %d, ", (int)r->pid);
    if (text[0] != 0)
        text_append(t, "%s", text);
    else
        text_append(t, "last message %.1f s ago",
                    (double)(ls_now_ms() - r->conn->link.received_ms) / 1e3);
    if (elsewhere != NULL)
        text_append(t, ", in %s", stamp_text(stamp, sizeof(stamp), &elsewhere->stamp));
}

/* Ranks that have arrived, but whose processes are stopped. */
static void append_stopped(text_buf *t, const hub_op *op)
{
    const char *stopped = process_state_text('T');
    char text[128];
    int n = 0;

    for (int i = 0; i < op->n_entries; i++) {
        const int rank = op->entries[i].rank;

        if (!text_starts(process_text(op->owner, rank, text, sizeof(text)), stopped))
            continue;
        if (++n <= DESCRIBED_MAX)
            text_append(t, "%s %d (pid %d, %s)", n == 1 ? "; stopped:" : ",", rank,
                        (int)op->owner->ranks[rank].pid, text);
    }
    if (n > DESCRIBED_MAX)
        text_append(t, " and %d more", n - DESCRIBED_MAX);
}

static void append_missing(text_buf *t, const hub_op *op)
{
    int n = 0;

    for (int i = 0; i < op->n_members; i++) {
        const int rank = op->members[i];

        if (find_entry(op, rank) != NULL)
            continue;
        n++;
        if (n > DESCRIBED_MAX)
            continue;
        text_append(t, "%s %d (", n == 1 ? "" : ",", rank);
        append_doing(t, op, rank);
        text_append(t, ")");
    }
    if (n > DESCRIBED_MAX)
        text_append(t, " and %d more", n - DESCRIBED_MAX);
}

void hub_watch_explain(hub *h, int rank, job_cause *cause)
{
    text_buf t = {0};

    list_for_each (it, &h->ops) {
        const hub_op *op = list_entry(it, hub_op, node);

        if (op->id.group != cause->group || find_entry(op, rank) == NULL)
            continue;
        text_append(&t, "%.300s", cause->text);
        if (op->n_entries < op->n_members) {
            text_append(&t, "; not arrived");
            append_missing(&t, op);
        }
        append_stopped(&t, op);
        text_format(cause->text, sizeof(cause->text), "%s", text_str(&t));
        break;
    }
    text_free(&t);
}

/* The stage of a group; NULL: none known. */
static hub_op *find_stage(hub *h, uint32_t group)
{
    const op_stamp id = {.group = group, .kind = COLL_BARRIER};

    return find_op(h, &id, 0, -1);
}

void hub_watch_append_missing(text_buf *t, hub *h, uint32_t group)
{
    const hub_op *op = find_stage(h, group);

    if (op == NULL)
        return;
    text_append(t, "; not arrived");
    append_missing(t, op);
    append_stopped(t, op);
}

static void append_size(text_buf *t, const op_stamp *s)
{
    const size_t each = s->dtype < LS_DTYPE_COUNT ? ls_dtype_size((ls_dtype)s->dtype) : 0;
    uint64_t bytes;
    char text[32];

    if ((s->form & STAMP_V) == 0 && each > 0 && !__builtin_mul_overflow(s->count, each, &bytes))
        text_append(t, ", %s", text_bytes(text, sizeof(text), bytes));
}

/* Ranks that wait in another operation are among them: their stack shows how they came there. */
static void ask_missing(const hub_op *op, const char *what)
{
    int n = 0;

    for (int i = 0; i < op->n_members && n < DESCRIBED_MAX; i++) {
        if (find_entry(op, op->members[i]) != NULL)
            continue;
        hub_stack_ask(op->owner, op->members[i], what);
        n++;
    }
}

/* The most operations that a rank has behind this one. */
static int count_later(const hub_op *op)
{
    int n = 0;

    for (int i = 0; i < op->n_entries; i++)
        n = op->entries[i].n_later > n ? op->entries[i].n_later : n;
    return n;
}

static void report(hub_op *op)
{
    const int n_later = count_later(op);
    hub *h = op->owner;
    const hub_events *events = &h->opt.events;
    text_buf t = {0};
    char stamp[STAMP_TEXT_MAX];

    text_append(&t, "%s", stamp_text(stamp, sizeof(stamp), &op->id));
    append_size(&t, &op->id);
    text_append(&t, " has waited for %.1f s", (double)(ls_now_ms() - op->since_ms) / 1e3);
    if (n_later > 0)
        text_append(&t, ", and %d more after it", n_later);
    text_append(&t, ": arrived");
    append_ranks(&t, op, true);
    if (op->n_entries < op->n_members) {
        text_append(&t, ", not arrived");
        append_missing(&t, op);
    } else {
        text_append(&t, ": all ranks have arrived");
    }
    append_stopped(&t, op);
    ask_missing(op, stamp);
    if (op->id.group == GROUP_JOIN && h->opt.join_advice[0] != 0)
        text_append(&t, "; %s", h->opt.join_advice);
    if (events->wait_report != NULL)
        events->wait_report(events->self, text_str(&t));
    else
        ls_log(LS_LOG_WARN, "hub", "%s", text_str(&t));
    text_free(&t);
}

static void report_is_due(void *arg);

/* Whether this process was suspended until long after the timer was due (Ctrl-Z). The ranks were
 * suspended as well, so the wait starts anew without that time. */
static bool restart_after_suspension(hub_op *op)
{
    const int64_t gap_ms = ls_now_ms() - op->report_timer.due_ms;

    if (gap_ms < SUSPENDED_MS)
        return false;
    op->since_ms += gap_ms;
    poller_timer_set(op->owner->loop, &op->report_timer, ls_now_ms() + op->report_pause_ms,
                     report_is_due, op);
    return true;
}

static void report_is_due(void *arg)
{
    hub_op *op = arg;

    if (restart_after_suspension(op))
        return;
    op->report_pause_ms =
        op->report_pause_ms < REPORT_MAX_MS / 2 ? 2 * op->report_pause_ms : REPORT_MAX_MS;
    poller_timer_set(op->owner->loop, &op->report_timer, ls_now_ms() + op->report_pause_ms,
                     report_is_due, op);
    report(op); // last: the hub's owner may break the group, which frees the operation
}

/* The first rank sets the time of the first report; the next pauses are that wait, doubled. */
static void expect_report(hub_op *op, int64_t in_ms, int64_t waited_ms)
{
    int64_t pause_ms = waited_ms + in_ms;

    if (op->report_pause_ms != 0)
        return;
    pause_ms = pause_ms < REPORT_MIN_MS ? REPORT_MIN_MS : pause_ms;
    op->report_pause_ms = pause_ms > REPORT_MAX_MS ? REPORT_MAX_MS : pause_ms;
    if (in_ms > 0) {
        op->report_pause_ms = (op->report_pause_ms + 1) / 2; // doubled when it is due
        poller_timer_set(op->owner->loop, &op->report_timer, ls_now_ms() + in_ms, report_is_due,
                         op);
        return;
    }
    poller_timer_set(op->owner->loop, &op->report_timer, ls_now_ms() + op->report_pause_ms,
                     report_is_due, op);
    report(op);
}

/* --- messages --- */

static ls_status read_stamp(wire_reader *r, op_stamp *out)
{
    const uint8_t *wire = wire_read_raw(r, STAMP_BYTES);

    if (wire == NULL)
        return ls_fail(LS_EPROTO, "a cut-off operation stamp");
    return stamp_decode(wire, out);
}

ls_status hub_watch_read_members(const hub_conn *c, wire_reader *r, int **out, int *n)
{
    const hub *h = c->owner;
    const uint32_t count = wire_read_u32(r);
    bool has_sender = false;
    int *members;

    if (r->failed || count > (uint32_t)h->opt.world_size || r->bytes - r->at != (size_t)count * 4)
        return ls_fail(LS_EPROTO, "a waiting operation with %u members", count);
    *n = count == 0 ? h->opt.world_size : (int)count;
    LS_TRY(LS_NEW(&members, (size_t)*n, "for %d members", *n));
    for (uint32_t i = 0; i < (uint32_t)*n; i++) {
        const uint32_t rank = count == 0 ? i : wire_read_u32(r);

        if (rank >= (uint32_t)h->opt.world_size) {
            ls_free(members);
            return ls_fail(LS_EPROTO, "a waiting operation with rank %u of %d", rank,
                           h->opt.world_size);
        }
        members[i] = (int)rank;
        has_sender = has_sender || members[i] == c->rank;
    }
    if (!has_sender) {
        ls_free(members);
        return ls_fail(LS_EPROTO, "a waiting operation without the sender");
    }
    *out = members;
    return LS_OK;
}

/* A wait that a rank reports. */
typedef struct wait_message {
    op_stamp stamp;
    uint64_t number;
    int64_t report_in_ms;
    int64_t waited_ms;
    int n_later;
    const int *members;
    int n_members;
} wait_message;

static void note_waiting(const hub_conn *c, const wait_message *w)
{
    hub *h = c->owner;
    hub_op *op = find_op(h, &w->stamp, w->number, c->rank);
    op_entry *e;

    if (op == NULL)
        op = make_op(h, &w->stamp, w->number, c->rank, w->members, w->n_members);
    e = op == NULL ? NULL : entry_of(op, c->rank);
    if (e == NULL) { // no memory, or too many
        h->has_untracked_op = true;
        return;
    }
    if (!e->is_waiting)
        op->n_waiting++;
    e->is_waiting = true;
    e->n_later = w->n_later;
    e->stamp = w->stamp;
    if (ls_now_ms() - w->waited_ms < op->since_ms)
        op->since_ms = ls_now_ms() - w->waited_ms;
    if (break_if_different(op, e)) // which frees the operation
        return;
    if (w->report_in_ms >= 0)
        expect_report(op, w->report_in_ms, w->waited_ms);
}

void hub_watch_stage(hub_conn *c, uint32_t group, const char *what, const int *members,
                     int n_members, int64_t report_in_ms)
{
    wait_message w = {
        .stamp = {.group = group, .kind = COLL_BARRIER, .dtype = 255, .redop = 255, .root = -1},
        .report_in_ms = report_in_ms,
        .members = members,
        .n_members = n_members};

    text_format(w.stamp.site, sizeof(w.stamp.site), "%s", what);
    note_waiting(c, &w);
}

/* *members is freed with ls_free(). */
static ls_status read_wait(const hub_conn *c, const frame *f, wait_message *out, int **members)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    LS_TRY(read_stamp(&r, &out->stamp));
    out->number = wire_read_u64(&r);
    out->report_in_ms = wire_read_i64(&r);
    out->waited_ms = wire_read_i64(&r);
    out->n_later = (int)(wire_read_u32(&r) & INT32_MAX);
    if (out->waited_ms < 0 || out->waited_ms > INT64_MAX / 4 || out->report_in_ms > INT64_MAX / 4)
        return ls_fail(LS_EPROTO, "an operation that has waited for an impossible time");
    LS_TRY(hub_watch_read_members(c, &r, members, &out->n_members));
    out->members = *members;
    return LS_OK;
}

ls_status hub_watch_waiting(hub_conn *c, const frame *f)
{
    wait_message w = {.members = NULL};
    int *members = NULL;

    LS_TRY(read_wait(c, f, &w, &members));
    if (!hub_is_broken(c->owner, w.stamp.group)) {
        hub_leaves_send(c, w.stamp.group);
        note_waiting(c, &w);
    }
    ls_free(members);
    conn_send(c, HUB_MESSAGE_ACKNOWLEDGED, NULL, 0);
    return LS_OK;
}

ls_status hub_watch_arrived(hub_conn *c, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    op_stamp stamp = {0};
    uint64_t number;
    hub_op *op;

    LS_TRY(read_stamp(&r, &stamp));
    number = wire_read_u64(&r);
    LS_TRY(wire_reader_end(&r, "the end of a waiting operation"));
    op = find_op(c->owner, &stamp, number, c->rank);
    if (op != NULL)
        stop_waiting(op, find_entry(op, c->rank));
    return LS_OK;
}
