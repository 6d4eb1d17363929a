/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - the engine's watchdog: reads notifications of the hub, reports long waits to it,
 * detects timeouts and ranks that have left. The driving thread calls it, under the engine's lock.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/group/meet.h"
#include "comm/group/stack.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* of a work that waits for a rank that has left, or behind others */
#define CHECK_EVERY_NS (250 * MS_NS)
#define START_STEP_NS  (10 * MS_NS)
/* The backend looks at what is rarely ready in some of its passes only. */
#define TAKE_IDLE 16   /* passes without progress: nothing is left */
#define TAKE_MOST 1024 /* other operations may progress all the time */

/* Works are due together, because a check looks at all of them. */
static int64_t step_after(int64_t ns, int64_t step_ns)
{
    return (ns / step_ns + 1) * step_ns;
}

void watch_at(engine *e, int64_t at_ns)
{
    if (at_ns >= e->next_watch_ns)
        return;
    e->next_watch_ns = at_ns;
    drive_wake(e);
}

/* --- notifications of the hub --- */

static void break_groups(engine *e, const job_cause *cause)
{
    if (cause->group == GROUP_ALL && e->end.kind == CAUSE_NONE)
        e->end = *cause;
    if (list_empty(&e->groups) && e->early.kind == CAUSE_NONE) {
        e->early = *cause;
        recorder_set_cause(e->parts.recorder, cause, e->parts.size, ls_now_ns());
    }
    meet_note_cause(e, cause);
    list_for_each (it, &e->groups) {
        ls_comm *comm = list_entry(it, ls_comm, node);

        if (cause->group == GROUP_ALL || cause->group == comm->info.id)
            engine_break(e, comm, cause, cause_status(cause->kind), false);
    }
}

/* The backend still polls the descriptor, so a descriptor that is never readable replaces it. */
static void replace_control_fd(engine *e)
{
    const int quiet = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    control_close(e->parts.control);
    e->parts.control = NULL;
    if (quiet < 0 || e->parts.control_fd < 0)
        return;
    (void)dup3(quiet, e->parts.control_fd, O_CLOEXEC);
    (void)close(quiet);
}

static void check_soon(engine *e, ls_comm *comm, int64_t now_ns)
{
    list_for_each (at, &comm->works)
        list_entry(at, ls_work, node)->next_check_ns = now_ns;
    watch_at(e, now_ns);
}

static void check_all_soon(engine *e)
{
    const int64_t now_ns = ls_now_ns();

    list_for_each (it, &e->groups)
        check_soon(e, list_entry(it, ls_comm, node), now_ns);
}

/* Rank 0's own hub ends with rank 0. After a leave of rank 0 the others continue without a hub. */
static void lose_hub(engine *e)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = -1};
    char why[LS_ERROR_BYTES];

    text_format(why, sizeof(why), "%s", ls_last_error());
    replace_control_fd(e);
    if (e->parts.hub_at_rank_0 && e->left_ns[0] != 0) {
        ls_log(LS_LOG_DEBUG, "comm", "rank 0 has left, and the job's hub with it");
        check_all_soon(e);
        meet_lose_hub(e, "rank 0 has left, and the job's hub with it");
        return;
    }
    if (e->parts.hub_at_rank_0) {
        cause.kind = CAUSE_DIED;
        cause.rank = 0;
        text_format(cause.text, sizeof(cause.text), "rank 0 (pid %d) ended without leaving the job",
                    (int)e->parts.pids[0]);
    } else {
        text_format(cause.text, sizeof(cause.text),
                    "the connection to the launcher is lost: %.400s", why);
    }
    break_groups(e, &cause);
}

static void note_left(engine *e, int rank)
{
    if (e->left_ns[rank] == 0)
        e->left_ns[rank] = ls_now_ns();
    check_all_soon(e);
}

/* Without memory the leave is ignored, and the end of that rank's connection shows it later. */
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
    check_soon(e, comm, ls_now_ns());
}

/* What a lost rank has given counts: all data that has come is taken before groups break. */
static void take_data(engine *e, bool may_progress)
{
    char kept[LS_ERROR_BYTES];

    if (!may_progress)
        return;
    ls_error_save(kept);
    for (int idle = 0, n = 0; idle < TAKE_IDLE && n < TAKE_MOST; n++)
        idle = drive_progress(e) ? 0 : idle + 1;
    drive_wake(e);
    ls_error_restore(kept);
}

