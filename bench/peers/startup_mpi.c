/* SPDX-License-Identifier: Apache-2.0 */
/* startup_mpi - the MPI side of bench/startup. */
#include "../startup_peak.h"

#include <mpi.h>

int main(int argc, char **argv)
{
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS || MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS ||
        MPI_Finalize() != MPI_SUCCESS)
        return 1;
    print_peak();
    return 0;
}
