/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation as MPI requests.
 *
 * MPI counts in int: longer buffers are reduced and broadcast in pieces, and what is cut by rank goes as messages, whose
 * types may be long. Variants with counts are messages as well, for their ranks need not agree on how long the whole is.
 * MPI asks that either all ranks work in place or none does, which nobody asks of our callers: so the group does.
 */
#include "comm/mpi/mpi_backend.h"

#include <string.h>

#define NO_ROOT (-1)
#define APART_RANKS                                                                                \
    4 /* from here on Open MPI has a better all-reduce for ranks that are not in place */
#define APART_BYTES 65536

static const comm_host *the_host; // MPI's callbacks have no argument

/* --- types and reductions --- */

static size_t size_of(ls_dtype type)
{
    static const size_t sizes[] = {[LS_I8] = 1,  [LS_U8] = 1,   [LS_I32] = 4, [LS_I64] = 8,
                                   [LS_F16] = 2, [LS_BF16] = 2, [LS_F32] = 4, [LS_F64] = 8};

    return sizes[type];
}

static bool is_half(ls_dtype type)
{
    return type == LS_F16 || type == LS_BF16;
}

MPI_Datatype mpi_call_type(ls_dtype type)
{
    switch (size_of(type)) {
    case 1:
        return MPI_UINT8_T;
    case 2:
        return MPI_UINT16_T;
    case 4:
        return MPI_UINT32_T;
    default:
        return MPI_UINT64_T;
    }
}

/* As what it is reduced: fp16 and bf16 as float32, so that they are rounded once. */
static MPI_Datatype reduced_type(ls_dtype type)
{
    switch (type) {
    case LS_I8:
        return MPI_INT8_T;
    case LS_U8:
        return MPI_UINT8_T;
    case LS_I32:
        return MPI_INT32_T;
    case LS_I64:
        return MPI_INT64_T;
    case LS_F64:
        return MPI_DOUBLE;
    default:
        return MPI_FLOAT;
    }
}

static size_t reduced_size(ls_dtype type)
{
    return is_half(type) ? sizeof(float) : size_of(type);
}

/*
 * Our own arithmetic where MPI's is not what comm.h promises: sums of bytes saturate in Open MPI 4.1, MPICH 4.0 compares
 * uint8 with a sign, and a minimum of floats may lose a NaN.
 */
static MPI_Op reduction(const mpi_job *j)
{
    static const MPI_Op standard[] = {
        [LS_SUM] = MPI_SUM, [LS_PROD] = MPI_PROD, [LS_MIN] = MPI_MIN, [LS_MAX] = MPI_MAX};
    const coll *op = &j->work->op;
    const ls_reduce_op redop = op->redop == LS_AVG ? LS_SUM : op->redop;
    const bool is_float = op->dtype >= LS_F16;
    const bool is_own =
        size_of(op->dtype) == 1 || (is_float && (redop == LS_MIN || redop == LS_MAX));

    return is_own ? j->group->state->own[redop] : standard[redop];
}

static ls_dtype type_of(MPI_Datatype type)
{
    if (type == MPI_INT8_T)
        return LS_I8;
    if (type == MPI_UINT8_T)
        return LS_U8;
    return type == MPI_DOUBLE ? LS_F64 : LS_F32;
}

static void combine(void *in, void *inout, const int *count, const MPI_Datatype *type,
                    ls_reduce_op op)
{
    const reduce_operand both[2] = {{in, 0, 1, true}, {inout, 1, 1, true}};

    the_host->reduce(inout, both, 2, (size_t)*count, type_of(*type), op, false, 1);
}

static void own_sum(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(in, inout, count, type, LS_SUM);
}

static void own_prod(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(in, inout, count, type, LS_PROD);
}

static void own_min(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(in, inout, count, type, LS_MIN);
}

static void own_max(void *in, void *inout, int *count, MPI_Datatype *type)
{
    combine(in, inout, count, type, LS_MAX);
}

