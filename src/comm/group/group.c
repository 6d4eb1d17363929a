/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.c - creates, splits and destroys groups, and answers the public questions about them. A new
 * group is used only after all its members have opened it.
 */
#include "comm/group/group.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/device/device_phases.h"
#include "comm/device/staged.h"
#include "comm/group/seat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SEND_MS 5000 /* how long the end of a group waits for pending sends */

/* --- creating a group --- */

static void count_locals(ls_comm *comm)
{
    const engine_parts *p = &comm->engine->parts;

    for (int r = 0; r < comm->info.size; r++) {
        if (p->hosts[comm->members[r]] != p->hosts[p->rank])
            continue;
        comm->local_rank += r < comm->info.rank;
        comm->local_size++;
    }
}

/* What stays is the place of an elastic job's process in it. */
static void clear_group(ls_comm *comm)
{
    struct seat *kept = comm->seat;

    message_counts_free(&comm->messages);
    ls_free(comm->calls);
    ls_free(comm->left_after);
    ls_free(comm->members);
    *comm = (ls_comm){.seat = kept};
}

/* Other members may be late or missing, so this wait is reported to the hub. */
static ls_status open_group(engine *e, ls_comm *comm)
{
    char what[STAMP_SITE_BYTES];
    const control_stage stage = {
        .group = comm->info.id,
        .members = comm->info.members,
        .n_members = comm->info.size,
        .what = text_format(what, sizeof(what), "opening group %" PRIu32, comm->info.id),
        .is_blind = e->parts.ops != &native_backend_ops};
    ls_status st;

    control_begin_stage(e->parts.control, &stage);
    st = watch_explain(e, e->parts.ops->open_group(e->parts.backend, &comm->info, &comm->backend));
    control_end_stage(e->parts.control);
    return st;
}

/* comm is zeroed, except for its seat; after a failure again. */
static ls_status create_in(engine *e, const ls_comm *of, uint32_t id, int rank, int size,
                           int *members, ls_comm *comm)
{
    ls_status st = LS_OK;

    comm->engine = e;
    comm->members = members;
    comm->timeout_ms = of != NULL ? of->timeout_ms : e->parts.operation_ms;
    comm->info = (group_info){.id = id, .rank = rank, .size = size, .members = members};
    list_init(&comm->works);
    list_init(&comm->handles);
    count_locals(comm);
    if (size > 1 && !e->parts.ops->compares_calls)
        st = calls_create(&comm->calls);
    engine_enter(e);
    e->opening = of;
    if (st == LS_OK && of != NULL && of->status != LS_OK)
        st = ls_fail(of->status, "%s", of->text);
    else if (st == LS_OK && e->end.kind != CAUSE_NONE)
        st = ls_fail(cause_status(e->end.kind), "%s", e->end.text);
    else if (st == LS_OK && size > 1)
        st = open_group(e, comm);
    e->opening = NULL;
    if (st == LS_OK) {
        list_append(&e->groups, &comm->node);
        e->n_groups++;
    }
    if (st == LS_OK && e->early.kind != CAUSE_NONE && e->early.group == id)
        engine_break(e, comm, &e->early, cause_status(e->early.kind), false);
    engine_leave(e);
    if (st != LS_OK)
        clear_group(comm);
    return st;
}

ls_status group_create(engine *e, const ls_comm *of, uint32_t id, int rank, int size, int *members,
                       ls_comm **out)
{
    ls_comm *comm = ls_calloc(1, sizeof(*comm));
    ls_status st;

    if (comm == NULL) {
        ls_free(members);
        return ls_fail(LS_ENOMEM, "no memory for a group of %d ranks", size);
    }
    st = create_in(e, of, id, rank, size, members, comm);
    if (st == LS_OK)
        *out = comm;
    else
        ls_free(comm);
    return st;
}

ls_status group_create_in(engine *e, uint32_t id, int rank, int size, int *members, ls_comm *comm)
{
    return create_in(e, NULL, id, rank, size, members, comm);
}

/* --- destroying a group --- */

