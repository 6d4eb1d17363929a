/* SPDX-License-Identifier: Apache-2.0 */
/* open_mpi_program.c - looks from outside like a program of Open MPI. */
int open_mpi_compat(void);

int main(void)
{
    return open_mpi_compat();
}
