/* SPDX-License-Identifier: Apache-2.0 */
/* open_mpi_compat.c - a libmpi.so.40 to be linked to. */
int open_mpi_compat(void);

__attribute__((visibility("default"))) int open_mpi_compat(void)
{
    return 0;
}
