/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce_mpi BYTES... - the MPI side of all_reduce_vs_mpi: float32 sum in place, huge pages; one line a size. */
#include "../all_reduce_loop.h"

#include <mpi.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

static int all_reduce(void *self, float *data, size_t count)
{
    (void)self;
    return MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int barrier(void *self)
{
    (void)self;
    return MPI_Barrier(MPI_COMM_WORLD);
}

static double slowest(void *self, double value)
{
    double result = -1;

    (void)self;
    MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return result;
}

int main(int argc, char **argv)
{
    const loop_calls calls = {NULL, all_reduce, barrier, slowest};
    size_t largest = HUGE_BYTES;
    int rank = 0;
    int size = 0;
    int failed = 0;
    float *data;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    loop_bind(rank, size);
    for (int i = 1; i < argc; i++) {
        const size_t bytes = (size_t)strtoull(argv[i], NULL, 10);

        largest = bytes > largest ? bytes : largest;
    }
    largest = (largest + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    data = aligned_alloc(HUGE_BYTES, largest);
    if (data == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    (void)madvise(data, largest, MADV_HUGEPAGE);
    for (int i = 1; i < argc && failed == 0; i++)
        failed = loop_measure(&calls, "mpi", data, (size_t)strtoull(argv[i], NULL, 10), rank, size);
    free(data);
    MPI_Finalize();
    return failed;
}
