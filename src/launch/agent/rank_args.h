/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_args.h - the arguments of one rank: "${local_rank}" stands for its number on this node, as with torchrun.
 */
#ifndef LS_LAUNCH_RANK_ARGS_H
#define LS_LAUNCH_RANK_ARGS_H

#include "base/status.h"

/* A copy of `argv` with the number in place of every "${local_rank}" behind argv[0]; freed with rank_args_free(). */
LS_MUST_USE ls_status rank_args_make(char *const *argv, int local_rank, char ***out);
void rank_args_free(char **argv); /* NULL is allowed */

#endif
