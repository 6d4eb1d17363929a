/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - runs operations: one engine for each job that this process has joined, shared by all
 * its groups.
 *
 * One lock guards all state. A caller that blocks drives: it progresses the backend, reads
 * notifications from the hub and runs the watchdog, for all groups. One caller drives at a time,
 * others wait on `changed`. While no caller drives and asynchronous operations are pending, the
 * progress thread drives, and sleeps in between.
 *
 *   engine.c    creation, starting and ending works, breaking groups
 *   drive.c     the waiting loop and the progress thread
 *   callback.c  the functions of ls_work_then()
 *   ending.c    the ends of groups and of engines, while other threads are inside
 *   watch.c     notifications of the hub, wait reports, timeouts, causes
 *   meet.c      groups created by their members alone
 *   stack.c     the stack of the program, for wait reports
 *   forked.c    closing what a forked child inherits
 *   staged.c    operations on device memory (staged.h)
 *
 * Lock order: engine.mu, then abort_mu; backend->wait() and functions of the program run without
 * either.
 */
#ifndef LS_COMM_ENGINE_H
#define LS_COMM_ENGINE_H

#include "base/map.h"
#include "base/report/ticks.h"
#include "base/thread.h"
#include "comm/backends/backend.h"
#include "comm/comm.h"
#include "comm/join/join.h"
#include "comm/record/calls.h"
#include "comm/record/message_counts.h"
#include "comm/record/recorder.h"
#include "comm/record/site.h"
#include "host/contention.h"
#include "hub/hub.h"

#include <stdatomic.h>

#define MS_NS            INT64_C(1000000)
#define REPORT_AFTER_NS  (20 * MS_NS)  /* longer waits are reported to the hub */
#define CONTROL_EVERY_NS (1 * MS_NS)   /* between reads of notifications while spinning */
#define CAUSE_GRACE_NS   (300 * MS_NS) /* for a better cause to arrive */
#define LEFT_GRACE_NS    (300 * MS_NS) /* for messages that a rank sent before it left */
#define GROUP_TEXT_BYTES 768

typedef struct engine engine;

/* The parts that an engine takes over. */
typedef struct engine_parts {
    const backend_ops *ops;
    backend_state
        *backend;     /* NULL in a job of one rank; opened after the engine, with its host table */
    control *control; /* NULL: no hub */
    int control_fd;   /* the descriptor that the backend polls; -1: none */
    hub_thread *hub;  /* NULL when another process hosts the hub */
    bool hub_at_rank_0; /* the hub ends with rank 0 */
    join *join;         /* owns what the backend's comm_boot points to; NULL without a backend */
    recorder *recorder;
    uint64_t *hosts; /* a value for each world rank, equal for ranks of one host */
    pid_t *pids;     /* of each world rank, for messages */
    int rank;
    int size;
    bool is_traced;       /* run --trace: device events are timed */
    bool has_own_core;    /* no more ranks share this rank's cores than there are cores */
    char scope[24];       /* prefix of this join's keys in the store */
    int64_t operation_ms; /* timeout of each operation; negative: none */
    int64_t late_ms;
} engine_parts;

typedef enum work_phase {
    WORK_RUNNING = 0,
    WORK_FAILED, /* in the backend; it ends when its group breaks */
    WORK_ENDED
} work_phase;

/* A result that is copied when the work has ended. */
typedef struct work_part {
    void *to;
    const void *from;
    size_t bytes;
} work_part;

struct ls_work {
    backend_work b;
    list_node node;   /* in comm->works until it has ended; then in engine->free_works */
    list_node handle; /* in comm->handles while the user holds it */
    engine *engine;   /* outlives the handle; its group may not */
    ls_comm *comm;    /* NULL when the group was destroyed first */
    work_phase phase;
    bool is_held;          /* counted in n_held, while it runs */
    bool is_detached;      /* ls_work_wait_on() has taken the handle: the engine frees the work */
    bool waits_for_event;  /* a caller waits until b.event is known */
    ls_work_end_fn end_fn; /* of ls_work_then(), which has taken the handle; NULL: none */
    void *end_arg;
    ls_work *next_orphan;     /* callback.c */
    struct staged_op *staged; /* NULL: the backend runs it */
    ls_status status;
    char *text; /* of a failure whose group is gone, or may be when end_fn is called */
    int64_t start_ns;
    int64_t end_ns;
    int64_t timeout_ms;     /* negative: none */
    int64_t next_check_ns;  /* when watch.c checks it again */
    int64_t next_report_ns; /* of the next wait report */
    int64_t left_since_ns;  /* since when it waits for a rank that has left, 0: it does not */
    bool is_reported;       /* to the hub as a long wait */
    uint64_t ticket;        /* of the last report */
    uint64_t record;        /* recorder's number; 0: not recorded yet */
    size_t *counts;         /* copies for the v-variants */
    size_t counts_capacity;
    void *bounce;     /* copy of src where an in-place operation needs one */
    void *part_block; /* parts.h; NULL: none */
    work_part *parts; /* where its results go */
    int n_parts;
};

