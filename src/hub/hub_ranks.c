/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_ranks.c - which ranks have joined, have left or are lost. A rank number belongs to one
 * connection at a time. hub_conn.c passes on what ranks send; hub_causes.c decides what breaks.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/text.h"

#define GRACE_MS 200

/* --- joining --- */

static void refuse(hub_conn *c, uint32_t rank, const char *why)
{
    hub *h = c->owner;
    job_cause cause = {.kind = CAUSE_MISMATCH, .group = GROUP_ALL, .rank = -1};

    conn_refuse(c, why);
    if (h->has_formed) // a wrong process does not end a job that runs
        return;
    if (rank < (uint32_t)h->opt.world_size)
        cause.rank = (int)rank;
    text_format(cause.text, sizeof(cause.text), "%s", why);
    hub_break(h, &cause);
}

void hub_broadcast_body(hub *h, uint32_t type)
{
    for (int i = 0; i < h->opt.world_size; i++) {
        if (h->ranks[i].conn != NULL)
            conn_send_body(h->ranks[i].conn, type);
    }
}

static void write_rank(hub *h, int rank)
{
    wire_writer_reset(&h->body);
    wire_write_u32(&h->body, (uint32_t)rank);
}

/* The state of the job: its causes, and which ranks have left. */
static void send_state(hub_conn *c)
{
    hub *h = c->owner;

    conn_send(c, HUB_MESSAGE_WELCOME, NULL, 0);
    hub_send_causes(c);
    for (int i = 0; i < h->opt.world_size; i++) {
        if (!h->ranks[i].has_left)
            continue;
        write_rank(h, i);
        conn_send_body(c, HUB_MESSAGE_LEFT);
    }
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
    r->n_asked = 0;
    c->rank = rank;
    c->state = CONN_RANK;
    poller_timer_cancel(&c->limit);
    text_format(c->peer, sizeof(c->peer), "rank %d (pid %d)", rank, (int)pid);
    h->n_joined++;
    if (h->n_joined == h->opt.world_size)
        h->has_formed = true;
    ls_log(LS_LOG_DEBUG, "hub", "%s has joined, %d of %d ranks are connected", c->peer, h->n_joined,
           h->opt.world_size);
    send_state(c);
    for (int i = 0; h->n_exited > 0 && i < h->opt.world_size; i++)
        hub_break_if_exited(h, i); // all ranks join together: none may be missing
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
        return ls_fail(LS_EPROTO, "message %u before hello", f->type);
    LS_TRY(wire_reader_end(&reader, "a rank's hello"));
    if (world != (uint32_t)h->opt.world_size || rank >= world) {
        text_format(why, sizeof(why), "this job has %d ranks, but rank %u was started for %u ranks",
                    h->opt.world_size, rank, world);
        refuse(c, rank, why);
        return LS_OK;
    }
    there = &h->ranks[rank];
    // The job is over: a rank that connects again only receives the cause.
    if (h->has_cause && there->conn != NULL)
        conn_drop(there->conn);
    // A rank that has left may connect again before the reaper has run.
    if (there->conn != NULL && there->conn->state == CONN_DEAD) {
        hub_conn *old = there->conn;

        hub_rank_gone(old);
        old->rank = -1;
    }
    if (!h->has_cause && (there->conn != NULL || there->is_lost)) {
        text_format(why, sizeof(why), "rank %u has already joined (pid %d), pid %u is a duplicate",
                    rank, (int)there->pid, pid);
        refuse(c, rank, why);
        return LS_OK;
    }
    join(c, (int)rank, pid > INT32_MAX ? 0 : (pid_t)pid);
    return LS_OK;
}

/* --- leaving --- */

static ls_status leave_job(hub_conn *c, const frame *f)
{
    if (f->bytes != 0)
        return ls_fail(LS_EPROTO, "a leave of the job with %zu bytes", f->bytes);
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
    write_rank(h, rank);
    hub_broadcast_body(h, HUB_MESSAGE_LEFT);
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
    hub_watch_remove_rank(h, rank);
    hub_meet_rank_gone(h, rank);
    if (r->has_left) {
        rank_left(h, rank);
        return;
    }
    r->is_lost = true;
    ls_log(LS_LOG_DEBUG, "hub", "%s is lost", c->peer);
    hub_hold_loss(h, r);
    if (events->lost != NULL) // last: the owner may call hub_abort() at once
        events->lost(events->self, rank);
}

void hub_rank_exited(hub *h, int rank)
{
    hub_rank *r = &h->ranks[rank];

    r->has_left = true; // an open connection then ends as after a leave
    h->n_exited += !r->has_exited;
    r->has_exited = true;
    if (!r->has_joined)
        hub_break_if_exited(h, rank);
    if (!r->is_lost)
        return;
    r->is_lost = false;
    poller_timer_cancel(&r->grace);
    hub_meet_rank_gone(h, rank); // what waits for it fails, as after a leave
    rank_left(h, rank);
}

ls_status hub_rank_message(hub_conn *c, const frame *f)
{
    switch (f->type) {
    case HUB_MESSAGE_WAITING:
        return hub_watch_waiting(c, f);
    case HUB_MESSAGE_ARRIVED:
        return hub_watch_arrived(c, f);
    case HUB_MESSAGE_LEAVE_GROUP:
        return hub_leave_group_message(c, f);
    case HUB_MESSAGE_CALLS:
        return hub_calls_message(c, f);
    case HUB_MESSAGE_STACK:
        return hub_stack_message(c, f);
    case HUB_MESSAGE_MEET:
        return hub_meet_message(c, f);
    case HUB_MESSAGE_FAIL:
        return hub_fail_message(c, f);
    case HUB_MESSAGE_LEAVE_JOB:
        return leave_job(c, f);
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

/* --- creation --- */

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
    LS_TRY(LS_NEW(&h->ranks, (size_t)n, "for %d ranks", n));
    for (int i = 0; i < n; i++)
        h->ranks[i].owner = h;
    return LS_OK;
}

void hub_ranks_free(hub *h)
{
    hub_meet_end_group(h, GROUP_ALL);
    hub_watch_end_group(h, GROUP_ALL);
    hub_calls_end_group(h, GROUP_ALL);
    hub_leaves_end_group(h, GROUP_ALL);
    hub_causes_free(h);
    ls_free(h->ranks);
    h->ranks = NULL;
}
