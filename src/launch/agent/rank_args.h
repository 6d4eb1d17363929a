/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_args.h - the arguments of one rank: "${local_rank}" is replaced by its number on the node,
 * as with torchrun.
 */
#ifndef LS_LAUNCH_AGENT_RANK_ARGS_H
#define LS_LAUNCH_AGENT_RANK_ARGS_H

#include "base/status.h"

/* Copies argv and replaces every "${local_rank}" behind argv[0]; freed with rank_args_free(). */
LS_MUST_USE ls_status rank_args_make(char *const *argv, int local_rank, char ***out);
void rank_args_free(char **argv); /* NULL is allowed */

#endif
