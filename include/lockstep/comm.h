/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - process groups, and the collectives they run.
 *
 * A group is a fixed set of ranks that start the same collectives in the same order.
 *
 * Ownership  A group belongs to its creator; sub-groups are destroyed before the group they came from. Buffers are
 *            borrowed until the operation is done.
 * Threads    One thread at a time per group; only ls_comm_abort() may come from any thread. Asynchronous operations
 *            are carried on by one progress thread a process, asleep when there is nothing to do.
 * Failure    The first failed collective breaks the group: what is pending and whatever comes later fails with the
 *            same status and text. Destroy the group and make a new one. A rank that dies fails every other rank's
 *            pending call within 1 s, by name; ranks that disagree fail at once with both sides named (LS_EMISMATCH).
 * Bits       Reductions follow one fixed tree over the ranks: the result depends on the inputs and the number of
 *            ranks, never on algorithm, transport, piece size, timing or placement. fp16 and bf16 are added in
 *            float32 and rounded once. min and max give NaN where any rank has one.
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
    LS_MAX = 4
} ls_reduce_op;
#define LS_REDUCE_OP_COUNT 5

/* --- joining --- */

/* How to join. Every field but `size` may be 0, which means the default. */
typedef struct ls_init_options {
    size_t size; /* sizeof(ls_init_options) */
    /* "auto" (default), "native", "mpi", "mpi:openmpi", "mpi:mpich", "gloo": docs/backends.md */
    const char *backend;
    /* "env://" (default), "tcp://HOST:PORT", "file://PATH" (a file that does not exist yet) */
    const char *init_method;
    int rank;              /* used when world_size > 0; required then by tcp:// and file:// */
    int world_size;        /* 0: from the environment */
    const char *transport; /* "auto" (default), "shm", "tcp"; default LOCKSTEP_TRANSPORT */
    /* default LOCKSTEP_KEY_FILE, else ~/.config/lockstep/key (made at first use) */
    const char *key_file;
    int insecure;            /* 1: allow a listener off loopback without a key */
    int64_t timeout_ms;      /* of each operation; default 1800 s, negative: none */
    int64_t join_timeout_ms; /* default 600 s */
    /* joins through this store instead of init_method; needs rank and world_size; borrowed until
     * the group is destroyed */
    ls_store *store;
} ls_init_options;

/*
 * Joins the job and gives the group of all its ranks; `opt` may be NULL. With env:// the place in
 * the job comes from, in this order: LOCKSTEP_*, torchrun's variables (complete with LOCAL_RANK),
 * Open MPI's, PMIx and PMI, Slurm's inside a step, RANK + WORLD_SIZE + MASTER_ADDR + MASTER_PORT;
 * with none of them the job is this one process. Blocks until every rank has joined. LS_ETIMEOUT
 * names the ranks that did not come; LS_EAUTH says which key file differs.
 */
LS_API LS_MUST_USE ls_status ls_init(const ls_init_options *opt, ls_comm **out);

/*
 * Finds out before any rank waits for another one whether ls_init() can use the backend `name` (as
 * in ls_init_options; NULL: that of LOCKSTEP_BACKEND) in a job of `ranks` ranks that are started as
 * this process is. A program that starts ranks on several machines calls it first. It loads the
 * backend's library, waits for no other process, and may be called from any thread. LS_EINVAL:
 * there is no backend of this name. LS_EUNSUPPORTED: says why, and which backends there are.
 */
LS_API LS_MUST_USE ls_status ls_backend_check(const char *name, int ranks);

/*
 * Leaves a group and frees it; NULL is allowed. What is pending fails with LS_ECANCELED; sends
 * already started are delivered first (bounded by 5 s). Ranks still waiting for this one get an
 * error naming it. Blocks shortly, needs no other rank.
 */
LS_API void ls_comm_destroy(ls_comm *comm);

/* Fails all pending and future operations of this group, on every rank of it: `reason` (may be
 * NULL) reaches them, with this rank's number. Safe from any thread, at any time until
 * ls_comm_destroy(). */
LS_API void ls_comm_abort(ls_comm *comm, const char *reason);

