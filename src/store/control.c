/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - what a rank does with its connection to the hub. Causes and goodbyes of others come
 * at any time, also between a request and its answer; they are queued here until comm asks.
 */
#include "store/control.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/wait_report.h"
#include "base/log.h"
#include "base/map.h"
#include "base/process_id.h"
#include "base/text.h"
#include "store/hublink.h"
#include "store/hub_messages.h"

#include <string.h>
#include <unistd.h>

#define GOODBYE_MS      500
#define REPORT_AFTER_MS 20   /* of a stage, as of operations */
#define SILENT_MS       1000 /* without an answer to a late report */
#define STOPPED_MS      4000 /* the hub answers at once; it waits a little longer for a name */
#define NEWS_MAX        ((size_t)256 * 1024) /* causes and goodbyes that nobody has asked for yet */

typedef struct cause_news {
    list_node node;
    job_cause cause;
} cause_news;

typedef struct left_news {
    list_node node;
    int rank;
} left_news;

typedef struct leave_news {
    list_node node;
    group_leave leave;
} leave_news;

struct control {
    hublink link;
    int rank;
    int world_size;
    list_node causes;
    list_node left;
    list_node leaves;
    size_t n_news;
    uint64_t n_waits; /* reports of waits that were sent, and */
    uint64_t n_noted; /* ... that the hub has answered */
    uint64_t asked;   /* the first late report that it has not answered, 0: none; since then: */
    wait_report silence;
    bool has_stage;
    control_stage stage;
    op_stamp stage_stamp;
    int64_t stage_tell_ms; /* when it is reported for the first time; INT64_MAX: it is */
    wait_report stage_late;
    wire_writer body;
};

/* --- news --- */

static ls_status news_room(control *c, void *news)
{
    if (news == NULL)
        return ls_fail(LS_ENOMEM, "no memory for news from the hub");
    if (c->n_news >= NEWS_MAX) {
        ls_free(news);
        return ls_fail(LS_EPROTO, "the hub sent more than %zu pieces of news", NEWS_MAX);
    }
    c->n_news++;
    return LS_OK;
}

/* Queues the cause; one for the whole job ends the request under way with it, and all later
 * ones. */
static ls_status take_cause(control *c, wire_reader *r)
{
    cause_news *news = ls_calloc(1, sizeof(*news));
    ls_status st;

    LS_TRY(news_room(c, news));
    cause_read(r, &news->cause);
    st = wire_reader_end(r, "a cause from the hub");
    if (st != LS_OK) {
        ls_free(news);
        return st;
    }
    list_append(&c->causes, &news->node);
    if (news->cause.group == GROUP_ALL)
        hublink_end(&c->link, cause_status(news->cause.kind), news->cause.text);
    return LS_OK;
}

static ls_status take_left(control *c, wire_reader *r)
{
    left_news *news = ls_calloc(1, sizeof(*news));
    const uint32_t rank = wire_read_u32(r);
    ls_status st;

    LS_TRY(news_room(c, news));
    st = wire_reader_end(r, "a goodbye from the hub");
    if (st == LS_OK && rank >= (uint32_t)c->world_size)
        st = ls_fail(LS_EPROTO, "the hub says that rank %u of %d has left", rank, c->world_size);
    if (st != LS_OK) {
        ls_free(news);
        return st;
    }
    news->rank = (int)rank;
    list_append(&c->left, &news->node);
    return LS_OK;
}

static ls_status take_leave(control *c, wire_reader *r, uint32_t group)
{
    const uint32_t rank = wire_read_u32(r);
    leave_news *news;

    if (r->failed || rank >= (uint32_t)c->world_size)
        return ls_fail(LS_EPROTO, "the hub names a rank of %d that has left a group",
                       c->world_size);
    news = ls_calloc(1, sizeof(*news));
    LS_TRY(news_room(c, news));
    news->leave = (group_leave){.group = group, .rank = (int)rank, .sequence = wire_read_u64(r)};
    list_append(&c->leaves, &news->node);
    return LS_OK;
}

static ls_status take_leaves(control *c, wire_reader *r)
{
    const uint32_t group = wire_read_u32(r);
    const uint32_t n = wire_read_u32(r);

    for (uint32_t i = 0; i < n && !r->failed; i++)
        LS_TRY(take_leave(c, r, group));
    return wire_reader_end(r, "ranks that have left a group");
}

static ls_status take_noted(control *c, const wire_reader *r)
{
    LS_TRY(wire_reader_end(r, "an answer to a wait"));
    if (c->n_noted == c->n_waits)
        return ls_fail(LS_EPROTO, "the hub answers a wait that was not reported");
    c->n_noted++;
    if (c->n_noted >= c->asked)
        c->asked = 0;
    return LS_OK;
}

/* Called for each frame that is no answer. The hub is trusted to know the protocol, as it has
 * proved the key. */
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
        return take_leaves(c, &r);
    case HUB_MESSAGE_ACKNOWLEDGED:
        return take_noted(c, &r);
    default:
        return ls_fail(LS_EPROTO, "the hub sent message %u", f->type);
    }
}

bool control_next_cause(control *c, job_cause *out)
{
    cause_news *news;

    if (list_empty(&c->causes))
        return false;
    news = list_entry(c->causes.next, cause_news, node);
    list_remove(&news->node);
    c->n_news--;
    *out = news->cause;
    ls_free(news);
    return true;
}

bool control_next_left(control *c, int *rank)
{
    left_news *news;

    if (list_empty(&c->left))
        return false;
    news = list_entry(c->left.next, left_news, node);
    list_remove(&news->node);
    c->n_news--;
    *rank = news->rank;
    ls_free(news);
    return true;
}

