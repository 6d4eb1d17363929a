/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ending.c - the ends of groups, handles and engines. A group ends after the threads that wait in
 * it have left, a handle may be used until its owner frees it, and an engine is freed with the last
 * of its groups and handles.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "comm/device/accel_use.h"
#include "comm/group/memory.h"
#include "comm/group/stack.h"

#define STEP_MS 1

void ending_enter(ls_comm *comm)
{
    comm->n_inside++;
}

void ending_leave(engine *e, ls_comm *comm)
{
    if (--comm->n_inside == 0 && e->n_waiting > 0)
        ls_cond_broadcast(&e->changed);
}

/* In steps: an abort that was not in time leaves without a signal. */
void ending_await(engine *e, ls_comm *comm)
{
    while (comm->n_inside > 0 ||
           atomic_load_explicit(&comm->n_aborting, memory_order_acquire) > 0) {
        engine_serve_aborts(e);
        if (e->parts.backend != NULL)
            e->parts.ops->wake(e->parts.backend); // the waiting thread may sleep in it
        e->n_waiting++;
        (void)ls_cond_wait(&e->changed, &e->mu, ls_deadline_ms(STEP_MS));
        e->n_waiting--;
    }
}

void ending_release_handles(engine *e, ls_comm *comm)
{
    while (!list_empty(&comm->handles)) {
        ls_work *w = list_entry(comm->handles.next, ls_work, handle);

        list_remove(&w->handle);
        w->text = w->status == LS_OK ? NULL : ls_strdup(comm->text);
        w->comm = NULL;
        e->n_orphans++;
    }
}

ls_status ending_status(const ls_work *w)
{
    const char *text = w->comm != NULL ? w->comm->text : w->text;

    if (w->status == LS_OK)
        return LS_OK;
    return ls_fail(w->status, "%s", text != NULL ? text : ls_status_text(w->status));
}

void ending_free_work(ls_work *w)
{
    ls_free(w->text);
    ls_free(w->counts);
    ls_free(w);
}

static void free_engine(engine *e)
{
    while (!list_empty(&e->free_works)) {
        ls_work *w = list_entry(e->free_works.next, ls_work, node);

        list_remove(&w->node);
        ending_free_work(w);
    }
    ls_cond_destroy(&e->changed);
    ls_cond_destroy(&e->has_work);
    ls_mutex_destroy(&e->mu);
    ls_mutex_destroy(&e->abort_mu);
    ls_free(e->left_ns);
    ls_free(e);
}

void ending_drop_orphan(engine *e)
{
    const bool is_last = --e->n_orphans == 0 && e->is_closed;

    engine_leave(e);
    if (is_last)
        free_engine(e);
}

void engine_destroy(engine *e)
{
    bool is_last;

    if (e == NULL)
        return;
    accel_use_end_all(e);
    stack_stop(e);
    drive_stop(e);
    memory_keep_all(e);
    forked_remove(e);
    engine_free_parts(&e->parts);
    engine_enter(e);
    e->is_closed = true;
    is_last = e->n_orphans == 0;
    engine_leave(e);
    if (is_last)
        free_engine(e);
}
