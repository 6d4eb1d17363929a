/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - process groups, and the collectives they run.
 *
 * A group is a fixed set of ranks. All of them start the same collectives in the same order.
 *
 * Ownership  A group belongs to its creator; groups are destroyed in any order. Buffers are
 *            borrowed until the operation is done.
 * Threads    One thread at a time uses a group; only ls_comm_abort() may be called from any thread,
 *            and ls_comm_destroy() while others wait in the group. One progress thread per job runs
 *            asynchronous operations; it sleeps when there are none.
 * Failure    The first failed collective breaks the group: pending and later operations fail with
 *            the same status and text. Destroy the group and create a new one. When a rank dies,
 *            every other rank's pending call fails within 1 s and names it; ranks that call
 *            different operations fail with a text that names both (LS_EMISMATCH): at once, or in
 *            the next operation of one that only gives (the root of a broadcast).
 * Bits       Reductions follow one fixed tree over the ranks: the result depends on the inputs and
 *            the number of ranks, never on algorithm, transport, piece size, timing or placement.
 *            fp16 and bf16 are added in float32 and rounded once. min and max give NaN where any
 *            rank has one.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>
#include <lockstep/store.h>

LS_BEGIN_DECLS

typedef struct ls_comm ls_comm;
typedef struct ls_work ls_work;

typedef enum ls_reduce_op {
    LS_SUM = 0,
    LS_AVG = 1, /* sum divided by the group's size; floating types only */
    LS_PROD = 2,
    LS_MIN = 3,
    LS_MAX = 4,
    LS_BAND = 5, /* bitwise and, or, exclusive or; integer types only */
    LS_BOR = 6,
    LS_BXOR = 7
} ls_reduce_op;
#define LS_REDUCE_OP_COUNT 8

/* --- joining --- */

/* How to join. Every field but `size` may be 0, which means the default. */
typedef struct ls_init_options {
    size_t size; /* sizeof(ls_init_options) */
    /* "auto" (default), "native", "mpi", "mpi:openmpi", "mpi:mpich", "nccl", "gloo":
     * docs/backends.md */
    const char *backend;
    /* "env://" (default), "tcp://HOST:PORT", "file://PATH" (a file that does not exist yet) */
    const char *init_method;
    int rank;              /* used when world_size > 0; required then by tcp:// and file:// */
    int world_size;        /* 0: taken from the environment */
    const char *transport; /* "auto" (default), "shm", "tcp"; default LOCKSTEP_TRANSPORT */
    /* default LOCKSTEP_KEY_FILE, else ~/.config/lockstep/key (made at first use) */
    const char *key_file;
    int insecure;            /* 1: allow a listener off loopback without a key */
    int64_t timeout_ms;      /* of each operation; default 1800 s, negative: none; the longest
                              * duration is 100 years, here and in other calls */
    int64_t join_timeout_ms; /* default 600 s */
    /* Joins through this store instead of init_method; needs rank and world_size. Borrowed until
     * the group is destroyed. */
    ls_store *store;
    /* Secret bytes (16 or more), the same on all ranks, instead of a key file; read in the call
     * only. Where a launcher hosts the rendezvous, its own key counts. */
    const void *key;
    size_t key_bytes;
} ls_init_options;

/* Joins the job and creates the group of all its ranks; `opt` may be NULL. With env:// rank and
 * size come from the first complete set of variables, in this order: LOCKSTEP_*, torchrun's
 * (including LOCAL_RANK), Open MPI's, PMIx and PMI, Slurm's inside a step, RANK + WORLD_SIZE +
 * MASTER_ADDR + MASTER_PORT. Without any of them the job is this one process. Blocks until every
 * rank has joined. LS_ETIMEOUT names the ranks that did not join; LS_EAUTH names the key file that
 * differs. In a join through a store rank 0 gets the failure of a rank that does not reach it, and
 * the key is options' `key`, that of `lockstep run` (LOCKSTEP_KEY_FD) or that of the key file. */
LS_API LS_MUST_USE ls_status ls_init(const ls_init_options *opt, ls_comm **out);

