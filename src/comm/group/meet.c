/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet.c - groups that are created by their members alone, and monitored barriers. The hub collects
 * the members (hub/hub_barrier.c). Opening a group blocks its members, so all ranks open groups in
 * the order of the hub's answers, whichever threads have asked for them.
 */
#include "comm/group/meet.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/group/group.h"

#include <string.h>

#define NAME_MAX_BYTES 63
#define WHAT_BYTES     96
#define ANSWER_MS      10000 /* how much later than the timeout the hub may answer */

/* --- the end of a wait --- */

static void end_wait(engine *e, barrier_wait *m)
{
    m->wait.phase = WORK_ENDED;
    ls_cond_broadcast(&e->changed);
    if (e->parts.backend != NULL)
        e->parts.ops->wake(e->parts.backend);
}

static void fail(barrier_wait *m, ls_status status, const char *text)
{
    m->status = status;
    m->cause = (job_cause){.kind = CAUSE_FAULT, .group = m->id, .rank = -1};
    text_format(m->cause.text, sizeof(m->cause.text), "%s", text);
}

/* The group of the first one is opened next. */
static void begin_next_opening(engine *e)
{
    if (!list_empty(&e->openings))
        end_wait(e, list_entry(e->openings.next, barrier_wait, node));
}

void meet_answered(engine *e, const barrier_answer *answer)
{
    list_for_each (it, &e->barriers) {
        barrier_wait *m = list_entry(it, barrier_wait, node);

        if (m->ticket != answer->ticket)
            continue;
        m->id = answer->id;
        if (answer->status != LS_OK)
            fail(m, answer->status, answer->text);
        if (!m->opens || answer->status != LS_OK) {
            end_wait(e, m);
            return;
        }
        list_remove(&m->node);
        list_append(&e->openings, &m->node);
        if (e->openings.next == &m->node)
            begin_next_opening(e);
        return;
    }
}

static void fail_all(engine *e, list_node *list, const ls_comm *of, ls_status status,
                     const char *text)
{
    list_for_each (it, list) {
        barrier_wait *m = list_entry(it, barrier_wait, node);

        if ((of != NULL && m->comm != of) || m->wait.phase == WORK_ENDED)
            continue;
        fail(m, status, text);
        end_wait(e, m);
    }
}

void meet_end_group(engine *e, const ls_comm *comm)
{
    fail_all(e, &e->barriers, comm, comm->status, comm->text);
    fail_all(e, &e->openings, comm, comm->status, comm->text);
}

void meet_lose_hub(engine *e, const char *why)
{
    fail_all(e, &e->barriers, NULL, LS_EPEER, why);
}

void meet_note_cause(engine *e, const job_cause *cause)
{
    list_for_each (it, &e->openings) {
        barrier_wait *m = list_entry(it, barrier_wait, node);

        if (m->id != cause->group || m->status != LS_OK)
            continue;
        m->status = cause_status(cause->kind);
        m->cause = *cause;
    }
}

const job_cause *meet_opening_cause(const engine *e)
{
    const barrier_wait *m;

    if (list_empty(&e->openings))
        return NULL;
    m = list_entry(e->openings.next, barrier_wait, node);
    return m->status != LS_OK ? &m->cause : NULL;
}

/* --- waiting --- */

static ls_status ask(engine *e, barrier_wait *m, const char *what, const int *members, int n,
                     int64_t timeout_ms)
{
    const control_barrier request = {.ticket = ++e->last_ticket,
                                     .group = m->comm->info.id,
                                     .what = what,
                                     .members = members,
                                     .n_members = n,
                                     .timeout_ms = timeout_ms,
                                     .report_in_ms = e->parts.late_ms};

    if (m->comm->status != LS_OK)
        return ls_fail(m->comm->status, "%s", m->comm->text);
    if (e->parts.control == NULL)
        return ls_fail(LS_EPEER, "%s: rank 0 has left, and the job's hub with it", what);
    m->ticket = e->last_ticket;
    return control_meet(e->parts.control, &request);
}

/* members: world ranks. On success m stays in a list until meet_leave(). */
static ls_status meet(engine *e, barrier_wait *m, const char *what, const int *members, int n,
                      int64_t timeout_ms)
{
    const int64_t wait_ms = ls_duration_ms(timeout_ms);
    const int64_t limit_ns = ls_deadline_ns(wait_ms < 0 ? -1 : wait_ms + ANSWER_MS);
    ls_status st;

    engine_enter(e);
    ending_enter(m->comm);
    list_append(&e->barriers, &m->node);
    st = ask(e, m, what, members, n, wait_ms);
    if (st == LS_OK && !drive_until(e, &m->wait, limit_ns))
        st = ls_fail(LS_ETIMEOUT, "%s: the job's hub has not answered", what);
    else if (st == LS_OK && m->status != LS_OK)
        st = ls_fail(m->status, "%s", m->cause.text);
    engine_leave(e);
    return st;
}

static void meet_leave(engine *e, barrier_wait *m)
{
    engine_enter(e);
    ending_leave(e, m->comm);
    list_remove(&m->node);
    if (m->opens)
        begin_next_opening(e);
    engine_leave(e);
}