void watch_poll_hub(engine *e, bool may_progress)
{
    char kept[LS_ERROR_BYTES];
    barrier_answer answer;
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
    if (control_next_ask(e->parts.control))
        stack_asked(e);
    while (control_next_answer(e->parts.control, &answer))
        meet_answered(e, &answer);
    while (control_next_cause(e->parts.control, &cause)) {
        take_data(e, may_progress);
        break_groups(e, &cause);
    }
    if (st != LS_OK) {
        take_data(e, may_progress);
        lose_hub(e);
    }
    ls_error_restore(kept);
}

ls_status watch_failure(const engine *e)
{
    if (e->end.kind != CAUSE_NONE)
        return ls_fail(cause_status(e->end.kind), "%s", e->end.text);
    if (e->opening != NULL && e->opening->status != LS_OK)
        return ls_fail(e->opening->status, "%s", e->opening->text);
    if (e->opening != NULL && meet_opening_cause(e) != NULL)
        return ls_fail(cause_status(meet_opening_cause(e)->kind), "%s",
                       meet_opening_cause(e)->text);
    return LS_OK;
}

static bool has_failed(const engine *e)
{
    return e->end.kind != CAUSE_NONE ||
           (e->opening != NULL && (e->opening->status != LS_OK || meet_opening_cause(e) != NULL));
}

/* While a rank joins, a lost connection or an unreachable peer may be a consequence only. */
ls_status watch_explain(engine *e, ls_status st)
{
    const int64_t deadline_ms = ls_deadline_ms(CAUSE_GRACE_NS / 1000000);
    struct pollfd at = {.fd = e->parts.control_fd, .events = POLLIN};

    if (st == LS_OK || st == LS_EINVAL || st == LS_ENOMEM || st == LS_EMISMATCH || st == LS_EAUTH)
        return st;
    watch_poll_hub(e, true);
    while (!has_failed(e) && e->parts.control != NULL && ls_deadline_left(deadline_ms) != 0) {
        (void)poll(&at, 1, ls_deadline_left(deadline_ms));
        watch_poll_hub(e, true);
    }
    return has_failed(e) ? watch_failure(e) : st;
}

/* --- ranks that have left --- */

static bool is_message(const ls_work *w)
{
    return stamp_is_message(&w->b.op.stamp);
}

/* r: group rank */
static void break_for_leave(engine *e, ls_comm *comm, const ls_work *w, int r)
{
    const int world_rank = comm->info.members[r];
    const uint64_t left_after = comm->left_after == NULL ? 0 : comm->left_after[r];
    job_cause cause = {.kind = CAUSE_LEFT, .group = comm->info.id, .rank = world_rank};
    char op[160];
    char after[48] = "";

    if (left_after != 0 && !is_message(w))
        text_format(after, sizeof(after), " after operation #%" PRIu64, left_after - 1);
    text_format(cause.text, sizeof(cause.text),
                "rank %d (pid %d) %s%s, but rank %d waits for it in %s", world_rank,
                (int)e->parts.pids[world_rank],
                e->left_ns[world_rank] != 0 ? "left the job"
                : left_after != 0           ? "left the group"
                                            : "has ended or left the group",
                after, e->parts.rank, stamp_text(op, sizeof(op), &w->b.op.stamp));
    engine_break(e, comm, &cause, cause_status(cause.kind), true);
}

typedef enum presence { MEMBER_PRESENT = 0, MEMBER_DONE, MEMBER_UNDER_WAY, MEMBER_ABSENT } presence;

/* Without a hub, only the backend knows that a rank has left the group or has ended. */
static bool is_gone(const engine *e, const ls_comm *comm, const ls_work *w, int r)
{
    const backend_ops *ops = e->parts.ops;

    return e->parts.control == NULL && comm->backend != NULL && ops->is_gone != NULL &&
           ops->is_gone(comm->backend, r, is_message(w));
}

/* A rank that left after this operation has done its part; a rank that left before it never does.
 * Messages, and data of a rank that exited without leaving the group, may still arrive. */
