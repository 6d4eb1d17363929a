/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - what carries operations on: one engine a job that this process has joined, shared by
 * all its groups.
 *
 * One lock guards everything. Whoever blocks in a call drives: it progresses the backend, reads
 * news from the hub and runs the watchdog, for all groups at once. One caller drives at a time,
 * others wait on `changed`. While no caller drives and asynchronous operations are pending, the
 * progress thread does, and sleeps in between.
 *
 *   engine.c  its life, starting and ending works, breaking groups
 *   drive.c   the waiting loop and the progress thread
 *   watch.c   news from the hub, late operations, causes
 *   forked.c  closing what a forked child inherits
 *
 * Lock order: engine.mu, then abort_mu; backend->wait() runs without either.
 */
#ifndef LS_COMM_ENGINE_H
#define LS_COMM_ENGINE_H

#include "base/map.h"
#include "base/thread.h"
#include "base/ticks.h"
#include "comm/backend.h"
#include "comm/calls.h"
#include "comm/join.h"
#include "comm/recorder.h"
#include "comm/site.h"
#include "store/hub.h"

#include <stdatomic.h>

#define REPORT_AFTER_NS                                                                            \
    (20 * INT64_C(1000000)) /* the hub hears of an operation that takes longer */
#define CONTROL_EVERY_NS (1 * INT64_C(1000000)) /* news are read at least so often while spinning */
#define CAUSE_GRACE_NS   (300 * INT64_C(1000000)) /* how long a better cause may take to come */
#define LEFT_GRACE_NS                                                                              \
    (300 * INT64_C(1000000)) /* what a rank sent before it left may still be under way */
#define GROUP_TEXT_BYTES 768

typedef struct engine engine;

/* What an engine is made of. */
typedef struct engine_parts {
    const backend_ops *ops;
    backend_state
        *backend;     /* NULL in a job of one rank; opened after the engine, with its host table */
    control *control; /* NULL: no hub */
    int control_fd;   /* the descriptor that the backend polls; -1: none */
    hub_thread *hub;  /* this rank serves the hub; NULL: somebody else */
    bool hub_at_rank_0; /* the hub ends with rank 0 */
    join *join;         /* what the backend's comm_boot points to; NULL: nothing */
    recorder *recorder;
    uint64_t *hosts; /* a value for each world rank, equal for ranks of one host */
    pid_t *pids;     /* of each world rank, for messages */
    int rank;
    int size;
    bool has_own_core;    /* the ranks that share this one's cores are no more than these */
    char scope[24];       /* in front of this join's keys in the store */
    int64_t operation_ms; /* timeout of each operation; negative: none */
    int64_t late_ms;
} engine_parts;

typedef enum work_phase {
    WORK_RUNNING = 0,
    WORK_FAILED, /* the backend has given it up; it ends when its group breaks */
    WORK_ENDED
} work_phase;

struct ls_work {
    backend_work b;
    list_node node;   /* in comm->works until it has ended; then in engine->free_works */
    list_node handle; /* in comm->handles while the user holds it */
    ls_comm *comm;    /* NULL when the group was destroyed first */
    work_phase phase;
    bool is_held; /* the user has a handle */
    ls_status status;
    char *text; /* of a failure whose group is gone */
    int64_t start_ns;
    int64_t end_ns;
    int64_t next_look_ns;  /* when watch.c looks at it again */
    int64_t next_late_ns;  /* when it is reported as late (again) */
    int64_t left_since_ns; /* it waits for a rank that has left, 0: it does not */
    bool is_reported;      /* the hub was notified that it takes long */
    uint64_t ticket;       /* is_reported: of the last report */
    uint64_t record;       /* recorder's number; 0: not recorded yet */
    size_t *counts;        /* copies for the v-variants */
    size_t counts_capacity;
    void *bounce; /* copy of src where an in-place operation needs one */
};

/* How many messages one (direction, peer, tag) has had. */
typedef struct message_count {
    int32_t key[3];
    uintptr_t last; /* 0: unused */
} message_count;

struct ls_comm {
    engine *engine;
    list_node node; /* in engine->groups */
    group_info info;
    int *members;           /* what info.members points to */
    backend_group *backend; /* NULL: a group of one rank */
    ls_status status;       /* why it is broken, LS_OK: it is not */
    char text[GROUP_TEXT_BYTES];
    bool has_suspect; /* something failed; a better cause may come until suspect_until_ns */
    job_cause suspect;
    ls_status suspect_status;
    int64_t suspect_until_ns;
    uint64_t sequence;    /* of the last collective */
    call_log *calls;      /* what the hub is told; NULL: the backend compares calls itself */
    uint64_t *left_after; /* by group rank: 1 + its last operation, 0: is here; NULL: all are */
    byte_map messages;    /* numbers of receives and sends by (direction, peer, tag), but for... */
    message_count counting[2]; /* ...the last one of each direction */
    char label[STAMP_SITE_BYTES];
    list_node works;
    list_node handles;
    int local_rank;
    int local_size;
};