/* --- monitored barrier --- */

ls_status ls_comm_monitored_barrier(ls_comm *comm, int64_t timeout_ms)
{
    barrier_wait m = {.comm = comm};
    char what[WHAT_BYTES];
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    e = comm->engine;
    LS_TRY(engine_check_process(e));
    if (e->parts.size == 1)
        return ls_comm_status(comm);
    text_format(what, sizeof(what), "monitored barrier #%llu", (unsigned long long)++comm->n_met);
    st = meet(e, &m, what, comm->members, comm->info.size,
              timeout_ms != 0 ? timeout_ms : comm->timeout_ms);
    meet_leave(e, &m);
    return st;
}

/* --- creating a group --- */

static ls_status check_ranks(const ls_comm *parent, const int *ranks, int n, bool *is_named)
{
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->info.size)
            return ls_fail(LS_EINVAL, "rank %d: must be 0 to %d", ranks[i], parent->info.size - 1);
        if (is_named[ranks[i]])
            return ls_fail(LS_EINVAL, "rank %d is named twice", ranks[i]);
        is_named[ranks[i]] = true;
    }
    return is_named[parent->info.rank]
               ? LS_OK
               : ls_fail(LS_EINVAL, "rank %d, which calls, is not among the members",
                         parent->info.rank);
}

static ls_status check_name(const char *name)
{
    LS_TRY(LS_GIVEN(name));
    return *name != '\0' && strlen(name) <= NAME_MAX_BYTES
               ? LS_OK
               : ls_fail(LS_EINVAL, "a name of %zu bytes: must have 1 to %d", strlen(name),
                         NAME_MAX_BYTES);
}

static ls_status check_arguments(const ls_comm *parent, const int *ranks, int n, const char *name)
{
    bool *is_named;
    ls_status st;

    LS_TRY(LS_GIVEN(parent));
    LS_TRY(LS_GIVEN(ranks));
    LS_TRY(engine_check_process(parent->engine));
    if (n < 1 || n > parent->info.size)
        return ls_fail(LS_EINVAL, "%d members: the parent has %d ranks", n, parent->info.size);
    LS_TRY(check_name(name));
    LS_TRY(LS_NEW(&is_named, (size_t)parent->info.size, "for %d ranks", parent->info.size));
    st = check_ranks(parent, ranks, n, is_named);
    ls_free(is_named);
    return st;
}

/* Ends the opening of the group on the other members. */
static void report_failure(engine *e, uint32_t id)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = id, .rank = e->parts.rank};
    char kept[LS_ERROR_BYTES];

    ls_error_save(kept);
    text_format(cause.text, sizeof(cause.text), "rank %d could not open the group: %.400s",
                cause.rank, kept);
    engine_enter(e);
    watch_report_cause(e, &cause);
    engine_leave(e);
    ls_error_restore(kept);
}

/* Takes members. */
static ls_status open_members(barrier_wait *m, int rank, int n, int *members, ls_comm **out)
{
    engine *e = m->comm->engine;
    const ls_status st = group_create(e, m->comm, m->id, rank, n, members, out);

    if (st != LS_OK) {
        report_failure(e, m->id);
        return st;
    }
    engine_enter(e);
    if (m->status != LS_OK) // the cause came while the group was opened
        engine_break(e, *out, &m->cause, m->status, false);
    engine_leave(e);
    return LS_OK;
}

/* In a job of one rank there is no hub. */
static ls_status create_alone(ls_comm *parent, int *members, ls_comm **out)
{
    engine *e = parent->engine;
    uint32_t id;

    engine_enter(e);
    id = group_own_id(e, 1);
    engine_leave(e);
    return group_create(e, parent, id, 0, 1, members, out);
}

static ls_status create_group(ls_comm *parent, const int *ranks, int n, const char *name,
                              int64_t timeout_ms, ls_comm **out)
{
    engine *e = parent->engine;
    int *members = ls_calloc((size_t)n, sizeof(*members));
    barrier_wait m = {.comm = parent, .opens = true};
    char what[WHAT_BYTES];
    int rank = 0;
    ls_status st;

    if (members == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a group of %d ranks", n);
    for (int i = 0; i < n; i++) {
        members[i] = parent->members[ranks[i]];
        if (ranks[i] == parent->info.rank)
            rank = i;
    }
    if (e->parts.size == 1)
        return create_alone(parent, members, out);
    text_format(what, sizeof(what), "creating group \"%s\"", name);
    st = meet(e, &m, what, members, n, timeout_ms);
    if (st == LS_OK)
        st = open_members(&m, rank, n, members, out);
    else
        ls_free(members);
    meet_leave(e, &m);
    return st;
}

ls_status ls_comm_create_group(ls_comm *parent, const int *ranks, int n, const char *name,
                               int64_t timeout_ms, ls_comm **out)
{
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    *out = NULL;
    st = check_arguments(parent, ranks, n, name);
    if (st != LS_OK)
        return ls_context(st, "ls_comm_create_group");
    return create_group(parent, ranks, n, name, timeout_ms != 0 ? timeout_ms : parent->timeout_ms,
                        out);
}
