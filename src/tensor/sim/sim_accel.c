/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_accel.c - the accelerator of the simulated device, for sim_device.c: waits, events, copies
 * and memory. What it queues, sim_queue.c executes later.
 */
#include "tensor/sim/sim_accel.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "tensor/sim/sim_host.h"
#include "tensor/sim/sim_queue.h"

#include <string.h>

struct sim_event {
    accel_event base;
    struct sim_event *next; /* of the free list */
    bool is_timed;
    stamp *last; /* NULL: never recorded */
};

/* What accel_alloc_host() returns stands behind this. */
struct host_block {
    _Alignas(256) struct host_block *next;
    size_t bytes;
};

/* --- the host's waits --- */

/* The failure of items up to `number`, once; its status, and its text in *text. */
static ls_status take_failure(sim_queue *q, uint64_t number, char *text)
{
    const ls_status st = q->failure.status;

    if (st == LS_OK || q->failure.number > number)
        return LS_OK;
    memcpy(text, q->failure.text, LS_ERROR_BYTES);
    q->failure.status = LS_OK;
    return st;
}

/* Unlocks, and returns what a wait has found. */
static ls_status end_wait(sim_accel *a, ls_status st, const char *text)
{
    const bool lost = a->is_lost;

    ls_mutex_unlock(&a->lock);
    if (lost)
        return queue_fail_lost(a);
    return st == LS_OK ? LS_OK : sim_fail(st, "%s", text);
}

static bool all_done(const sim_accel *a)
{
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        if (a->queues[i].first != NULL)
            return false;
    }
    return true;
}

/* Locks, and waits for all queues. */
static void lock_and_drain(sim_accel *a)
{
    ls_mutex_lock(&a->lock);
    while (!all_done(a)) {
        queue_demand_all(a);
        (void)ls_cond_wait(&a->changed, &a->lock, ls_deadline_ms(-1));
    }
}

static ls_status sim_synchronize(accel *self, const char *what)
{
    sim_accel *a = sim_of(self);
    char text[LS_ERROR_BYTES];
    ls_status st = LS_OK;

    if (!control_wait_works(what))
        return LS_OK;
    control_count(COUNT_HOST_WAITS);
    lock_and_drain(a);
    for (int i = 0; i < ACCEL_QUEUES && st == LS_OK; i++)
        st = take_failure(&a->queues[i], UINT64_MAX, text);
    return end_wait(a, st, text);
}

static ls_status sim_event_wait(accel_event *event, const char *what)
{
    sim_accel *a = sim_of(event->accel);
    char text[LS_ERROR_BYTES];
    ls_status st = LS_OK;
    stamp *s;

    if (!control_wait_works(what))
        return LS_OK;
    control_count(COUNT_HOST_WAITS);
    ls_mutex_lock(&a->lock);
    s = ((sim_event *)event)->last;
    if (s != NULL) {
        s->n_refs++; // another thread may record the event again
        queue_demand(a, s->queue, s->number);
        while (!s->is_done)
            (void)ls_cond_wait(&a->changed, &a->lock, ls_deadline_ms(-1));
        st = take_failure(&a->queues[s->queue], s->number, text);
        stamp_drop(a, s);
    }
    return end_wait(a, st, text);
}

/* --- events --- */

static ls_status sim_event_create(accel *self, bool timed, accel_event **out)
{
    sim_accel *a = sim_of(self);
    sim_event *event;

    ls_mutex_lock(&a->lock);
    event = a->free_events;
    if (event != NULL)
        a->free_events = event->next;
    else
        event = ls_calloc(1, sizeof(*event));
    ls_mutex_unlock(&a->lock);
    if (event == NULL)
        return sim_fail(LS_ENOMEM, "%s: no memory for an event", self->name);
    *event = (sim_event){.base = {.accel = self}, .is_timed = timed};
    *out = &event->base;
    return LS_OK;
}