/* Checks whether ls_init() can use the backend `name` (as in ls_init_options; NULL: that of
 * LOCKSTEP_BACKEND) in a job of `ranks` ranks that are started like this process. A program that
 * starts ranks on several machines calls it before it starts them. The call loads the backend's
 * library, waits for no other process, and may be made from any thread. LS_EINVAL: there is no
 * backend of this name. LS_EUNSUPPORTED: the text says why, and which backends there are. */
LS_API LS_MUST_USE ls_status ls_backend_check(const char *name, int ranks);

/* Leaves a group and frees it; NULL is allowed. Pending operations fail with LS_ECANCELED; sends
 * already started are delivered first (within 5 s). Ranks that still wait for this rank get an
 * error that names it. The call does not wait for other ranks. Threads of this process that wait in
 * the group or for its handles get LS_ECANCELED, and this call returns after they have left; they
 * may use their handles afterwards, not the group. exit() does not wait for such threads. */
LS_API void ls_comm_destroy(ls_comm *comm);

/* Fails all pending and future operations of this group on all its ranks, with `reason` (may be
 * NULL) and this rank's number. Safe from any thread, at any time until ls_comm_destroy(). Calls
 * that wait fail, and functions of ls_work_then() are called on the progress thread, within 1 s. */
LS_API void ls_comm_abort(ls_comm *comm, const char *reason);

/* Creates sub-groups: ranks with the same color form one, ordered by (key, rank). A negative color
 * joins none and gives *out = NULL. Collective over `comm`; blocks. A failure on one rank fails the
 * call on all ranks, with its reason, and breaks `comm`; only NULL arguments fail on it alone. */
LS_API LS_MUST_USE ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **out);

/*
 * Creates a group of the parent's ranks `ranks` (n of them; rank i of the group is ranks[i]). Only
 * they call it, with the same list and name. The name distinguishes groups that are created at
 * the same time: 1 to 63 bytes, used again when all its members have returned. Blocks until all
 * members have called; the parent's other operations go on. Several threads may call it at once for
 * one parent, but none splits a group meanwhile. The group shares connections and progress thread
 * with the parent, and its timeout. timeout_ms: of this wait; 0: that of the parent's operations,
 * negative: none. LS_ETIMEOUT names the members that did not call, LS_EMISMATCH two members whose
 * lists differ, LS_EPEER a member that has left the job; the parent stays usable.
 */
LS_API LS_MUST_USE ls_status ls_comm_create_group(ls_comm *parent, const int *ranks, int n,
                                                  const char *name, int64_t timeout_ms,
                                                  ls_comm **out);

/* -1 for NULL. Local: among this group's ranks on this host, in rank order. */
LS_API int ls_comm_rank(const ls_comm *comm);
LS_API int ls_comm_size(const ls_comm *comm);
LS_API int ls_comm_local_rank(const ls_comm *comm);
LS_API int ls_comm_local_size(const ls_comm *comm);
/* "native", "mpi:openmpi", ...; "shm", "tcp", "shm+tcp", "mpi" (MPI chooses), "self". Static. */
LS_API const char *ls_comm_backend(const ls_comm *comm);
LS_API const char *ls_comm_transport(const ls_comm *comm);
/* LS_OK, or the status of a broken group; its text becomes this thread's last error. */
LS_API LS_MUST_USE ls_status ls_comm_status(ls_comm *comm);

/* The timeout of operations of this group that this rank starts from now on, also of its groups
 * that are created later. 0: that of ls_init_options; negative: none. NULL is allowed. */
LS_API void ls_comm_set_timeout(ls_comm *comm, int64_t timeout_ms);

/* A barrier that survives missing ranks: LS_ETIMEOUT names all of them, on every rank that has
 * come, and the group stays usable; a rank that comes later gets the same error at once. Blocks.
 * timeout_ms: 0: that of operations, negative: none. Slower than ls_barrier(). */
LS_API LS_MUST_USE ls_status ls_comm_monitored_barrier(ls_comm *comm, int64_t timeout_ms);

/* --- elastic jobs (lockstep run --elastic) without ls_ddp: see <lockstep/elastic.h> --- */

