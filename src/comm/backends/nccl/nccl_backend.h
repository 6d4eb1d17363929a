/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_backend.h - the state of the NCCL backend: a native group, which runs operations on host
 * memory, and beside it a communicator of NCCL, which runs collectives on device memory.
 *
 *   nccl_backend.c  the backend as the engine sees it
 *   nccl_group.c    communicators: creation at the first operation, operations in order, errors
 *   nccl_calls.c    one operation as calls of NCCL
 *   nccl_memory.c   registration of the memory that operations use often
 *   nccl_ending.c   threads that end communicators, because that may block
 *
 * comm/backends/nccl/: a module, called by comm/engine through lockstep_backend.
 */
#ifndef LS_COMM_BACKENDS_NCCL_NCCL_BACKEND_H
#define LS_COMM_BACKENDS_NCCL_NCCL_BACKEND_H

#include "base/compute/accel.h"
#include "comm/backends/nccl/nccl_api.h"

#include <pthread.h>

/* Of a group's communicator. */
typedef enum nccl_phase {
    NCCL_ABSENT = 0, /* no operation on device memory yet */
    NCCL_ASKING,     /* waits for the id of group rank 0 */
    NCCL_CONNECTING,
    NCCL_READY,
    NCCL_FAILED
} nccl_phase;

typedef enum nccl_state {
    NCCL_QUEUED = 0, /* in the group's list only */
    NCCL_ISSUED,     /* NCCL has it, but has not finished its part on the host */
    NCCL_RUNNING     /* in the accelerator's queue, with `end` behind it */
} nccl_state;

/* One operation. */
typedef struct nccl_work {
    struct nccl_work *next;
    backend_group *group;
    backend_work *work;
    nccl_state state;
    uint64_t number; /* in the order of the calls of all groups */
    accel *owner;
    accel_event *start; /* the work that the caller's queue had at the call */
    accel_event *began; /* with --trace only, else NULL */
    accel_event *end;
    void *copy; /* device memory: src of an all_to_all in place; NULL: none */
    int scaled; /* an operator of NCCL for this work, -1: none */
} nccl_work;

/* Device memory that is registered with the communicator. */
typedef struct nccl_memory {
    struct nccl_memory *next; /* of the group */
    const void *start;
    void *handle; /* of NCCL */
} nccl_memory;

struct backend_group {
    backend_group *next; /* in state->groups */
    backend_state *state;
    const group_info *info;
    backend_group *native;
    nccl_phase phase;
    int64_t next_ask_ns; /* for the id, or about the state of the communicator */
    accel *owner;        /* of the communicator */
    unsigned n_comms;    /* created so far */
    nccl_comm *comm;
    nccl_work *first; /* works in the order of the calls */
    nccl_work *free_works;
    nccl_memory *memory;
};

/* A thread that ends a communicator. */
typedef struct nccl_ending {
    struct nccl_ending *next; /* in state->endings */
    const nccl_api *api;
    accel *owner;
    nccl_comm *comm;
    bool is_abort;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool has_ended;
    bool is_abandoned; /* the thread frees this */
    void (*free)(void *block);
} nccl_ending;

struct backend_state {
    const comm_host *host;
    const nccl_api *api;
    backend_state *native;
    backend_group *groups;
    nccl_ending *endings;
    int n_works;        /* on device memory, not ended */
    uint64_t n_started; /* works on device memory so far */
};

/* --- nccl_group.c --- */

/* Takes over the work; it ends through host->done. */
void nccl_group_start(backend_group *g, backend_work *work);
bool nccl_group_progress(backend_group *g);
/* Ends all works and the communicator. */
void nccl_group_abort(backend_group *g, ls_status status, const char *text);
/* There are no works: begins to end the communicator. */
void nccl_group_close(backend_group *g);

/* --- nccl_calls.c --- */

/* Queues the operation; what NCCL answers. On failure of the accelerator *st is not LS_OK. */
int nccl_call(nccl_work *w, ls_status *st);

/* --- nccl_memory.c --- */

/* Memory of the accelerator's card; NULL: there is none, or the library has no allocator. */
void *nccl_memory_alloc(backend_state *s, accel *owner, size_t bytes);
/* On any card, from any thread. */
void nccl_memory_free(void *start);

/* False: the memory is not registered. No call of the communicator is in progress. */
bool nccl_memory_add(backend_group *g, accel *owner, void *start, size_t bytes);
/* Nothing if it is not registered. No operation on it is under way. */
void nccl_memory_remove(backend_group *g, const void *start);
/* Before the communicator ends; an abort ends the registrations by itself. */
void nccl_memory_end(backend_group *g, bool is_aborted);

/* --- nccl_ending.c --- */

/* Ends the communicator in a thread, by abort or after its operations; at most wait_ms are spent
 * waiting for the end. False: it has not ended yet; nccl_endings_join() waits again. An abort for
 * which there is no thread is made here. */
bool nccl_end(backend_state *s, accel *owner, nccl_comm *comm, bool is_abort, int64_t wait_ms);
/* Waits at most timeout_ms for those of the accelerator, NULL: for all; the threads that remain go
 * on alone. */
void nccl_endings_join(backend_state *s, const accel *owner, int64_t timeout_ms);

int64_t nccl_now_ns(void);

/* Calls of NCCL in this thread concern this accelerator. */
static inline void nccl_bind(accel *a)
{
    if (a->ops->bind != NULL)
        a->ops->bind(a);
}

#endif
