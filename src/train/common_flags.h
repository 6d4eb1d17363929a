/* SPDX-License-Identifier: Apache-2.0 */
/* common_flags.h - the table of the flags that all training programs share. */
#ifndef LS_TRAIN_COMMON_FLAGS_H
#define LS_TRAIN_COMMON_FLAGS_H

#include <lockstep/train.h>

enum { COMMON_FLAGS_MOST = 96 };

/* Fills `out` with the flags, whose values are in `f`; returns their number. */
int common_flags_list(ls_train_flags *f, ls_flag out[COMMON_FLAGS_MOST]);
/* The names of those that --help lists; NULL ends it. --help=all lists all. */
extern const char *const common_flags_brief[];

#endif
