/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_count.h - --nproc-per-node as torchrun means it: a number, or what this machine has.
 */
#ifndef LS_CLI_RANK_COUNT_H
#define LS_CLI_RANK_COUNT_H

#include "base/status.h"

#define RANK_COUNT_MOST 4096

/*
 * "gpu": one rank a GPU (check_count_gpus()); "cpu": one a core that may be used; "auto": gpu where
 * there is one, else cpu; or a number. LS_EINVAL: something else. LS_ENOTFOUND: no GPU.
 */
LS_MUST_USE ls_status rank_count_read(const char *text, int *n);

#endif
