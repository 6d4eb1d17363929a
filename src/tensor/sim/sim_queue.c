/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_queue.c - the queues of the simulated device, for sim_accel.c. Each queue is a thread that
 * executes its items in order. Before an item it may let time pass, or wait until the other queues
 * cannot go on or until a wait needs the item: so a missing wait becomes a wrong result.
 */
#include "tensor/sim/sim_queue.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "tensor/sim/sim_host.h"

#include <string.h>
#include <time.h>

ls_status queue_fail_lost(const sim_accel *a)
{
    return sim_fail(LS_EIO, "%s: the device is lost; restart the job on another one", a->base.name);
}

/* --- stamps, under the lock --- */

stamp *stamp_take(sim_accel *a)
{
    stamp *s = a->free_stamps;

    if (s != NULL)
        a->free_stamps = s->next;
    else
        s = ls_calloc(1, sizeof(*s));
    if (s != NULL)
        *s = (stamp){.n_refs = 1};
    return s;
}

void stamp_drop(sim_accel *a, stamp *s)
{
    if (s == NULL || --s->n_refs > 0)
        return;
    s->next = a->free_stamps;
    a->free_stamps = s;
}

/* --- items, under the lock --- */

item *queue_append(sim_queue *q, const item *it)
{
    item *copy = q->owner->free_items;

    if (copy != NULL)
        q->owner->free_items = copy->next;
    else
        copy = ls_calloc(1, sizeof(*copy));
    if (copy == NULL)
        return NULL;
    *copy = *it;
    copy->next = NULL;
    copy->number = ++q->n_queued;
    if (q->first == NULL)
        q->first = copy;
    else
        q->last->next = copy;
    q->last = copy;
    ls_cond_broadcast(&q->owner->changed);
    return copy;
}

/* Removes the first item, which was executed or is dropped. */
static void finish_first(sim_queue *q)
{
    sim_accel *a = q->owner;
    item *it = q->first;

    if (it->kind == ITEM_RECORD) {
        it->stamp->is_done = true;
        it->stamp->ns = ls_now_ns();
    }
    stamp_drop(a, it->stamp);
    q->n_done = it->number;
    q->first = it->next;
    it->next = a->free_items;
    a->free_items = it;
    ls_cond_broadcast(&a->changed);
}

ls_status queue_push(ls_queue *queue, const item *it)
{
    sim_accel *a = sim_of(queue->accel);
    bool lost;
    bool queued = false;

    ls_mutex_lock(&a->lock);
    lost = a->is_lost;
    if (!lost)
        queued = queue_append(queue_of(queue), it) != NULL;
    ls_mutex_unlock(&a->lock);
    if (lost)
        return queue_fail_lost(a);
    return queued ? LS_OK : sim_fail(LS_ENOMEM, "%s: no memory to queue work", a->base.name);
}

/* --- a queue's thread, under the lock except where it says so --- */

void queue_demand(sim_accel *a, int queue, uint64_t number)
{
    if (a->queues[queue].n_demanded >= number)
        return;
    a->queues[queue].n_demanded = number;
    ls_cond_broadcast(&a->changed);
}

void queue_demand_all(sim_accel *a)
{
    for (int i = 0; i < ACCEL_QUEUES; i++)
        queue_demand(a, i, a->queues[i].n_queued);
}

static bool others_rest(const sim_queue *q)
{
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        const sim_queue *other = &q->owner->queues[i];

        if (other != q && other->first != NULL && !other->is_blocked)
            return false;
    }
    return true;
}

static void draw_pace(sim_queue *q)
{
    static const pace paces[] = {PACE_AT_ONCE,   PACE_AT_ONCE,   PACE_AT_ONCE,     PACE_DELAYED,
                                 PACE_ON_DEMAND, PACE_ON_DEMAND, PACE_AFTER_OTHERS};

    q->pace = paces[ls_rng_below(&q->rng, LS_COUNT_OF(paces))];
    q->pace_left = 1 + ls_rng_below(&q->rng, 16);
    q->held_until = ls_deadline_ms(1 + q->owner->delay_us * 40 / 1000);
}

