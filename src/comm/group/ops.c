/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - the public operations (lockstep/comm.h): each becomes a coll_call for the engine. */
#include "comm/comm.h"
#include "comm/engine.h"

#define NO_ROOT (-1)

/* The address of a handle is even: the lowest bit marks what ls_work_waited() has returned. */
static bool is_waited(ls_work *const *out)
{
    return ((uintptr_t)out & 1) != 0;
}

ls_work **ls_work_waited(ls_work **out)
{
    return out == NULL || is_waited(out) ? out : (ls_work **)(void *)((char *)out + 1);
}

/* Where the handle goes, without the mark; NULL: there is none. */
static ls_work **begin_out(ls_work **out)
{
    ls_work **const at = is_waited(out) ? (ls_work **)(void *)((char *)out - 1) : out;

    if (at != NULL)
        *at = NULL;
    return at;
}

/* A call that starts nothing. */
static ls_status refuse(const coll_call *c, const char *why)
{
    return ls_fail(LS_EINVAL, "%s%s", coll_name(c->kind), why);
}

static ls_status run(ls_comm *comm, const coll_call *c, const void *site, ls_work **out)
{
    ls_work **const at = begin_out(out);

    if (comm == NULL)
        return refuse(c, ": comm is NULL");
    return engine_run(comm, c, site, is_waited(out), at);
}

/* The v-variants: without counts the description would be that of another operation. */
static ls_status run_v(ls_comm *comm, const coll_call *op, const void *site, ls_work **out)
{
    (void)begin_out(out);
    if ((coll_divides_src(op->kind) && op->src_counts == NULL) ||
        (coll_divides_dst(op->kind) && op->dst_counts == NULL))
        return refuse(op, "_v: counts is NULL");
    return run(comm, op, site, out);
}

/* The fields that most operations have. */
static inline coll_call describe(coll_kind kind, const void *src, void *dst, size_t count,
                                 ls_dtype type)
{
    return (coll_call){
        .kind = kind, .dtype = type, .root = NO_ROOT, .src = src, .dst = dst, .count = count};
}

ls_status comm_call(ls_comm *comm, const coll_call *call, ls_work **out)
{
    return run(comm, call, __builtin_return_address(0), out);
}

