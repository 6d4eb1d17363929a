/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outside.c - a program that uses the installed library: compiled with pkg-config and run by
 * run.sh.
 */
#include <lockstep/lockstep.h>

#include <stdio.h>

int main(void)
{
    float sum = 1.5f;
    ls_comm *comm = NULL;
    if (ls_init(NULL, &comm) != LS_OK ||
        ls_all_reduce(comm, &sum, &sum, 1, LS_F32, LS_SUM, NULL) != LS_OK)
        return fprintf(stderr, "%s\n", ls_last_error());
    ls_comm_destroy(comm);
    return printf("lockstep %s: %g\n", ls_version(), (double)sum) < 0;
}
