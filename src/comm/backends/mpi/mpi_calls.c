/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_calls.c - one operation as MPI requests, for mpi_backend.c.
 *
 * MPI counts in int: longer buffers are reduced and broadcast in pieces. Buffers divided by rank
 * are exchanged as messages, whose types may be long, and so are variants with counts, because
 * ranks may have different totals. MPI requires that either all ranks work in place or none does,
 * which comm.h does not: here all ranks do.
 */
#include "comm/backends/mpi/mpi_backend.h"

/* --- types and reductions --- */

static const MPI_Datatype types[LS_DTYPE_COUNT] = {
    [LS_I8] = MPI_INT8_T,   [LS_U8] = MPI_UINT8_T,   [LS_I32] = MPI_INT32_T,
    [LS_I64] = MPI_INT64_T, [LS_F16] = MPI_UINT16_T, [LS_BF16] = MPI_UINT16_T,
    [LS_F32] = MPI_FLOAT,   [LS_F64] = MPI_DOUBLE,
};

static const comm_host *the_host; // MPI's callbacks have no argument

MPI_Datatype mpi_call_type(ls_dtype type)
{
    return types[type];
}

/* Lockstep's arithmetic where MPI's differs from comm.h: sums of bytes saturate in Open MPI 4.1,
 * MPICH 4.0 compares uint8 as signed, and a minimum of floats may lose a NaN. */
static MPI_Op reduction(const mpi_job *j)
{
    static const MPI_Op standard[] = {
        [LS_SUM] = MPI_SUM,   [LS_PROD] = MPI_PROD, [LS_MIN] = MPI_MIN,  [LS_MAX] = MPI_MAX,
        [LS_BAND] = MPI_BAND, [LS_BOR] = MPI_BOR,   [LS_BXOR] = MPI_BXOR};
    const coll *op = &j->work->op;
    const ls_reduce_op redop = op->redop == LS_AVG ? LS_SUM : op->redop;
    const bool is_float = op->dtype >= LS_F16;
    const bool is_own = (compose_size(op->dtype) == 1 && redop < LS_BAND) ||
                        (is_float && (redop == LS_MIN || redop == LS_MAX));

    return is_own ? j->group->state->own[redop] : standard[redop];
}

static void combine(void *in, void *inout, const int *count, const MPI_Datatype *type,
                    ls_reduce_op op)
{
    const reduce_operand both[2] = {{in, 0, 1, true}, {inout, 1, 1, true}};
    int dtype = 0;

    while (types[dtype] != *type)
        dtype++;
    the_host->reduce(inout, both, 2, (size_t)*count, (ls_dtype)dtype, op, false, 1);
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
    for (size_t op = 0; op < LS_COUNT_OF(functions) && rc == MPI_SUCCESS; op++) {
        if (functions[op] != NULL)
            rc = MPI_Op_create(functions[op], 1, &s->own[op]);
    }
    return rc;
}

void mpi_call_free_ops(backend_state *s)
{
    for (size_t op = 0; op < LS_COUNT_OF(s->own); op++) {
        if (op != LS_AVG)
            (void)MPI_Op_free(&s->own[op]);
    }
}

/* --- requests --- */

static bool reserve_requests(mpi_job *j)
{
    const comm_host *host = j->group->state->host;
    const size_t n_pieces = j->work->op.count / j->group->state->piece + 1;
    const size_t n_messages = 2 * (size_t)j->group->info->size;
    const size_t n = n_pieces > n_messages ? n_pieces : n_messages;

    if (n <= j->capacity)
        return true;
    host->free(j->requests);
    j->requests = host->alloc(n, sizeof(MPI_Request));
    j->capacity = j->requests != NULL ? n : 0;
    return j->requests != NULL;
}

static MPI_Request *next_request(mpi_job *j)
{
    j->requests[j->n_requests] = MPI_REQUEST_NULL;
    return &j->requests[j->n_requests++];
}

/* --- in pieces --- */

static int call_piece(mpi_job *j, size_t offset, int n, MPI_Datatype type)
{
    const coll *op = &j->work->op;
    MPI_Comm comm = j->group->comm;
    MPI_Request *request = next_request(j);
    const void *in = j->c.out != NULL ? MPI_IN_PLACE : (const char *)j->c.in + offset;
    void *out = j->c.out != NULL ? (char *)j->c.out + offset : NULL;

    if (op->kind == COLL_BROADCAST)
        return MPI_Ibcast(out, n, type, op->root, comm, request);
    if (op->kind == COLL_ALL_REDUCE)
        return MPI_Iallreduce(in, out, n, type, reduction(j), comm, request);
    return MPI_Ireduce(in, out, n, type, reduction(j), op->root, comm, request);
}

