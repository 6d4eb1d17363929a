/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - the public functions of handles (ls_work). A handle outlives its group. */
#include "base/accel.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "comm/engine.h"

/* The status and text of an ended work, also after the end of its group. */
static ls_status end_of(const ls_work *w)
{
    const char *text = w->comm != NULL ? w->comm->text : w->text;

    if (w->status == LS_OK)
        return LS_OK;
    return ls_fail(w->status, "%s", text != NULL ? text : ls_status_text(w->status));
}

static ls_status forked_handle(void)
{
    return ls_fail(LS_EINVAL, "this process was forked from the one that started the operation");
}

/* Under the lock. */
static bool wait_until(engine *e, ls_work *w, int64_t deadline_ns)
{
    if (w->phase != WORK_ENDED && !w->is_held)
        drive_spin_wait(e, w, ls_ticks_now_ns(&e->ticks));
    return w->phase == WORK_ENDED || drive_until(e, w, deadline_ns);
}

ls_status ls_work_wait(ls_work *work)
{
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(work));
    if (work->comm == NULL) {
        st = end_of(work);
        ls_free(work->text);
        ls_free(work->counts);
        ls_free(work);
        return st;
    }
    e = work->comm->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    (void)wait_until(e, work, -1);
    st = end_of(work);
    engine_free_work(e, work);
    engine_leave(e);
    return st;
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
    if (work->comm == NULL || owner == NULL)
        return ls_work_wait(work);
    if (queue->accel != owner)
        return ls_fail(LS_EINVAL, "the result is in the memory of %s, the queue is of %s",
                       owner->name, queue->accel->name);
    e = work->comm->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    work->waits_for_event = true;
    drive_hold(e, work);
    (void)drive_until(e, work, -1);
    if (work->phase == WORK_ENDED) {
        st = end_of(work);
        engine_free_work(e, work);
    } else {
        st = order_queue(work, queue);
    }
    engine_leave(e);
    return st;
}

/* The group is gone: there is no engine. */
static void call_at_once(ls_work *w, ls_work_end_fn fn, void *arg)
{
    const ls_work_end end = {
        .status = w->status, .text = w->text != NULL ? w->text : "", .source = ls_work_source(w)};

    fn(arg, &end);
    ls_free(w->text);
    ls_free(w->counts);
    ls_free(w);
}

ls_status ls_work_then(ls_work *work, ls_work_end_fn fn, void *arg)
{
    engine *e;

    LS_TRY(LS_GIVEN(work));
    LS_TRY(LS_GIVEN(fn));
    if (work->comm == NULL) {
        call_at_once(work, fn, arg);
        return LS_OK;
    }
    e = work->comm->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    work->end_fn = fn;
    work->end_arg = arg;
    list_remove(&work->handle); // the group's end does not give it back
    if (work->phase == WORK_ENDED)
        engine_owe_call(e, work);
    else
        drive_hold(e, work);
    engine_leave(e);
    return LS_OK;
}

ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms)
{
    const int64_t deadline_ns = timeout_ms < 0 ? -1 : ls_now_ns() + timeout_ms * 1000000;
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(work));
    if (work->comm == NULL)
        return end_of(work);
    e = work->comm->engine;
    if (e->is_forked)
        return forked_handle();
    engine_enter(e);
    if (wait_until(e, work, deadline_ns)) {
        st = end_of(work);
    } else {
        char op[160];

        drive_hold(e, work);
        st = ls_fail(LS_ETIMEOUT, "%s has not ended after %lld ms",
                     stamp_text(op, sizeof(op), &work->b.op.stamp), (long long)timeout_ms);
    }
    engine_leave(e);
    return st;
}

int ls_work_test(ls_work *work)
{
    engine *e;
    int has_ended;

    if (work == NULL || work->comm == NULL || work->comm->engine->is_forked)
        return 1;
    e = work->comm->engine;
    engine_enter(e);
    if (work->phase != WORK_ENDED)
        drive_once(e);
    drive_hold(e, work);
    has_ended = work->phase == WORK_ENDED;
    engine_leave(e);
    return has_ended;
}

int ls_work_source(const ls_work *work)
{
    if (work == NULL || work->b.op.kind != COLL_RECV || work->b.op.root != LS_ANY_SOURCE)
        return -1;
    return work->b.source;
}