ls_status ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                        ls_reduce_op op, ls_work **out)
{
    coll_call c = describe(COLL_ALL_REDUCE, src, dst, count, type);

    c.redop = op;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status comm_average(ls_comm *comm, void *data, size_t count, ls_dtype type, double divisor,
                       ls_work **out)
{
    coll_call c = describe(COLL_ALL_REDUCE, data, data, count, type);

    c.redop = LS_AVG;
    c.divisor = divisor;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_reduce(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                    ls_reduce_op op, int root, ls_work **out)
{
    coll_call c = describe(COLL_REDUCE, src, dst, count, type);

    c.redop = op;
    c.root = root;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_broadcast(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                       int root, ls_work **out)
{
    coll_call c = describe(COLL_BROADCAST, src, dst, count, type);

    c.root = root;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_all_gather(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                        ls_work **out)
{
    const coll_call c = describe(COLL_ALL_GATHER, src, dst, count, type);

    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_gather(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                    int root, ls_work **out)
{
    coll_call c = describe(COLL_GATHER, src, dst, count, type);

    c.root = root;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_scatter(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                     int root, ls_work **out)
{
    coll_call c = describe(COLL_SCATTER, src, dst, count, type);

    c.root = root;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_reduce_scatter(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                            ls_reduce_op op, ls_work **out)
{
    coll_call c = describe(COLL_REDUCE_SCATTER, src, dst, count, type);

    c.redop = op;
    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_all_to_all(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                        ls_work **out)
{
    const coll_call c = describe(COLL_ALL_TO_ALL, src, dst, count, type);

    return run(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_all_gather_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                          ls_dtype type, ls_work **out)
{
    coll_call c = describe(COLL_ALL_GATHER, src, dst, 0, type);

    c.dst_counts = counts;
    return run_v(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_gather_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                      ls_dtype type, int root, ls_work **out)
{
    coll_call c = describe(COLL_GATHER, src, dst, 0, type);

    c.root = root;
    c.dst_counts = counts;
    return run_v(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_scatter_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                       ls_dtype type, int root, ls_work **out)
{
    coll_call c = describe(COLL_SCATTER, src, dst, 0, type);

    c.root = root;
    c.src_counts = counts;
    return run_v(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_reduce_scatter_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                              ls_dtype type, ls_reduce_op op, ls_work **out)
{
    coll_call c = describe(COLL_REDUCE_SCATTER, src, dst, 0, type);

    c.redop = op;
    c.src_counts = counts;
    return run_v(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_all_to_all_v(ls_comm *comm, const void *src, const size_t *src_counts, void *dst,
                          const size_t *dst_counts, ls_dtype type, ls_work **out)
{
    coll_call c = describe(COLL_ALL_TO_ALL, src, dst, 0, type);

    c.src_counts = src_counts;
    c.dst_counts = dst_counts;
    return run_v(comm, &c, __builtin_return_address(0), out);
}

/* --- a pointer for each rank --- */

static ls_status run_list(ls_comm *comm, const coll_call *c, bool has_list, const void *site,
                          ls_work **out)
{
    (void)begin_out(out);
    if (!has_list && comm != NULL && (c->root < 0 || c->root == comm->info.rank))
        return refuse(c, "_list: the list of parts is NULL");
    return run(comm, c, site, out);
}

ls_status ls_all_gather_list(ls_comm *comm, const void *src, void *const *dst, size_t count,
                             ls_dtype type, ls_work **out)
{
    coll_call c = describe(COLL_ALL_GATHER, src, NULL, count, type);

    c.dst_parts = dst;
    return run_list(comm, &c, dst != NULL, __builtin_return_address(0), out);
}

ls_status ls_gather_list(ls_comm *comm, const void *src, void *const *dst, size_t count,
                         ls_dtype type, int root, ls_work **out)
{
    coll_call c = describe(COLL_GATHER, src, NULL, count, type);

    c.root = root;
    c.dst_parts = dst;
    return run_list(comm, &c, dst != NULL, __builtin_return_address(0), out);
}

ls_status ls_scatter_list(ls_comm *comm, const void *const *src, void *dst, size_t count,
                          ls_dtype type, int root, ls_work **out)
{
    coll_call c = describe(COLL_SCATTER, NULL, dst, count, type);

    c.root = root;
    c.src_parts = src;
    return run_list(comm, &c, src != NULL, __builtin_return_address(0), out);
}

ls_status ls_reduce_scatter_list(ls_comm *comm, const void *const *src, void *dst, size_t count,
                                 ls_dtype type, ls_reduce_op op, ls_work **out)
{
    coll_call c = describe(COLL_REDUCE_SCATTER, NULL, dst, count, type);

    c.redop = op;
    c.src_parts = src;
    return run_list(comm, &c, src != NULL, __builtin_return_address(0), out);
}

ls_status ls_all_to_all_list(ls_comm *comm, const void *const *src, const size_t *src_counts,
                             void *const *dst, const size_t *dst_counts, ls_dtype type,
                             ls_work **out)
{
    coll_call c = describe(COLL_ALL_TO_ALL, NULL, NULL, 0, type);

    c.src_parts = src;
    c.dst_parts = dst;
    c.src_counts = src_counts;
    c.dst_counts = dst_counts;
    if (src == NULL || dst == NULL || src_counts == NULL || dst_counts == NULL)
        return run_list(comm, &c, false, __builtin_return_address(0), out);
    return run_v(comm, &c, __builtin_return_address(0), out);
}

ls_status ls_barrier(ls_comm *comm, ls_work **out)
{
    return run(comm, &(coll_call){.kind = COLL_BARRIER, .root = NO_ROOT},
               __builtin_return_address(0), out);
}

ls_status ls_send(ls_comm *comm, const void *src, size_t count, ls_dtype type, int peer, int tag,
                  ls_work **out)
{
    return run(
        comm,
        &(coll_call){
            .kind = COLL_SEND, .dtype = type, .root = peer, .tag = tag, .src = src, .count = count},
        __builtin_return_address(0), out);
}

ls_status ls_recv(ls_comm *comm, void *dst, size_t count, ls_dtype type, int peer, int tag,
                  ls_work **out)
{
    return run(
        comm,
        &(coll_call){
            .kind = COLL_RECV, .dtype = type, .root = peer, .tag = tag, .dst = dst, .count = count},
        __builtin_return_address(0), out);
}
