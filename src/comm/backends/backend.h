/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - the contract of backends: about six functions around start(group, work).
 *
 * A coll describes an operation; the table has no function per operation. The engine has checked
 * the arguments, numbered and stamped the operation, and runs groups of one rank itself: a backend
 * may trust its input. A collective with count 0 becomes COLL_BARRIER, with the stamp of the call;
 * messages and v-variants may have counts of 0. src is NULL when this rank's src is not used
 * (broadcast and scatter away from root), dst likewise (reduce and gather). In place is as in
 * comm.h, except that all_to_all never is.
 *
 * Threads    open, open_group, start, progress, abort_group, close_group, alloc, free, close are
 *            called under the engine's lock, one at a time. wait runs without it; any thread may
 *            call wake.
 *
 * comm/backends/: the contract of backends and their table. comm/engine calls it; each backend
 * implements it.
 */
#ifndef LS_COMM_BACKENDS_BACKEND_H
#define LS_COMM_BACKENDS_BACKEND_H

#include <lockstep/comm.h>
#include <lockstep/log.h>

#include "comm/backends/reduce.h"
#include "comm/join/boot.h"
#include "hub/cause.h"
#include "hub/stamp.h"

#include <stdarg.h>
#include <stdbool.h>

#define BACKEND_ABI 14

/* What else wants the core of a thread that waits. */
typedef enum core_use {
    CORE_OWN,       /* nothing */
    CORE_CONTENDED, /* other processes or threads */
    CORE_OF_RANKS   /* other ranks: there are fewer cores than ranks */
} core_use;

typedef struct accel_event accel_event;
typedef struct backend_state backend_state; /* the backend's own, one a process (rank) */
typedef struct backend_group backend_group; /* the backend's own, one a group */
typedef struct comm_host comm_host;
typedef struct backend_ops backend_ops;

#ifdef __cplusplus
typedef struct backend_counter backend_counter; /* opaque in C++ */
typedef struct backend_bytes backend_bytes;
#else
#include <stdatomic.h>
typedef atomic_int backend_counter;
typedef _Atomic uint64_t backend_bytes; /* increased under the engine's lock, read at any time */
#endif

/* A group as backends see it. Lives as long as the backend_group. */
typedef struct group_info {
    uint32_t id;
    int rank;           /* of this process in the group */
    int size;           /* >= 2 */
    const int *members; /* world rank of each group rank */
} group_info;

/* One operation. Counts are elements. Pointers stay valid until the work has ended; they are host
 * memory, except for a backend that has agreed to take the operation (takes_device). */
typedef struct coll {
    coll_kind kind;
    ls_dtype dtype;
    ls_reduce_op redop;
    double divisor; /* of LS_AVG; the group's size, or that of comm_average() */
    int root;       /* group rank; for SEND and RECV the peer, LS_ANY_SOURCE allowed for RECV */
    int tag;
    const void *src;
    void *dst;
    size_t count; /* as the public call's count; v-variants: 0 */
    /* v-variants: elements for each group rank, NULL otherwise. all_to_all_v has both, the others
     * those of the buffer that is divided by rank (src: scatter, reduce_scatter; dst: gather,
     * all_gather). */
    const size_t *src_counts;
    const size_t *dst_counts;
    size_t bytes;   /* of this rank's src and dst together, as far as they are used */
    size_t payload; /* bytes of the larger side, used or not: the size in nccl-tests */
    op_stamp stamp;
    struct accel *accelerator; /* the owner of src and dst; NULL: host memory */
    ls_queue *queue;           /* its queue, whose work up to the call the operation follows */
    bool is_traced; /* of device memory: the backend sets `began`, and its events are timed */
} coll;

/* The backend's view of one operation under way. */
typedef struct backend_work {
    coll op;
    backend_group *group;
    void *state; /* the backend's own, freed before host->done */
    int source;  /* RECV: set by the backend to the group rank the message came from */
    /* of a collective: set by the backend to the last awaited world rank; -1: none */
    int awaited;
    /* of an operation on device memory: happens when the result is in dst; NULL: not known yet */
    accel_event *event;
    /* likewise: happens when the queue of communication begins with it; NULL: not known */
    accel_event *began;
    void *owner; /* the engine's */
} backend_work;

/* The engine's functions for backends; the first argument is this table's `self`. */
struct comm_host {
    uint32_t abi;
    void *self;
    /* The operation has ended with this status; text explains a failure and may be NULL. Exactly
     * once for each work, also from inside start(). The work is invalid afterwards. */
    void (*done)(void *self, backend_work *work, ls_status status, const char *text);
    /* The group (GROUP_ALL: all groups) is broken: fails its pending works through abort_group and
     * reports the cause to the hub. May be called from progress() and start(). */
    void (*broken)(void *self, const job_cause *cause);
    ls_status (*vfail)(ls_status status, const char *format, va_list args);
    void (*log)(ls_log_level level, const char *component, const char *format, ...);
    void *(*alloc)(size_t count, size_t size);
    void (*free)(void *block);
    /* For open() and open_group() while they block: to be called when boot->control_fd is readable,
     * and at intervals. Fails with the cause when the job has ended. */
    ls_status (*check)(void *self);
    /* The job's store, for open() and open_group(), with keys of this join. */
    ls_status (*publish)(void *self, const char *key, const void *value, size_t bytes);
    ls_status (*lookup)(void *self, const char *key, int64_t timeout_ms, void **value,
                        size_t *bytes);
    /* For spin_wait(): the time of ls_ticks, which the engine uses as the end time of works. */
    int64_t (*now_ns)(void *self);
    /* reduce_tree() of comm/backends/reduce.h, for backends that compose reductions. */
    void (*reduce)(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                   ls_dtype type, ls_reduce_op op, bool final, double divisor);
    /* The counter of bytes received from a world rank, for backend_count(). May be NULL, and may
     * give NULL: they are not counted. */
    backend_bytes *(*received)(void *self, int rank);
    /* The calling thread's error text. */
    const char *(*last_error)(void);
    /* For backends that run a part of the operations themselves and pass on the others: native is
     * opened with the same boot and host, and its groups with the same info. */
    const backend_ops *native;
};

