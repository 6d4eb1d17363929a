/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - a rank's connection to the hub, for comm's engine. Notifications (causes, leaves)
 * arrive at any time, also before the answer to a request; they are queued.
 */
#include "hub/control.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/report/wait_report.h"
#include "base/text.h"
#include "host/process_id.h"
#include "hub/hub_messages.h"
#include "hub/hublink.h"
#include "hub/values.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define LEAVE_MS        500
#define REPORT_AFTER_MS 20   /* of a stage, as of operations */
#define SILENT_MS       1000 /* without an acknowledgement of an urgent report */
#define STOPPED_MS      4000 /* shorter than the hub waits for a hello */
#define NOTICES_MAX     ((size_t)256 * 1024)

/* A notification of the hub that comm has not asked for yet. */
typedef struct notice {
    list_node node;
    char body[]; /* a job_cause, an int, a group_leave or a barrier_answer */
} notice;

struct control {
    hublink link;
    int rank;
    int world_size;
    list_node causes;
    list_node left;
    list_node group_leaves;
    list_node answers;
    uint32_t n_asks; /* for the stack */
    size_t n_notices;
    uint64_t n_waits;        /* reports of waits that were sent */
    uint64_t n_acknowledged; /* reports of waits that the hub has acknowledged */
    uint64_t unanswered;     /* the first urgent report without an acknowledgement; 0: none */
    wait_report silence;     /* since `unanswered` was sent */
    bool has_stage;
    control_stage stage;
    op_stamp stage_stamp;
    int64_t stage_report_ms; /* when to report it for the first time; INT64_MAX: done */
    wait_report stage_wait;
    wire_writer body;
};

/* --- notifications --- */