int mpi_call_make_ops(backend_state *s)
{
    static MPI_User_function *const functions[] = {
        [LS_SUM] = own_sum, [LS_PROD] = own_prod, [LS_MIN] = own_min, [LS_MAX] = own_max};
    int rc = MPI_SUCCESS;

    the_host = s->host;
    for (int op = 0; op < LS_REDUCE_OP_COUNT && rc == MPI_SUCCESS; op++) {
        if (functions[op] != NULL)
            rc = MPI_Op_create(functions[op], 1, &s->own[op]);
    }
    return rc;
}

void mpi_call_free_ops(backend_state *s)
{
    for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
        if (op != LS_AVG)
            (void)MPI_Op_free(&s->own[op]);
    }
}

/* --- what every operation uses --- */

/* A place for one more request; NULL: no memory. */
static MPI_Request *next_request(mpi_job *j)
{
    const comm_host *host = j->group->state->host;
    MPI_Request *grown;

    if (j->n_requests == j->capacity) {
        grown = host->alloc((size_t)j->capacity * 2, sizeof(*grown));
        if (grown == NULL)
            return NULL;
        memcpy(grown, j->requests, (size_t)j->capacity * sizeof(*grown));
        if (j->requests != j->first)
            host->free(j->requests);
        j->requests = grown;
        j->capacity *= 2;
    }
    j->requests[j->n_requests] = MPI_REQUEST_NULL;
    return &j->requests[j->n_requests++];
}

static bool make_buffer(const mpi_job *j, void **out, size_t count, size_t size)
{
    *out = j->group->state->host->alloc(count > 0 ? count : 1, size);
    return *out != NULL;
}

/* The bytes in front of part r, and the elements in it. */
static size_t part_offset(const coll *op, const size_t *counts, int r)
{
    size_t elements = counts == NULL ? op->count * (size_t)r : 0;

    for (int i = 0; counts != NULL && i < r; i++)
        elements += counts[i];
    return elements * size_of(op->dtype);
}

static size_t part_count(const coll *op, const size_t *counts, int r)
{
    return counts == NULL ? op->count : counts[r];
}

/* The type of `count` elements in one, for counts that an int does not hold. */
static int long_type(MPI_Datatype element, size_t bytes, size_t count, size_t piece,
                     MPI_Datatype *out)
{
    const int lengths[2] = {(int)(count / piece), (int)(count % piece)};
    const MPI_Aint places[2] = {0, (MPI_Aint)(count / piece * piece * bytes)};
    MPI_Datatype types[2] = {MPI_DATATYPE_NULL, element};
    int rc = MPI_Type_contiguous((int)piece, element, &types[0]);

    if (rc != MPI_SUCCESS)
        return rc;
    rc = MPI_Type_create_struct(2, lengths, places, types, out);
    (void)MPI_Type_free(&types[0]);
    return rc == MPI_SUCCESS ? MPI_Type_commit(out) : rc;
}

/* One message to (is_send) or from a rank of the group, of any length. */
static int message(mpi_job *j, bool is_send, void *data, size_t count, int peer, int tag)
{
    const size_t piece = j->group->state->piece;
    const ls_dtype type = j->work->op.dtype;
    MPI_Datatype element = mpi_call_type(type);
    MPI_Request *request = next_request(j);
    const bool is_long = count > piece;
    int n = (int)(is_long ? 1 : count);
    int rc = MPI_SUCCESS;

    if (request == NULL)
        return MPI_ERR_NO_MEM;
    if (is_long)
        rc = long_type(element, size_of(type), count, piece, &element);
    if (rc != MPI_SUCCESS)
        return rc;
    if (is_send)
        rc = MPI_Isend(data, n, element, peer, tag, j->group->comm, request);
    else
        rc = MPI_Irecv(data, n, element, peer, tag, j->group->comm, request);
    if (is_long)
        (void)MPI_Type_free(&element); // when the message is through
    return rc;
}