/* Started sends are delivered, and results that queues wait for arrive, if that takes a bounded
 * time. */
static void deliver_sends(engine *e, ls_comm *comm)
{
    const int64_t deadline_ns = ls_deadline_ns(SEND_MS);
    bool in_time = true;

    while (in_time && comm->status == LS_OK) {
        ls_work *owed = NULL;

        list_for_each (it, &comm->works) {
            ls_work *w = list_entry(it, ls_work, node);

            if (w->b.op.kind == COLL_SEND || w->is_detached)
                owed = w;
        }
        if (owed == NULL)
            return;
        in_time = drive_until(e, owed, deadline_ns);
    }
}

void group_close(ls_comm *comm)
{
    const job_cause cause = {.kind = CAUSE_NONE, // no failure of the job
                             .text = "this rank has destroyed the group (ls_comm_destroy)"};
    char kept[LS_ERROR_BYTES];
    engine *e;
    bool is_last;

    ls_error_save(kept); // the caller may be returning a failure
    e = comm->engine;
    engine_enter(e);
    device_phases_close(comm);
    deliver_sends(e, comm);
    watch_leave(e, comm);
    engine_break(e, comm, &cause, LS_ECANCELED, false);
    ending_await(e, comm);
    ending_release_handles(e, comm);
    staged_close(comm);
    if (comm->backend != NULL)
        e->parts.ops->close_group(comm->backend);
    list_remove(&comm->node);
    is_last = --e->n_groups == 0;
    callback_finish(e);
    engine_leave(e);
    if (is_last)
        engine_destroy(e);
    clear_group(comm);
    ls_error_restore(kept);
}

void ls_comm_destroy(ls_comm *comm)
{
    // In a forked child the group belongs to the parent.
    if (comm == NULL || comm->engine->is_forked)
        return;
    group_close(comm);
    seat_close(comm->seat);
    ls_free(comm);
}

void ls_comm_abort(ls_comm *comm, const char *reason)
{
    job_cause cause = {.kind = CAUSE_ABORTED};
    engine *e;

    if (comm == NULL || comm->engine->is_forked)
        return;
    e = comm->engine;
    cause.group = comm->info.id;
    cause.rank = e->parts.rank;
    text_format(cause.text, sizeof(cause.text), "rank %d aborted: %.400s", e->parts.rank,
                reason == NULL || *reason == '\0' ? "no reason given" : reason);
    engine_abort_group(e, comm, &cause);
}

/* --- split --- */

typedef struct split_entry {
    int64_t color;
    int64_t key;
    int rank;
} split_entry;

