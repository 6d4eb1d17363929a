/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/core.h"
#include "comm/engine.h"

#include <sched.h>

#define SPIN_NS (20 * INT64_C(1000))
#define YIELD_NS                                                                                   \
    (2000 * INT64_C(1000)) /* a sleeping core takes long to come back: see bench/ddp_cost */
#define YIELD_MAX_NS  (20000 * INT64_C(1000)) /* what learn() makes of it */
#define SLEEP_MAX_MS  500
#define STOPPED_NS    (1000 * INT64_C(1000000)) /* asleep so much longer than asked: not our doing */
#define PASSES_A_LOOK 32                        /* passes that move something may skip the clock */

/* With more ranks than cores, whoever spins keeps the rank it waits for from running. */
void drive_init(engine *e)
{
    e->spin_ns = e->parts.has_own_core ? SPIN_NS : 0;
    e->yield_ns = e->parts.has_own_core ? YIELD_NS : 0;
    ls_cond_init(&e->changed);
    ls_cond_init(&e->back);
}

static bool progress(engine *e)
{
    return e->parts.ops->progress(e->parts.backend);
}

static void give_way(engine *e)
{
    if (atomic_load_explicit(&e->n_entering, memory_order_relaxed) == 0)
        return;
    engine_leave(e);
    (void)sched_yield();
    ls_mutex_lock(&e->mu);
}

