/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what a backend is: about six functions around start(self, op, work).
 *
 * Operations are described (coll), not enumerated in the table. The arguments have been checked,
 * the operation is numbered and stamped, and groups of one rank never get here: a backend may trust
 * its input. A collective with count 0 comes as COLL_BARRIER, with the stamp of what was called;
 * messages and v-variants may have counts of 0. src is NULL where this rank's is not looked at
 * (broadcast and scatter away from root), dst likewise (reduce and gather). In place is as comm.h
 * says, except that all_to_all never is.
 *
 * Threads    open, open_group, start, progress, abort_group, close_group, alloc, free, close are called under the
 *            engine's lock, one at a time. wait runs without it; wake may come from any thread.
 */
#ifndef LS_COMM_BACKEND_H
#define LS_COMM_BACKEND_H

#include <lockstep/comm.h>
#include <lockstep/log.h>

#include "comm/boot.h"
#include "comm/reduce.h"
#include "store/cause.h"
#include "store/stamp.h"

#include <stdarg.h>
#include <stdbool.h>

#define BACKEND_ABI 5

typedef struct backend_state backend_state; /* the backend's own, one a process (rank) */
typedef struct backend_group backend_group; /* the backend's own, one a group */
typedef struct comm_host comm_host;

#ifdef __cplusplus
typedef struct backend_counter backend_counter; /* C's; not for C++ to look into */
#else
#include <stdatomic.h>
typedef atomic_int backend_counter;
#endif

/* A group as backends see it. Lives as long as the backend_group. */
typedef struct group_info {
    uint32_t id;
    int rank;           /* of this process in the group */
    int size;           /* >= 2 */
    const int *members; /* world rank of each group rank */
} group_info;

/* One operation, fully described. Counts are elements. Pointers stay valid until the work has
 * ended. */
typedef struct coll {
    coll_kind kind;
    ls_dtype dtype;
    ls_reduce_op redop;
    double divisor; /* of LS_AVG; the group's size unless comm_average() said otherwise */
    int root;       /* group rank; for SEND and RECV the peer, LS_ANY_SOURCE allowed for RECV */
    int tag;
    const void *src;
    void *dst;
    size_t count; /* as the public call's count; v-variants: 0 */
    /* v-variants: elements for each group rank, NULL otherwise. all_to_all_v has both, the others
     * src_counts only where src is cut by rank (scatter, reduce_scatter) and dst_counts where dst
     * is (gather, all_gather). */
    const size_t *src_counts;
    const size_t *dst_counts;
    size_t bytes;   /* of src and dst together, as far as this rank's are looked at */
    size_t payload; /* bytes of the larger side, looked at or not: the size in nccl-tests */
    op_stamp stamp;
} coll;

/* The backend's view of one operation under way. */
typedef struct backend_work {
    coll op;
    backend_group *group;
    void *state; /* the backend's own; it frees it before it calls host->done */
    int source;  /* RECV: set by the backend to the group rank the message came from */
    /* of a collective: set by the backend to the world rank that it waited for last; -1: none */
    int awaited;
} backend_work;

/* What the engine offers; the first argument is always this table's `self`. */
struct comm_host {
    uint32_t abi;
    void *self;
    /* The operation has ended; status LS_OK or why not (text may be NULL then). Exactly once a
     * work, also from inside start(). The work is gone afterwards. */
    void (*done)(void *self, backend_work *work, ls_status status, const char *text);
    /* The group (GROUP_ALL: everything) is broken: fails all its pending works through abort_group
     * and tells the other ranks through the hub. May be called from progress() and start(). */
    void (*broken)(void *self, const job_cause *cause);
    ls_status (*vfail)(ls_status status, const char *format, va_list args);
    void (*log)(ls_log_level level, const char *component, const char *format, ...);
    void *(*alloc)(size_t count, size_t size);
    void (*free)(void *block);
    /* For open() and open_group() while they block: to be called when boot->control_fd is readable,
     * and now and then. Fails with the cause when the job is over, so that nobody waits for a rank
     * that died. */
    ls_status (*check)(void *self);
    /* The job's store, for what open() and open_group() have to tell the other ranks: keys of this
     * join. `value` is freed with free(). */
    ls_status (*publish)(void *self, const char *key, const void *value, size_t bytes);
    ls_status (*lookup)(void *self, const char *key, int64_t timeout_ms, void **value,
                        size_t *bytes);
    /* For spin_wait(): the time, from ls_ticks, which the engine takes as the end of what ends
     * next. */
    int64_t (*now_ns)(void *self);
    /* The arithmetic of comm/reduce.h, for backends that compose reductions. */
    void (*reduce)(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                   ls_dtype type, ls_reduce_op op, bool final, double divisor);
};