static presence presence_of(const engine *e, const ls_comm *comm, const ls_work *w, int r)
{
    const uint64_t left_after = comm->left_after == NULL ? 0 : comm->left_after[r];

    if (left_after == 0)
        return e->left_ns[comm->info.members[r]] != 0 || is_gone(e, comm, w, r) ? MEMBER_UNDER_WAY
                                                                                : MEMBER_PRESENT;
    if (is_message(w))
        return MEMBER_UNDER_WAY;
    return left_after > w->b.op.stamp.sequence ? MEMBER_DONE : MEMBER_ABSENT;
}

/* Whether the work needs group rank `r`. A receive from any rank needs the last present rank.
 * n_present: of count_present(). */
static bool needs_rank(const ls_comm *comm, const ls_work *w, int r, int n_present)
{
    if (r == comm->info.rank)
        return false;
    if (!is_message(w))
        return true;
    return w->b.op.root == r || (w->b.op.root == LS_ANY_SOURCE && n_present == 0);
}

/* For a receive from any rank; 0 for other works. */
static int count_present(const engine *e, const ls_comm *comm, const ls_work *w)
{
    int n = 0;

    if (!is_message(w) || w->b.op.root != LS_ANY_SOURCE)
        return 0;
    for (int r = 0; r < comm->info.size; r++)
        n += r != comm->info.rank && presence_of(e, comm, w, r) == MEMBER_PRESENT;
    return n;
}

/* Whether all leaves of the group that the hub knows have arrived. */
static bool knows_leaves(const engine *e, const ls_work *w)
{
    return e->parts.control == NULL ||
           (w->is_reported && control_is_acknowledged(e->parts.control, w->ticket));
}

/* Whether a message of a rank that has left is on its way: it takes long on a slow network. */
static bool is_arriving(const engine *e, const ls_comm *comm, const ls_work *w, int n_present)
{
    const backend_ops *ops = e->parts.ops;

    for (int r = 0; r < comm->info.size && ops->is_arriving != NULL && comm->backend != NULL; r++)
        if (needs_rank(comm, w, r, n_present) && presence_of(e, comm, w, r) == MEMBER_UNDER_WAY &&
            ops->is_arriving(comm->backend, r))
            return true;
    return false;
}

