/* SPDX-License-Identifier: Apache-2.0 */
/* pmix_client.h - a client of PMIx, as Open MPI's mpirun and Slurm serve it, through libpmix. */
#ifndef LS_COMM_JOIN_PMIX_CLIENT_H
#define LS_COMM_JOIN_PMIX_CLIENT_H

#include "base/status.h"

#define PMIX_CLIENT_SPACE_BYTES 256

struct pmix_library;

typedef struct pmix_client {
    const struct pmix_library *calls;
    int64_t deadline_ms;
    char space[PMIX_CLIENT_SPACE_BYTES]; /* PMIx's name of the job */
    int n_opened; /* clients that this process has opened, this one included */
} pmix_client;

/* LS_ENOTFOUND: there is no libpmix.so.2. LS_EINVAL: the program has MPI, which is not initialized.
 * All calls: LS_EPEER names PMIx's code, LS_ETIMEOUT. */
LS_MUST_USE ls_status pmix_client_open(int64_t deadline_ms, pmix_client *out);
void pmix_client_close(pmix_client *c);
LS_MUST_USE ls_status pmix_client_put(pmix_client *c, const char *key, const char *value);
LS_MUST_USE ls_status pmix_client_fence(pmix_client *c); /* returns after the call of every rank */
/* A value that the rank has put before the fence. */
LS_MUST_USE ls_status pmix_client_get(pmix_client *c, int rank, const char *key, char *value,
                                      size_t n);

#endif