struct ls_comm {
    engine *engine;
    list_node node; /* in engine->groups */
    group_info info;
    int *members;           /* what info.members points to */
    backend_group *backend; /* NULL: a group of one rank */
    ls_status status;       /* LS_OK unless it is broken */
    char text[GROUP_TEXT_BYTES];
    int64_t timeout_ms; /* of operations that are started now; negative: none */
    bool has_suspect;   /* a failure, for which a better cause may arrive until suspect_until_ns */
    job_cause suspect;
    ls_status suspect_status;
    int64_t suspect_until_ns;
    /* that of the suspect has left, and works that wait for it are to fail */
    bool has_lost_peer;
    uint64_t sequence; /* of the last collective */
    uint64_t n_met;    /* monitored barriers */
    call_log *calls;   /* reported to the hub; NULL: the backend compares calls itself */
    /* by group rank: 1 + its last operation, 0: present; NULL: all are present */
    uint64_t *left_after;
    message_counts messages;
    char label[STAMP_SITE_BYTES];
    ls_queue *queue;              /* of ls_comm_set_queue() */
    struct staging *staging;      /* NULL: no operation on device memory yet */
    struct device_phases *phases; /* NULL: none yet (device_phases.h) */
    list_node works;
    list_node handles;
    int n_inside;          /* threads that wait in it */
    atomic_int n_aborting; /* threads in engine_abort_group() */
    int local_rank;
    int local_size;
    struct seat *seat; /* seat.h; NULL: the job is not elastic, or the group is not its world */
};

struct engine {
    ls_mutex mu;
    atomic_int n_entering; /* threads that wait for `mu` while a driver spins with it */
    ls_mutex abort_mu;     // leaf; guards `aborts`
    struct engine_abort *aborts;
    atomic_bool has_aborts;
    /* the group of which the backend opens a part, waiting for other ranks under `mu` */
    const ls_comm *opening;
    engine_parts parts;
    comm_host host;
    list_node groups;
    struct accel_use *uses; /* accelerators that must not be closed before they end */
    job_cause early;        /* a cause that arrived while this rank still opened its first group */
    int n_groups;           /* the engine is destroyed with its last group */
    uint32_t next_group;    /* of ids without a hub */
    list_node barriers;     /* meet.h */
    list_node openings;     /* those whose group is opened, in the hub's order */
    uint64_t last_ticket;   /* of a barrier */
    list_node free_works;
    list_node ended; /* works whose end_fn has not been called */
    int n_orphans;   /* handles whose group is gone */
    bool is_calling; /* a thread calls the end_fn of `ended`, one after the other */
    bool is_closed;  /* the last group is gone: the last orphan frees the engine */
    bool is_forked;  /* in a forked child, which must not use the engine */
    ls_ticks ticks;  /* for stamps */
    /* the last time that spin_wait() has read; 0: no spin_wait() is under way */
    int64_t seen_ns;
    site_cache sites;
    struct stack_watch *stack; /* of ls_comm_set_stack(); NULL: none */
    list_node fork_node;

    /* drive.c */
    /* a work has ended, its event may be known, no thread drives, or none calls functions or waits
     * in a group any more */
    ls_cond changed;
    ls_cond has_work; /* for the progress thread */
    ls_thread thread;
    bool has_no_thread;   /* it could not be started */
    bool is_driven;       /* a caller drives */
    bool progress_sleeps; /* the progress thread is in backend->wait */
    bool is_stopping;
    int n_waiting;       /* callers that wait on `changed` */
    int n_event_waiting; /* those that wait until an event is known */
    int n_held;   /* running works that progress without their caller: all with handles but those of
                   ls_work_waited(), and detached ones */
    int n_staged; /* staged works that have not ended */
    int64_t moved_ns; /* when an operation on device memory has last progressed */
    int64_t spin_ns;
    int64_t yield_ns; /* see adapt_yield() */
    contention contention;

    /* watch.c */
    int64_t next_control_ns;
    int64_t next_watch_ns; /* when watch_check() is due */
    job_cause end;         /* of the whole job; kind CAUSE_NONE: it runs */
    int64_t *left_ns;      /* by world rank: when its leave was received, 0: it has not left */
};

/* --- engine.c --- */

/* Closes the parts. The backend delivers its data before the leave is sent. */
void engine_free_parts(engine_parts *p);

/* Takes the parts; on failure they stay the caller's. */
LS_MUST_USE ls_status engine_create(const engine_parts *parts, engine **out);
void engine_enter(engine *e);
void engine_leave(engine *e);

/* Checks and starts an operation. out NULL: waits for its end. is_waited: the caller waits for the
 * handle at once. Not under the lock. */
LS_MUST_USE ls_status engine_run(ls_comm *comm, const coll_call *call, const void *site,
                                 bool is_waited, ls_work **out);

/* LS_EINVAL in a forked child, which must not use the engine. */
LS_MUST_USE ls_status engine_check_process(const engine *e);

