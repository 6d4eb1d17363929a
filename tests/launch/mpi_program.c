/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_program.c - a program as any user of MPI writes it.
 *
 *     mpi_program                     an all-reduce, a ring and a split; a line of what came out
 *     mpi_program abort RANK CODE     one rank calls MPI_Abort while the others wait
 *     mpi_program leave RANK          one rank returns from main without MPI_Finalize
 *     mpi_program steps               barriers without end
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void tell_sums(void)
{
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    int mine = rank + 1;
    int all, left, half, of_half;
    MPI_Comm part;

    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Sendrecv(&mine, 1, MPI_INT, next, 0, &left, 1, MPI_INT, before, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &part);
    MPI_Comm_size(part, &half);
    MPI_Allreduce(&mine, &of_half, 1, MPI_INT, MPI_SUM, part);
    MPI_Comm_free(&part);
    printf("rank %d of %d: sum %d, left %d, half %d of %d\n", rank, size, all, left, of_half, half);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const int chosen = argc > 2 ? atoi(argv[2]) : -1;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(what, "abort") == 0 || strcmp(what, "leave") == 0)
        MPI_Barrier(MPI_COMM_WORLD); /* no rank is in MPI_Init, where it would end the job itself */
    if (strcmp(what, "abort") == 0 && rank == chosen)
        MPI_Abort(MPI_COMM_WORLD, argc > 3 ? atoi(argv[3]) : 1);
    if (strcmp(what, "leave") == 0 && rank == chosen)
        return 0;
    if (what[0] == 0)
        tell_sums();
    if (strcmp(what, "steps") == 0) {
        MPI_Barrier(MPI_COMM_WORLD);
        printf("rank %d steps\n", rank);
        fflush(stdout);
        for (;;)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
