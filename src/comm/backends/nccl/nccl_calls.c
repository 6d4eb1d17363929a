/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_calls.c - one operation as calls of NCCL, in the communication queue of its accelerator, for
 * nccl_group.c. What NCCL lacks (gather, scatter, all_to_all, counts by rank) is a group of sends,
 * receives, broadcasts or reductions.
 */
#include "comm/backends/nccl/nccl_backend.h"

#include "comm/backends/external/compose.h"

static const int types[LS_DTYPE_COUNT] = {
    [LS_I8] = NCCL_INT8,     [LS_U8] = NCCL_UINT8,    [LS_I32] = NCCL_INT32,
    [LS_I64] = NCCL_INT64,   [LS_F16] = NCCL_FLOAT16, [LS_BF16] = NCCL_BFLOAT16,
    [LS_F32] = NCCL_FLOAT32, [LS_F64] = NCCL_FLOAT64,
};

static const int ops[] = {[LS_SUM] = NCCL_SUM,
                          [LS_AVG] = NCCL_AVG,
                          [LS_PROD] = NCCL_PROD,
                          [LS_MIN] = NCCL_MIN,
                          [LS_MAX] = NCCL_MAX};

static void *stream_of(const nccl_work *w)
{
    return accel_queue(w->owner, ACCEL_COMMUNICATION)->native;
}

/* --- parts of buffers that are divided by rank --- */

typedef struct part {
    char *at;
    size_t count;
} part;

static part part_of(const nccl_work *w, const void *buffer, const size_t *counts, int rank)
{
    const coll *op = &w->work->op;
    size_t before = op->count * (size_t)rank;

    if (counts != NULL) {
        before = 0;
        for (int r = 0; r < rank; r++)
            before += counts[r];
    }
    return (part){(char *)(uintptr_t)buffer + before * compose_size(op->dtype),
                  counts != NULL ? counts[rank] : op->count};
}

/* A part that is sent and received by this rank where it is needs no message. */
static bool is_there(const nccl_work *w, const part *out, const part *in, int rank)
{
    return rank == w->group->info->rank && out->at == in->at;
}

static int send_part(const nccl_work *w, const part *p, int to)
{
    const backend_group *g = w->group;

    return p->count == 0 ? NCCL_SUCCESS
                         : g->state->api->send(p->at, p->count, types[w->work->op.dtype], to,
                                               g->comm, stream_of(w));
}

static int recv_part(const nccl_work *w, const part *p, int from)
{
    const backend_group *g = w->group;

    return p->count == 0 ? NCCL_SUCCESS
                         : g->state->api->recv(p->at, p->count, types[w->work->op.dtype], from,
                                               g->comm, stream_of(w));
}

static bool is_failure(int rc)
{
    return rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS;
}

/* Between the start and the end of a group. */
typedef int (*group_fn)(const nccl_work *w);

static int in_group(const nccl_work *w, group_fn calls)
{
    const nccl_api *api = w->group->state->api;
    int rc = api->group_start();
    int end;

    if (is_failure(rc))
        return rc;
    rc = calls(w);
    end = api->group_end();
    return is_failure(rc) ? rc : end;
}

/* gather and scatter: root has a part for each rank, in `all`, every rank one of its own. */
static int call_rooted(const nccl_work *w, const void *own, const void *all, const size_t *counts)
{
    const coll *op = &w->work->op;
    const int me = w->group->info->rank;
    const bool is_gather = coll_divides_dst(op->kind);
    const part mine = {(char *)(uintptr_t)own, counts != NULL ? counts[me] : op->count};
    const part here = part_of(w, all, counts, me);
    int rc = NCCL_SUCCESS;

    if (me != op->root || !is_there(w, &mine, &here, me))
        rc = is_gather ? send_part(w, &mine, op->root) : recv_part(w, &mine, op->root);
    for (int r = 0; me == op->root && r < w->group->info->size && !is_failure(rc); r++) {
        const part p = part_of(w, all, counts, r);

        if (!is_there(w, &mine, &p, r))
            rc = is_gather ? recv_part(w, &p, r) : send_part(w, &p, r);
    }
    return rc;
}

static int call_gather(const nccl_work *w)
{
    return call_rooted(w, w->work->op.src, w->work->op.dst, w->work->op.dst_counts);
}

static int call_scatter(const nccl_work *w)
{
    return call_rooted(w, w->work->op.dst, w->work->op.src, w->work->op.src_counts);
}

static int call_all_to_all(const nccl_work *w)
{
    const coll *op = &w->work->op;
    const void *src = w->copy != NULL ? w->copy : op->src;
    int rc = NCCL_SUCCESS;

    for (int r = 0; r < w->group->info->size && !is_failure(rc); r++) {
        const part out = part_of(w, src, op->src_counts, r);
        const part in = part_of(w, op->dst, op->dst_counts, r);

        rc = send_part(w, &out, r);
        if (!is_failure(rc))
            rc = recv_part(w, &in, r);
    }
    return rc;
}

