/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_queue.h - the queues of the simulated device: items in order, and what sim_accel.c appends
 * and waits for. A queue's thread is queue_main().
 */
#ifndef LS_TENSOR_SIM_QUEUE_H
#define LS_TENSOR_SIM_QUEUE_H

#include "base/rng.h"
#include "base/thread.h"
#include "tensor/sim/sim_accel.h"
#include "tensor/sim/sim_arena.h"

/* One recording of an event. */
typedef struct stamp {
    struct stamp *next; /* of the free list */
    int n_refs;
    bool is_done;
    int64_t ns; /* when it was done */
    int queue;
    uint64_t number; /* of the recording's item */
} stamp;

typedef enum item_kind { ITEM_COPY, ITEM_FILL, ITEM_CALL, ITEM_TASK, ITEM_RECORD, ITEM_WAIT } kind;

typedef struct item {
    struct item *next;
    kind kind;
    uint64_t number;  /* within its queue, from 1 */
    void *dst;        /* copy, fill: aliases of device memory */
    const void *src;  /* copy */
    const void *host; /* copy: its side in host memory, or NULL */
    size_t bytes;
    int byte;
    void (*fn)(void *arg);
    void *arg;
    sim_task *task;
    stamp *stamp;
} item;

/* How a queue treats its next items. */
typedef enum pace {
    PACE_AT_ONCE,
    PACE_DELAYED,     /* after a random time */
    PACE_ON_DEMAND,   /* when a wait needs them, or after hold_ms */
    PACE_AFTER_OTHERS /* when the other queues cannot go on */
} pace;

typedef struct failure {
    ls_status status;
    uint64_t number; /* of the item */
    char text[LS_ERROR_BYTES];
} failure;

typedef struct sim_accel sim_accel;
typedef struct sim_event sim_event;   /* sim_accel.c */
typedef struct host_block host_block; /* sim_accel.c */

typedef struct sim_queue {
    sim_accel *owner;
    ls_thread thread;
    item *first; /* in execution, while the thread works */
    item *last;
    uint64_t n_queued;
    uint64_t n_done;
    uint64_t n_demanded; /* items up to this one are executed without holding them back */
    bool is_blocked;     /* waits for an event of another queue */
    ls_rng rng;
    pace pace;
    uint64_t pace_left; /* items until a new pace is drawn */
    int64_t held_until; /* PACE_ON_DEMAND: ls_deadline_ms() */
    failure failure;    /* the first that no wait has returned; status LS_OK: none */
} sim_queue;

struct sim_accel {
    accel base;
    sim_arena *arena;
    ls_mutex lock; /* of all below */
    ls_cond changed;
    sim_queue queues[ACCEL_QUEUES];
    item *free_items;
    stamp *free_stamps;
    sim_event *free_events;
    host_block *freed_early; /* by the caller, while a copy used it */
    int64_t delay_us;
    bool is_after_others; /* a queue waits in PACE_AFTER_OTHERS */
    bool is_ending;
    bool is_lost;
};

static inline sim_accel *sim_of(accel *a)
{
    return (sim_accel *)a;
}

static inline sim_queue *queue_of(const ls_queue *queue)
{
    sim_accel *a = sim_of(queue->accel);

    return &a->queues[queue - a->base.queues];
}

/* Fails with the text of a lost device. */
ls_status queue_fail_lost(const sim_accel *a);

/* Queues a copy of `it`, which takes its stamp reference and task unless this fails. */
LS_MUST_USE ls_status queue_push(ls_queue *queue, const item *it);

/* The thread of a queue; `arg` is the queue. Ends when the device ends and nothing is queued. */
void queue_main(void *arg);

/* --- under the lock --- */

/* A stamp with one reference; NULL: no memory. */
stamp *stamp_take(sim_accel *a);
void stamp_drop(sim_accel *a, stamp *s); /* NULL is allowed */

/* Appends a copy of `it`, which takes its stamp reference and task; NULL: no memory. */
item *queue_append(sim_queue *q, const item *it);

/* Lets a queue execute its items up to `number`, or all queues all of theirs, without delay. */
void queue_demand(sim_accel *a, int queue, uint64_t number);
void queue_demand_all(sim_accel *a);

/* Keeps the failure of an item, with the text in ls_last_error(), if it is the first. */
void queue_keep_failure(sim_queue *q, ls_status status, uint64_t number);

#endif
