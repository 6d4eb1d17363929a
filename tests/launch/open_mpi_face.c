/* SPDX-License-Identifier: Apache-2.0 */
/* open_mpi_face.c - a libmpi.so.40 to be linked to. */
int open_mpi_face(void);

__attribute__((visibility("default"))) int open_mpi_face(void)
{
    return 0;
}