/* Sleeps with the lock released. */
static void sleep_randomly(sim_queue *q)
{
    sim_accel *a = q->owner;
    const int64_t us = (int64_t)ls_rng_below(&q->rng, (uint64_t)a->delay_us + 1);
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

    ls_mutex_unlock(&a->lock);
    (void)nanosleep(&t, NULL);
    ls_mutex_lock(&a->lock);
}

static bool is_needed(const sim_queue *q)
{
    return q->n_demanded >= q->first->number || q->owner->is_ending || q->owner->is_lost;
}

/* Lets time pass before the first item. */
static void hold_first(sim_queue *q)
{
    sim_accel *a = q->owner;

    if (a->delay_us == 0)
        return;
    if (q->pace_left == 0)
        draw_pace(q);
    q->pace_left--;
    if (q->pace == PACE_DELAYED) {
        sleep_randomly(q);
    } else if (q->pace == PACE_ON_DEMAND) {
        while (!is_needed(q) && ls_cond_wait(&a->changed, &a->lock, q->held_until))
            ;
    } else if (q->pace == PACE_AFTER_OTHERS && !a->is_after_others) {
        a->is_after_others = true;
        queue_demand_all(a);
        while (!others_rest(q) && !a->is_lost && ls_cond_wait(&a->changed, &a->lock, q->held_until))
            ;
        a->is_after_others = false;
    }
}

/* Blocks the queue until the event. */
static void wait_in_queue(sim_queue *q)
{
    sim_accel *a = q->owner;
    const stamp *s = q->first->stamp;

    q->is_blocked = true;
    ls_cond_broadcast(&a->changed); // of PACE_AFTER_OTHERS
    while (!s->is_done && !a->is_lost) {
        if (is_needed(q))
            queue_demand(a, s->queue, s->number);
        (void)ls_cond_wait(&a->changed, &a->lock, ls_deadline_ms(-1));
    }
    q->is_blocked = false;
}

/* Without the lock: what the item does. */
static ls_status execute(const item *it)
{
    switch (it->kind) {
    case ITEM_COPY:
        memmove(it->dst, it->src, it->bytes);
        return LS_OK;
    case ITEM_FILL:
        memset(it->dst, it->byte, it->bytes);
        return LS_OK;
    case ITEM_CALL:
        it->fn(it->arg);
        return LS_OK;
    case ITEM_TASK:
        return it->task->run(it->task);
    case ITEM_RECORD:
    case ITEM_WAIT:
        break;
    }
    return LS_OK;
}

void queue_keep_failure(sim_queue *q, ls_status status, uint64_t number)
{
    if (status == LS_OK || q->failure.status != LS_OK)
        return;
    q->failure.status = status;
    q->failure.number = number;
    ls_error_save(q->failure.text);
}

static void do_first(sim_queue *q)
{
    sim_accel *a = q->owner;
    item *it = q->first;
    ls_status st = LS_OK;
    bool is_lost;

    hold_first(q);
    if (it->kind == ITEM_WAIT)
        wait_in_queue(q);
    is_lost = a->is_lost;
    ls_mutex_unlock(&a->lock);
    if (!is_lost)
        is_lost = control_item_loses();
    if (!is_lost)
        st = execute(it);
    if (it->kind == ITEM_TASK)
        it->task->free(it->task);
    ls_mutex_lock(&a->lock);
    a->is_lost = a->is_lost || is_lost;
    queue_keep_failure(q, st, it->number);
    finish_first(q);
}

void queue_main(void *arg)
{
    sim_queue *q = arg;
    sim_accel *a = q->owner;

    ls_mutex_lock(&a->lock);
    while (q->first != NULL || !a->is_ending) {
        if (q->first != NULL)
            do_first(q);
        else
            (void)ls_cond_wait(&a->changed, &a->lock, ls_deadline_ms(-1));
    }
    ls_mutex_unlock(&a->lock);
}
