/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - the public functions of handles (ls_work). A handle outlives its group. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/compute/accel.h"
#include "comm/engine.h"

static ls_status forked_handle(void)
{
    return ls_fail(LS_EINVAL, "this process was forked from the one that started the operation");
}

/* Under the lock, of a handle with a group. */
static bool wait_until(engine *e, ls_work *w, int64_t deadline_ns)
{
    ls_comm *comm = w->comm;
    bool has_ended;

    ending_enter(comm);
    if (w->phase != WORK_ENDED && !w->is_held)
        drive_spin_wait(e, w, ls_ticks_now_ns(&e->ticks));
    has_ended = w->phase == WORK_ENDED || drive_until(e, w, deadline_ns);
    ending_leave(e, comm);
    return has_ended;
}

/* Takes the lock and the handle of an ended work. */
static ls_status free_handle(engine *e, ls_work *w)
{
    const ls_status st = ending_status(w);

    if (w->comm == NULL) {
        ending_drop_orphan(e);
        ending_free_work(w);
    } else {
        engine_free_work(e, w);
        engine_leave(e);
    }
    return st;
}

ls_status ls_work_wait(ls_work *work)
{
    engine *e;

    LS_TRY(LS_GIVEN(work));
    e = work->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    if (work->comm != NULL)
        (void)wait_until(e, work, -1);
    return free_handle(e, work);
}

/* Under the lock. The handle is the engine's from here on. */
static ls_status order_queue(ls_work *w, ls_queue *queue)
{
    list_remove(&w->handle);
    w->is_held = false;
    w->is_detached = true;
    w->waits_for_event = false;
    return accel_queue_wait(queue, w->b.event, "comm: result of a collective");
}

ls_status ls_work_wait_on(ls_work *work, ls_queue *queue)
{
    const accel *owner;
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(work));
    LS_TRY(LS_GIVEN(queue));
    owner = work->b.op.accelerator;
    if (owner == NULL)
        return ls_work_wait(work);
    e = work->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    if (work->comm != NULL && queue->accel != owner) {
        engine_leave(e);
        return ls_fail(LS_EINVAL, "the result is in the memory of %s, the queue is of %s",
                       owner->name, queue->accel->name);
    }
    work->waits_for_event = true;
    if (work->comm != NULL) {
        drive_hold(e, work);
        (void)wait_until(e, work, -1);
    }
    if (work->phase == WORK_ENDED)
        return free_handle(e, work);
    st = order_queue(work, queue);
    engine_leave(e);
    return st;
}

ls_status ls_work_then(ls_work *work, ls_work_end_fn fn, void *arg)
{
    engine *e;

    LS_TRY(LS_GIVEN(work));
    LS_TRY(LS_GIVEN(fn));
    e = work->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    work->end_fn = fn;
    work->end_arg = arg;
    if (work->comm == NULL) {
        ending_drop_orphan(e);
        callback_call_orphan(work);
        return LS_OK;
    }
    list_remove(&work->handle); // the group's end does not give it back
    if (work->phase != WORK_ENDED) {
        drive_hold(e, work);
    } else {
        callback_owe(e, work);
        callback_call(e);
        if (!list_empty(&e->ended))
            drive_call_soon(e);
    }
    engine_leave(e);
    return LS_OK;
}

ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms)
{
    const int64_t deadline_ns = ls_deadline_ns(timeout_ms);
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(work));
    e = work->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    if (work->comm == NULL || wait_until(e, work, deadline_ns)) {
        st = ending_status(work);
    } else {
        char op[160];

        drive_hold(e, work);
        st = ls_fail(LS_ETIMEOUT, "%s has not ended after %lld ms",
                     stamp_text(op, sizeof(op), &work->b.op.stamp), (long long)timeout_ms);
    }
    engine_leave(e);
    return st;
}

void ls_work_set_timeout(ls_work *work, int64_t timeout_ms)
{
    engine *e;

    if (work == NULL || work->engine->is_forked)
        return;
    e = work->engine;
    engine_enter(e);
    if (work->comm != NULL && work->phase != WORK_ENDED)
        watch_set_timeout(e, work, timeout_ms);
    engine_leave(e);
}

int ls_work_test(ls_work *work)
{
    engine *e;
    int has_ended;

    if (work == NULL || work->engine->is_forked)
        return 1;
    e = work->engine;
    engine_enter(e);
    if (work->phase != WORK_ENDED)
        drive_once(e);
    has_ended = work->phase == WORK_ENDED;
    if (!has_ended)
        drive_hold(e, work);
    engine_leave(e);
    return has_ended;
}

int ls_work_source(const ls_work *work)
{
    if (work == NULL || work->b.op.kind != COLL_RECV || work->b.op.root != LS_ANY_SOURCE)
        return -1;
    return work->b.source;
}
