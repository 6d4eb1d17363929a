/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accel_use.c - registers an engine with the accelerators of its operations, and ends their use
 * when one is closed before the engine (accel_use.h). Operations that are under way on it then
 * fail.
 */
#include "comm/device/accel_use.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/device/device_phases.h"
#include "comm/device/staged.h"

#define RESULTS_MS 5000

struct accel_use {
    accel_user base;
    struct accel_use *next; /* of the engine */
    engine *engine;
    accel *owner;
};

static void remove_use(struct accel_use *use)
{
    struct accel_use **at = &use->engine->uses;

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

    ending_enter(comm);
    while ((w = find_work(comm, owner, true)) != NULL && ls_now_ns() < until_ns)
        (void)drive_until(e, w, until_ns);
    ending_leave(e, comm);
    if (find_work(comm, owner, false) == NULL)
        return;
    text_format(cause.text, sizeof(cause.text),
                "rank %d: device %s was closed before an operation on its memory had ended",
                e->parts.rank, owner->name);
    engine_break(e, comm, &cause, LS_ECANCELED, true);
}

/* Called when the accelerator is closed. The backend may still end what it had on it for groups
 * that are destroyed already. */
static void close_use(accel_user *self)
{
    struct accel_use *use = (struct accel_use *)self;
    engine *e = use->engine;

    if (e->is_forked)
        return;
    engine_enter(e);
    list_for_each (it, &e->groups) {
        ls_comm *comm = list_entry(it, ls_comm, node);

        end_works(comm, use->owner);
        staged_forget(comm, use->owner);
        device_phases_close(comm);
    }
    if (e->parts.backend != NULL && e->parts.ops->forget_device != NULL)
        e->parts.ops->forget_device(e->parts.backend, use->owner);
    remove_use(use);
    engine_leave(e);
    ls_free(use);
}

ls_status accel_use_begin(engine *e, accel *owner)
{
    struct accel_use *use = e->uses;

    while (use != NULL && use->owner != owner)
        use = use->next;
    if (use != NULL)
        return LS_OK;
    LS_TRY(LS_NEW(&use, 1, "for operations on %s", owner->name));
    *use =
        (struct accel_use){.base.close = close_use, .next = e->uses, .engine = e, .owner = owner};
    e->uses = use;
    accel_add_user(owner, &use->base);
    return LS_OK;
}

void accel_use_end_all(engine *e)
{
    while (e->uses != NULL) {
        struct accel_use *use = e->uses;

        e->uses = use->next;
        accel_remove_user(use->owner, &use->base);
        ls_free(use);
    }
}
