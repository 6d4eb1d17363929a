/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_ranks.c - who is here, who has left, who is lost, and why the job or a group ends.
 *
 * The first cause of a group stands, and the news of a death takes several ways: the peers' broken
 * connections are often quicker than the parent's waitpid(). So a lost connection, and a fault that
 * names another rank, wait for grace_ms; a parent that knows more calls hub_abort() meanwhile.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define GRACE_MS         200
#define GROUP_CAUSES_MAX 4096
#define HELD_MAX         256

/* --- causes --- */

static void write_cause(hub *h, const job_cause *cause)
{
    wire_writer_reset(&h->body);
    cause_write(&h->body, cause);
}

/* To all ranks that are here. */
static void broadcast_body(hub *h, uint32_t type)
{
    for (int i = 0; i < h->opt.world_size; i++) {
        if (h->ranks[i].conn != NULL)
            conn_send_body(h->ranks[i].conn, type);
    }
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

/* Remembers it; a group too many, or one for which there is no memory, takes the whole job
 * along. */
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

static bool spread(hub *h, const job_cause *cause, job_cause *recorded)
{
    if (hub_is_broken(h, cause->group))
        return false;
    *recorded = *cause;
    record(h, recorded);
    ls_log(LS_LOG_INFO, "hub", "%s ends: %s", recorded->group == GROUP_ALL ? "the job" : "a group",
           recorded->text);
    write_cause(h, recorded);
    broadcast_body(h, HUB_MESSAGE_CAUSE);
    hub_watch_end_group(h, recorded->group);
    hub_calls_end_group(h, recorded->group);
    hub_leaves_end_group(h, recorded->group);
    return true;
}

void hub_break(hub *h, const job_cause *cause)
{
    const hub_events *events = &h->opt.events;
    job_cause recorded;

    if (spread(h, cause, &recorded) && events->failed != NULL)
        events->failed(events->self, &recorded);
}

void hub_abort(hub *h, const job_cause *cause)
{
    job_cause recorded;

    if (h->ranks != NULL)
        spread(h, cause, &recorded);
}

static void free_held(held_cause *held)
{
    list_remove(&held->node);
    poller_timer_cancel(&held->timer);
    ls_free(held);
}

/* No better cause has come. A peer that closed its connections because it left in peace is told as
 * such. */
static void held_is_due(void *arg)
{
    held_cause *held = arg;
    hub *h = held->owner;
    job_cause cause = held->cause;

    if (cause.rank >= 0 && h->ranks[cause.rank].grace.is_set) { // its loss is about to be told
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

/* Holds a fault back. Without memory it is told at once. */
static void hold(hub *h, const job_cause *cause)
{
    held_cause *held = NULL;
    int n = 0;

    list_for_each (it, &h->held) {
        n++;
        if (list_entry(it, held_cause, node)->cause.group == cause->group)
            return; // the first word about a group is enough
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

static ls_status rank_failed(hub_conn *c, const frame *f)
{
    hub *h = c->owner;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    job_cause cause;

    cause_read(&r, &cause);
    LS_TRY(wire_reader_end(&r, "a cause"));
    if (cause.rank >= h->opt.world_size)
        return ls_fail(LS_EPROTO, "a cause that blames rank %d of %d", cause.rank,
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

/* --- joining --- */

static void refuse(hub_conn *c, uint32_t rank, const char *why)
{
    hub *h = c->owner;
    job_cause cause = {.kind = CAUSE_MISMATCH, .group = GROUP_ALL, .rank = -1};

    conn_refuse(c, why);
    if (h->has_formed) // a stray cannot harm a job that runs
        return;
    if (rank < (uint32_t)h->opt.world_size)
        cause.rank = (int)rank;
    text_format(cause.text, sizeof(cause.text), "%s", why);
    hub_break(h, &cause);
}

/* What the newcomer must know: causes there are, and who has left. */
static void tell_newcomer(hub_conn *c)
{
    hub *h = c->owner;

    conn_send(c, HUB_MESSAGE_WELCOME, NULL, 0);
    for (int i = 0; i < h->n_group_causes; i++) {
        write_cause(h, &h->group_causes[i]);
        conn_send_body(c, HUB_MESSAGE_CAUSE);
    }
    if (h->has_cause) {
        write_cause(h, &h->cause);
        conn_send_body(c, HUB_MESSAGE_CAUSE);
    }
    for (int i = 0; i < h->opt.world_size; i++) {
        if (!h->ranks[i].has_left)
            continue;
        wire_writer_reset(&h->body);
        wire_write_u32(&h->body, (uint32_t)i);
        conn_send_body(c, HUB_MESSAGE_LEFT);
    }
}

/* All ranks join together: who comes now, or is here already, would wait for one whose process has
 * ended. */
static void break_if_exited(hub *h, int rank)
{
    job_cause cause = {.kind = CAUSE_LEFT, .group = GROUP_ALL, .rank = rank};

    if (!h->ranks[rank].has_exited || h->n_joined == 0)
        return;
    text_format(cause.text, sizeof(cause.text),
                "rank %d exited, but the others join and wait for it", rank);
    hub_break(h, &cause);
}

static void join(hub_conn *c, int rank, pid_t pid)
{
    hub *h = c->owner;
    hub_rank *r = &h->ranks[rank];
    const hub_events *events = &h->opt.events;

    r->conn = c;
    r->pid = pid;
    r->local_pid = c->peer_pid;
    r->has_joined = true;
    r->has_left = false;
    r->heard_ms = c->link.received_ms;
    c->rank = rank;
    c->state = CONN_RANK;
    poller_timer_cancel(&c->limit);
    text_format(c->peer, sizeof(c->peer), "rank %d (pid %d)", rank, (int)pid);
    h->n_joined++;
    if (h->n_joined == h->opt.world_size)
        h->has_formed = true;
    ls_log(LS_LOG_DEBUG, "hub", "%s has joined, %d of %d are here", c->peer, h->n_joined,
           h->opt.world_size);
    tell_newcomer(c);
    for (int i = 0; i < h->opt.world_size; i++)
        break_if_exited(h, i);
    if (events->joined != NULL)
        events->joined(events->self, rank, pid);
}

ls_status hub_rank_hello(hub_conn *c, const frame *f)
{
    hub *h = c->owner;
    wire_reader reader = wire_reader_over(f->body, f->bytes);
    const uint32_t rank = wire_read_u32(&reader);
    const uint32_t world = wire_read_u32(&reader);
    const uint32_t pid = wire_read_u32(&reader);
    const hub_rank *there;
    char why[200];

    if (f->type != HUB_MESSAGE_HELLO)
        return ls_fail(LS_EPROTO, "message %u before it said who it is", f->type);
    LS_TRY(wire_reader_end(&reader, "a rank's hello"));
    if (world != (uint32_t)h->opt.world_size || rank >= world) {
        text_format(why, sizeof(why), "this job has %d ranks, but rank %u was started for %u ranks",
                    h->opt.world_size, rank, world);
        refuse(c, rank, why);
        return LS_OK;
    }
    there = &h->ranks[rank];
    // The job is over: a rank that broke off and tries anew only hears why.
    if (h->has_cause && there->conn != NULL)
        conn_drop(there->conn);
    // A rank that took its leave may be back before the reaper has come round.
    if (there->conn != NULL && there->conn->state == CONN_DEAD) {
        hub_conn *old = there->conn;

        hub_rank_gone(old);
        old->rank = -1;
    }
    if (!h->has_cause && (there->conn != NULL || there->is_lost)) {
        text_format(why, sizeof(why), "rank %u is there already (pid %d), pid %u is a second one",
                    rank, (int)there->pid, pid);
        refuse(c, rank, why);
        return LS_OK;
    }
    join(c, (int)rank, pid > INT32_MAX ? 0 : (pid_t)pid);
    return LS_OK;
}

/* --- leaving --- */

static ls_status goodbye(hub_conn *c, const frame *f)
{
    if (f->bytes != 0)
        return ls_fail(LS_EPROTO, "a goodbye of %zu bytes", f->bytes);
    c->owner->ranks[c->rank].has_left = true;
    conn_drop(c);
    return LS_OK;
}

static void rank_left(hub *h, int rank)
{
    const hub_events *events = &h->opt.events;

    ls_log(LS_LOG_DEBUG, "hub", "rank %d has left", rank);
    if (events->left != NULL)
        events->left(events->self, rank);
    wire_writer_reset(&h->body);
    wire_write_u32(&h->body, (uint32_t)rank);
    broadcast_body(h, HUB_MESSAGE_LEFT);
}

static void report_loss(void *arg)
{
    hub_rank *r = arg;
    hub *h = r->owner;
    const int rank = (int)(r - h->ranks);
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = rank};

    text_format(cause.text, sizeof(cause.text),
                "rank %d (pid %d) is gone: its connection ended without a goodbye", rank,
                (int)r->pid);
    hub_break(h, &cause);
}

void hub_rank_gone(hub_conn *c)
{
    hub *h = c->owner;
    const hub_events *events = &h->opt.events;
    const int rank = c->rank;
    hub_rank *r;

    if (rank < 0)
        return;
    r = &h->ranks[rank];
    r->conn = NULL;
    h->n_joined--;
    hub_watch_forget(h, rank);
    if (r->has_left) {
        rank_left(h, rank);
        return;
    }
    r->is_lost = true;
    ls_log(LS_LOG_DEBUG, "hub", "%s is lost", c->peer);
    if (!h->has_cause)
        poller_timer_set(h->loop, &r->grace, ls_now_ms() + h->grace_ms, report_loss, r);
    if (events->lost != NULL) // last: the owner may know more, and say so at once
        events->lost(events->self, rank);
}

void hub_rank_exited(hub *h, int rank)
{
    hub_rank *r = &h->ranks[rank];

    r->has_left = true; // its connection, while it still stands, ends as after a goodbye
    r->has_exited = true;
    if (!r->has_joined)
        break_if_exited(h, rank);
    if (!r->is_lost)
        return;
    r->is_lost = false;
    poller_timer_cancel(&r->grace);
    rank_left(h, rank);
}

ls_status hub_rank_message(hub_conn *c, const frame *f)
{
    switch (f->type) {
    case HUB_MESSAGE_WAITING:
        return hub_watch_waiting(c, f);
    case HUB_MESSAGE_ARRIVED:
        return hub_watch_arrived(c, f);
    case HUB_MESSAGE_LEAVE:
        return hub_leave_message(c, f);
    case HUB_MESSAGE_CALLED:
        return hub_calls_told(c, f);
    case HUB_MESSAGE_FAIL:
        return rank_failed(c, f);
    case HUB_MESSAGE_GOODBYE:
        return goodbye(c, f);
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

/* --- life --- */

ls_status hub_ranks_create(hub *h)
{
    const int n = h->opt.world_size;

    if (h->grace_ms == 0)
        h->grace_ms = GRACE_MS;
    if (h->grace_ms < 0)
        h->grace_ms = 0;
    if (n == 0)
        return LS_OK;
    if (n < 0 || n > HUB_MESSAGE_RANKS_MAX)
        return ls_fail(LS_EINVAL, "a job of %d ranks, at most %d are possible", n,
                       HUB_MESSAGE_RANKS_MAX);
    h->ranks = ls_calloc((size_t)n, sizeof(*h->ranks));
    if (h->ranks == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks", n);
    for (int i = 0; i < n; i++)
        h->ranks[i].owner = h;
    return LS_OK;
}

void hub_ranks_free(hub *h)
{
    hub_watch_end_group(h, GROUP_ALL);
    hub_calls_end_group(h, GROUP_ALL);
    hub_leaves_end_group(h, GROUP_ALL);
    while (!list_empty(&h->held))
        free_held(list_entry(h->held.next, held_cause, node));
    for (int i = 0; h->ranks != NULL && i < h->opt.world_size; i++)
        poller_timer_cancel(&h->ranks[i].grace);
    ls_free(h->ranks);
    h->ranks = NULL;
    ls_free(h->group_causes);
    h->group_causes = NULL;
}