struct engine {
    ls_mutex mu;
    atomic_int n_entering; /* threads that want `mu` while somebody spins with it */
    ls_mutex abort_mu;     // leaf; guards `aborts`
    struct engine_abort *aborts;
    atomic_bool has_aborts;
    /* a group of which the backend opens a part, and waits for others under `mu` */
    const ls_comm *opening;
    engine_parts parts;
    comm_host host;
    list_node groups;
    job_cause early; /* what broke the first group while this rank still opened its part of it */
    int n_groups;    /* the engine goes with its last group */
    uint32_t next_group; /* ids where there is no hub */
    list_node free_works;
    ls_ticks ticks; /* for stamps */
    /* the time when spin_wait() last looked at it; 0: no spin_wait() is under way */
    int64_t seen_ns;
    site_cache sites;
    bool is_forked; /* set in a forked child: nothing may be used there */
    list_node fork_node;

    /* drive.c */
    ls_cond changed; /* a work has ended or nobody drives any more */
    ls_cond back;    /* the progress thread has something to do */
    ls_thread thread;
    bool is_driven;   /* a caller drives */
    bool back_sleeps; /* the progress thread is in backend->wait */
    bool is_stopping;
    int n_waiting; /* callers that wait on `changed` */
    int n_held;    /* running works with handles */
    int64_t spin_ns;
    int64_t yield_ns; /* adapts itself: see learn() */

    /* watch.c */
    int64_t next_control_ns;
    int64_t next_watch_ns;
    job_cause end;    /* why the whole job ended; kind CAUSE_NONE: it goes on */
    int64_t *left_ns; /* by world rank: when it was heard to have left, 0: it has not */
};

/* --- engine.c --- */

/* Ends what is there: the backend delivers first, then the goodbye, so that who hears it may rely
 * on all data being under way. */
void engine_free_parts(engine_parts *p);

/* Takes what is in `parts`; on failure it stays the caller's. */
LS_MUST_USE ls_status engine_create(const engine_parts *parts, engine **out);
/* All groups are gone. NULL is allowed. */
void engine_destroy(engine *e);

void engine_enter(engine *e);
void engine_leave(engine *e);

/* What a caller asks for: a coll without what the engine fills in. */
typedef struct coll_call {
    coll_kind kind;
    ls_dtype dtype;
    ls_reduce_op redop;
    double divisor; /* of LS_AVG; 0: the group's size */
    int root;
    int tag;
    const void *src;
    void *dst;
    size_t count;
    const size_t *src_counts;
    const size_t *dst_counts;
} coll_call;

/* Checks and starts an operation. out NULL: waits for its end. Not under the lock. */
LS_MUST_USE ls_status engine_run(ls_comm *comm, const coll_call *call, const void *site,
                                 ls_work **out);

/* Breaks the group from any thread, whatever another one waits for: served by who has the lock, at
 * once. */
void engine_abort_group(engine *e, ls_comm *comm, const job_cause *cause);

/* Everything below: under the lock. */

void engine_serve_aborts(engine *e);

void engine_end_work(engine *e, ls_work *w, ls_status status);
void engine_free_work(engine *e, ls_work *w);

/* Breaks a group for ever: its pending works end with this status and the cause's text. tell: the
 * hub has not said so itself and is told. A broken group stays as it is. */
void engine_break(engine *e, ls_comm *comm, const job_cause *cause, ls_status status, bool tell);

/* Something failed here: the group breaks with this cause unless the hub knows a better one soon. A
 * mismatch breaks it as soon as the backend has returned. */
void engine_suspect(engine *e, ls_comm *comm, const job_cause *cause, ls_status status);

ls_comm *engine_group(engine *e, uint32_t id); /* NULL: none (any more) */

/* --- drive.c --- */

void drive_init(engine *e);
/* A caller waits for this work, just started: the backend carries it on alone for a moment, if
 * nothing else is pending. */
void drive_spin_wait(engine *e, const ls_work *w);
/* Until the work has ended (true) or deadline_ns (negative: never) has passed. */
bool drive_until(engine *e, const ls_work *w, int64_t deadline_ns);
/* One pass without waiting. */
void drive_once(engine *e);
/* Asynchronous works are pending and the caller leaves: the progress thread takes over, started
 * when need be. */
void drive_hand_over(engine *e);
/* Ends the progress thread; not under the lock. */
void drive_stop(engine *e);

/* --- watch.c --- */

void watch_start(engine *e, ls_work *w);    /* a work has begun */
void watch_look(engine *e, int64_t now_ns); /* news and what is late, when it is time for them */
void watch_arrived(engine *e, const ls_work *w);    /* a reported work has ended well */
void watch_tell(engine *e, const job_cause *cause); /* the other ranks hear of it */
/* Fails with the cause that the job has ended for, or the group of which a part is being opened.
 * LS_OK: neither has. */
ls_status watch_failure(const engine *e);
/* A connection was lost while a group was made: waits shortly for the news that say why; gives the
 * status to fail with. */
ls_status watch_explain(engine *e, ls_status st);
void watch_news(engine *e);                       /* news only, at once */
void watch_forgive(engine *e, int64_t gap_ns);    /* this process was stopped for so long */
int64_t watch_next_ns(const engine *e);           /* when watch_look() has something to do */
void watch_leave(engine *e, const ls_comm *comm); /* this rank leaves the group: how far it came */

/* --- forked.c --- */

void forked_add(engine *e);
void forked_remove(engine *e);

#endif