static int compare_entries(const void *a, const void *b)
{
    const split_entry *x = a;
    const split_entry *y = b;

    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

uint32_t group_own_id(engine *e, int n)
{
    const uint32_t id = UINT32_C(0x80000000) + (uint32_t)e->parts.rank * 1024 + e->next_group;

    e->next_group = (e->next_group + (uint32_t)n) % 1024;
    return id;
}

static ls_status reserve_ids(ls_comm *comm, int64_t *first)
{
    engine *e = comm->engine;
    uint32_t id = 0;
    ls_status st = LS_OK;

    *first = 0;
    if (comm->info.rank != 0)
        return LS_OK;
    engine_enter(e);
    watch_poll_hub(e, true); // the hub may have ended with rank 0
    if (e->parts.control != NULL) {
        st = control_reserve_groups(e->parts.control, comm->info.size, &id);
    } else {
        id = group_own_id(e, comm->info.size);
    }
    engine_leave(e);
    if (st == LS_OK)
        *first = id;
    return st;
}

/* Every rank's {color, key, first id}, sorted by color, key and rank. */
static ls_status exchange(ls_comm *comm, int color, int key, const void *site, split_entry *entries,
                          int64_t *first_id)
{
    const size_t n = (size_t)comm->info.size;
    int64_t mine[3] = {color, key, 0};
    int64_t *all = ls_calloc(3 * n, sizeof(*all));
    const coll_call call = {
        .kind = COLL_ALL_GATHER, .dtype = LS_I64, .root = -1, .src = mine, .dst = all, .count = 3};
    ls_status st;

    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory to split a group of %d ranks", comm->info.size);
    st = reserve_ids(comm, &mine[2]);
    if (st == LS_OK)
        st = engine_run(comm, &call, site, false, NULL);
    for (int r = 0; st == LS_OK && r < comm->info.size; r++)
        entries[r] =
            (split_entry){.color = all[3 * (size_t)r], .key = all[3 * (size_t)r + 1], .rank = r};
    *first_id = all[2];
    ls_free(all);
    if (st == LS_OK)
        qsort(entries, n, sizeof(*entries), compare_entries);
    return st;
}

/* The range of the sorted entries that has this color, and the number of colors before it. */
typedef struct split_part {
    int first;
    int size;
    int number;
} split_part;

static split_part find_part(const split_entry *entries, int n, int color)
{
    split_part part = {.first = -1};

    for (int i = 0; i < n; i++) {
        if (entries[i].color == color) {
            part.first = part.first < 0 ? i : part.first;
            part.size++;
        } else if (part.first < 0 && entries[i].color >= 0) {
            part.number += i == 0 || entries[i - 1].color != entries[i].color;
        }
    }
    return part;
}

static ls_status make_child(ls_comm *comm, const split_entry *entries, int color, int64_t first_id,
                            ls_comm **out)
{
    const split_part part = find_part(entries, comm->info.size, color);
    int *members;
    int rank = 0;

    LS_TRY(LS_NEW(&members, (size_t)part.size, "for a group of %d ranks", part.size));
    for (int i = 0; i < part.size; i++) {
        members[i] = comm->members[entries[part.first + i].rank];
        if (entries[part.first + i].rank == comm->info.rank)
            rank = i;
    }
    return group_create(comm->engine, comm, (uint32_t)(first_id + part.number), rank, part.size,
                        members, out);
}

/* Breaks the parent with this rank's reason, which ends the split on the other ranks. */
static void break_parent(ls_comm *comm)
{
    job_cause cause = {
        .kind = CAUSE_FAULT, .group = comm->info.id, .rank = comm->engine->parts.rank};

    text_format(cause.text, sizeof(cause.text), "rank %d could not split the group: %.400s",
                cause.rank, ls_last_error());
    engine_enter(comm->engine);
    engine_break(comm->engine, comm, &cause, cause_status(cause.kind), true);
    engine_leave(comm->engine);
}

static ls_status split(ls_comm *comm, int color, int key, const void *site, ls_comm **out)
{
    split_entry *entries = ls_calloc((size_t)comm->info.size, sizeof(*entries));
    char kept[LS_ERROR_BYTES];
    ls_comm *child = NULL;
    int64_t first_id = 0;
    ls_status st = LS_OK;

    if (entries == NULL)
        st = ls_fail(LS_ENOMEM, "no memory to split a group of %d ranks", comm->info.size);
    if (st == LS_OK)
        st = exchange(comm, color < 0 ? -1 : color, key, site, entries, &first_id);
    if (st == LS_OK && color >= 0)
        st = make_child(comm, entries, color, first_id, &child);
    if (st == LS_OK) // after this all members have the new group
        st = engine_run(comm, &(coll_call){.kind = COLL_BARRIER, .root = -1}, site, false, NULL);
    ls_free(entries);
    if (st == LS_OK) {
        *out = child;
        return LS_OK;
    }
    ls_error_save(kept);
    break_parent(comm);
    ls_comm_destroy(child);
    ls_error_restore(kept);
    return st;
}

ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **out)
{
    engine *e;
    ls_status st;

    if (comm == NULL || out == NULL)
        return ls_fail(LS_EINVAL, "split: %s is NULL", comm == NULL ? "comm" : "out");
    *out = NULL;
    LS_TRY(engine_check_process(comm->engine));
    e = comm->engine;
    engine_enter(e);
    ending_enter(comm);
    engine_leave(e);
    st = split(comm, color, key, __builtin_return_address(0), out);
    engine_enter(e);
    ending_leave(e, comm);
    engine_leave(e);
    return st;
}

