/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi_client.h - a client of PMI-1, as Hydra (MPICH) and Slurm serve it at the descriptor PMI_FD: a
 * key-value space and a barrier for ranks that cannot reach each other yet. An MPI library in the
 * same program may use it before and after.
 *
 *     cmd=put kvsname=S key=K value=V     cmd=put_result rc=0
 *     cmd=barrier_in                      cmd=barrier_out          after the request of every rank
 *     cmd=get kvsname=S key=K             cmd=get_result rc=0 value=V
 *
 * The server is trusted as the launcher of this process, but every answer is bounded and checked.
 */
#ifndef LS_COMM_JOIN_PMI_CLIENT_H
#define LS_COMM_JOIN_PMI_CLIENT_H

#include "base/status.h"

#define PMI_CLIENT_SPACE_BYTES 256
#define PMI_CLIENT_VALUE_BYTES 512 /* every server accepts so much, with the final 0 */

typedef struct pmi_client {
    int fd; /* borrowed */
    int64_t deadline_ms;
    char space[PMI_CLIENT_SPACE_BYTES]; /* name of the job's key-value space */
} pmi_client;

/* All calls may fail with LS_EPEER, LS_ETIMEOUT, or LS_EPROTO with the answer in the text. */
LS_MUST_USE ls_status pmi_client_open(int fd, int64_t deadline_ms, pmi_client *out);
/* Finalizes the client. For the server a process that exits without it has crashed, and a second
 * finalize is an error: so it is left to MPI when the program has MPI. */
void pmi_client_close(pmi_client *c);
LS_MUST_USE ls_status pmi_client_put(pmi_client *c, const char *key, const char *value);
/* LS_ENOTFOUND */
LS_MUST_USE ls_status pmi_client_get(pmi_client *c, const char *key, char *value, size_t n);
LS_MUST_USE ls_status pmi_client_barrier(pmi_client *c);

#endif