/* Breaks the group from any thread: the holder of the lock serves it at once. */
void engine_abort_group(engine *e, ls_comm *comm, const job_cause *cause);

/* Everything below: under the lock. */

void engine_serve_aborts(engine *e);

/* What an operation does in a group of one rank. */
void engine_compute_alone(const coll *op);
void engine_end_work(engine *e, ls_work *w, ls_status status);
void engine_free_work(engine *e, ls_work *w);
/* Breaks a group for good: its pending works end with this status and the cause's text. report:
 * sends the cause to the hub. A broken group keeps its first cause. */
void engine_break(engine *e, ls_comm *comm, const job_cause *cause, ls_status status, bool report);

/* A failure on this rank: the group breaks with this cause unless the hub sends a better one soon.
 * A mismatch breaks it as soon as the backend has returned. */
void engine_suspect(engine *e, ls_comm *comm, const job_cause *cause, ls_status status);

ls_comm *engine_group(engine *e, uint32_t id); /* NULL: none (any more) */

/* --- callback.c; under the lock, except callback_call_orphan() --- */

/* The function of an ended work is called by the next callback_call(). */
void callback_owe(engine *e, ls_work *w);
/* Whether this thread may call functions now: none is being called, and it is in none. */
bool callback_may_call(const engine *e);
/* Calls the functions of ended works, without the lock and not while this thread drives. Nothing
 * where the thread may not call: then the thread that does calls these as well, or the progress
 * thread. */
void callback_call(engine *e);
/* Until all functions of ended works have returned. */
void callback_finish(engine *e);
/* The same for a work after ending_drop_orphan(), which it frees: at once, or after the function
 * that this thread is in. */
void callback_call_orphan(ls_work *w);

/* --- ending.c --- */

/* Under the lock: from here to ending_leave() the group's end waits for this thread. */
void ending_enter(ls_comm *comm);
void ending_leave(engine *e, ls_comm *comm);
/* Under the lock, of a broken group: until no thread is inside. */
void ending_await(engine *e, ls_comm *comm);
/* Under the lock. The user's handles outlive the group: each keeps its status and text. */
void ending_release_handles(engine *e, ls_comm *comm);
/* The status and text of an ended work, also after the end of its group. */
ls_status ending_status(const ls_work *w);
/* Takes the lock: a handle whose group is gone is freed, and with the last one the engine. */
void ending_drop_orphan(engine *e);
/* Frees a handle that no engine has any more. */
void ending_free_work(ls_work *w);
/* All groups are gone. NULL is allowed. */
void engine_destroy(engine *e);

/* --- drive.c --- */

void drive_init(engine *e);
/* Progresses a work for a moment, if nothing else is pending. */
void drive_spin_wait(engine *e, const ls_work *w, int64_t now_ns);
/* One pass over the backend and the staged works; true when any work has progressed. */
bool drive_progress(engine *e);
/* Until the work has ended (true; or its event is known, if it waits for that) or deadline_ns
 * (negative: never) has passed. */
bool drive_until(engine *e, const ls_work *w, int64_t deadline_ns);
/* The thread that sleeps in the backend looks again. */
void drive_wake(engine *e);
/* One pass of a thread that does not wait. */
void drive_pass(engine *e);
/* The same, and the watchdog. */
void drive_once(engine *e);
/* The work progresses without its caller from now on. */
void drive_hold(engine *e, ls_work *w);
/* The caller stops driving: the progress thread takes over pending asynchronous works. */
void drive_hand_over(engine *e);
/* The progress thread calls the functions of ended works, or, if it cannot be started, the next
 * caller that waits. */
void drive_call_soon(engine *e);
/* Ends the progress thread; not under the lock. */
void drive_stop(engine *e);

/* --- watch.c --- */

void watch_start(engine *e, ls_work *w);                           /* a work has begun */
void watch_set_timeout(engine *e, ls_work *w, int64_t timeout_ms); /* from now on */
void watch_check(engine *e, int64_t now_ns);     /* notifications and timeouts, when they are due */
void watch_arrived(engine *e, const ls_work *w); /* a reported work has ended without failure */
void watch_report_cause(engine *e, const job_cause *cause); /* to the other ranks */
/* Fails with the cause of the job, or of the group in `opening`. LS_OK: both are intact. */
ls_status watch_failure(const engine *e);
/* A connection was lost while a group was created: waits shortly for the cause; returns it. */
ls_status watch_explain(engine *e, ls_status st);
/* Notifications only, at once. may_progress: not within a call of the backend. */
void watch_poll_hub(engine *e, bool may_progress);
void watch_at(engine *e, int64_t at_ns);               /* watch_check() is due then, or earlier */
void watch_shift_deadlines(engine *e, int64_t gap_ns); /* after this process was stopped */
void watch_leave(engine *e, ls_comm *comm); /* reports this rank's leave and last operation */

/* --- forked.c --- */

void forked_add(engine *e);
void forked_remove(engine *e);

#endif