/* For modules: makes the error text and gives `status`. */
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

/* What the caller wants, for probe(). */
typedef struct backend_need {
    const char *name;      /* as asked: "auto", "native", "mpi:openmpi"... */
    const char *transport; /* "auto", "shm", "tcp" */
    int world_size;
    bool is_launched;      /* by what the module's row in backend.c knows as its launcher */
    const comm_host *host; /* without `self`: for error texts */
} backend_need;

typedef struct backend_ops {
    uint32_t abi; /* BACKEND_ABI */
    const char *name;
    /* Ranks that call different collectives notice it by themselves, or wait for each other.
     * Otherwise the hub is told what was called, and breaks the group up to a second late. */
    bool compares_calls;
    /* required: how well it fits, 0 = not at all (ls_last_error says why) */
    int (*probe)(const backend_need *need);
    /* required: collective over the job; blocks until connected or boot->deadline_ms */
    ls_status (*open)(const comm_boot *boot, const comm_host *host, backend_state **out);
    /* required: collective over the members; may use the world's connections; blocks */
    ls_status (*open_group)(backend_state *self, const group_info *info, backend_group **out);
    void (*close_group)(backend_group *group);
    /* required: begins the operation; what cannot be finished at once is carried on by progress().
     * A failure that concerns only this work goes through host->done. */
    void (*start)(backend_group *group, backend_work *work);
    /* required: carries everything on without blocking; true when something moved */
    bool (*progress)(backend_state *self);
    /* optional: a caller waits for the works of this group and for nothing else: carries them on
     * alone, spinning (where ranks share cores: yielding), until none is pending, *others is not 0,
     * or nothing has moved for some microseconds. It calls host->now_ns() after each pass that
     * moves nothing. The rest of progress() may wait meanwhile. */
    void (*spin_wait)(backend_group *group, bool has_own_core, const backend_counter *others);
    /* required: sleeps until something may have moved, boot->control_fd is readable, wake() or
     * timeout_ms (>= 0). Several threads may wait at once. */
    void (*wait)(backend_state *self, int timeout_ms);
    void (*wake)(backend_state *self);
    /* required: ends all pending works of the group with this status through host->done; nothing of
     * them touches the caller's buffers afterwards */
    void (*abort_group)(backend_group *group, ls_status status, const char *text);
    /* optional: memory that needs no staging; NULL: plain memory is used */
    ls_status (*alloc)(backend_state *self, size_t bytes, void **out);
    void (*free)(backend_state *self, void *memory);
    /* required: "shm", "tcp", "shm+tcp" */
    const char *(*transport)(backend_group *group);
    /* required: delivers what is still to be sent (bounded by timeout_ms), closes everything */
    void (*close)(backend_state *self, int64_t timeout_ms);
    /* optional: in a forked child, where nothing else is called any more: closes the descriptors
     * that the child inherited, so that peers see the parent's end. Only close() and the like:
     * another thread's locks may be held for ever. */
    void (*forked)(backend_state *self);
} backend_ops;

/* The backend that was asked for, loaded if it is a module; need->host may be left NULL. */
LS_MUST_USE ls_status backend_find(const backend_need *need, const backend_ops **out);

extern const backend_ops native_backend_ops;

#endif
