/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/engine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOK_EVERY_NS (250 * INT64_C(1000000)) /* at a work that waits for a rank that has left */

/* --- news from the hub --- */

static void break_groups(engine *e, const job_cause *cause)
{
    if (cause->group == GROUP_ALL && e->end.kind == CAUSE_NONE)
        e->end = *cause;
    if (list_empty(&e->groups) && e->early.kind == CAUSE_NONE)
        e->early = *cause;
    list_for_each (it, &e->groups) {
        ls_comm *comm = list_entry(it, ls_comm, node);

        if (cause->group == GROUP_ALL || cause->group == comm->info.id)
            engine_break(e, comm, cause, cause_status(cause->kind), false);
    }
}

/* The backend goes on polling the descriptor: from now on it is one that never has news. */
static void silence_control(engine *e)
{
    const int quiet = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    control_close(e->parts.control);
    e->parts.control = NULL;
    if (quiet < 0 || e->parts.control_fd < 0)
        return;
    (void)dup3(quiet, e->parts.control_fd, O_CLOEXEC);
    (void)close(quiet);
}

/* Rank 0's own hub ends with rank 0. If rank 0 took its leave, the others may go on without
 * news. */
static void lose_hub(engine *e)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = -1};
    char why[LS_ERROR_BYTES];

    text_format(why, sizeof(why), "%s", ls_last_error());
    silence_control(e);
    if (e->parts.hub_at_rank_0 && e->left_ns[0] != 0) {
        ls_log(LS_LOG_DEBUG, "comm", "rank 0 has left, and the job's hub with it");
        return;
    }
    if (e->parts.hub_at_rank_0) {
        cause.kind = CAUSE_DIED;
        cause.rank = 0;
        text_format(cause.text, sizeof(cause.text), "rank 0 (pid %d) ended without leaving the job",
                    (int)e->parts.pids[0]);
    } else {
        text_format(cause.text, sizeof(cause.text), "the job's starter is gone: %.400s", why);
    }
    break_groups(e, &cause);
}

/* Works that wait for a rank that has left are looked at soon. */
static void look_soon(engine *e, ls_comm *comm, int64_t now_ns)
{
    list_for_each (at, &comm->works)
        list_entry(at, ls_work, node)->next_look_ns = now_ns;
    e->next_watch_ns = now_ns;
}

static void note_left(engine *e, int rank)
{
    const int64_t now_ns = ls_now_ns();

    if (e->left_ns[rank] == 0)
        e->left_ns[rank] = now_ns;
    list_for_each (it, &e->groups)
        look_soon(e, list_entry(it, ls_comm, node), now_ns);
}

/* Without memory for it the end of that rank's connection is all that is known. */
static void note_group_leave(engine *e, const group_leave *leave)
{
    ls_comm *comm = engine_group(e, leave->group);
    int r = 0;

    if (comm == NULL)
        return;
    while (r < comm->info.size && comm->info.members[r] != leave->rank)
        r++;
    if (comm->left_after == NULL)
        comm->left_after = ls_calloc((size_t)comm->info.size, sizeof(*comm->left_after));
    if (r == comm->info.size || comm->left_after == NULL)
        return;
    comm->left_after[r] = leave->sequence + 1;
    look_soon(e, comm, ls_now_ns());
}

void watch_news(engine *e)
{
    char kept[LS_ERROR_BYTES];
    group_leave leave;
    job_cause cause;
    ls_status st;
    int rank;

    if (e->parts.control == NULL)
        return;
    ls_error_save(kept);
    st = control_poll(e->parts.control);
    while (control_next_group_leave(e->parts.control, &leave))
        note_group_leave(e, &leave);
    while (control_next_left(e->parts.control, &rank))
        note_left(e, rank);
    while (control_next_cause(e->parts.control, &cause))
        break_groups(e, &cause);
    if (st != LS_OK)
        lose_hub(e);
    ls_error_restore(kept);
}

ls_status watch_failure(const engine *e)
{
    if (e->end.kind != CAUSE_NONE)
        return ls_fail(cause_status(e->end.kind), "%s", e->end.text);
    if (e->opening != NULL && e->opening->status != LS_OK)
        return ls_fail(e->opening->status, "%s", e->opening->text);
    return LS_OK;
}

