/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_causes.c - why the job or a group ends. The first cause of a group stands and goes to all its
 * ranks.
 *
 * A failure reaches the hub on several ways: the peers' broken connections are often quicker than
 * the launcher's waitpid(). So a lost connection, and a fault that names another rank, wait for
 * grace_ms; a launcher that knows a better cause calls hub_abort() meanwhile.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <string.h>

#define GROUP_CAUSES_MAX 4096
#define HELD_MAX         256
#define STAMP_TEXT_MAX   160

/* --- recording and sending --- */

static void write_cause(hub *h, const job_cause *cause)
{
    wire_writer_reset(&h->body);
    cause_write(&h->body, cause);
}

bool hub_is_broken(const hub *h, uint32_t group)
{
    if (h->has_cause)
        return true;
    for (int i = 0; i < h->n_group_causes; i++) {
        if (h->group_causes[i].group == group)
            return true;
    }
    return false;
}

/* Without a free entry the cause of a group becomes the cause of the whole job. */
static void record(hub *h, job_cause *cause)
{
    job_cause *grown = NULL;

    if (cause->group != GROUP_ALL && h->n_group_causes < GROUP_CAUSES_MAX)
        grown = ls_realloc(h->group_causes, (size_t)h->n_group_causes + 1, sizeof(*grown));
    if (grown != NULL) {
        h->group_causes = grown;
        grown[h->n_group_causes++] = *cause;
        return;
    }
    cause->group = GROUP_ALL;
    h->cause = *cause;
    h->has_cause = true;
}

/* False when the group is broken already. */
static bool record_and_send(hub *h, const job_cause *cause, job_cause *recorded)
{
    if (hub_is_broken(h, cause->group))
        return false;
    *recorded = *cause;
    record(h, recorded);
    ls_log(LS_LOG_INFO, "hub", "%s ends: %s", recorded->group == GROUP_ALL ? "the job" : "a group",
           recorded->text);
    write_cause(h, recorded);
    hub_broadcast_body(h, HUB_MESSAGE_CAUSE);
    hub_watch_end_group(h, recorded->group);
    hub_calls_end_group(h, recorded->group);
    hub_leaves_end_group(h, recorded->group);
    hub_meet_end_group(h, recorded->group);
    return true;
}

void hub_break(hub *h, const job_cause *cause)
{
    const hub_events *events = &h->opt.events;
    job_cause recorded;

    if (record_and_send(h, cause, &recorded) && events->failed != NULL)
        events->failed(events->self, &recorded);
}

void hub_abort(hub *h, const job_cause *cause)
{
    job_cause recorded;

    if (h->ranks != NULL)
        record_and_send(h, cause, &recorded);
}

void hub_send_causes(hub_conn *c)
{
    hub *h = c->owner;

    for (int i = 0; i < h->n_group_causes; i++) {
        write_cause(h, &h->group_causes[i]);
        conn_send_body(c, HUB_MESSAGE_CAUSE);
    }
    if (h->has_cause) {
        write_cause(h, &h->cause);
        conn_send_body(c, HUB_MESSAGE_CAUSE);
    }
}

/* --- ranks that disagree --- */

void hub_break_mismatch(hub *h, int rank_a, const op_stamp *a, int rank_b, const op_stamp *b)
{
    job_cause cause = {.kind = CAUSE_MISMATCH, .group = a->group, .rank = -1};
    const int low = rank_a < rank_b ? rank_a : rank_b;
    const int high = rank_a < rank_b ? rank_b : rank_a;
    char low_text[STAMP_TEXT_MAX];
    char high_text[STAMP_TEXT_MAX];

    stamp_text(low_text, sizeof(low_text), low == rank_a ? a : b);
    stamp_text(high_text, sizeof(high_text), low == rank_a ? b : a);
    if (stamp_equal(a, b))
        text_format(cause.text, sizeof(cause.text),
                    "rank %d and rank %d have not called the same operations before %s", low, high,
                    low_text);
    else
        text_format(cause.text, sizeof(cause.text), "rank %d: %s; rank %d: %s", low, low_text, high,
                    high_text);
    hub_break(h, &cause);
}