static int call_all_gather_v(const nccl_work *w)
{
    const coll *op = &w->work->op;
    const backend_group *g = w->group;
    int rc = NCCL_SUCCESS;

    for (int r = 0; r < g->info->size && !is_failure(rc); r++) {
        const part in = part_of(w, op->dst, op->dst_counts, r);

        if (in.count > 0)
            rc = g->state->api->broadcast(r == g->info->rank ? op->src : in.at, in.at, in.count,
                                          types[op->dtype], r, g->comm, stream_of(w));
    }
    return rc;
}

static int reduction_of(const nccl_work *w)
{
    return w->scaled >= 0 ? w->scaled : ops[w->work->op.redop];
}

static int call_reduce_scatter_v(const nccl_work *w)
{
    const coll *op = &w->work->op;
    const backend_group *g = w->group;
    int rc = NCCL_SUCCESS;

    for (int r = 0; r < g->info->size && !is_failure(rc); r++) {
        const part out = part_of(w, op->src, op->src_counts, r);

        if (out.count > 0)
            rc = g->state->api->reduce(out.at, op->dst, out.count, types[op->dtype],
                                       reduction_of(w), r, g->comm, stream_of(w));
    }
    return rc;
}

/* --- averages --- */

/* NCCL divides by the number of ranks only; for another divisor each contribution is multiplied. */
static int create_scaled_sum(nccl_work *w)
{
    const coll *op = &w->work->op;
    const backend_group *g = w->group;
    const double factor = 1 / op->divisor;
    const float narrow = (float)factor;
    union {
        double f64;
        float f32;
        uint16_t half;
    } scalar = {.f64 = factor};

    if (op->dtype == LS_F32)
        scalar.f32 = narrow;
    else if (op->dtype != LS_F64)
        g->state->host->reduce(&scalar.half, &(reduce_operand){&narrow, 0, 1, true}, 1, 1,
                               op->dtype, LS_SUM, true, 1);
    return g->state->api->create_scaled_sum(&w->scaled, &scalar, types[op->dtype],
                                            NCCL_SCALAR_ON_HOST, g->comm);
}

static bool is_scaled(const nccl_work *w)
{
    const coll *op = &w->work->op;

    return op->kind == COLL_ALL_REDUCE && op->redop == LS_AVG &&
           op->divisor != w->group->info->size;
}

/* --- the calls --- */

/* In place NCCL would overwrite parts before it has sent them. */
static ls_status copy_source(nccl_work *w)
{
    const coll *op = &w->work->op;
    const part last = part_of(w, op->src, op->src_counts, w->group->info->size - 1);
    const size_t bytes =
        (size_t)(last.at - (const char *)op->src) + last.count * compose_size(op->dtype);

    if (!coll_is_pairwise(op->kind) || op->src != op->dst || bytes == 0)
        return LS_OK;
    w->copy = w->owner->ops->alloc(w->owner, bytes);
    if (w->copy == NULL)
        return comm_host_fail(w->group->state->host, LS_ENOMEM,
                              "no memory on %s for %s in place of %zu bytes", w->owner->name,
                              coll_name(op->kind), bytes);
    return w->owner->ops->copy(accel_queue(w->owner, ACCEL_COMMUNICATION), w->copy, op->src, bytes,
                               ACCEL_ON_DEVICE);
}

static int call_one(const nccl_work *w)
{
    const coll *op = &w->work->op;
    const backend_group *g = w->group;
    const nccl_api *api = g->state->api;
    const int type = types[op->dtype];
    void *stream = stream_of(w);

    switch (op->kind) {
    case COLL_ALL_REDUCE:
        return api->all_reduce(op->src, op->dst, op->count, type, reduction_of(w), g->comm, stream);
    case COLL_REDUCE:
        return api->reduce(op->src, op->dst, op->count, type, reduction_of(w), op->root, g->comm,
                           stream);
    case COLL_BROADCAST:
        return api->broadcast(op->src, op->dst, op->count, type, op->root, g->comm, stream);
    case COLL_ALL_GATHER:
        return op->dst_counts != NULL
                   ? in_group(w, call_all_gather_v)
                   : api->all_gather(op->src, op->dst, op->count, type, g->comm, stream);
    case COLL_REDUCE_SCATTER:
        return op->src_counts != NULL ? in_group(w, call_reduce_scatter_v)
                                      : api->reduce_scatter(op->src, op->dst, op->count, type,
                                                            reduction_of(w), g->comm, stream);
    case COLL_GATHER:
        return in_group(w, call_gather);
    case COLL_SCATTER:
        return in_group(w, call_scatter);
    default:
        return in_group(w, call_all_to_all);
    }
}

int nccl_call(nccl_work *w, ls_status *st)
{
    int rc;

    nccl_bind(w->owner);
    *st = copy_source(w);
    if (*st != LS_OK)
        return NCCL_SUCCESS;
    if (is_scaled(w)) {
        rc = create_scaled_sum(w);
        if (rc != NCCL_SUCCESS)
            return rc;
    }
    return call_one(w);
}