/* --- properties --- */

int ls_comm_rank(const ls_comm *comm)
{
    return comm == NULL ? -1 : comm->info.rank;
}

int ls_comm_size(const ls_comm *comm)
{
    return comm == NULL ? 0 : comm->info.size;
}

int ls_comm_local_rank(const ls_comm *comm)
{
    return comm == NULL ? -1 : comm->local_rank;
}

int ls_comm_local_size(const ls_comm *comm)
{
    return comm == NULL ? 0 : comm->local_size;
}

int comm_hosts(const ls_comm *comm, int *of)
{
    const uint64_t *hosts = comm->engine->parts.hosts;
    const int *members = comm->members;
    int n = 0;

    for (int r = 0; r < comm->info.size; r++) {
        int first = 0; // rank of this host

        while (hosts[members[first]] != hosts[members[r]])
            first++;
        of[r] = first < r ? of[first] : n++;
    }
    return n;
}

const char *ls_comm_backend(const ls_comm *comm)
{
    return comm == NULL ? NULL : comm->engine->parts.ops->name;
}

const char *ls_comm_transport(const ls_comm *comm)
{
    if (comm == NULL)
        return NULL;
    return comm->backend == NULL ? "self" : comm->engine->parts.ops->transport(comm->backend);
}

ls_status ls_comm_status(ls_comm *comm)
{
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    e = comm->engine;
    LS_TRY(engine_check_process(e));
    engine_enter(e);
    drive_once(e);
    st = comm->status;
    if (st != LS_OK)
        (void)ls_fail(st, "%s", comm->text);
    engine_leave(e);
    return st;
}

void ls_comm_set_timeout(ls_comm *comm, int64_t timeout_ms)
{
    if (comm == NULL || comm->engine->is_forked)
        return;
    engine_enter(comm->engine);
    comm->timeout_ms =
        timeout_ms != 0 ? ls_duration_ms(timeout_ms) : comm->engine->parts.operation_ms;
    engine_leave(comm->engine);
}

void ls_comm_set_queue(ls_comm *comm, ls_queue *queue)
{
    if (comm != NULL)
        comm->queue = queue;
}

void comm_label(ls_comm *comm, const char *label)
{
    text_format(comm->label, sizeof(comm->label), "%s", label);
}

/* --- memory --- */

/* The accelerator of memory that the backend wants to know of; NULL: it is of no interest. */
static accel *registering_accel(const ls_comm *comm, const void *memory)
{
    const engine *e = comm->engine;
    const bool is_able = !e->is_forked && comm->backend != NULL && e->parts.ops->add_memory != NULL;

    return is_able ? accel_of(memory) : NULL;
}

ls_status comm_add_memory(ls_comm *comm, void *memory, size_t bytes)
{
    accel *owner = registering_accel(comm, memory);
    int32_t is_added;
    ls_status st;

    if (owner == NULL)
        return LS_OK;
    // after an operation on the device every rank has what the backend registers memory with
    LS_TRY(ls_broadcast(comm, memory, memory, 1, LS_U8, 0, NULL));
    engine_enter(comm->engine);
    is_added = comm->engine->parts.ops->add_memory(comm->backend, owner, memory, bytes);
    engine_leave(comm->engine);
    st = ls_all_reduce(comm, &is_added, &is_added, 1, LS_I32, LS_MIN, NULL);
    if (st != LS_OK || !is_added)
        comm_remove_memory(comm, memory);
    return st;
}

void comm_remove_memory(ls_comm *comm, void *memory)
{
    accel *owner = registering_accel(comm, memory);

    if (owner == NULL)
        return;
    if (accel_synchronize(owner, "comm: operations on memory that is freed") != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "%s", ls_last_error());
    engine_enter(comm->engine);
    comm->engine->parts.ops->remove_memory(comm->backend, memory);
    engine_leave(comm->engine);
}