/* Reports that this process has the state of the training. Does nothing in another job. */
LS_API LS_MUST_USE ls_status ls_comm_report_state(ls_comm *comm);
/* 1: new processes wait until all ranks call ls_comm_rejoin(). Ranks get this answer at different
 * times. Asks the launcher every 50 ms at most; 0 when it does not answer. */
LS_API int ls_comm_is_called(ls_comm *comm);
/* Forms the group again with all living processes: `comm` stays valid, rank and size change. All
 * its handles are freed before; its sub-groups have failed. Blocks until all ranks have called it;
 * a rank that does not within LOCKSTEP_MEET_MS is left out, and gets LS_ECANCELED. A new process
 * (LOCKSTEP_NEW_MEMBER=1), alone in its group before, joins the others. LS_EUNSUPPORTED: the job is
 * not elastic. After a failure the group is broken. */
LS_API LS_MUST_USE ls_status ls_comm_rejoin(ls_comm *comm, int has_state);
LS_API LS_MUST_USE ls_status ls_comm_check_seat(ls_comm *comm); /* as ls_ddp_check_seat() */

/* --- what messages show --- */

#define LS_SITE_BYTES 40
/* Names the operations that this thread starts from now on in error texts, wait reports, the flight
 * recorder and --trace, instead of the address of the call: "train.py:41 [64,1024]". The text is
 * copied; at most 39 bytes are shown. NULL or "": the address again. */
LS_API void ls_comm_set_site(const char *text);

#define LS_STACK_BYTES 1536
/* Writes the stack of the program, terminated, to `text` (of LS_STACK_BYTES): a line for each call,
 * the innermost first. */
typedef void (*ls_stack_fn)(void *arg, char *text, size_t bytes);

/* Calls fn when other ranks have waited for this rank for LOCKSTEP_LATE_MS; the text is logged
 * behind their wait report. The thread is one of the library, "ls-stack", without locks: fn may not
 * call functions of the group. For all groups of this join; a later call replaces fn. NULL ends it:
 * the call returns when fn does not run, as does the destruction of the last group. */
LS_API LS_MUST_USE ls_status ls_comm_set_stack(ls_comm *comm, ls_stack_fn fn, void *arg);

/*
 * --- device memory ---
 *
 * All collectives and messages accept pointers into the memory of an accelerator, on every backend.
 * Both pointers of a call belong to one accelerator, and all ranks of a collective pass memory of
 * the same kind; a rank that has no data in a v-variant passes such a pointer all the same. The
 * operation starts after the work that the accelerator's compute queue has at the call.
 * ls_work_wait() and calls without a handle return when the result is in dst. The receiver of a
 * message may use another kind of memory than the sender.
 */

/* Further operations of this group on device memory start after the work of `queue` instead; NULL:
 * of the compute queue of each accelerator. The queue is borrowed until the next call. */
LS_API void ls_comm_set_queue(ls_comm *comm, ls_queue *queue);

/* --- memory that is reduced without copies --- */

/* Zeroed memory, aligned to 4096, shared with this host's ranks: reductions of it need no staging.
 * Any rank may call it alone. The memory outlives its group: when all groups of the join are
 * destroyed it is ordinary memory, which operations of another join copy. After an operation on it
 * has failed, other ranks may still write to the memory until they notice the failure: free it and
 * do not use it again. */
LS_API LS_MUST_USE ls_status ls_comm_alloc(ls_comm *comm, size_t bytes, void **out);
/* Frees memory of ls_comm_alloc() before or after the end of its group, from any thread, when no
 * operation on it is pending. NULL is allowed. */
LS_API void ls_memory_free(void *memory);
LS_API void ls_comm_free(ls_comm *comm, void *memory); /* The same; NULL is allowed for both. */

/*
 * --- collectives ---
 *
 * With out == NULL a call waits for the end of the operation; otherwise it starts the operation and
 * returns a handle that ls_work_wait() frees. Counts are elements. src == dst works in place where
 * both have the same size; for all_gather and gather in place means src == dst + rank * count, for
 * reduce_scatter and scatter dst == src + rank * count. Other overlaps are LS_EINVAL.
 */

