/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_try.h - tests whether the GPUs of this host can reduce data together: NCCL adds up a block
 * of integers over all of them. A child process does it, because NCCL can hang and can end its
 * process.
 */
#ifndef LS_DIAGNOSE_GPU_NCCL_TRY_H
#define LS_DIAGNOSE_GPU_NCCL_TRY_H

#include "base/status.h"

#include <stdint.h>

#define NCCL_TRY_MS      60000
#define NCCL_TRY_LIBRARY "libnccl.so.2"
#define NCCL_TRY_WORDS   ((size_t)1 << 20) /* of each GPU */

typedef struct nccl_trial {
    char why[256];   /* the error text and NCCL's last warning, unless LS_OK */
    const char *fix; /* what to do about it; static */
} nccl_trial;

/*
 * Adds up over the GPUs that CUDA shows, at most GPU_MOST. Forks: needs a process with one thread.
 * LS_ENOTFOUND: one of the libraries does not exist. LS_EUNSUPPORTED: CUDA shows fewer than two
 * GPUs. LS_ETIMEOUT: no answer within limit_ms. LS_ESYSTEM: NCCL fails, or the sum is wrong.
 */
LS_MUST_USE ls_status nccl_try(const char *cuda, const char *nccl, int64_t limit_ms,
                               nccl_trial *out);

/* What to do about a message of NCCL; never NULL, static. */
const char *nccl_fix(const char *message);

#endif