#ifndef __cplusplus
static inline void backend_count(backend_bytes *counter, size_t bytes)
{
    if (counter != NULL)
        atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + bytes,
                              memory_order_relaxed);
}
#endif

/* For modules: sets the error text and returns `status`. */
static inline ls_status LS_PRINTF(3, 4)
    comm_host_fail(const comm_host *host, ls_status status, const char *format, ...)
{
    va_list args;
    ls_status st;

    va_start(args, format);
    st = host->vfail(status, format, args);
    va_end(args);
    return st;
}

/* The caller's request, for probe(). */
typedef struct backend_need {
    const char *name;      /* as requested: "auto", "native", "mpi:openmpi"... */
    const char *transport; /* "auto", "shm", "tcp" */
    int world_size;
    bool is_launched;      /* by a launcher of the module's row in backend.c */
    const comm_host *host; /* without `self`: for error texts */
} backend_need;

struct backend_ops {
    uint32_t abi; /* BACKEND_ABI */
    const char *name;
    /* Ranks that call different collectives fail or wait for each other. Otherwise the engine
     * reports the calls to the hub, which breaks the group up to a second later. */
    bool compares_calls;
    /* optional: whether the backend runs this operation on device memory. Otherwise the engine
     * copies the data to host memory, in pieces, and back. All ranks give the same answer. */
    bool (*takes_device)(const backend_group *group, const coll *op);
    /* with takes_device: the accelerator, on which no work is under way, is closed: nothing of the
     * backend may use it afterwards. Groups may use another one */
    void (*forget_device)(backend_state *self, struct accel *owner);
    /* optional, with takes_device: registers device memory that operations of the group will use
     * often, until remove_memory(), when no operation on it is under way, or forget_device(). The
     * group has had an operation on the device, and none is starting. False: it is not registered.
     * All ranks call it, and remove the memory again if it is false on any. */
    bool (*add_memory)(backend_group *group, struct accel *owner, void *start, size_t bytes);
    void (*remove_memory)(backend_group *group, const void *start);
    /* optional, with add_memory: device memory that is best to register; NULL: there is none.
     * free_device() is called without the lock, at any time, when no work uses the memory */
    void *(*alloc_device)(backend_state *self, struct accel *owner, size_t bytes);
    void (*free_device)(void *start);
    /* required: how well it fits; 0 = not at all, with the reason in ls_last_error() */
    int (*probe)(const backend_need *need);
    /* required: collective over the job; blocks until connected or boot->deadline_ms */
    ls_status (*open)(const comm_boot *boot, const comm_host *host, backend_state **out);
    /* required: collective over the members; may use the world's connections; blocks */
    ls_status (*open_group)(backend_state *self, const group_info *info, backend_group **out);
    void (*close_group)(backend_group *group);
    /* required: starts the operation. A failure of this work alone goes through host->done. */
    void (*start)(backend_group *group, backend_work *work);
    /* required: progresses all operations without blocking; true when any has progressed */
    bool (*progress)(backend_state *self);
    /* optional: progresses the works of this group alone, spinning (where ranks share cores:
     * yielding), until none is pending, *others is not 0, or nothing has progressed for some
     * microseconds. Calls host->now_ns() after each pass without progress. */
    void (*spin_wait)(backend_group *group, core_use use, const backend_counter *others);
    /* optional: whether operations are pending whose end wakes no thread. The engine then does not
     * call wait(), and looks at short intervals instead */
    bool (*polls)(const backend_state *self);
    /* optional: whether a message of this member (group rank), which has left the group, may still
     * be on its way */
    bool (*is_arriving)(const backend_group *group, int member);
    /* optional: whether the member (group rank) has ended, or given up or closed the group, so that
     * this rank's pending collective, or messages, can get from it only what it has sent already.
     * The hub knows this; the engine asks the backend when there is no hub any more. */
    bool (*is_gone)(const backend_group *group, int member, bool for_messages);
    /* required: sleeps until progress is possible, boot->control_fd is readable, wake() is called
     * or timeout_ms (>= 0) has passed. Several threads may wait at once. */
    void (*wait)(backend_state *self, int timeout_ms);
    void (*wake)(backend_state *self);
    /* required: ends all pending works of the group with this status through host->done; the
     * backend does not access the caller's buffers afterwards */
    void (*abort_group)(backend_group *group, ls_status status, const char *text);
    /* optional: memory that needs no staging */
    ls_status (*alloc)(backend_state *self, size_t bytes, void **out);
    void (*free)(backend_state *self, void *memory);
    /* with alloc: the memory stays valid after close(), until *release frees what is returned */
    void *(*keep)(backend_state *self, void *memory, void (**release)(void *kept));
    /* required: "shm", "tcp", "shm+tcp" */
    const char *(*transport)(backend_group *group);
    /* required: delivers pending sends (within timeout_ms), then closes the backend */
    void (*close)(backend_state *self, int64_t timeout_ms);
    /* optional: called in a forked child, alone: closes the inherited descriptors, so that peers
     * see the end of the parent. Only async-signal-safe calls: other threads' locks may be held. */
    void (*forked)(backend_state *self);
};

/* The requested backend, loaded if it is a module; need->host may be NULL. */
LS_MUST_USE ls_status backend_find(const backend_need *need, const backend_ops **out);

extern const backend_ops native_backend_ops;

#endif