/* dst[i] on every rank = op over all ranks of src[i]. */
LS_API LS_MUST_USE ls_status ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                                           ls_dtype type, ls_reduce_op op, ls_work **out);

/* As ls_all_reduce, but only `root` gets dst; it may be NULL elsewhere. */
LS_API LS_MUST_USE ls_status ls_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                                       ls_dtype type, ls_reduce_op op, int root, ls_work **out);

/* dst on every rank = src of `root`; other ranks' src is not read. */
LS_API LS_MUST_USE ls_status ls_broadcast(ls_comm *comm, const void *src, void *dst, size_t count,
                                          ls_dtype type, int root, ls_work **out);

/* dst (size * count) on every rank = all src (count each) in rank order. */
LS_API LS_MUST_USE ls_status ls_all_gather(ls_comm *comm, const void *src, void *dst, size_t count,
                                           ls_dtype type, ls_work **out);

/* As ls_all_gather, for `root` only. */
LS_API LS_MUST_USE ls_status ls_gather(ls_comm *comm, const void *src, void *dst, size_t count,
                                       ls_dtype type, int root, ls_work **out);

/* dst (count) = the rank-th part of root's src (size * count). */
LS_API LS_MUST_USE ls_status ls_scatter(ls_comm *comm, const void *src, void *dst, size_t count,
                                        ls_dtype type, int root, ls_work **out);

/* dst (count) = the rank-th part of the reduction of all src (size * count). */
LS_API LS_MUST_USE ls_status ls_reduce_scatter(ls_comm *comm, const void *src, void *dst,
                                               size_t count, ls_dtype type, ls_reduce_op op,
                                               ls_work **out);

/* Part r of src goes to rank r, part r of dst comes from rank r; `count` elements each. */
LS_API LS_MUST_USE ls_status ls_all_to_all(ls_comm *comm, const void *src, void *dst, size_t count,
                                           ls_dtype type, ls_work **out);

/* The same with a count (elements) for each rank; parts are contiguous in rank order. All ranks
 * pass the same counts[size], except to ls_all_to_all_v: there src_counts[r] must equal rank r's
 * dst_counts[this rank]. The arrays are copied. */
LS_API LS_MUST_USE ls_status ls_all_gather_v(ls_comm *comm, const void *src, void *dst,
                                             const size_t *counts, ls_dtype type, ls_work **out);
LS_API LS_MUST_USE ls_status ls_gather_v(ls_comm *comm, const void *src, void *dst,
                                         const size_t *counts, ls_dtype type, int root,
                                         ls_work **out);
LS_API LS_MUST_USE ls_status ls_scatter_v(ls_comm *comm, const void *src, void *dst,
                                          const size_t *counts, ls_dtype type, int root,
                                          ls_work **out);
LS_API LS_MUST_USE ls_status ls_reduce_scatter_v(ls_comm *comm, const void *src, void *dst,
                                                 const size_t *counts, ls_dtype type,
                                                 ls_reduce_op op, ls_work **out);
LS_API LS_MUST_USE ls_status ls_all_to_all_v(ls_comm *comm, const void *src,
                                             const size_t *src_counts, void *dst,
                                             const size_t *dst_counts, ls_dtype type,
                                             ls_work **out);

/* The same with a pointer for each rank, to parts of `count` elements in host memory. The list is
 * copied. Parts that follow each other in memory are used as they are, others are copied once. A
 * list that is not used (gather and scatter away from root) may be NULL. These match the calls
 * without "_list" on other ranks; ls_all_to_all_list() matches ls_all_to_all_v(). */
LS_API LS_MUST_USE ls_status ls_all_gather_list(ls_comm *comm, const void *src, void *const *dst,
                                                size_t count, ls_dtype type, ls_work **out);
LS_API LS_MUST_USE ls_status ls_gather_list(ls_comm *comm, const void *src, void *const *dst,
                                            size_t count, ls_dtype type, int root, ls_work **out);
LS_API LS_MUST_USE ls_status ls_scatter_list(ls_comm *comm, const void *const *src, void *dst,
                                             size_t count, ls_dtype type, int root, ls_work **out);
