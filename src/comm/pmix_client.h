/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmix_client.h - the asking side of PMIx, as Open MPI's mpirun and Slurm answer it: the system's
 * libpmix, loaded when it is needed.
 */
#ifndef LS_COMM_PMIX_CLIENT_H
#define LS_COMM_PMIX_CLIENT_H

#include "base/status.h"

#define PMIX_CLIENT_SPACE_BYTES 256

struct pmix_library;

typedef struct pmix_client {
    const struct pmix_library *calls;
    int64_t deadline_ms;
    char space[PMIX_CLIENT_SPACE_BYTES]; /* the job's name there */
    int n_opened;                        /* by this process, this one included */
} pmix_client;

/* LS_ENOTFOUND: there is no libpmix.so.2; LS_EINVAL: MPI is here and has not begun. All calls:
 * LS_EPEER names PMIx's code, LS_ETIMEOUT. */
LS_MUST_USE ls_status pmix_client_open(int64_t deadline_ms, pmix_client *out);
void pmix_client_close(pmix_client *c);
LS_MUST_USE ls_status pmix_client_put(pmix_client *c, const char *key, const char *value);
LS_MUST_USE ls_status pmix_client_fence(pmix_client *c); /* once all ranks have said so */
/* What that rank has put before the fence. */
LS_MUST_USE ls_status pmix_client_get(pmix_client *c, int rank, const char *key, char *value,
                                      size_t n);

#endif