static void yield_core(engine *e)
{
    engine_leave(e);
    (void)sched_yield();
    ls_mutex_lock(&e->mu);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/*
 * Sleeps in the backend until something may have moved, until_ns, or something is due. The sleep is
 * cut into pieces: one that took far longer than asked means that this process was stopped
 * (Ctrl-Z), which is nobody's delay.
 */
static void sleep_until(engine *e, int64_t until_ns, int64_t now_ns)
{
    const int64_t wake_ns = earlier(until_ns, watch_next_ns(e));
    int64_t ms = (wake_ns - now_ns + 999999) / 1000000;
    int64_t slept_ns;

    if (wake_ns <= now_ns)
        return;
    if (wake_ns == INT64_MAX || ms > SLEEP_MAX_MS)
        ms = SLEEP_MAX_MS;
    engine_leave(e);
    e->parts.ops->wait(e->parts.backend, (int)ms);
    ls_mutex_lock(&e->mu);
    slept_ns = ls_now_ns() - now_ns;
    if (slept_ns > ms * 1000000 + STOPPED_NS)
        watch_forgive(e, slept_ns - ms * 1000000);
    // News are read in the next pass, behind the backend's turn: what has come counts before what
    // has broken.
    e->next_control_ns = 0;
}

/* One driver's patience: spin, then yield, then sleep, from anew whenever something has moved. */
typedef struct patience {
    int64_t since_ns;
    int64_t spin_until_ns; /* 0: not set yet */
    int64_t yield_until_ns;
    bool has_yielded;
    bool has_slept;
} patience;

/*
 * It slept, and now something has moved. Where cores come back later than others stay awake (a
 * virtual machine on a busy host), each would be asleep by the time the other is back, in every
 * operation from then on. So who waited for little longer than he was awake stays awake next time;
 * who waited for long does not.
 */
static void learn(engine *e, patience *p)
{
    const int64_t waited_ns = ls_now_ns() - p->since_ns;

    p->has_slept = false;
    if (e->parts.has_own_core)
        e->yield_ns = waited_ns < YIELD_MAX_NS ? earlier(2 * waited_ns, YIELD_MAX_NS) : YIELD_NS;
}

static void be_patient(engine *e, patience *p, int64_t deadline_ns, int64_t now_ns)
{
    if (p->spin_until_ns == 0) {
        p->since_ns = now_ns;
        p->spin_until_ns = now_ns + e->spin_ns;
        p->yield_until_ns = p->spin_until_ns + e->yield_ns;
        p->has_yielded = false;
    }
    if (now_ns < p->spin_until_ns) {
        core_relax();
    } else if (now_ns < p->yield_until_ns || !p->has_yielded) {
        p->has_yielded = true;
        yield_core(e);
    } else {
        p->has_slept = true;
        sleep_until(e, deadline_ns < 0 ? INT64_MAX : deadline_ns, now_ns);
    }
}

/* The caller's own turn at driving. False when the deadline has passed. */
static bool drive(engine *e, const ls_work *w, int64_t deadline_ns)
{
    patience p = {0};

    for (unsigned pass = 0; w->phase != WORK_ENDED; pass++) {
        const bool has_moved = progress(e);
        int64_t now_ns;

        if (has_moved && p.has_slept)
            learn(e, &p);
        if (w->phase == WORK_ENDED)
            break;
        give_way(e);
        if (has_moved) {
            p.spin_until_ns = 0;
            if (pass % PASSES_A_LOOK != 0)
                continue;
        }
        now_ns = ls_now_ns();
        watch_look(e, now_ns);
        if (w->phase == WORK_ENDED)
            break;
        if (deadline_ns >= 0 && now_ns >= deadline_ns)
            return false;
        // Only one thread should be woken by what comes now.
        if (e->back_sleeps) {
            e->back_sleeps = false;
            e->parts.ops->wake(e->parts.backend);
        }
        if (!has_moved)
            be_patient(e, &p, deadline_ns, now_ns);
    }
    return true;
}

/* Most operations end here: the other ranks are at most a few microseconds away. News can wait for
 * so long, but not for ever. */
void drive_spin_wait(engine *e, const ls_work *w)
{
    const backend_ops *ops = e->parts.ops;

    if (ops->spin_wait == NULL || e->is_driven || e->n_held > 0 || e->n_waiting > 0)
        return;
    e->is_driven = true;
    e->seen_ns = w->start_ns;
    ops->spin_wait(w->comm->backend, e->parts.has_own_core, &e->n_entering);
    e->seen_ns = 0;
    e->is_driven = false;
    if (w->phase == WORK_ENDED && w->end_ns >= e->next_control_ns)
        watch_look(e, w->end_ns);
}

bool drive_until(engine *e, const ls_work *w, int64_t deadline_ns)
{
    const int64_t deadline_ms = deadline_ns < 0 ? ls_deadline_ms(-1) : deadline_ns / 1000000 + 1;
    bool in_time = true;

    while (w->phase != WORK_ENDED && in_time) {
        if (e->is_driven) {
            e->n_waiting++;
            in_time = ls_cond_wait(&e->changed, &e->mu, deadline_ms);
            e->n_waiting--;
            continue;
        }
        e->is_driven = true;
        in_time = drive(e, w, deadline_ns);
        e->is_driven = false;
        if (e->n_waiting > 0)
            ls_cond_broadcast(&e->changed);
        drive_hand_over(e);
    }
    return w->phase == WORK_ENDED;
}

void drive_once(engine *e)
{
    if (e->parts.backend == NULL)
        return;
    (void)progress(e);
    watch_look(e, ls_now_ns());
}

/* The progress thread: asleep on `back` unless asynchronous works are pending and no caller
 * drives. */
static void carry_on(void *arg)
{
    engine *e = arg;

    ls_mutex_lock(&e->mu);
    while (!e->is_stopping) {
        bool has_moved;
        int64_t now_ns;

        if (e->n_held == 0 || e->is_driven) {
            (void)ls_cond_wait(&e->back, &e->mu, ls_deadline_ms(-1));
            continue;
        }
        has_moved = progress(e);
        now_ns = ls_now_ns();
        watch_look(e, now_ns);
        give_way(e);
        if (has_moved || e->n_held == 0 || e->is_driven || e->is_stopping)
            continue;
        e->back_sleeps = true;
        sleep_until(e, INT64_MAX, now_ns);
        e->back_sleeps = false;
    }
    ls_mutex_unlock(&e->mu);
}

void drive_hand_over(engine *e)
{
    char kept[LS_ERROR_BYTES];

    if (e->n_held == 0 || e->is_driven)
        return;
    if (e->thread.started) {
        if (!e->back_sleeps)
            ls_cond_signal(&e->back);
        return;
    }
    ls_error_save(kept);
    if (ls_thread_start(&e->thread, "ls-progress", carry_on, e) != LS_OK) {
        ls_log(LS_LOG_WARN, "comm", "asynchronous operations only move while somebody waits: %s",
               ls_last_error());
        ls_error_restore(kept);
    }
}

void drive_stop(engine *e)
{
    engine_enter(e);
    e->is_stopping = true;
    ls_cond_broadcast(&e->back);
    if (e->back_sleeps)
        e->parts.ops->wake(e->parts.backend);
    engine_leave(e);
    ls_thread_join(&e->thread);
}