LS_API LS_MUST_USE ls_status ls_reduce_scatter_list(ls_comm *comm, const void *const *src,
                                                    void *dst, size_t count, ls_dtype type,
                                                    ls_reduce_op op, ls_work **out);
LS_API LS_MUST_USE ls_status ls_all_to_all_list(ls_comm *comm, const void *const *src,
                                                const size_t *src_counts, void *const *dst,
                                                const size_t *dst_counts, ls_dtype type,
                                                ls_work **out);

/* Returns when every rank has called it. */
LS_API LS_MUST_USE ls_status ls_barrier(ls_comm *comm, ls_work **out);

/* --- point to point --- */

#define LS_ANY_SOURCE (-1)
/* Messages of one (sender, receiver, tag) arrive in order. A receive whose count or type differs
 * from the message's fails on both sides. tag >= 0. A send may return before the message is
 * received; the buffer is then the caller's again. */
LS_API LS_MUST_USE ls_status ls_send(ls_comm *comm, const void *src, size_t count, ls_dtype type,
                                     int peer, int tag, ls_work **out);
LS_API LS_MUST_USE ls_status ls_recv(ls_comm *comm, void *dst, size_t count, ls_dtype type,
                                     int peer, int tag, ls_work **out);

/* --- handles --- */

/* As `out` of a call: this thread waits at once, by ls_work_wait() or ls_work_wait_for(), for the
 * operation that the call starts: the progress thread is not woken. The operation progresses in
 * calls of the library only, until a wait has timed out, or ls_work_test(), ls_work_then() or
 * ls_work_wait_on() has found it pending. For collectives and messages only. NULL gives NULL. */
LS_API ls_work **ls_work_waited(ls_work **out);

/* Waits, frees the handle and returns the status of the operation. */
LS_API LS_MUST_USE ls_status ls_work_wait(ls_work *work);

/* Makes later work of `queue` wait for the result of an operation on device memory, and frees the
 * handle. Blocks only as long as the host has part in the operation. A failure that comes later is
 * that of the group: see ls_comm_status(). After operations on host memory as ls_work_wait().
 * LS_EINVAL when the queue belongs to another accelerator than the memory; the handle stays. */
LS_API LS_MUST_USE ls_status ls_work_wait_on(ls_work *work, ls_queue *queue);

/* The end of an operation. */
typedef struct ls_work_end {
    ls_status status;
    const char *text; /* of a failure, "" otherwise; valid during the call */
    int source;       /* as ls_work_source() */
} ls_work_end;

typedef void (*ls_work_end_fn)(void *arg, const ls_work_end *end);

/* Calls fn once when the operation has ended, and frees the handle after fn has returned; until
 * then ls_work_set_timeout() may be called with it, and nothing else. The functions of a job are
 * called one after the other, without locks, on the progress thread; by this call if the operation
 * has ended and no function runs; by ls_comm_destroy(), with LS_ECANCELED, for what is pending; and
 * by calls that wait, where no thread can be started. fn may start operations, wait for them and
 * abort groups, but not destroy any. No other function is called inside it, so chains may have any
 * length. While it runs, other operations progress only in calls that wait, and other functions are
 * delayed: functions that wait do so in one order on all ranks. Its failures leave the handle. */
LS_API LS_MUST_USE ls_status ls_work_then(ls_work *work, ls_work_end_fn fn, void *arg);

/* Waits at most timeout_ms. LS_ETIMEOUT: still pending, the handle stays. Otherwise the operation
 * has ended with this status; the handle stays for ls_work_wait(). */
LS_API LS_MUST_USE ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms);

/* The operation times out so many milliseconds from now, in place of its own timeout; 0: at once,
 * negative: never. Does not block, and does nothing after its end. NULL is allowed. */
LS_API void ls_work_set_timeout(ls_work *work, int64_t timeout_ms);

/* 1 when the operation has ended, failed or not; does not block. NULL has ended. */
LS_API int ls_work_test(ls_work *work);

/* The sender of the message of a receive from LS_ANY_SOURCE; valid after the end. -1 for other
 * operations and for NULL. */
LS_API int ls_work_source(const ls_work *work);

LS_END_DECLS

#endif