static void sim_event_destroy(accel_event *base)
{
    sim_event *event = (sim_event *)base;
    sim_accel *a = sim_of(base->accel);

    ls_mutex_lock(&a->lock);
    stamp_drop(a, event->last);
    event->next = a->free_events;
    a->free_events = event;
    ls_mutex_unlock(&a->lock);
}

static ls_status other_accel(const accel_event *event, const ls_queue *queue)
{
    return sim_fail(LS_EINVAL, "%s: an event of %s; a queue waits for and records its own events",
                    queue->accel->name, event->accel->name);
}

/* Under the lock: queues the recording; false: no memory. */
static bool record(sim_queue *q, sim_event *event)
{
    stamp *s = stamp_take(q->owner);
    const item *it;

    if (s == NULL)
        return false;
    s->queue = (int)(q - q->owner->queues);
    it = queue_append(q, &(item){.kind = ITEM_RECORD, .stamp = s});
    if (it == NULL) {
        stamp_drop(q->owner, s);
        return false;
    }
    s->number = it->number;
    s->n_refs++;
    stamp_drop(q->owner, event->last);
    event->last = s;
    return true;
}

static ls_status sim_event_record(accel_event *event, ls_queue *queue)
{
    sim_accel *a = sim_of(event->accel);
    bool recorded;

    if (event->accel != queue->accel)
        return other_accel(event, queue);
    ls_mutex_lock(&a->lock);
    recorded = !a->is_lost && record(queue_of(queue), (sim_event *)event);
    if (a->is_lost)
        return end_wait(a, LS_OK, NULL);
    ls_mutex_unlock(&a->lock);
    return recorded ? LS_OK : sim_fail(LS_ENOMEM, "%s: no memory for an event", a->base.name);
}

static ls_status sim_queue_wait(ls_queue *queue, accel_event *event, const char *what)
{
    sim_accel *a = sim_of(event->accel);
    stamp *s;
    ls_status st;

    if (event->accel != queue->accel)
        return other_accel(event, queue);
    if (!control_wait_works(what))
        return LS_OK;
    ls_mutex_lock(&a->lock);
    s = ((sim_event *)event)->last;
    if (s != NULL)
        s->n_refs++;
    ls_mutex_unlock(&a->lock);
    if (s == NULL)
        return LS_OK;
    st = queue_push(queue, &(item){.kind = ITEM_WAIT, .stamp = s});
    if (st != LS_OK) {
        ls_mutex_lock(&a->lock);
        stamp_drop(a, s);
        ls_mutex_unlock(&a->lock);
    }
    return st;
}

static ls_status sim_event_test(accel_event *event, bool *done)
{
    sim_accel *a = sim_of(event->accel);
    const stamp *s;

    ls_mutex_lock(&a->lock);
    s = ((const sim_event *)event)->last;
    *done = s == NULL || s->is_done;
    return end_wait(a, LS_OK, NULL);
}

static ls_status sim_event_ns(accel_event *event, int64_t *ns)
{
    const sim_event *own = (const sim_event *)event;
    sim_accel *a = sim_of(event->accel);
    bool known;

    ls_mutex_lock(&a->lock);
    known = own->is_timed && own->last != NULL && own->last->is_done;
    if (known)
        *ns = own->last->ns;
    ls_mutex_unlock(&a->lock);
    return known ? LS_OK
                 : sim_fail(LS_EINVAL, "%s: the time of an event that %s", a->base.name,
                            own->is_timed ? "has not happened" : "was created without timing");
}

/* --- work --- */

static ls_status outside(const accel *a, const void *p, size_t bytes)
{
    return sim_fail(LS_EINVAL, "%s: [%p, +%zu) does not lie in one block of its memory", a->name, p,
                    bytes);
}

static ls_status is_device_memory(const accel *a, const void *p)
{
    return sim_fail(LS_EINVAL, "%s: %p is device memory, but the copy takes it for host memory",
                    a->name, p);
}

