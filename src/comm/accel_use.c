/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accel_use.c - registers a group with the accelerators of its operations, and ends their use when
 * one is closed before the group (accel_use.h). Operations that are under way on it then fail.
 */
#include "comm/accel_use.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/device_phases.h"
#include "comm/staged.h"

#define RESULTS_MS 5000

struct accel_use {
    accel_user base;
    struct accel_use *next; /* of the group */
    ls_comm *comm;
    accel *owner;
};

static void remove_use(struct accel_use *use)
{
    struct accel_use **at = &use->comm->uses;

    while (*at != use)
        at = &(*at)->next;
    *at = use->next;
}

/* A work on the accelerator; NULL: there is none. */
static ls_work *find_work(const ls_comm *comm, const accel *owner, bool is_detached)
{
    list_for_each (it, &comm->works) {
        ls_work *w = list_entry(it, ls_work, node);

        if (w->b.op.accelerator == owner && w->is_detached >= is_detached)
            return w;
    }
    return NULL;
}

/* Results that queues wait for arrive; other operations fail. */
static void end_works(ls_comm *comm, const accel *owner)
{
    engine *e = comm->engine;
    const int64_t until_ns = ls_now_ns() + RESULTS_MS * MS_NS;
    job_cause cause = {.kind = CAUSE_ABORTED, .group = comm->info.id, .rank = e->parts.rank};
    ls_work *w;

    while ((w = find_work(comm, owner, true)) != NULL && ls_now_ns() < until_ns)
        (void)drive_until(e, w, until_ns);
    if (find_work(comm, owner, false) == NULL)
        return;
    text_format(cause.text, sizeof(cause.text),
                "rank %d: device %s was closed before an operation on its memory had ended",
                e->parts.rank, owner->name);
    engine_break(e, comm, &cause, LS_ECANCELED, true);
}

/* Called when the accelerator is closed. */
static void close_use(accel_user *self)
{
    struct accel_use *use = (struct accel_use *)self;
    ls_comm *comm = use->comm;
    engine *e = comm->engine;

    if (e->is_forked)
        return;
    engine_enter(e);
    end_works(comm, use->owner);
    staged_forget(comm, use->owner);
    device_phases_close(comm);
    if (comm->backend != NULL && e->parts.ops->forget_device != NULL)
        e->parts.ops->forget_device(comm->backend, use->owner);
    remove_use(use);
    engine_leave(e);
    ls_free(use);
}

ls_status accel_use_begin(ls_comm *comm, accel *owner)
{
    struct accel_use *use = comm->uses;

    while (use != NULL && use->owner != owner)
        use = use->next;
    if (use != NULL)
        return LS_OK;
    use = ls_calloc(1, sizeof(*use));
    if (use == NULL)
        return ls_fail(LS_ENOMEM, "no memory for operations on %s", owner->name);
    *use = (struct accel_use){
        .base.close = close_use, .next = comm->uses, .comm = comm, .owner = owner};
    comm->uses = use;
    accel_add_user(owner, &use->base);
    return LS_OK;
}

void accel_use_end_all(ls_comm *comm)
{
    while (comm->uses != NULL) {
        struct accel_use *use = comm->uses;

        comm->uses = use->next;
        accel_remove_user(use->owner, &use->base);
        ls_free(use);
    }
}
