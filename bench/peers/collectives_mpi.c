/* SPDX-License-Identifier: Apache-2.0 */
/* collectives_mpi FOLDER NAME MAX_BYTES - the MPI side of bench/collectives. */
#include "../collective_loop.h"

#include <mpi.h>

typedef struct engine {
    float *memory[2];
    size_t bytes;
    int rank;
} engine;

static int ping_pong(const engine *c, float *data, int count)
{
    if (c->rank > 1)
        return MPI_SUCCESS;
    if (c->rank == 0)
        MPI_Send(data, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(data, count, MPI_FLOAT, 1 - c->rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return c->rank == 0 ? MPI_SUCCESS : MPI_Send(data, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
}

static int run(void *self, int op, float *src, float *dst, size_t count)
{
    const int n = (int)count;

    switch (op) {
    case LOOP_ALL_REDUCE:
        return MPI_Allreduce(MPI_IN_PLACE, src, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case LOOP_BROADCAST:
        return MPI_Bcast(src, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    case LOOP_ALL_GATHER:
        return MPI_Allgather(src, n, MPI_FLOAT, dst, n, MPI_FLOAT, MPI_COMM_WORLD);
    case LOOP_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(src, dst, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case LOOP_ALL_TO_ALL:
        return MPI_Alltoall(src, n, MPI_FLOAT, dst, n, MPI_FLOAT, MPI_COMM_WORLD);
    case LOOP_SENDRECV:
        return ping_pong((const engine *)self, src, n);
    default:
        return MPI_Barrier(MPI_COMM_WORLD);
    }
}

static double slowest(void *self, double value)
{
    double result = -1;

    (void)self;
    MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return result;
}

static float *memory(void *self, const char *kind, int which, size_t bytes)
{
    const engine *c = (const engine *)self;

    (void)kind;
    return bytes > c->bytes ? NULL : c->memory[which];
}

int main(int argc, char **argv)
{
    engine c = {.bytes = 0};
    loop_engine e = {.self = &c, .run = run, .slowest = slowest, .memory = memory};
    int failed = 1;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &e.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &e.size);
    loop_bind(e.rank, e.size);
    c.rank = e.rank;
    if (argc == 4) {
        c.bytes = (size_t)strtoull(argv[3], NULL, 10);
        c.memory[0] = loop_user_memory(c.bytes);
        c.memory[1] = loop_user_memory(c.bytes);
        failed = loop_serve(&e, argv[1], argv[2]);
    }
    if (failed != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
