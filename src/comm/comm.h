/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - the functions of process groups for other layers, besides <lockstep/comm.h>.
 *
 * comm/: the layer's headers for others (this one) and for itself (engine.h, check.h). Other layers
 * also see record/recorder.h, backends/reduce.h and backends/native/team/algorithms.h.
 */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include <lockstep/comm.h>

#include "comm/join/environment.h"
#include "hub/collectives.h"

#include <stdbool.h>

/* Whether the reduction of this type exists: floating types have no bitwise operations, integers no
 * average. */
static inline bool reduce_is_defined(ls_reduce_op op, ls_dtype type)
{
    const bool is_float = type >= LS_F16;

    return op == LS_AVG ? is_float : op < LS_BAND || !is_float;
}

/* The ranks of the job that this process was started in, by its environment; 1 without a launcher.
 * For a process that has not called ls_init(). */
int comm_job_size(void);

/* of[r]: the number of the host of rank r of this group; hosts are numbered by their first ranks.
 * Returns how many there are: the same on all ranks. */
int comm_hosts(const ls_comm *comm, int *of);

/* Names the next operation of this group ("bucket 3/7") in stamps, wait reports and errors, which
 * otherwise show the call site. At most 39 bytes are stored. */
void comm_label(ls_comm *comm, const char *label);

/* The arguments of any operation. */
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
    const void *const *src_parts; /* instead of src: a pointer for each rank; NULL: none */
    void *const *dst_parts;
} coll_call;

/* Any operation, as its public function. */
LS_MUST_USE ls_status comm_call(ls_comm *comm, const coll_call *call, ls_work **out);

/* ls_all_reduce() of LS_AVG in place, with `divisor` (not 0, equal on all ranks) for the size. */
LS_MUST_USE ls_status comm_average(ls_comm *comm, void *data, size_t count, ls_dtype type,
                                   double divisor, ls_work **out);

struct accel;

/* Memory of an accelerator for comm_add_memory() from the backend's own allocator, which NCCL has:
 * aligned to at least 256 bytes, with undefined contents. NULL: there is none, or no memory; that
 * of the accelerator can be added as well. */
void *comm_alloc_memory(ls_comm *comm, struct accel *owner, size_t bytes);
/* Frees it, after comm_remove_memory(), also when the group is gone. False: the memory is neither
 * of comm_alloc_memory() nor of ls_comm_alloc(). */
bool comm_free_memory(void *memory);

/*
 * Operations of this group will use this memory, which was just allocated, often. A backend that
 * can (docs/backends.md) registers memory of an accelerator, on all ranks or on none, which makes
 * the operations faster, never different. Collective; blocks; the contents are undefined
 * afterwards. From then on all ranks pass such memory to the same operations. Nothing for host
 * memory. Fails if the group fails, and the memory is then not registered; not if the memory cannot
 * be registered.
 */
LS_MUST_USE ls_status comm_add_memory(ls_comm *comm, void *memory, size_t bytes);
/* Before the memory and the group are freed, when no operation on the memory is pending. Waits for
 * the work of the accelerator. NULL, and memory that was not added, are allowed. */
void comm_remove_memory(ls_comm *comm, void *memory);

/* Records a phase of this rank ("backward") in the flight recorder; times of ls_now_ns(). */
void comm_phase(ls_comm *comm, const char *name, int64_t start_ns, int64_t end_ns);

/* The work that `queue` of a device receives from now on is that of phase `name` (a constant; NULL:
 * of none), until the next call: with `lockstep run --trace` the flight recorder gets the times at
 * which the device begins and ends it. Never blocks. Does nothing without --trace, or when `queue`
 * is NULL (ls_device_queue() of a host device). */
void comm_device_phase(ls_comm *comm, ls_queue *queue, const char *name);

/* Records an activity during which this rank must not exit ("saving step 40 to FILE"), until the
 * next call; NULL: none. Lockstep's launcher treats any exit during it as a failure. */
void comm_activity(ls_comm *comm, const char *text);

/* Whether the launcher has asked this rank to leave the job, which goes on without it. */
bool comm_is_leaving(const ls_comm *comm);

/* The last operations of this process, of all groups, as recorder_read() gives them. */
struct recorder_entry;
LS_MUST_USE ls_status comm_operations(const ls_comm *comm, struct recorder_entry *out, int max,
                                      int *n);

/* Records how far this rank is, for `lockstep top`. Never blocks on other ranks. */
struct recorder_progress;
void comm_progress(ls_comm *comm, const struct recorder_progress *progress);

/* --- elastic jobs (lockstep run --elastic): seat.c --- */

/* Whether the group is that of all ranks of an elastic job. */
bool comm_is_elastic(const ls_comm *comm);
/* Whether this process was started in the place of a dead one and has not called ls_comm_rejoin()
 * yet: its group is itself alone until then. */
bool comm_is_new(const ls_comm *comm);

/* ls_init() with the caller's variables: the threads of one process can then be several ranks. */
LS_MUST_USE ls_status comm_init_in(const comm_env *env, const ls_init_options *opt, ls_comm **out);

#endif
