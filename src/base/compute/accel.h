/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accel.h - accelerators: memory that the host must not dereference, queues of work, and events.
 *
 * A device module (cuda; the tests' cudahost) opens an accel and registers it. Tensors, the loader,
 * ddp and collectives move data and order work through the functions below; only the module's own
 * kernels dereference device memory.
 *
 * Order    The work of one queue runs in the order in which it was queued. The work of two queues
 *          is unordered, unless one queue waits for an event that was recorded in the other.
 *          Operators run in ACCEL_COMPUTE. A tensor's memory is given back in the order of that
 *          queue: code that uses it in another queue makes that queue wait for ACCEL_COMPUTE first,
 *          and makes ACCEL_COMPUTE wait before the tensor is destroyed or written.
 * Host     Host memory of a copy must stay valid, and if it is the source unchanged, until the
 *          queue has executed the copy. Copies from and to memory of accel_alloc_host() do not
 *          block; others may.
 * Failure  Queued work fails later. A failure that concerns one operator (a target out of range)
 *          is returned by the next call below that waits for its queue, once. After the loss of
 *          the accelerator every call fails with the same text.
 * Threads  Every function may be called from any thread. Queues are ordered by the calls.
 *
 * base/compute/: accelerators, element types and coroutines, for comm, tensor and the layers above.
 */
#ifndef LS_BASE_COMPUTE_ACCEL_H
#define LS_BASE_COMPUTE_ACCEL_H

#include "base/status.h"

#include <stdbool.h>

typedef struct accel accel;
typedef struct accel_event accel_event;

/* A queue of work. Public as an opaque type; `native` is what libraries take (a cudaStream_t). */
struct ls_queue {
    accel *accel;
    void *native;
};

/* The queues that every accelerator has. */
typedef enum accel_queue_id {
    ACCEL_COMPUTE,       /* operators, in the order of the program */
    ACCEL_COMMUNICATION, /* collectives of NCCL, which wait for other ranks; of high priority */
    ACCEL_STAGING,       /* copies of operations through host memory, likewise */
    ACCEL_COPY,          /* batches on their way to the accelerator */
    ACCEL_QUEUES
} accel_queue_id;

/* Whose memory an address is in. */
typedef enum accel_owner {
    ACCEL_OTHER,     /* the host's, or that of another card */
    ACCEL_SAME_CARD, /* allocated by another accelerator or library */
    ACCEL_OWN
} accel_owner;

typedef enum accel_direction { ACCEL_TO_DEVICE, ACCEL_TO_HOST, ACCEL_ON_DEVICE } accel_direction;

/* An event starts with this; the rest is the module's. */
struct accel_event {
    accel *accel;
};

/* The functions of a module. All but bind are required, and called through the functions below. */
typedef struct accel_ops {
    const char *name; /* "cuda" */
    void *(*alloc)(accel *self, size_t bytes);
    void (*free)(accel *self, void *block);
    void *(*alloc_host)(accel *self, size_t bytes);
    void (*free_host)(accel *self, void *block);
    accel_owner (*owner)(accel *self, const void *p);
    ls_status (*copy)(ls_queue *queue, void *dst, const void *src, size_t bytes,
                      accel_direction direction);
    ls_status (*fill)(ls_queue *queue, void *dst, int byte, size_t bytes);
    ls_status (*call)(ls_queue *queue, void (*fn)(void *arg), void *arg);
    ls_status (*event_create)(accel *self, bool timed, accel_event **out);
    void (*event_destroy)(accel_event *event);
    ls_status (*event_record)(accel_event *event, ls_queue *queue);
    ls_status (*queue_wait)(ls_queue *queue, accel_event *event, const char *what);
    ls_status (*event_wait)(accel_event *event, const char *what);
    ls_status (*event_test)(accel_event *event, bool *done);
    ls_status (*event_ns)(accel_event *event, int64_t *ns);
    ls_status (*synchronize)(accel *self, const char *what);
    ls_status (*memory)(accel *self, size_t *free_bytes, size_t *total_bytes);
    /* Makes this accelerator the one that a library uses which takes that of the calling thread
     * (NCCL); NULL: there is no such library. */
    void (*bind)(accel *self);
} accel_ops;

/* Something that uses the queues, events or memory of an accelerator and may live longer than it:
 * close() frees all of that while the accelerator still works. */
typedef struct accel_user {
    void (*close)(struct accel_user *self);
    struct accel_user *next; /* of the accelerator */
} accel_user;

struct accel {
    const accel_ops *ops;
    int index;                     /* of the card: N of "cuda:N" */
    char name[16];                 /* "cuda:0" */
    ls_queue queues[ACCEL_QUEUES]; /* filled by the module */
    accel *next;                   /* of the registry */
    accel_user *users;
};

/* Calls close() of all users and removes them: before memory that they use is freed. */
void accel_close_users(accel *a);

/* Adds an accelerator, so that accel_of() finds its memory. accel_unregister() is the first thing
 * that the module calls to close it: it closes all users, then removes it. */
void accel_register(accel *a);
void accel_unregister(accel *a);

/* Adds a user of a registered accelerator. After accel_remove_user() its close() is not called any
 * more; it must not be called in close(), nor after it. */
void accel_add_user(accel *a, accel_user *user);
void accel_remove_user(accel *a, accel_user *user);

/* The registered accelerator whose memory `p` points into: that which has allocated it, or one of
 * the same card; NULL: host memory. A comparison when none is registered. */
accel *accel_of(const void *p);

static inline ls_queue *accel_queue(accel *a, accel_queue_id id)
{
    return &a->queues[id];
}

/* Device memory, aligned to at least 256 bytes, with undefined contents; NULL: out of memory.
 * accel_free() first waits for the work that is queued. NULL is allowed. */
void *accel_alloc(accel *a, size_t bytes);
void accel_free(accel *a, void *block);

/* Page-locked host memory, for copies that do not block; NULL: out of memory. The caller has waited
 * for all copies before it frees the block. NULL is allowed. */
void *accel_alloc_host(accel *a, size_t bytes);
void accel_free_host(accel *a, void *block);

/* Queues a copy; a copy of `byte` to each byte; a call of fn(arg) by a thread of the accelerator,
 * which must not call functions of this header. */
LS_MUST_USE ls_status accel_copy(ls_queue *queue, void *dst, const void *src, size_t bytes,
                                 accel_direction direction);
LS_MUST_USE ls_status accel_fill(ls_queue *queue, void *dst, int byte, size_t bytes);
LS_MUST_USE ls_status accel_call(ls_queue *queue, void (*fn)(void *arg), void *arg);

/* An event; `timed`: accel_event_ns() may be asked. Destroying an event that a queue still waits
 * for is allowed, NULL too. */
LS_MUST_USE ls_status accel_event_create(accel *a, bool timed, accel_event **out);
void accel_event_destroy(accel_event *event);

/* The event happens when all work that `queue` has at this call is done. An event may be recorded
 * again; earlier waits keep their meaning. */
LS_MUST_USE ls_status accel_event_record(accel_event *event, ls_queue *queue);

/*
 * The waits. `what` is a constant that names the wait in errors and traces, as "loader: copy of the
 * batch"; the tests remove the waits one by one by this name, and expect a test to fail.
 * An event that was never recorded has happened.
 */
/* Later work of `queue` starts after the event. Does not block. */
LS_MUST_USE ls_status accel_queue_wait(ls_queue *queue, accel_event *event, const char *what);
/* Blocks until the event; returns failures of the work before it. */
LS_MUST_USE ls_status accel_event_wait(accel_event *event, const char *what);
/* Blocks until all queues are empty. */
LS_MUST_USE ls_status accel_synchronize(accel *a, const char *what);

/* *done: whether the event has happened. Does not block. */
LS_MUST_USE ls_status accel_event_test(accel_event *event, bool *done);

/* When a timed event happened, on the clock of ls_now_ns(). LS_EINVAL when it has not. */
LS_MUST_USE ls_status accel_event_ns(accel_event *event, int64_t *ns);

LS_MUST_USE ls_status accel_memory(accel *a, size_t *free_bytes, size_t *total_bytes);

#endif