/* The first to leave of the awaited members: others may have left because of it. -1: none. */
static int find_absent(const engine *e, const ls_comm *comm, ls_work *w, int64_t now_ns)
{
    const int n_present = count_present(e, comm, w);
    int64_t first_ns = INT64_MAX;
    int first = -1;
    bool is_over;

    if (w->left_since_ns != 0 && is_arriving(e, comm, w, n_present))
        w->left_since_ns = 0;
    is_over = w->left_since_ns != 0 && now_ns - w->left_since_ns >= LEFT_GRACE_NS;
    for (int r = 0; r < comm->info.size; r++) {
        const int64_t left_ns = e->left_ns[comm->info.members[r]];
        presence a;

        if (!needs_rank(comm, w, r, n_present))
            continue;
        a = presence_of(e, comm, w, r);
        if (a == MEMBER_UNDER_WAY)
            w->next_check_ns = step_after(now_ns, CHECK_EVERY_NS);
        if (a == MEMBER_UNDER_WAY && w->left_since_ns == 0 && knows_leaves(e, w))
            w->left_since_ns = now_ns;
        if ((a == MEMBER_ABSENT || (a == MEMBER_UNDER_WAY && is_over)) && left_ns < first_ns) {
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
    break_for_leave(e, comm, w, absent);
    return false;
}

/* Whether a work waits for what a rank may not have given before it left: check_left() fails it. */
static bool is_awaited(const engine *e, const ls_comm *comm, int world_rank)
{
    int r = 0;

    while (r < comm->info.size && comm->info.members[r] != world_rank)
        r++;
    if (r == comm->info.size)
        return false;
    list_for_each (it, &comm->works) {
        const ls_work *w = list_entry(it, ls_work, node);
        const presence a = presence_of(e, comm, w, r);

        if ((a == MEMBER_ABSENT || a == MEMBER_UNDER_WAY) &&
            needs_rank(comm, w, r, count_present(e, comm, w)))
            return true;
    }
    return false;
}

/* No better cause has arrived. A leave of the peer is no failure, unless what it gave is lost. */
static void settle_suspect(engine *e, ls_comm *comm)
{
    const job_cause cause = comm->suspect;

    comm->has_suspect = false;
    comm->has_lost_peer = cause.kind != CAUSE_MISMATCH && is_awaited(e, comm, cause.rank);
    if (!comm->has_lost_peer)
        engine_break(e, comm, &cause, comm->suspect_status, true);
}

/* What this rank has not ended it never does. */
static uint64_t last_done(const ls_comm *comm)
{
    list_for_each (it, &comm->works) {
        const ls_work *w = list_entry(it, ls_work, node);

        if (!is_message(w))
            return w->b.op.stamp.sequence - 1;
    }
    return comm->sequence;
}

void watch_leave(engine *e, ls_comm *comm)
{
    // The hub itself detects ranks that are lost; one that closes its connections may just leave.
    if (comm->has_suspect && (comm->suspect.rank < 0 || comm->suspect.rank == e->parts.rank))
        settle_suspect(e, comm);
    if (e->parts.control == NULL || comm->backend == NULL || comm->status != LS_OK)
        return;
    if (comm->calls != NULL)
        calls_send(comm->calls, e->parts.control, ls_now_ns());
    if (control_leave(e->parts.control, comm->info.id, last_done(comm), comm->info.size) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "leaving group %u: %s", comm->info.id, ls_last_error());
}

/* --- long waits and timeouts --- */

void watch_start(engine *e, ls_work *w)
{
    w->next_check_ns = step_after(w->start_ns + REPORT_AFTER_NS, START_STEP_NS);
    w->next_report_ns = w->start_ns + ls_duration_ns(e->parts.late_ms);
    watch_at(e, w->next_check_ns);
}

void watch_set_timeout(engine *e, ls_work *w, int64_t timeout_ms)
{
    const int64_t end_ns = ls_deadline_ns(timeout_ms);

    w->timeout_ms = end_ns == INT64_MAX ? -1 : (end_ns - w->start_ns) / 1000000;
    if (end_ns < w->next_check_ns)
        w->next_check_ns = end_ns;
    watch_at(e, end_ns);
}

/* Both wait for the same ranks: collectives, or messages with one peer. */
static bool waits_alike(const ls_work *a, const ls_work *b)
{
    return is_message(a) == is_message(b) && (!is_message(a) || a->b.op.root == b->b.op.root);
}

/* Whether none that waits alike was started before: the hub gets reports of the first one only. */
static bool is_first(const ls_comm *comm, const ls_work *w)
{
    list_for_each (it, &comm->works) {
        const ls_work *other = list_entry(it, ls_work, node);

        if (waits_alike(other, w))
            return other == w;
    }
    return true;
}

/* The works behind the first one that wait alike. */
static int count_later(const ls_comm *comm, const ls_work *w)
{
    int n = -1;

    list_for_each (it, &comm->works)
        n += waits_alike(list_entry(it, ls_work, node), w);
    return n;
}

/* The hub compares the operations of all waiting ranks. is_late: it also makes a wait report. */
static void report(engine *e, const ls_comm *comm, ls_work *w, bool is_late, int64_t now_ns)
{
    const int pair[2] = {e->parts.rank,
                         w->b.op.root >= 0 ? comm->info.members[w->b.op.root] : e->parts.rank};
    const bool is_pair = is_message(w) && w->b.op.root >= 0;
    const bool is_world = comm->info.size == e->parts.size;
    const control_wait wait = {.stamp = &w->b.op.stamp,
                               .number = w->record,
                               .members = is_pair    ? pair
                                          : is_world ? NULL
                                                     : comm->info.members,
                               .n_members = is_pair ? 2 : comm->info.size,
                               .report_in_ms = is_late ? 0 : -1,
                               .waited_ms = (now_ns - w->start_ns) / 1000000,
                               .n_later = is_late ? count_later(comm, w) : 0};
    char kept[LS_ERROR_BYTES];

    w->is_reported = true;
    if (e->parts.control == NULL)
        return;
    ls_error_save(kept);
    if (control_waiting(e->parts.control, &wait, &w->ticket) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "a wait is not reported to the hub: %s", ls_last_error());
    ls_error_restore(kept);
}

void watch_arrived(engine *e, const ls_work *w)
{
    if (e->parts.control != NULL &&
        control_arrived(e->parts.control, &w->b.op.stamp, w->record) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the end of a wait is not reported to the hub: %s",
               ls_last_error());
}

void watch_report_cause(engine *e, const job_cause *cause)
{
    if (e->parts.control != NULL && control_fail(e->parts.control, cause) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "a failure is not reported to the hub: %s", ls_last_error());
}

/* The group waits until the hub has added the missing ranks to the cause and sent it back. */
static void break_timed_out(engine *e, ls_comm *comm, const ls_work *w, int64_t now_ns)
{
    job_cause cause = {.kind = CAUSE_DEADLINE, .group = comm->info.id, .rank = -1};
    char op[160];

    text_format(cause.text, sizeof(cause.text), "rank %d timed out after %.1f s in %s",
                e->parts.rank, (double)(now_ns - w->start_ns) / 1e9,
                stamp_text(op, sizeof(op), &w->b.op.stamp));
    watch_report_cause(e, &cause);
    engine_suspect(e, comm, &cause, LS_EDEADLINE);
}

/* False when the group broke. */
static bool check_work(engine *e, ls_comm *comm, ls_work *w, int64_t now_ns)
{
    const int64_t timeout_ns = ls_duration_ns(w->timeout_ms);
    const bool is_late = now_ns >= w->next_report_ns;

    if (now_ns - w->start_ns >= timeout_ns) {
        break_timed_out(e, comm, w, now_ns);
        return true;
    }
    if (now_ns >= w->next_check_ns) {
        const bool is_next = is_first(comm, w);

        if (is_next && (!w->is_reported || is_late))
            report(e, comm, w, is_late, now_ns);
        if (is_late)
            w->next_report_ns = now_ns + (now_ns - w->start_ns);
        w->next_check_ns = is_next && e->parts.control != NULL ? w->next_report_ns
                                                               : step_after(now_ns, CHECK_EVERY_NS);
        if (!check_left(e, comm, w, now_ns))
            return false;
    }
    if (timeout_ns != INT64_MAX && w->next_check_ns > w->start_ns + timeout_ns)
        w->next_check_ns = w->start_ns + timeout_ns;
    return true;
}

static int64_t check_group(engine *e, ls_comm *comm, int64_t now_ns)
{
    int64_t next_ns = INT64_MAX;

    if (comm->has_suspect ? now_ns >= comm->suspect_until_ns : comm->has_lost_peer)
        settle_suspect(e, comm);
    if (comm->status != LS_OK)
        return next_ns;
    if (comm->calls != NULL && now_ns >= calls_next_ns(comm->calls))
        calls_send(comm->calls, e->parts.control, now_ns);
    if (comm->calls != NULL)
        next_ns = calls_next_ns(comm->calls);
    list_for_each (it, &comm->works) {
        ls_work *w = list_entry(it, ls_work, node);

        if (comm->has_suspect)
            break;
        if (!check_work(e, comm, w, now_ns))
            return INT64_MAX;
        if (w->next_check_ns < next_ns)
            next_ns = w->next_check_ns;
    }
    return comm->has_suspect ? comm->suspect_until_ns : next_ns;
}

static void check_all(engine *e, int64_t now_ns)
{
    char kept[LS_ERROR_BYTES];
    int64_t next_ns = INT64_MAX;

    ls_error_save(kept);
    e->next_watch_ns = INT64_MAX;
    list_for_each (it, &e->groups) {
        const int64_t at_ns = check_group(e, list_entry(it, ls_comm, node), now_ns);

        if (at_ns < next_ns)
            next_ns = at_ns;
    }
    if (next_ns < e->next_watch_ns)
        e->next_watch_ns = next_ns;
    ls_error_restore(kept);
}

void watch_check(engine *e, int64_t now_ns)
{
    engine_serve_aborts(e);
    if (now_ns >= e->next_control_ns) {
        watch_poll_hub(e, true);
        if (e->parts.control != NULL)
            (void)control_watch(e->parts.control);
        e->next_control_ns = now_ns + CONTROL_EVERY_NS;
    }
    if (now_ns >= e->next_watch_ns)
        check_all(e, now_ns);
}

void watch_shift_deadlines(engine *e, int64_t gap_ns)
{
    ls_log(LS_LOG_DEBUG, "comm", "this process was stopped for %.1f s", (double)gap_ns / 1e9);
    list_for_each (it, &e->groups) {
        list_for_each (at, &list_entry(it, ls_comm, node)->works) {
            ls_work *w = list_entry(at, ls_work, node);

            w->start_ns += gap_ns;
            if (w->next_check_ns != INT64_MAX)
                w->next_check_ns += gap_ns;
            w->next_report_ns += gap_ns;
        }
    }
}