bool control_next_group_leave(control *c, group_leave *out)
{
    leave_news *news;

    if (list_empty(&c->leaves))
        return false;
    news = list_entry(c->leaves.next, leave_news, node);
    list_remove(&news->node);
    c->n_news--;
    *out = news->leave;
    ls_free(news);
    return true;
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

/* Who proved the key but was stopped (Ctrl-Z) before it could say its name has lost its place with
 * the hub, and comes again. */
static ls_status meet(control *c, const hublink_options *hub)
{
    for (;;) {
        const ls_status met = hublink_open(hub, take_push, c, &c->link);
        const int64_t since_ms = ls_now_ms();
        ls_status st;

        LS_TRY(met);
        c->link.on_wait = watch_while_waiting;
        st = introduce(c, hub->deadline_ms);
        if (st != LS_EPEER || ls_now_ms() - since_ms < STOPPED_MS)
            return st;
        hublink_close(&c->link);
    }
}

static void control_free(control *c)
{
    group_leave leave;
    job_cause cause;
    int rank;

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
                          .is_there = opt->is_there,
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
    c = ls_calloc(1, sizeof(*c));
    if (c == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the connection to the hub");
    list_init(&c->causes);
    list_init(&c->left);
    list_init(&c->leaves);
    c->rank = opt->rank;
    c->world_size = opt->world_size;
    to.hub[0] = opt->hub;
    to.claim.purpose = NET_PURPOSE_CONTROL;
    to.claim.from = (uint32_t)opt->rank;
    to.claim.to = HANDSHAKE_ANY_RANK;
    to.claim.generation = opt->generation;
    to.claim.security = opt->security;
    text_format(to.claim.job, sizeof(to.claim.job), "%s", opt->job);
    st = meet(c, &to);
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
        hublink_finish(&c->link, ls_deadline_ms(GOODBYE_MS));
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

ls_status control_gather(control *c, const char *prefix, int n, int64_t timeout_ms,
                         control_take_fn take, void *arg)
{
    wire_writer *w = hublink_begin(&c->link);
    ls_status st = LS_OK;
    wire_reader r;

    wire_write_i64(w, timeout_ms);
    wire_write_u32(w, (uint32_t)n);
    wire_write_text(w, prefix);
    LS_TRY(hublink_request(&c->link, HUB_MESSAGE_GATHER, timeout_ms, &r));
    for (int i = 0; i < n && st == LS_OK && !r.failed; i++) {
        size_t bytes;
        const uint8_t *value = wire_read_bytes(&r, LS_STORE_VALUE_MAX, &bytes);

        if (!r.failed)
            st = take(arg, i, value, bytes);
    }
    if (st != LS_OK)
        return st;
    st = wire_reader_end(&r, "an answer of the hub");
    return st == LS_OK ? st : hublink_break(&c->link, st);
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

ls_status control_waiting(control *c, const op_stamp *stamp, uint64_t number, const int *members,
                          int n_members, int64_t late_in_ms, int64_t waited_ms, uint64_t *ticket)
{
    const int n = members == NULL ? 0 : n_members;

    wire_writer_reset(&c->body);
    write_stamp(&c->body, stamp);
    wire_write_u64(&c->body, number);
    wire_write_i64(&c->body, late_in_ms);
    wire_write_i64(&c->body, waited_ms);
    wire_write_u32(&c->body, (uint32_t)n);
    for (int i = 0; i < n; i++)
        wire_write_u32(&c->body, (uint32_t)members[i]);
    LS_TRY(hublink_send(&c->link, HUB_MESSAGE_WAITING, &c->body));
    c->n_waits++;
    if (late_in_ms == 0 && c->asked == 0) {
        c->asked = c->n_waits;
        c->silence = wait_report_begin(SILENT_MS);
    }
    if (ticket != NULL)
        *ticket = c->n_waits;
    return LS_OK;
}

bool control_is_noted(const control *c, uint64_t ticket)
{
    return c->n_noted >= ticket;
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

static void report_stage(control *c, int64_t late_in_ms)
{
    c->stage_tell_ms = INT64_MAX;
    if (control_waiting(c, &c->stage_stamp, 0, c->stage.members, c->stage.n_members, late_in_ms,
                        ls_now_ms() - c->stage_late.since_ms, NULL) != LS_OK)
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
    c->stage_tell_ms = ls_now_ms() + REPORT_AFTER_MS;
    c->stage_late = wait_report_begin(late_ms);
    if (!stage->is_blind)
        return;
    report_stage(c, late_ms);
}

void control_end_stage(control *c)
{
    if (c == NULL || !c->has_stage)
        return;
    c->has_stage = false;
    if (c->stage_tell_ms == INT64_MAX && control_arrived(c, &c->stage_stamp, 0) != LS_OK)
        ls_log(LS_LOG_DEBUG, "hub", "the end of a stage: %s", ls_last_error());
}

static void watch_stage(control *c)
{
    if (wait_report_is_due(&c->stage_late))
        report_stage(c, 0);
    else if (ls_now_ms() >= c->stage_tell_ms)
        report_stage(c, -1);
}

/* The hub answers each report at once, so this is all that shows that it is stopped while the ranks
 * wait for each other. */
static void watch_silence(control *c)
{
    char text[NET_ADDRESS_TEXT_MAX + 128];

    if (wait_report_is_due(&c->silence))
        ls_log(LS_LOG_WARN, "hub", "%s, which watches over the job, has not answered for %.1f s",
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
        next_ms = earlier(c->stage_tell_ms, c->stage_late.next_ms);
    }
    if (c->asked != 0) {
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