static bool has_failed(const engine *e)
{
    return e->end.kind != CAUSE_NONE || (e->opening != NULL && e->opening->status != LS_OK);
}

/* A rank that still joins sees no more of a death than a connection that ends, or a peer that
 * cannot be found. */
ls_status watch_explain(engine *e, ls_status st)
{
    const int64_t deadline_ms = ls_deadline_ms(CAUSE_GRACE_NS / 1000000);
    struct pollfd at = {.fd = e->parts.control_fd, .events = POLLIN};

    if (st == LS_OK || st == LS_EINVAL || st == LS_ENOMEM || st == LS_EMISMATCH || st == LS_EAUTH)
        return st;
    watch_news(e);
    while (!has_failed(e) && e->parts.control != NULL && ls_deadline_left(deadline_ms) != 0) {
        (void)poll(&at, 1, ls_deadline_left(deadline_ms));
        watch_news(e);
    }
    return has_failed(e) ? watch_failure(e) : st;
}

/* --- ranks that have left --- */

/* The members that wait for this rank in the group are notified after which operation it left. */
void watch_leave(engine *e, const ls_comm *comm)
{
    if (e->parts.control == NULL || comm->backend == NULL || comm->status != LS_OK)
        return;
    if (comm->calls != NULL)
        calls_tell(comm->calls, e->parts.control, ls_now_ns());
    if (control_leave(e->parts.control, comm->info.id, comm->sequence, comm->info.size) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "leaving group %u: %s", comm->info.id, ls_last_error());
}

static bool is_message(const ls_work *w)
{
    return w->b.op.stamp.kind == COLL_SEND || w->b.op.stamp.kind == COLL_RECV;
}

/* r: group rank */
static void blame_left(engine *e, ls_comm *comm, const ls_work *w, int r)
{
    const int world_rank = comm->info.members[r];
    const uint64_t left_after = comm->left_after == NULL ? 0 : comm->left_after[r];
    job_cause cause = {.kind = CAUSE_LEFT, .group = comm->info.id, .rank = world_rank};
    char op[160];
    char after[48] = "";

    if (left_after != 0 && !is_message(w))
        text_format(after, sizeof(after), " after operation #%" PRIu64, left_after - 1);
    text_format(cause.text, sizeof(cause.text),
                "rank %d (pid %d) left the %s%s, but rank %d waits for it in %s", world_rank,
                (int)e->parts.pids[world_rank], e->left_ns[world_rank] != 0 ? "job" : "group",
                after, e->parts.rank, stamp_text(op, sizeof(op), &w->b.op.stamp));
    engine_break(e, comm, &cause, cause_status(cause.kind), true);
}

typedef enum absence { IS_HERE = 0, HAS_DONE_ITS_PART, MAY_BE_UNDER_WAY, NEVER_COMES } absence;

/*
 * A rank that left after this operation has done its part in it; one that left before never will.
 * For messages, and for a rank that exited without leaving the group, what it sent may still be
 * under way for a while.
 */
static absence absence_of(const engine *e, const ls_comm *comm, const ls_work *w, int r)
{
    const uint64_t left_after = comm->left_after == NULL ? 0 : comm->left_after[r];

    if (left_after == 0)
        return e->left_ns[comm->info.members[r]] != 0 ? MAY_BE_UNDER_WAY : IS_HERE;
    if (is_message(w))
        return MAY_BE_UNDER_WAY;
    return left_after > w->b.op.stamp.sequence ? HAS_DONE_ITS_PART : NEVER_COMES;
}

/* Whether group rank `r` alone can keep the work from ending. A receive from any rank needs the
 * last one that is here. */
static bool needs_rank(const ls_comm *comm, const ls_work *w, int r, int n_here)
{
    if (r == comm->info.rank)
        return false;
    if (!is_message(w))
        return true;
    return w->b.op.root == r || (w->b.op.root == LS_ANY_SOURCE && n_here == 0);
}

static int count_here(const engine *e, const ls_comm *comm, const ls_work *w)
{
    int n = 0;

    for (int r = 0; r < comm->info.size; r++)
        n += r != comm->info.rank && absence_of(e, comm, w, r) == IS_HERE;
    return n;
}

/* What the hub knows of the group has come: only then it says something that a leave is not among
 * it. */