/* --- ranks that are lost or exit --- */

static void loss_is_due(void *arg)
{
    hub_rank *r = arg;
    hub *h = r->owner;
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = (int)(r - h->ranks)};

    text_format(cause.text, sizeof(cause.text),
                "rank %d (pid %d) is lost: its connection to the hub closed unexpectedly",
                cause.rank, (int)r->pid);
    hub_break(h, &cause);
}

void hub_hold_loss(hub *h, hub_rank *r)
{
    if (!h->has_cause)
        poller_timer_set(h->loop, &r->grace, ls_now_ms() + h->grace_ms, loss_is_due, r);
}

void hub_break_if_exited(hub *h, int rank)
{
    job_cause cause = {.kind = CAUSE_LEFT, .group = GROUP_ALL, .rank = rank};

    if (!h->ranks[rank].has_exited || h->n_joined == 0)
        return;
    text_format(cause.text, sizeof(cause.text),
                "rank %d exited while the other ranks wait for it to join", rank);
    hub_break(h, &cause);
}

/* --- faults that a rank reports of another one --- */

static void free_held(held_cause *held)
{
    list_remove(&held->node);
    poller_timer_cancel(&held->timer);
    ls_free(held);
}

/* No better cause has arrived. The fault of a rank that has left in good order is its leave. */
static void held_is_due(void *arg)
{
    held_cause *held = arg;
    hub *h = held->owner;
    job_cause cause = held->cause;

    if (cause.rank >= 0 && h->ranks[cause.rank].grace.is_set) { // its loss is due first
        poller_timer_set(h->loop, &held->timer, h->ranks[cause.rank].grace.due_ms + 1, held_is_due,
                         held);
        return;
    }
    free_held(held);
    if (cause.rank >= 0 && h->ranks[cause.rank].has_left) {
        char fault[sizeof(cause.text)];

        memcpy(fault, cause.text, sizeof(fault));
        cause.kind = CAUSE_LEFT;
        text_format(cause.text, sizeof(cause.text),
                    "rank %d left the job (exited) too early: %.400s", cause.rank, fault);
    }
    hub_break(h, &cause);
}

/* Without memory the group breaks at once. */
static void hold(hub *h, const job_cause *cause)
{
    held_cause *held = NULL;
    int n = 0;

    list_for_each (it, &h->held) {
        n++;
        if (list_entry(it, held_cause, node)->cause.group == cause->group)
            return; // the first fault of a group stands
    }
    if (n < HELD_MAX)
        held = ls_calloc(1, sizeof(*held));
    if (held == NULL) {
        hub_break(h, cause);
        return;
    }
    held->owner = h;
    held->cause = *cause;
    list_append(&h->held, &held->node);
    poller_timer_set(h->loop, &held->timer, ls_now_ms() + h->grace_ms, held_is_due, held);
}

ls_status hub_fail_message(hub_conn *c, const frame *f)
{
    hub *h = c->owner;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    job_cause cause;

    cause_read(&r, &cause);
    LS_TRY(wire_reader_end(&r, "a cause"));
    if (cause.rank >= h->opt.world_size)
        return ls_fail(LS_EPROTO, "a cause that names rank %d of %d", cause.rank,
                       h->opt.world_size);
    if (hub_is_broken(h, cause.group))
        return LS_OK;
    if (cause.kind == CAUSE_DEADLINE)
        hub_watch_explain(h, c->rank, &cause);
    if ((cause.kind == CAUSE_FAULT || cause.kind == CAUSE_DIED) && cause.rank >= 0 &&
        cause.rank != c->rank && h->grace_ms > 0)
        hold(h, &cause);
    else
        hub_break(h, &cause);
    return LS_OK;
}

void hub_causes_free(hub *h)
{
    while (!list_empty(&h->held))
        free_held(list_entry(h->held.next, held_cause, node));
    for (int i = 0; h->ranks != NULL && i < h->opt.world_size; i++)
        poller_timer_cancel(&h->ranks[i].grace);
    ls_free(h->group_causes);
    h->group_causes = NULL;
}
