/* SPDX-License-Identifier: Apache-2.0 */
/* rank_count.h - --nproc-per-node with torchrun's values: a number, gpu, cpu or auto. */
#ifndef LS_CLI_RUN_RANK_COUNT_H
#define LS_CLI_RUN_RANK_COUNT_H

#include "base/status.h"

#define RANK_COUNT_MOST 4096

/*
 * *n = the number in `text`, or for "gpu" the number of visible GPUs (check_count_gpus()), for
 * "cpu" the number of usable cores, for "auto" gpu where there is a GPU, else cpu. LS_EINVAL: none
 * of these, or "gpu" without a GPU.
 */
LS_MUST_USE ls_status rank_count_read(const char *text, int *n);

#endif