/* Makes sub-groups: ranks with the same color form one, ordered by (key, rank). A negative color
 * joins none and gives *out = NULL. Collective over `comm`; blocks. Where it fails on one rank it
 * fails on all, with that rank's reason, and `comm` is broken; only NULL arguments fail the call
 * alone. */
LS_API LS_MUST_USE ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **out);

/* The two ranks of NULL are -1. */
LS_API int ls_comm_rank(const ls_comm *comm);
LS_API int ls_comm_size(const ls_comm *comm);
LS_API int
ls_comm_local_rank(const ls_comm *comm); /* among this group's ranks on this host, by rank */
LS_API int ls_comm_local_size(const ls_comm *comm);
LS_API const char *ls_comm_backend(const ls_comm *comm); /* "native", "mpi:openmpi", ... Static. */
LS_API const char *ls_comm_transport(
    const ls_comm *comm); /* "shm", "tcp", "shm+tcp", "mpi" (MPI chooses), "self". Static. */
/* LS_OK, or why the group is broken; its text becomes this thread's last error. */
LS_API LS_MUST_USE ls_status ls_comm_status(ls_comm *comm);

/* --- memory that is reduced without copies --- */

/* Zeroed memory, aligned to 4096, shared with this host's ranks: operations on it need no staging.
 * Free it with ls_comm_free() before the group is destroyed. Any rank may call it alone. After an
 * operation on it has failed, ranks that have not heard of that yet may still write to it: it is
 * then to be freed, and not used again. */
LS_API LS_MUST_USE ls_status ls_comm_alloc(ls_comm *comm, size_t bytes, void **out);
LS_API void ls_comm_free(ls_comm *comm, void *memory); /* NULL is allowed */

/* --- collectives ---
 *
 * With out == NULL each waits for its end; else it starts the operation and gives a handle that ls_work_wait() frees.
 * Counts are elements. src == dst works in place where both have the same size; for all_gather and gather in place
 * means src == dst + rank * count, for reduce_scatter and scatter dst == src + rank * count. Other overlaps are LS_EINVAL.
 */

/* dst[i] on every rank = op over all ranks of src[i]. */
LS_API LS_MUST_USE ls_status ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                                           ls_dtype type, ls_reduce_op op, ls_work **out);

/* As ls_all_reduce, but only `root` gets dst; it may be NULL elsewhere. */
LS_API LS_MUST_USE ls_status ls_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                                       ls_dtype type, ls_reduce_op op, int root, ls_work **out);

/* dst on every rank = src of `root`; src is looked at only there. */
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

/* The same with counts (elements) of their own for each rank; parts lie back to back in rank order.
 * All ranks give the same counts[size], except ls_all_to_all_v: there src_counts[r] must equal rank
 * r's dst_counts[this rank]. The arrays are copied. */
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

/* Returns when every rank has called it. */
LS_API LS_MUST_USE ls_status ls_barrier(ls_comm *comm, ls_work **out);

/* --- point to point --- */

#define LS_ANY_SOURCE (-1)

/* Messages of one (sender, receiver, tag) arrive in order. A receive of other count or type than
 * the message fails on both sides. tag >= 0. A send may return before the receiver has it; the
 * buffer is then the caller's again. */
LS_API LS_MUST_USE ls_status ls_send(ls_comm *comm, const void *src, size_t count, ls_dtype type,
                                     int peer, int tag, ls_work **out);
LS_API LS_MUST_USE ls_status ls_recv(ls_comm *comm, void *dst, size_t count, ls_dtype type,
                                     int peer, int tag, ls_work **out);

/* --- handles --- */

/* Waits, frees the handle, returns how the operation ended. */
LS_API LS_MUST_USE ls_status ls_work_wait(ls_work *work);

/* Waits at most timeout_ms. LS_ETIMEOUT: still pending, the handle stays. Otherwise the operation
 * has ended with this status; the handle stays for ls_work_wait(). */
LS_API LS_MUST_USE ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms);

/* 1 when the operation has ended (well or not), without blocking. NULL has ended. */
LS_API int ls_work_test(ls_work *work);

/* The rank an any-source receive got its message from; valid after the end, -1 for other operations
 * and for NULL. */
LS_API int ls_work_source(const ls_work *work);

LS_END_DECLS

#endif