static bool knows_leaves(const engine *e, const ls_work *w)
{
    return e->parts.control == NULL ||
           (w->is_reported && control_is_acknowledged(e->parts.control, w->ticket));
}

/* Of the members that the work waits for and that have left, the first: the others may have left
 * because of it. -1: none. */
static int find_absent(const engine *e, const ls_comm *comm, ls_work *w, int64_t now_ns)
{
    const int n_here = is_message(w) && w->b.op.root == LS_ANY_SOURCE ? count_here(e, comm, w) : 0;
    const bool is_over = w->left_since_ns != 0 && now_ns - w->left_since_ns >= LEFT_GRACE_NS;
    int64_t first_ns = INT64_MAX;
    int first = -1;

    for (int r = 0; r < comm->info.size; r++) {
        const int64_t left_ns = e->left_ns[comm->info.members[r]];
        absence a;

        if (!needs_rank(comm, w, r, n_here))
            continue;
        a = absence_of(e, comm, w, r);
        if (a == MAY_BE_UNDER_WAY)
            w->next_look_ns = now_ns + LOOK_EVERY_NS;
        if (a == MAY_BE_UNDER_WAY && w->left_since_ns == 0 && knows_leaves(e, w))
            w->left_since_ns = now_ns;
        if ((a == NEVER_COMES || (a == MAY_BE_UNDER_WAY && is_over)) && left_ns < first_ns) {
            first = r;
            first_ns = left_ns;
        }
    }
    return first;
}

/* False when the group broke, because the work waits for a rank that has left. */
static bool check_left(engine *e, ls_comm *comm, ls_work *w, int64_t now_ns)
{
    const int absent = find_absent(e, comm, w, now_ns);

    if (absent < 0)
        return true;
    blame_left(e, comm, w, absent);
    return false;
}

/* --- what is late --- */

void watch_start(engine *e, ls_work *w)
{
    w->next_look_ns = w->start_ns + REPORT_AFTER_NS;
    w->next_late_ns = w->start_ns + e->parts.late_ms * 1000000;
    if (w->next_look_ns < e->next_watch_ns)
        e->next_watch_ns = w->next_look_ns;
}

int64_t watch_next_ns(const engine *e)
{
    return e->next_watch_ns;
}