/* --- reductions --- */

static const void *at_of(const void *buffer, size_t bytes)
{
    return buffer == MPI_IN_PLACE ? buffer : (const char *)buffer + bytes;
}

/* src reduced to dst, on `root` or on all. */
static int reduce_pieces(mpi_job *j, const void *src, void *dst, size_t count, int root)
{
    const ls_dtype type = j->work->op.dtype;
    const size_t piece = j->group->state->piece;

    for (size_t at = 0; at < count; at += piece) {
        const int n = (int)(count - at < piece ? count - at : piece);
        const void *from = at_of(src, at * reduced_size(type));
        void *to = (char *)dst + at * reduced_size(type);
        MPI_Request *request = next_request(j);
        int rc = MPI_ERR_NO_MEM;

        if (request != NULL && root == NO_ROOT)
            rc = MPI_Iallreduce(from, to, n, reduced_type(type), reduction(j), j->group->comm,
                                request);
        else if (request != NULL)
            rc = MPI_Ireduce(from, to, n, reduced_type(type), reduction(j), root, j->group->comm,
                             request);
        if (rc != MPI_SUCCESS)
            return rc;
    }
    return MPI_SUCCESS;
}

/* A copy of src in j->from, as the type that is reduced. */
static bool copy_source(mpi_job *j, size_t count)
{
    const coll *op = &j->work->op;
    const reduce_operand own = {op->src, 0, 1, false};

    if (!make_buffer(j, &j->from, count, reduced_size(op->dtype)))
        return false;
    if (is_half(op->dtype))
        j->group->state->host->reduce(j->from, &own, 1, count, op->dtype, op->redop, false, 1);
    else
        memcpy(j->from, op->src, count * size_of(op->dtype));
    return true;
}

static bool works_apart(const mpi_job *j)
{
    const coll *op = &j->work->op;

    return is_half(op->dtype) ||
           (j->group->info->size >= APART_RANKS && op->count * size_of(op->dtype) >= APART_BYTES);
}

static int all_reduce(mpi_job *j)
{
    const coll *op = &j->work->op;
    const void *src = op->src;
    void *dst = op->dst;

    if (!works_apart(j)) {
        if (src != dst)
            memcpy(dst, src, op->count * size_of(op->dtype));
        return reduce_pieces(j, MPI_IN_PLACE, dst, op->count, NO_ROOT);
    }
    if (is_half(op->dtype) || src == dst) {
        if (!copy_source(j, op->count))
            return MPI_ERR_NO_MEM;
        src = j->from;
    }
    if (is_half(op->dtype)) {
        if (!make_buffer(j, &j->to, op->count, sizeof(float)))
            return MPI_ERR_NO_MEM;
        dst = j->to;
    }
    return reduce_pieces(j, src, dst, op->count, NO_ROOT);
}

static int reduce(mpi_job *j)
{
    const coll *op = &j->work->op;
    const bool is_root = op->root == j->group->info->rank;
    const void *src = op->src;
    void *dst = op->dst;

    if (is_half(op->dtype)) {
        if (!copy_source(j, op->count) ||
            (is_root && !make_buffer(j, &j->to, op->count, sizeof(float))))
            return MPI_ERR_NO_MEM;
        src = j->from;
        dst = j->to;
    } else if (is_root && src == dst) {
        src = MPI_IN_PLACE;
    }
    return reduce_pieces(j, src, dst, op->count, op->root);
}

