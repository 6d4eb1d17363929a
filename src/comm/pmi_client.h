/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi_client.h - the asking side of PMI-1, as Hydra (MPICH) and Slurm answer it at the descriptor
 * PMI_FD: a place where ranks leave words for each other before any other way between them is
 * known. An MPI in the same program may use it before and after.
 *
 *     cmd=put kvsname=S key=K value=V     cmd=put_result rc=0
 *     cmd=barrier_in                      cmd=barrier_out          once all ranks have said so
 *     cmd=get kvsname=S key=K             cmd=get_result rc=0 value=V
 *
 * Whoever answers is trusted as the starter of this process, but every answer is bounded and looked
 * at.
 */
#ifndef LS_COMM_PMI_CLIENT_H
#define LS_COMM_PMI_CLIENT_H

#include "base/status.h"

#define PMI_CLIENT_SPACE_BYTES 256
#define PMI_CLIENT_VALUE_BYTES                                                                     \
    512 /* of a value that is put here, with its end; every server takes so much */

typedef struct pmi_client {
    int fd; /* borrowed */
    int64_t deadline_ms;
    char space[PMI_CLIENT_SPACE_BYTES]; /* the job's name there */
} pmi_client;

/* All calls: LS_EPEER, LS_ETIMEOUT; LS_EPROTO shows the answer. */
LS_MUST_USE ls_status pmi_client_open(int fd, int64_t deadline_ms, pmi_client *out);
/* Says goodbye. A server takes a process that ends without it for one that has crashed, and listens
 * to none behind it: so it is left to MPI where the program has one. */
void pmi_client_close(pmi_client *c);
LS_MUST_USE ls_status pmi_client_put(pmi_client *c, const char *key, const char *value);
/* LS_ENOTFOUND */
LS_MUST_USE ls_status pmi_client_get(pmi_client *c, const char *key, char *value, size_t n);
LS_MUST_USE ls_status pmi_client_barrier(pmi_client *c);

#endif