/* The hub compares what all waiting ranks wait for, and names those that do not when it is late. */
static void report(engine *e, const ls_comm *comm, ls_work *w, bool is_late, int64_t now_ns)
{
    const int pair[2] = {e->parts.rank,
                         w->b.op.root >= 0 ? comm->info.members[w->b.op.root] : e->parts.rank};
    const bool is_pair = is_message(w) && w->b.op.root >= 0;
    const bool is_world = comm->info.size == e->parts.size;
    const int *members = is_pair ? pair : is_world ? NULL : comm->info.members;
    char kept[LS_ERROR_BYTES];

    w->is_reported = true;
    if (e->parts.control == NULL)
        return;
    ls_error_save(kept);
    if (control_waiting(e->parts.control, &w->b.op.stamp, w->record, members,
                        is_pair ? 2 : comm->info.size, is_late ? 0 : -1,
                        (now_ns - w->start_ns) / 1000000, &w->ticket) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the hub is not told of a wait: %s", ls_last_error());
    ls_error_restore(kept);
}

void watch_arrived(engine *e, const ls_work *w)
{
    if (e->parts.control != NULL &&
        control_arrived(e->parts.control, &w->b.op.stamp, w->record) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the hub is not told of an end: %s", ls_last_error());
}

void watch_tell(engine *e, const job_cause *cause)
{
    if (e->parts.control != NULL && control_fail(e->parts.control, cause) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the hub is not told of a failure: %s", ls_last_error());
}

/* The hub knows who has not come and adds that on its way to all ranks, this one included: hence
 * the suspicion. */
static void break_late(engine *e, ls_comm *comm, const ls_work *w, int64_t now_ns)
{
    job_cause cause = {.kind = CAUSE_DEADLINE, .group = comm->info.id, .rank = -1};
    char op[160];

    text_format(cause.text, sizeof(cause.text), "rank %d waited %.1f s in %s: its timeout",
                e->parts.rank, (double)(now_ns - w->start_ns) / 1e9,
                stamp_text(op, sizeof(op), &w->b.op.stamp));
    watch_tell(e, &cause);
    engine_suspect(e, comm, &cause, LS_EDEADLINE);
}

/* False when the group broke. */
static bool look_at_work(engine *e, ls_comm *comm, ls_work *w, int64_t now_ns)
{
    const int64_t timeout_ns =
        e->parts.operation_ms < 0 ? INT64_MAX : e->parts.operation_ms * 1000000;
    const bool is_late = now_ns >= w->next_late_ns;

    if (now_ns - w->start_ns >= timeout_ns) {
        break_late(e, comm, w, now_ns);
        return true;
    }
    if (now_ns >= w->next_look_ns) {
        if (!w->is_reported || is_late)
            report(e, comm, w, is_late, now_ns);
        if (is_late)
            w->next_late_ns = now_ns + (now_ns - w->start_ns);
        w->next_look_ns = INT64_MAX;
        if (!check_left(e, comm, w, now_ns))
            return false;
    }
    if (w->next_look_ns > w->next_late_ns)
        w->next_look_ns = w->next_late_ns;
    if (timeout_ns != INT64_MAX && w->next_look_ns > w->start_ns + timeout_ns)
        w->next_look_ns = w->start_ns + timeout_ns;
    return true;
}

/* A failure that nobody explained better. A peer that took its leave is no failure: works that need
 * it say so. */
static void settle(engine *e, ls_comm *comm)
{
    const job_cause cause = comm->suspect;
    const bool has_left = cause.rank >= 0 && cause.rank < e->parts.size &&
                          cause.rank != e->parts.rank && e->left_ns[cause.rank] != 0;

    comm->has_suspect = false;
    if (cause.kind == CAUSE_MISMATCH || !has_left)
        engine_break(e, comm, &cause, comm->suspect_status, true);
}

static int64_t look_at_group(engine *e, ls_comm *comm, int64_t now_ns)
{
    int64_t next_ns = INT64_MAX;

    if (comm->has_suspect && now_ns >= comm->suspect_until_ns)
        settle(e, comm);
    if (comm->status != LS_OK)
        return next_ns;
    if (comm->calls != NULL && now_ns >= calls_next_ns(comm->calls))
        calls_tell(comm->calls, e->parts.control, now_ns);
    if (comm->calls != NULL)
        next_ns = calls_next_ns(comm->calls);
    list_for_each (it, &comm->works) {
        ls_work *w = list_entry(it, ls_work, node);

        if (comm->has_suspect)
            break;
        if (!look_at_work(e, comm, w, now_ns))
            return INT64_MAX;
        if (w->next_look_ns < next_ns)
            next_ns = w->next_look_ns;
    }
    return comm->has_suspect ? comm->suspect_until_ns : next_ns;
}

static void look_at_all(engine *e, int64_t now_ns)
{
    char kept[LS_ERROR_BYTES];
    int64_t next_ns = INT64_MAX;

    ls_error_save(kept);
    e->next_watch_ns = INT64_MAX;
    list_for_each (it, &e->groups) {
        const int64_t at_ns = look_at_group(e, list_entry(it, ls_comm, node), now_ns);

        if (at_ns < next_ns)
            next_ns = at_ns;
    }
    if (next_ns < e->next_watch_ns)
        e->next_watch_ns = next_ns;
    ls_error_restore(kept);
}

void watch_look(engine *e, int64_t now_ns)
{
    engine_serve_aborts(e);
    if (now_ns >= e->next_control_ns) {
        watch_news(e);
        if (e->parts.control != NULL)
            (void)control_watch(e->parts.control);
        e->next_control_ns = now_ns + CONTROL_EVERY_NS;
    }
    if (now_ns >= e->next_watch_ns)
        look_at_all(e, now_ns);
}

void watch_forgive(engine *e, int64_t gap_ns)
{
    ls_log(LS_LOG_DEBUG, "comm", "this process was stopped for %.1f s", (double)gap_ns / 1e9);
    list_for_each (it, &e->groups) {
        list_for_each (at, &list_entry(it, ls_comm, node)->works) {
            ls_work *w = list_entry(at, ls_work, node);

            w->start_ns += gap_ns;
            if (w->next_look_ns != INT64_MAX)
                w->next_look_ns += gap_ns;
            w->next_late_ns += gap_ns;
        }
    }
}