static ls_status add_notice(control *c, list_node *queue, const void *body, size_t bytes)
{
    notice *n;

    if (c->n_notices >= NOTICES_MAX)
        return ls_fail(LS_EPROTO, "the hub sent more than %zu notifications", NOTICES_MAX);
    n = ls_realloc(NULL, sizeof(*n) + bytes, 1);
    if (n == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a notification of the hub");
    memcpy(n->body, body, bytes);
    list_append(queue, &n->node);
    c->n_notices++;
    return LS_OK;
}

static bool next_notice(control *c, list_node *queue, void *body, size_t bytes)
{
    notice *n;

    if (list_empty(queue))
        return false;
    n = list_entry(queue->next, notice, node);
    memcpy(body, n->body, bytes);
    list_remove(&n->node);
    c->n_notices--;
    ls_free(n);
    return true;
}

/* A cause for the whole job ends the request under way, and all later ones. */
static ls_status take_cause(control *c, wire_reader *r)
{
    job_cause cause;

    cause_read(r, &cause);
    LS_TRY(wire_reader_end(r, "a cause from the hub"));
    LS_TRY(add_notice(c, &c->causes, &cause, sizeof(cause)));
    if (cause.group == GROUP_ALL)
        hublink_end(&c->link, cause_status(cause.kind), cause.text);
    return LS_OK;
}

static ls_status take_left(control *c, wire_reader *r)
{
    const int rank = (int)wire_read_u32(r);

    LS_TRY(wire_reader_end(r, "a leave from the hub"));
    if (rank < 0 || rank >= c->world_size)
        return ls_fail(LS_EPROTO, "the hub reports that rank %u of %d has left", (unsigned)rank,
                       c->world_size);
    return add_notice(c, &c->left, &rank, sizeof(rank));
}

static ls_status take_group_leaves(control *c, wire_reader *r)
{
    const uint32_t group = wire_read_u32(r);
    const uint32_t n = wire_read_u32(r);

    for (uint32_t i = 0; i < n && !r->failed; i++) {
        const uint32_t rank = wire_read_u32(r);
        const group_leave leave = {.group = group, .rank = (int)rank, .sequence = wire_read_u64(r)};

        if (r->failed || rank >= (uint32_t)c->world_size)
            return ls_fail(LS_EPROTO, "the hub names a rank of %d that has left a group",
                           c->world_size);
        LS_TRY(add_notice(c, &c->group_leaves, &leave, sizeof(leave)));
    }
    return wire_reader_end(r, "ranks that have left a group");
}

static ls_status take_acknowledgement(control *c, const wire_reader *r)
{
    LS_TRY(wire_reader_end(r, "an answer to a wait"));
    if (c->n_acknowledged == c->n_waits)
        return ls_fail(LS_EPROTO, "the hub acknowledged a wait that was not reported");
    c->n_acknowledged++;
    if (c->n_acknowledged >= c->unanswered)
        c->unanswered = 0;
    return LS_OK;
}

static ls_status take_answer(control *c, wire_reader *r)
{
    barrier_answer a = {.ticket = wire_read_u64(r)};

    a.status = (ls_status)(int32_t)wire_read_u32(r);
    a.id = wire_read_u32(r);
    wire_read_text(r, a.text, sizeof(a.text));
    LS_TRY(wire_reader_end(r, "an answer to a barrier"));
    if (a.status > 0)
        return ls_fail(LS_EPROTO, "the hub answered a barrier with status %d", (int)a.status);
    return add_notice(c, &c->answers, &a, sizeof(a));
}

/* Called for each frame that is not a reply. */
static ls_status take_push(void *arg, const frame *f)
{
    control *c = arg;
    wire_reader r = wire_reader_over(f->body, f->bytes);

    switch (f->type) {
    case HUB_MESSAGE_CAUSE:
        return take_cause(c, &r);
    case HUB_MESSAGE_LEFT:
        return take_left(c, &r);
    case HUB_MESSAGE_LEFT_GROUP:
        return take_group_leaves(c, &r);
    case HUB_MESSAGE_ACKNOWLEDGED:
        return take_acknowledgement(c, &r);
    case HUB_MESSAGE_MET:
        return take_answer(c, &r);
    case HUB_MESSAGE_ASK_STACK:
        c->n_asks++;
        return wire_reader_end(&r, "a question for the stack");
    default:
        return ls_fail(LS_EPROTO, "the hub sent message %u", f->type);
    }
}

bool control_next_cause(control *c, job_cause *out)
{
    return next_notice(c, &c->causes, out, sizeof(*out));
}

bool control_next_left(control *c, int *rank)
{
    return next_notice(c, &c->left, rank, sizeof(*rank));
}

bool control_next_group_leave(control *c, group_leave *out)
{
    return next_notice(c, &c->group_leaves, out, sizeof(*out));
}

bool control_next_answer(control *c, barrier_answer *out)
{
    return next_notice(c, &c->answers, out, sizeof(*out));
}

bool control_next_ask(control *c)
{
    const bool is_asked = c->n_asks > 0;

    c->n_asks = 0;
    return is_asked;
}

ls_status control_stack(control *c, const char *text)
{
    wire_writer_reset(&c->body);
    wire_write_text(&c->body, text);
    return hublink_send(&c->link, HUB_MESSAGE_STACK, &c->body);
}

/* --- opening and closing --- */

static ls_status introduce(control *c, int64_t deadline_ms)
{
    wire_writer_reset(&c->body);
    wire_write_u32(&c->body, (uint32_t)c->rank);
    wire_write_u32(&c->body, (uint32_t)c->world_size);
    wire_write_u32(&c->body, (uint32_t)process_outer_pid());
    LS_TRY(hublink_send(&c->link, HUB_MESSAGE_HELLO, &c->body));
    return hublink_expect(&c->link, HUB_MESSAGE_WELCOME, deadline_ms);
}

static int64_t watch_while_waiting(void *arg)
{
    return control_watch(arg);
}

/* The hub disconnects a process that is stopped (Ctrl-Z) before its hello: it connects again. */
static ls_status join(control *c, const hublink_options *hub)
{
    for (;;) {
        const ls_status opened = hublink_open(hub, take_push, c, &c->link);
        const int64_t since_ms = ls_now_ms();
        ls_status st;

        LS_TRY(opened);
        c->link.on_wait = watch_while_waiting;
        st = introduce(c, hub->deadline_ms);
        if (st != LS_EPEER || ls_now_ms() - since_ms < STOPPED_MS)
            return st;
        hublink_close(&c->link);
    }
}

static void control_free(control *c)
{
    barrier_answer met;
    group_leave leave;
    job_cause cause;
    int rank;

    while (control_next_answer(c, &met))
        continue;
    while (control_next_cause(c, &cause))
        continue;
    while (control_next_left(c, &rank))
        continue;
    while (control_next_group_leave(c, &leave))
        continue;
    hublink_close(&c->link);
    wire_writer_free(&c->body);
    ls_free(c);
}

ls_status control_open(const control_options *opt, control **out)
{
    hublink_options to = {.n_hub = 1,
                          .refused_is_final = opt->refused_is_final,
                          .key = opt->key,
                          .insecure = opt->insecure,
                          .server = opt->server == NULL ? "the launcher" : opt->server,
                          .answer_ms = opt->timeout_ms,
                          .deadline_ms = ls_deadline_ms(opt->timeout_ms)};
    control *c;
    ls_status st;

    *out = NULL;
    if (opt->world_size < 1 || opt->world_size > HUB_MESSAGE_RANKS_MAX || opt->rank < 0 ||
        opt->rank >= opt->world_size)
        return ls_fail(LS_EINVAL, "rank %d of %d cannot join a job", opt->rank, opt->world_size);
    LS_TRY(LS_NEW(&c, 1, "for the connection to the hub"));
    list_init(&c->causes);
    list_init(&c->left);
    list_init(&c->group_leaves);
    list_init(&c->answers);
    c->rank = opt->rank;
    c->world_size = opt->world_size;
    to.hub[0] = opt->hub;
    to.claim.purpose = NET_PURPOSE_CONTROL;
    to.claim.from = (uint32_t)opt->rank;
    to.claim.to = HANDSHAKE_ANY_RANK;
    to.claim.generation = opt->generation;
    to.claim.security = opt->security;
    text_format(to.claim.job, sizeof(to.claim.job), "%s", opt->job);
    st = join(c, &to);
    if (st != LS_OK) {
        control_free(c);
        return ls_context(st, "rank %d of %d cannot join its job", opt->rank, opt->world_size);
    }
    *out = c;
    return LS_OK;
}

void control_close(control *c)
{
    if (c == NULL)
        return;
    wire_writer_reset(&c->body);
    if (hublink_send(&c->link, HUB_MESSAGE_LEAVE_JOB, &c->body) == LS_OK)
        hublink_finish(&c->link, ls_deadline_ms(LEAVE_MS));
    control_free(c);
}

void control_set_answer_limit(control *c, int64_t ms)
{
    c->link.answer_ms = ms;
}

int control_fd(const control *c)
{
    return c->link.fd;
}

ls_store *control_store(control *c)
{
    return &c->link.store;
}

ls_status control_reserve_groups(control *c, int n, uint32_t *first)
{
    int64_t next;

    LS_TRY(ls_store_add(&c->link.store, CONTROL_GROUPS_KEY, n, &next));
    if (next < n || next > (int64_t)GROUP_ID_END)
        return ls_fail(LS_EUNSUPPORTED, "this job has created %" PRId64 " groups: no ids are left",
                       next);
    *first = (uint32_t)(next - n);
    return LS_OK;
}

// The values from the first on that one answer has.
static ls_status gather_some(control *c, const char *prefix, int n, int first, int64_t timeout_ms,
                             control_take_fn take, void *arg)
{
    const int end = n - first < HUB_MESSAGE_VALUES ? n : first + HUB_MESSAGE_VALUES;
    wire_writer *w = hublink_begin(&c->link);
    byte_queue value = {0};
    ls_status taken = LS_OK;
    ls_status st = LS_OK;
    wire_reader r;

    wire_write_i64(w, timeout_ms);
    wire_write_u32(w, (uint32_t)n);
    wire_write_text(w, prefix);
    wire_write_u32(w, (uint32_t)first);
    LS_TRY(hublink_request(&c->link, HUB_MESSAGE_GATHER, timeout_ms, &r));
    for (int i = first; i < end && st == LS_OK && taken == LS_OK; i++) {
        st = values_read(&r, &value);
        if (st == LS_OK)
            taken = take(arg, i, value.data + value.start, byte_queue_size(&value));
    }
    if (st == LS_OK && taken == LS_OK)
        st = wire_reader_end(&r, "an answer of the hub");
    byte_queue_free(&value);
    if (taken != LS_OK)
        return taken;
    return st == LS_OK ? st : hublink_break(&c->link, st);
}

ls_status control_gather(control *c, const char *prefix, int n, int64_t timeout_ms,
                         control_take_fn take, void *arg)
{
    const int64_t deadline_ms = ls_deadline_ms(timeout_ms);

    for (int first = 0; first < n; first += HUB_MESSAGE_VALUES)
        LS_TRY(gather_some(c, prefix, n, first,
                           first == 0 ? timeout_ms : ls_deadline_left(deadline_ms), take, arg));
    hublink_trim(&c->link);
    return LS_OK;
}

ls_status control_poll(control *c)
{
    return hublink_poll(&c->link);
}

/* --- reports --- */

static void write_stamp(wire_writer *w, const op_stamp *stamp)
{
    uint8_t wire[STAMP_BYTES];

    stamp_encode(stamp, wire);
    wire_write_raw(w, wire, sizeof(wire));
}

ls_status control_waiting(control *c, const control_wait *w, uint64_t *ticket)
{
    const int n = w->members == NULL ? 0 : w->n_members;

    wire_writer_reset(&c->body);
    write_stamp(&c->body, w->stamp);
    wire_write_u64(&c->body, w->number);
    wire_write_i64(&c->body, w->report_in_ms);
    wire_write_i64(&c->body, w->waited_ms);
    wire_write_u32(&c->body, (uint32_t)w->n_later);
    wire_write_u32(&c->body, (uint32_t)n);
    for (int i = 0; i < n; i++)
        wire_write_u32(&c->body, (uint32_t)w->members[i]);
    LS_TRY(hublink_send(&c->link, HUB_MESSAGE_WAITING, &c->body));
    c->n_waits++;
    if (w->report_in_ms == 0 && c->unanswered == 0) {
        c->unanswered = c->n_waits;
        c->silence = wait_report_begin(SILENT_MS);
    }
    if (ticket != NULL)
        *ticket = c->n_waits;
    return LS_OK;
}

bool control_is_acknowledged(const control *c, uint64_t ticket)
{
    return c->n_acknowledged >= ticket;
}

ls_status control_arrived(control *c, const op_stamp *stamp, uint64_t number)
{
    wire_writer_reset(&c->body);
    write_stamp(&c->body, stamp);
    wire_write_u64(&c->body, number);
    return hublink_send(&c->link, HUB_MESSAGE_ARRIVED, &c->body);
}

ls_status control_leave(control *c, uint32_t group, uint64_t sequence, int n_members)
{
    wire_writer_reset(&c->body);
    wire_write_u32(&c->body, group);
    wire_write_u64(&c->body, sequence);
    wire_write_u32(&c->body, (uint32_t)n_members);
    return hublink_send(&c->link, HUB_MESSAGE_LEAVE_GROUP, &c->body);
}

ls_status control_meet(control *c, const control_barrier *m)
{
    char what[HUB_BARRIER_BYTES];

    wire_writer_reset(&c->body);
    wire_write_u64(&c->body, m->ticket);
    wire_write_u32(&c->body, m->group);
    wire_write_i64(&c->body, m->timeout_ms);
    wire_write_i64(&c->body, m->report_in_ms);
    wire_write_text(&c->body, text_format(what, sizeof(what), "%s", m->what));
    wire_write_u32(&c->body, (uint32_t)m->n_members);
    for (int i = 0; i < m->n_members; i++)
        wire_write_u32(&c->body, (uint32_t)m->members[i]);
    return hublink_send(&c->link, HUB_MESSAGE_MEET, &c->body);
}

ls_status control_called(control *c, const op_stamp *stamps, const uint64_t *digests, int n)
{
    LS_ASSERT(n <= CONTROL_CALLS_MAX);
    wire_writer_reset(&c->body);
    wire_write_u32(&c->body, (uint32_t)n);
    for (int i = 0; i < n; i++) {
        write_stamp(&c->body, &stamps[i]);
        wire_write_u64(&c->body, digests[i]);
    }
    return hublink_send(&c->link, HUB_MESSAGE_CALLS, &c->body);
}

/* --- stages --- */

static void report_stage(control *c, int64_t report_in_ms)
{
    const control_wait wait = {.stamp = &c->stage_stamp,
                               .members = c->stage.members,
                               .n_members = c->stage.n_members,
                               .report_in_ms = report_in_ms,
                               .waited_ms = ls_now_ms() - c->stage_wait.since_ms};

    c->stage_report_ms = INT64_MAX;
    if (control_waiting(c, &wait, NULL) != LS_OK)
        ls_log(LS_LOG_DEBUG, "hub", "%s: %s", c->stage_stamp.site, ls_last_error());
}

void control_begin_stage(control *c, const control_stage *stage)
{
    const int64_t late_ms = wait_report_setting_ms();

    if (c == NULL)
        return;
    c->has_stage = true;
    c->stage = *stage;
    c->stage_stamp = (op_stamp){
        .group = stage->group, .kind = COLL_BARRIER, .dtype = 255, .redop = 255, .root = -1};
    text_format(c->stage_stamp.site, sizeof(c->stage_stamp.site), "%s", stage->what);
    c->stage_report_ms = ls_now_ms() + REPORT_AFTER_MS;
    c->stage_wait = wait_report_begin(late_ms);
    if (!stage->is_blind)
        return;
    report_stage(c, late_ms);
}

void control_end_stage(control *c)
{
    if (c == NULL || !c->has_stage)
        return;
    c->has_stage = false;
    if (c->stage_report_ms == INT64_MAX && control_arrived(c, &c->stage_stamp, 0) != LS_OK)
        ls_log(LS_LOG_DEBUG, "hub", "the end of a stage: %s", ls_last_error());
}

static void watch_stage(control *c)
{
    if (wait_report_is_due(&c->stage_wait))
        report_stage(c, 0);
    else if (ls_now_ms() >= c->stage_report_ms)
        report_stage(c, -1);
}

/* The hub acknowledges each report at once. A missing acknowledgement is the only sign that the hub
 * is stopped while the ranks wait for each other. */
static void watch_silence(control *c)
{
    char text[NET_ADDRESS_TEXT_MAX + 128];

    if (wait_report_is_due(&c->silence))
        ls_log(LS_LOG_WARN, "hub", "%s, which hosts the hub, has not answered for %.1f s",
               hublink_text(&c->link, text, sizeof(text)), wait_report_seconds(&c->silence));
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t control_watch(control *c)
{
    char kept[LS_ERROR_BYTES];
    int64_t next_ms = INT64_MAX;

    ls_error_save(kept);
    if (c->has_stage && !c->stage.is_blind) {
        watch_stage(c);
        next_ms = earlier(c->stage_report_ms, c->stage_wait.next_ms);
    }
    if (c->unanswered != 0) {
        watch_silence(c);
        next_ms = earlier(next_ms, c->silence.next_ms);
    }
    ls_error_restore(kept);
    return next_ms;
}

ls_status control_fail(control *c, const job_cause *cause)
{
    wire_writer_reset(&c->body);
    cause_write(&c->body, cause);
    return hublink_send(&c->link, HUB_MESSAGE_FAIL, &c->body);
}