/* MPI would put the result at the start of src: in place it comes through memory of its own. */
static int reduce_scatter(mpi_job *j)
{
    const coll *op = &j->work->op;
    const backend_group *g = j->group;
    const size_t all = part_offset(op, op->src_counts, g->info->size) / size_of(op->dtype);
    const size_t own = part_count(op, op->src_counts, g->info->rank);
    const char *src = op->src;
    const bool is_apart =
        is_half(op->dtype) || op->dst == src + part_offset(op, op->src_counts, g->info->rank);
    MPI_Request *request;
    size_t at = 0;

    if ((is_half(op->dtype) && !copy_source(j, all)) ||
        (is_apart && !make_buffer(j, &j->to, own, reduced_size(op->dtype))))
        return MPI_ERR_NO_MEM;
    src = j->from != NULL ? j->from : src;
    if (op->src_counts == NULL && all <= g->state->piece) {
        request = next_request(j);
        return request == NULL ? MPI_ERR_NO_MEM
                               : MPI_Ireduce_scatter_block(src, is_apart ? j->to : op->dst,
                                                           (int)own, reduced_type(op->dtype),
                                                           reduction(j), g->comm, request);
    }
    for (int r = 0; r < g->info->size; r++) {
        const size_t n = part_count(op, op->src_counts, r);
        const int rc = reduce_pieces(j, src + at, is_apart ? j->to : op->dst, n, r);

        if (rc != MPI_SUCCESS)
            return rc;
        at += n * reduced_size(op->dtype);
    }
    return MPI_SUCCESS;
}

void mpi_call_finish(mpi_job *j)
{
    const coll *op = &j->work->op;
    const group_info *info = j->group->info;
    const size_t count =
        op->kind == COLL_REDUCE_SCATTER ? part_count(op, op->src_counts, info->rank) : op->count;
    const void *result = j->to != NULL ? j->to : op->dst;
    const reduce_operand all = {result, 0, info->size, true};

    if ((op->kind != COLL_ALL_REDUCE && op->kind != COLL_REDUCE &&
         op->kind != COLL_REDUCE_SCATTER) ||
        (op->kind == COLL_REDUCE && op->root != info->rank))
        return;
    if (is_half(op->dtype) || op->redop == LS_AVG)
        j->group->state->host->reduce(op->dst, &all, 1, count, op->dtype, op->redop, true,
                                      op->divisor);
    else if (result != op->dst && count > 0)
        memcpy(op->dst, result, count * size_of(op->dtype));
}

/* --- what is only moved --- */

static bool gives(const coll *op, int from, int to)
{
    return (op->kind != COLL_GATHER || to == op->root) &&
           (op->kind != COLL_SCATTER || from == op->root);
}

/* Gather, scatter, all_gather and all_to_all as messages. */
static int exchange(mpi_job *j)
{
    const coll *op = &j->work->op;
    const group_info *info = j->group->info;
    const bool src_is_cut = op->kind == COLL_SCATTER || op->kind == COLL_ALL_TO_ALL;
    const bool dst_is_cut = op->kind != COLL_SCATTER;
    const int tag = j->group->state->tag_limit;
    const int me = info->rank;
    int rc = MPI_SUCCESS;

    for (int i = 0; i < info->size && rc == MPI_SUCCESS; i++) {
        const int from = (me + info->size - i) % info->size;
        const int to = (me + i) % info->size;
        const size_t in = part_count(op, op->dst_counts != NULL ? op->dst_counts : op->src_counts,
                                     dst_is_cut ? from : me);
        const size_t out = part_count(op, op->src_counts != NULL ? op->src_counts : op->dst_counts,
                                      src_is_cut ? to : me);
        char *dst = (char *)op->dst +
                    (dst_is_cut && op->dst != NULL ? part_offset(op, op->dst_counts, from) : 0);
        char *src = (char *)(uintptr_t)op->src +
                    (src_is_cut && op->src != NULL ? part_offset(op, op->src_counts, to) : 0);

        if (i == 0) {
            if (gives(op, me, me) && out > 0 && src != dst)
                memcpy(dst, src, out * size_of(op->dtype));
            continue;
        }
        if (in > 0 && gives(op, from, me))
            rc = message(j, false, dst, in, from, tag);
        if (out > 0 && gives(op, me, to) && rc == MPI_SUCCESS)
            rc = message(j, true, src, out, to, tag);
    }
    return rc;
}

