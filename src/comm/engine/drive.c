/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.c - the wait loop of callers and the progress thread: progress the backend, check the
 * watchdog, spin, yield, then sleep. One thread drives at a time. The rest of comm calls it.
 */
#include "base/clock.h"
#include "base/core.h"
#include "comm/device/staged.h"
#include "comm/engine.h"

#include <sched.h>
#include <time.h>

#define SPIN_NS      (20 * INT64_C(1000))
#define YIELD_NS     (2 * MS_NS)  /* waking a sleeping core takes long: see bench/ddp_cost */
#define YIELD_MAX_NS (20 * MS_NS) /* of adapt_yield() */
#define LOOK_NS      (50 * INT64_C(1000)) /* longer waits look for contention */
#define LOST_NS      (1 * MS_NS) /* a spinning or yielding thread ran in between if it is less */
#define SLEEP_MAX_MS 500
#define STOPPED_NS   (1000 * MS_NS) /* oversleeping by more means that the process was stopped */
#define POLL_MIN_NS  (20 * INT64_C(1000)) /* of an accelerator's events */
#define POLL_MAX_NS  MS_NS
#define POLL_SHARE   8  /* of the time waited so far */
#define CHECK_PASSES 32 /* passes that progress may skip the clock */

/* With more ranks than cores, a spinning rank would keep the awaited rank from running. */
void drive_init(engine *e)
{
    e->spin_ns = e->parts.has_own_core ? SPIN_NS : 0;
    e->yield_ns = e->parts.has_own_core ? YIELD_NS : 0;
    ls_cond_init(&e->changed);
    ls_cond_init(&e->has_work);
}

bool drive_progress(engine *e)
{
    const bool has_moved = e->n_staged > 0 && staged_progress(e);
    const bool has_backend_moved =
        e->parts.backend != NULL && e->parts.ops->progress(e->parts.backend);

    if (has_backend_moved && e->parts.ops->polls != NULL)
        e->moved_ns = ls_now_ns();
    if ((has_backend_moved || has_moved) && e->n_event_waiting > 0)
        ls_cond_broadcast(&e->changed);
    return has_backend_moved || has_moved;
}

/* Whether the end of a pending operation wakes no thread. */
static bool polls(const engine *e)
{
    const backend_ops *ops = e->parts.ops;

    return staged_polls(e) ||
           (e->parts.backend != NULL && ops->polls != NULL && ops->polls(e->parts.backend));
}

void drive_wake(engine *e)
{
    if ((e->is_driven || e->progress_sleeps) && e->parts.backend != NULL)
        e->parts.ops->wake(e->parts.backend);
}

/* What has moved may move on without any event: the thread that sleeps in the backend takes it. */
void drive_pass(engine *e)
{
    if (drive_progress(e))
        drive_wake(e);
}

static bool is_over(const ls_work *w)
{
    return w->phase == WORK_ENDED ||
           (w->phase == WORK_RUNNING && w->waits_for_event && w->b.event != NULL);
}

static void yield_core(engine *e)
{
    ls_mutex_unlock(&e->mu);
    (void)sched_yield();
    ls_mutex_lock(&e->mu);
}