static int call_in_pieces(mpi_job *j)
{
    const coll *op = &j->work->op;
    const size_t piece = j->group->state->piece;
    const ls_dtype type = op->kind == COLL_BROADCAST ? op->dtype : compose_partial(op->dtype);
    int rc = MPI_SUCCESS;

    for (size_t at = 0; at < op->count && rc == MPI_SUCCESS; at += piece) {
        const size_t n = op->count - at < piece ? op->count - at : piece;

        rc = call_piece(j, at * compose_size(type), (int)n, types[type]);
    }
    return rc;
}

/* --- messages --- */

/* A type of `count` elements together, for counts that do not fit an int. */
static int long_type(ls_dtype type, size_t count, size_t piece, MPI_Datatype *out)
{
    const int lengths[2] = {(int)(count / piece), (int)(count % piece)};
    const MPI_Aint places[2] = {0, (MPI_Aint)(count / piece * piece * compose_size(type))};
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, types[type]};
    int rc = MPI_Type_contiguous((int)piece, types[type], &parts[0]);

    if (rc != MPI_SUCCESS)
        return rc;
    rc = MPI_Type_create_struct(2, lengths, places, parts, out);
    (void)MPI_Type_free(&parts[0]);
    return rc == MPI_SUCCESS ? MPI_Type_commit(out) : rc;
}

/* One message to (is_send) or from a rank of the group, of any length. */
static int message(mpi_job *j, bool is_send, void *data, size_t count, int peer, int tag)
{
    const size_t piece = j->group->state->piece;
    const bool is_long = count > piece;
    MPI_Datatype type = types[j->work->op.dtype];
    MPI_Request *request = next_request(j);
    const int n = is_long ? 1 : (int)count;
    int rc = MPI_SUCCESS;

    if (is_long)
        rc = long_type(j->work->op.dtype, count, piece, &type);
    if (rc != MPI_SUCCESS)
        return rc;
    if (is_send)
        rc = MPI_Isend(data, n, type, peer, tag, j->group->comm, request);
    else
        rc = MPI_Irecv(data, n, type, peer, tag, j->group->comm, request);
    if (is_long)
        (void)MPI_Type_free(&type); // MPI frees it after the message
    return rc;
}

static int exchange(mpi_job *j)
{
    const int tag = j->group->state->tag_limit;
    int rc = MPI_SUCCESS;

    compose_copy_own(&j->c);
    for (int i = 1; i < j->group->info->size && rc == MPI_SUCCESS; i++) {
        const compose_exchange x = compose_exchange_at(&j->c, i);

        if (x.n_in > 0)
            rc = message(j, false, x.in, x.n_in, x.from, tag);
        if (x.n_out > 0 && rc == MPI_SUCCESS)
            rc = message(j, true, (char *)(uintptr_t)x.out, x.n_out, x.to, tag);
    }
    return rc;
}

/* With equal counts that fit an int MPI's own collectives are used. */
static int call_collective(mpi_job *j)
{
    const coll *op = &j->work->op;
    MPI_Comm comm = j->group->comm;
    MPI_Request *request = next_request(j);
    const MPI_Datatype type = types[op->dtype];
    const bool is_root = op->root == j->group->info->rank;
    const int n = (int)op->count;

    if (op->kind == COLL_ALL_TO_ALL)
        return MPI_Ialltoall(op->src, n, type, op->dst, n, type, comm, request);
    compose_copy_own(&j->c);
    if (op->kind == COLL_ALL_GATHER)
        return MPI_Iallgather(MPI_IN_PLACE, n, type, op->dst, n, type, comm, request);
    if (op->kind == COLL_GATHER)
        return MPI_Igather(is_root ? MPI_IN_PLACE : op->src, n, type, op->dst, n, type, op->root,
                           comm, request);
    return MPI_Iscatter(op->src, n, type, is_root ? MPI_IN_PLACE : op->dst, n, type, op->root, comm,
                        request);
}

static bool is_exchange(const mpi_job *j)
{
    const coll *op = &j->work->op;

    return coll_reduces(op->kind) || op->src_counts != NULL || op->dst_counts != NULL ||
           op->count > j->group->state->piece / (size_t)j->group->info->size;
}

int mpi_call_start(mpi_job *j)
{
    const backend_group *g = j->group;
    const coll *op = &j->work->op;
    const int from = op->root == LS_ANY_SOURCE ? MPI_ANY_SOURCE : op->root;

    if (!compose_begin(&j->c, g->state->host, g->info, op, COMPOSE_IN_PLACE) ||
        !reserve_requests(j))
        return MPI_ERR_NO_MEM;
    switch (op->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_BROADCAST:
        return call_in_pieces(j);
    case COLL_BARRIER:
        return MPI_Ibarrier(g->comm, next_request(j));
    case COLL_SEND:
        return message(j, true, (void *)(uintptr_t)op->src, op->count, op->root, op->tag);
    case COLL_RECV:
        return message(j, false, op->dst, op->count, from, op->tag);
    default:
        return is_exchange(j) ? exchange(j) : call_collective(j);
    }
}