static int broadcast(mpi_job *j)
{
    const coll *op = &j->work->op;
    const size_t piece = j->group->state->piece;
    const size_t size = size_of(op->dtype);

    if (op->root == j->group->info->rank && op->src != op->dst)
        memcpy(op->dst, op->src, op->count * size);
    for (size_t at = 0; at < op->count; at += piece) {
        const size_t n = op->count - at < piece ? op->count - at : piece;
        MPI_Request *request = next_request(j);
        const int rc = request == NULL ? MPI_ERR_NO_MEM
                                       : MPI_Ibcast((char *)op->dst + at * size, (int)n,
                                                    mpi_call_type(op->dtype), op->root,
                                                    j->group->comm, request);

        if (rc != MPI_SUCCESS)
            return rc;
    }
    return MPI_SUCCESS;
}

/* The same four with equal counts that fit an int, as MPI's own. */
static int call_mover(mpi_job *j)
{
    const coll *op = &j->work->op;
    const backend_group *g = j->group;
    const MPI_Datatype type = mpi_call_type(op->dtype);
    const int n = (int)op->count;
    const bool is_root = op->root == g->info->rank;
    const size_t own = part_offset(op, NULL, g->info->rank);
    MPI_Request *request = next_request(j);
    const void *src = op->src;
    void *dst = op->dst;

    if (request == NULL)
        return MPI_ERR_NO_MEM;
    switch (op->kind) {
    case COLL_ALL_GATHER:
        if (src != (char *)dst + own)
            memcpy((char *)dst + own, src, op->count * size_of(op->dtype));
        return MPI_Iallgather(MPI_IN_PLACE, n, type, dst, n, type, g->comm, request);
    case COLL_GATHER:
        if (is_root && src == (char *)dst + own)
            src = MPI_IN_PLACE;
        return MPI_Igather(src, n, type, dst, n, type, op->root, g->comm, request);
    case COLL_SCATTER:
        if (is_root && dst == (const char *)src + own)
            dst = MPI_IN_PLACE;
        return MPI_Iscatter(src, n, type, dst, n, type, op->root, g->comm, request);
    default:
        return MPI_Ialltoall(src, n, type, dst, n, type, g->comm, request);
    }
}

static int barrier(mpi_job *j)
{
    MPI_Request *request = next_request(j);

    return request == NULL ? MPI_ERR_NO_MEM : MPI_Ibarrier(j->group->comm, request);
}

size_t mpi_call_bytes(const mpi_job *j)
{
    const coll *op = &j->work->op;

    if (op->kind == COLL_BARRIER)
        return 0;
    return part_offset(op, op->src_counts != NULL ? op->src_counts : op->dst_counts,
                       j->group->info->size);
}

int mpi_call_start(mpi_job *j)
{
    const coll *op = &j->work->op;
    const backend_group *g = j->group;
    const bool has_counts = op->src_counts != NULL || op->dst_counts != NULL;

    switch (op->kind) {
    case COLL_ALL_REDUCE:
        return all_reduce(j);
    case COLL_REDUCE:
        return reduce(j);
    case COLL_REDUCE_SCATTER:
        return reduce_scatter(j);
    case COLL_BROADCAST:
        return broadcast(j);
    case COLL_BARRIER:
        return barrier(j);
    case COLL_SEND:
        return message(j, true, (void *)(uintptr_t)op->src, op->count, op->root, op->tag);
    case COLL_RECV:
        return message(j, false, op->dst, op->count,
                       op->root == LS_ANY_SOURCE ? MPI_ANY_SOURCE : op->root, op->tag);
    default:
        return has_counts || op->count > g->state->piece / (size_t)g->info->size ? exchange(j)
                                                                                 : call_mover(j);
    }
}