static ls_status sim_copy(ls_queue *queue, void *dst, const void *src, size_t bytes,
                          accel_direction direction)
{
    sim_accel *a = sim_of(queue->accel);
    item it = {.kind = ITEM_COPY, .dst = dst, .src = src, .bytes = bytes};

    if (direction == ACCEL_TO_DEVICE)
        it.host = src;
    else
        it.src = arena_alias(a->arena, src, bytes);
    if (direction == ACCEL_TO_HOST)
        it.host = dst;
    else
        it.dst = arena_alias(a->arena, dst, bytes);
    if (it.src == NULL)
        return outside(queue->accel, src, bytes);
    if (it.dst == NULL)
        return outside(queue->accel, dst, bytes);
    if (it.host != NULL && arena_owns(a->arena, it.host))
        return is_device_memory(queue->accel, it.host);
    control_count(COUNT_COPIES);
    control_add(COUNT_HOST_BYTES, it.host != NULL ? bytes : 0);
    return queue_push(queue, &it);
}

static ls_status sim_fill(ls_queue *queue, void *dst, int byte, size_t bytes)
{
    const item it = {.kind = ITEM_FILL,
                     .dst = arena_alias(sim_of(queue->accel)->arena, dst, bytes),
                     .byte = byte,
                     .bytes = bytes};

    if (it.dst == NULL)
        return outside(queue->accel, dst, bytes);
    control_count(COUNT_COPIES);
    return queue_push(queue, &it);
}

static ls_status sim_call(ls_queue *queue, void (*fn)(void *arg), void *arg)
{
    control_count(COUNT_CALLS);
    return queue_push(queue, &(item){.kind = ITEM_CALL, .fn = fn, .arg = arg});
}

ls_status sim_queue_task(ls_queue *queue, sim_task *task)
{
    const ls_status st = queue_push(queue, &(item){.kind = ITEM_TASK, .task = task});

    if (st != LS_OK)
        task->free(task);
    return st;
}

/* --- memory --- */

static void *sim_alloc(accel *self, size_t bytes)
{
    sim_accel *a = sim_of(self);
    bool lost;

    ls_mutex_lock(&a->lock);
    lost = a->is_lost;
    ls_mutex_unlock(&a->lock);
    return lost || control_allocation_fails() ? NULL : arena_alloc(a->arena, bytes);
}

static void sim_free(accel *self, void *start)
{
    sim_accel *a = sim_of(self);

    control_count(COUNT_HOST_WAITS);
    lock_and_drain(a);
    ls_mutex_unlock(&a->lock);
    arena_free(a->arena, start);
}

static void *sim_alloc_host(accel *self, size_t bytes)
{
    host_block *b =
        bytes <= SIZE_MAX - sizeof(*b) ? ls_alloc_aligned(sizeof(*b), sizeof(*b) + bytes) : NULL;

    LS_UNUSED(self);
    if (b == NULL)
        return NULL;
    b->next = NULL;
    b->bytes = bytes;
    return memset(b + 1, 0xFF, bytes);
}

/* Under the lock: whether an item copies from or to the block. */
static bool is_in_use(const sim_accel *a, const host_block *b)
{
    const char *start = (const char *)(b + 1);

    for (int i = 0; i < ACCEL_QUEUES; i++) {
        for (const item *it = a->queues[i].first; it != NULL; it = it->next) {
            const char *host = it->kind == ITEM_COPY ? it->host : NULL;

            if (host != NULL && host < start + b->bytes && start < host + it->bytes)
                return true;
        }
    }
    return false;
}

/* Freeing a block that a queued copy uses is the caller's error: the next wait returns it, and the
 * block is freed with the device. */
static void sim_free_host(accel *self, void *start)
{
    sim_accel *a = sim_of(self);
    host_block *b = (host_block *)start - 1;
    bool in_use;

    ls_mutex_lock(&a->lock);
    in_use = is_in_use(a, b);
    if (in_use) {
        b->next = a->freed_early;
        a->freed_early = b;
        (void)ls_fail(LS_EINTERNAL, "%s: host memory was freed while a copy of it was queued",
                      self->name);
        queue_keep_failure(&a->queues[ACCEL_COMPUTE], LS_EINTERNAL, 0);
    }
    ls_mutex_unlock(&a->lock);
    if (in_use)
        return;
    memset(start, 0xFF, b->bytes);
    ls_free(b);
}