/* Lets threads in that wait for the lock; the progress thread may wait for it to call functions. */
static void yield_lock(engine *e)
{
    if (atomic_load_explicit(&e->n_entering, memory_order_relaxed) != 0 || !list_empty(&e->ended))
        yield_core(e);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Until the next look at an accelerator's events: a share of the time waited so far. */
static void sleep_short(engine *e, int64_t now_ns)
{
    int64_t ns = (now_ns - e->moved_ns) / POLL_SHARE;
    struct timespec t = {0};

    if (ns < POLL_MIN_NS)
        ns = POLL_MIN_NS;
    t.tv_nsec = ns < POLL_MAX_NS ? ns : POLL_MAX_NS;
    ls_mutex_unlock(&e->mu);
    (void)nanosleep(&t, NULL);
    ls_mutex_lock(&e->mu);
}

/* Sleeps in the backend until progress is possible, until_ns has passed or a check is due, for at
 * most SLEEP_MAX_MS. */
static void sleep_until(engine *e, int64_t until_ns, int64_t now_ns)
{
    const int64_t wake_ns = earlier(until_ns, e->next_watch_ns);
    int64_t ms = (wake_ns - now_ns + 999999) / 1000000;

    if (wake_ns <= now_ns)
        return;
    if (polls(e)) {
        sleep_short(e, now_ns);
        return;
    }
    if (wake_ns == INT64_MAX || ms > SLEEP_MAX_MS)
        ms = SLEEP_MAX_MS;
    ls_mutex_unlock(&e->mu);
    e->parts.ops->wait(e->parts.backend, (int)ms);
    ls_mutex_lock(&e->mu);
    // The next pass reads notifications after the backend's progress: data first, then causes.
    e->next_control_ns = 0;
}

/* A driver reads the clock at least every SLEEP_MAX_MS: after a much longer time the process was
 * stopped (Ctrl-Z), which does not count. seen_ns: when it has read the clock before, 0: it has
 * not. */
static void skip_stop(engine *e, int64_t seen_ns, int64_t now_ns)
{
    if (seen_ns != 0 && now_ns - seen_ns > SLEEP_MAX_MS * MS_NS + STOPPED_NS)
        watch_shift_deadlines(e, now_ns - seen_ns);
}

/* How one driver waits: it spins, then yields, then sleeps, and starts again after progress. */
typedef struct wait_policy {
    int64_t since_ns;
    int64_t spin_until_ns; /* 0: not set yet */
    int64_t yield_until_ns;
    int64_t ran_ns; /* when it has last spun or yielded, 0: not since it last moved or slept */
    bool has_yielded;
    bool has_slept;
} wait_policy;

/* Called at the first progress after a sleep. Where waking a core takes longer than ranks stay
 * awake (a virtual machine on a busy host), each rank would be asleep when the other wakes, in
 * every operation. So a rank yields longer next time, except after a long wait. */
static void adapt_yield(engine *e, wait_policy *p)
{
    const int64_t waited_ns = ls_now_ns() - p->since_ns;

    p->has_slept = false;
    if (e->parts.has_own_core && !e->contention.is_contended)
        e->yield_ns = waited_ns < YIELD_MAX_NS ? earlier(2 * waited_ns, YIELD_MAX_NS) : YIELD_NS;
}

/* Whether other threads want this thread's core, or those of the ranks that it waits for. */
static bool is_contended(engine *e, const wait_policy *p, int64_t now_ns)
{
    if (p->ran_ns != 0 && now_ns - p->ran_ns > LOST_NS)
        contention_lost_time(&e->contention, now_ns);
    else if (e->contention.is_contended ||
             (p->spin_until_ns != 0 && now_ns - p->since_ns > LOOK_NS))
        (void)contention_look(&e->contention, now_ns);
    return e->contention.is_contended;
}

/* Where ranks have cores of their own, and nothing else wants them, spinning and yielding are
 * quicker than sleeping. */
static void wait_step(engine *e, wait_policy *p, int64_t deadline_ns, int64_t now_ns)
{
    const bool sleeps = e->parts.has_own_core && is_contended(e, p, now_ns);

    if (p->spin_until_ns == 0) {
        p->since_ns = now_ns;
        p->spin_until_ns = now_ns + e->spin_ns;
        p->yield_until_ns = p->spin_until_ns + e->yield_ns;
        p->has_yielded = false;
    }
    p->ran_ns = now_ns;
    if (now_ns < p->spin_until_ns && !sleeps) {
        core_relax();
    } else if (!sleeps && (now_ns < p->yield_until_ns || !p->has_yielded)) {
        p->has_yielded = true;
        yield_core(e);
    } else {
        p->has_slept = true;
        p->ran_ns = 0;
        sleep_until(e, deadline_ns < 0 ? INT64_MAX : deadline_ns, now_ns);
    }
}

/* Functions are called by this thread if there is no progress thread. */
static bool must_call(const engine *e)
{
    return !e->thread.started && !list_empty(&e->ended) && callback_may_call(e);
}

/* Also ends when functions of ended works are to be called. False when the deadline has passed. */
static bool drive(engine *e, const ls_work *w, int64_t deadline_ns)
{
    wait_policy p = {0};
    int64_t now_ns = 0;

    for (unsigned pass = 0; !is_over(w); pass++) {
        const bool has_moved = drive_progress(e);
        const int64_t seen_ns = now_ns;

        if (has_moved && p.has_slept)
            adapt_yield(e, &p);
        if (is_over(w) || must_call(e))
            break;
        yield_lock(e);
        if (has_moved) {
            p.spin_until_ns = 0;
            p.ran_ns = 0;
            if (pass % CHECK_PASSES != 0)
                continue;
        }
        now_ns = ls_now_ns();
        skip_stop(e, seen_ns, now_ns);
        watch_check(e, now_ns);
        if (is_over(w) || must_call(e))
            break;
        if (deadline_ns >= 0 && now_ns >= deadline_ns)
            return false;
        // The next event should wake one thread only.
        if (e->progress_sleeps && e->parts.backend != NULL) {
            e->progress_sleeps = false;
            e->parts.ops->wake(e->parts.backend);
        }
        if (!has_moved)
            wait_step(e, &p, deadline_ns, now_ns);
    }
    return true;
}

/* Most operations end here: the other ranks answer within microseconds. */
void drive_spin_wait(engine *e, const ls_work *w, int64_t now_ns)
{
    const backend_ops *ops = e->parts.ops;
    const core_use use = !e->parts.has_own_core       ? CORE_OF_RANKS
                         : e->contention.is_contended ? CORE_CONTENDED
                                                      : CORE_OWN;

    if (ops->spin_wait == NULL || w->comm->backend == NULL || e->is_driven || e->n_held > 0 ||
        e->n_waiting > 0 || e->n_staged > 0 || !list_empty(&e->ended))
        return;
    e->is_driven = true;
    e->seen_ns = now_ns;
    ops->spin_wait(w->comm->backend, use, &e->n_entering);
    e->seen_ns = 0;
    e->is_driven = false;
    if (w->phase == WORK_ENDED && w->end_ns >= e->next_control_ns)
        watch_check(e, w->end_ns);
}

bool drive_until(engine *e, const ls_work *w, int64_t deadline_ns)
{
    const int64_t deadline_ms = deadline_ns < 0 ? ls_deadline_ms(-1) : deadline_ns / 1000000 + 1;
    bool in_time = true;

    if (e->is_driven)
        drive_pass(e);
    while (!is_over(w) && in_time) {
        if (e->is_driven) {
            e->n_waiting++;
            e->n_event_waiting += w->waits_for_event;
            in_time = ls_cond_wait(&e->changed, &e->mu, deadline_ms);
            e->n_event_waiting -= w->waits_for_event;
            e->n_waiting--;
            continue;
        }
        e->is_driven = true;
        in_time = drive(e, w, deadline_ns);
        e->is_driven = false;
        if (e->n_waiting > 0)
            ls_cond_broadcast(&e->changed);
        drive_hand_over(e);
        if (must_call(e))
            callback_call(e);
    }
    return is_over(w);
}

void drive_once(engine *e)
{
    if (e->parts.backend == NULL && e->n_staged == 0)
        return;
    drive_pass(e);
    watch_check(e, ls_now_ns());
}

/* Sleeps on `has_work` unless functions are to be called, or asynchronous works are pending and no
 * caller drives. */
static void run_progress_thread(void *arg)
{
    engine *e = arg;
    int64_t now_ns = 0;

    ls_mutex_lock(&e->mu);
    while (!e->is_stopping) {
        const int64_t seen_ns = now_ns;
        bool has_moved;

        if (!list_empty(&e->ended) && callback_may_call(e)) {
            callback_call(e);
            now_ns = 0;
            continue;
        }
        if (e->n_held == 0 || e->is_driven) {
            (void)ls_cond_wait(&e->has_work, &e->mu, ls_deadline_ms(-1));
            now_ns = 0;
            continue;
        }
        has_moved = drive_progress(e);
        now_ns = ls_now_ns();
        skip_stop(e, seen_ns, now_ns);
        watch_check(e, now_ns);
        yield_lock(e);
        if (has_moved || (!list_empty(&e->ended) && callback_may_call(e)) || e->n_held == 0 ||
            e->is_driven || e->is_stopping)
            continue;
        e->progress_sleeps = true;
        sleep_until(e, INT64_MAX, now_ns);
        e->progress_sleeps = false;
    }
    ls_mutex_unlock(&e->mu);
}

void drive_hold(engine *e, ls_work *w)
{
    if (w->is_held || w->phase == WORK_ENDED)
        return;
    w->is_held = true;
    e->n_held++;
    drive_hand_over(e);
}

static void start_thread(engine *e)
{
    char kept[LS_ERROR_BYTES];

    if (e->has_no_thread)
        return;
    ls_error_save(kept);
    if (ls_thread_start(&e->thread, "ls-progress", run_progress_thread, e) != LS_OK) {
        e->has_no_thread = true;
        ls_log(LS_LOG_WARN, "comm",
               "no progress thread, asynchronous operations only progress inside calls: %s",
               ls_last_error());
        ls_error_restore(kept);
    }
}

void drive_hand_over(engine *e)
{
    if (e->n_held == 0 || e->is_driven)
        return;
    if (!e->thread.started)
        start_thread(e);
    else if (!e->progress_sleeps)
        ls_cond_signal(&e->has_work);
}

void drive_call_soon(engine *e)
{
    if (e->is_calling)
        return;
    if (!e->thread.started)
        start_thread(e);
    else if (e->progress_sleeps && e->parts.backend != NULL)
        e->parts.ops->wake(e->parts.backend);
    else
        ls_cond_signal(&e->has_work);
}

void drive_stop(engine *e)
{
    engine_enter(e);
    e->is_stopping = true;
    ls_cond_broadcast(&e->has_work);
    if (e->progress_sleeps && e->parts.backend != NULL)
        e->parts.ops->wake(e->parts.backend);
    engine_leave(e);
    ls_thread_join(&e->thread);
}
