/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callback.c - calls the functions of ls_work_then(). One thread of an engine calls them, one after
 * the other and without locks; a function that starts further operations never has others called
 * inside it, so a chain of any length needs no stack.
 *
 * That thread is the progress thread. ls_work_then() itself calls when the operation has ended, and
 * the end of a group calls for what was pending, unless another thread calls already.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "comm/engine.h"

/* Of this thread, in any engine. */
static _Thread_local bool is_in_function;
static _Thread_local ls_work *own_orphans; /* whose functions wait for the end of this one */

void callback_owe(engine *e, ls_work *w)
{
    w->text = w->status == LS_OK ? NULL : ls_strdup(w->comm->text);
    list_append(&e->ended, &w->node);
}

bool callback_may_call(const engine *e)
{
    return !e->is_calling && !is_in_function;
}

static void call(const ls_work *w)
{
    const ls_work_end end = {.status = w->status,
                             .text = w->status == LS_OK ? ""
                                     : w->text != NULL  ? w->text
                                                        : ls_status_text(w->status),
                             .source = ls_work_source(w)};

    w->end_fn(w->end_arg, &end);
}

static void call_orphans(void)
{
    while (own_orphans != NULL) {
        ls_work *w = own_orphans;

        own_orphans = w->next_orphan;
        call(w);
        ending_free_work(w);
    }
}

void callback_call_orphan(ls_work *w)
{
    w->next_orphan = own_orphans;
    own_orphans = w;
    if (is_in_function)
        return;
    is_in_function = true;
    call_orphans();
    is_in_function = false;
}

void callback_call(engine *e)
{
    char kept[LS_ERROR_BYTES];

    if (list_empty(&e->ended) || !callback_may_call(e))
        return;
    ls_error_save(kept); // the caller may be returning a failure
    e->is_calling = is_in_function = true;
    while (!list_empty(&e->ended)) {
        ls_work *w = list_entry(e->ended.next, ls_work, node);

        list_remove(&w->node);
        engine_leave(e);
        call(w);
        call_orphans();
        engine_enter(e);
        ls_free(w->text);
        w->text = NULL;
        engine_free_work(e, w);
    }
    e->is_calling = is_in_function = false;
    ls_cond_broadcast(&e->changed);
    ls_error_restore(kept);
}

void callback_finish(engine *e)
{
    callback_call(e);
    while (!is_in_function && e->is_calling) {
        e->n_waiting++;
        (void)ls_cond_wait(&e->changed, &e->mu, ls_deadline_ms(-1));
        e->n_waiting--;
    }
}