static bool sim_owns(accel *self, const void *p)
{
    return arena_owns(sim_of(self)->arena, p);
}

static ls_status sim_memory(accel *self, size_t *free_bytes, size_t *total_bytes)
{
    sim_accel *a = sim_of(self);

    ls_mutex_lock(&a->lock);
    arena_memory(a->arena, free_bytes, total_bytes);
    return end_wait(a, LS_OK, NULL);
}

void *sim_accel_alias(accel *a, const void *p, size_t bytes)
{
    return arena_alias(sim_of(a)->arena, p, bytes);
}

/* --- life --- */

static const accel_ops ops = {
    .name = "sim",
    .alloc = sim_alloc,
    .free = sim_free,
    .alloc_host = sim_alloc_host,
    .free_host = sim_free_host,
    .owns = sim_owns,
    .copy = sim_copy,
    .fill = sim_fill,
    .call = sim_call,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .queue_wait = sim_queue_wait,
    .event_wait = sim_event_wait,
    .event_test = sim_event_test,
    .event_ns = sim_event_ns,
    .synchronize = sim_synchronize,
    .memory = sim_memory,
};

static void init_queues(sim_accel *a, uint64_t seed)
{
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        a->base.queues[i] = (ls_queue){.accel = &a->base, .native = &a->base.queues[i]};
        a->queues[i].owner = a;
        ls_rng_seed(&a->queues[i].rng, ls_hash3(seed, (uint64_t)i, (uint64_t)a->base.index));
    }
}

static ls_status start_threads(sim_accel *a)
{
    static const char *const names[ACCEL_QUEUES] = {"sim-compute", "sim-comm", "sim-copy"};

    for (int i = 0; i < ACCEL_QUEUES; i++) {
        if (ls_thread_start(&a->queues[i].thread, names[i], queue_main, &a->queues[i]) != LS_OK)
            return sim_fail(LS_ESYSTEM, "%s: %s", a->base.name, ls_last_error());
    }
    return LS_OK;
}

ls_status sim_accel_create(int index, accel **out)
{
    sim_accel *a = sim_host->alloc(1, sizeof(*a));
    uint64_t seed = 0;
    ls_status st;

    if (a == NULL)
        return sim_fail(LS_ENOMEM, "sim: no memory for a device");
    ls_mutex_init(&a->lock);
    ls_cond_init(&a->changed);
    a->base.ops = &ops;
    a->base.index = index;
    (void)text_format(a->base.name, sizeof(a->base.name), "sim:%d", index);
    st = control_pace(&seed, &a->delay_us);
    init_queues(a, seed);
    if (st == LS_OK)
        st = arena_create(&a->arena);
    if (st == LS_OK)
        st = start_threads(a);
    if (st != LS_OK) {
        sim_accel_destroy(&a->base);
        return st;
    }
    *out = &a->base;
    return LS_OK;
}

/* Frees all members of a list. */
#define FREE_LIST(first)                                                                           \
    while ((first) != NULL) {                                                                      \
        void *member = (first);                                                                    \
                                                                                                   \
        (first) = (first)->next;                                                                   \
        ls_free(member);                                                                           \
    }

void sim_accel_destroy(accel *self)
{
    sim_accel *a = sim_of(self);

    ls_mutex_lock(&a->lock);
    a->is_ending = true;
    ls_cond_broadcast(&a->changed);
    ls_mutex_unlock(&a->lock);
    for (int i = 0; i < ACCEL_QUEUES; i++)
        ls_thread_join(&a->queues[i].thread);
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        if (a->queues[i].failure.status != LS_OK)
            control_count(COUNT_LOST_FAILURES);
    }
    FREE_LIST(a->free_items)
    FREE_LIST(a->free_stamps)
    FREE_LIST(a->free_events)
    FREE_LIST(a->freed_early)
    arena_destroy(a->arena);
    ls_cond_destroy(&a->changed);
    ls_mutex_destroy(&a->lock);
    sim_host->free(a);
}
