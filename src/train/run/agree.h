/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.h - what must be the same on all ranks, which is often given by hand on each machine: the
 * flags of a run, and its data. The ranks compare it before they communicate by it.
 */
#ifndef LS_TRAIN_RUN_AGREE_H
#define LS_TRAIN_RUN_AGREE_H

#include <lockstep/train.h>

#include "base/status.h"

#include <stdbool.h>

/* Notes which flags of rank 0 have the values of `defaults`, as if they were not given. */
void agree_note_defaults(ls_train_flags *flags, const ls_train_flags *defaults);

/* Compares the flags, or the data sets and the names of values. LS_EMISMATCH on all ranks names
 * what differs, both values, both ranks and their hosts. Collective, as the next one; LS_OK without
 * a group of several ranks. */
LS_MUST_USE ls_status agree_on_flags(ls_run *run);
LS_MUST_USE ls_status agree_on_data(ls_run *run);

/* The same in an elastic group that was formed again. LS_EMISMATCH only on ranks that have no
 * state yet and differ from those that have. */
LS_MUST_USE ls_status agree_again(ls_run *run, bool has_state);

#endif
