/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newest_state.h - which rank of a new group has the state that all go on with: that of the
 * highest completed step. Pure.
 */
#ifndef LS_DDP_NEWEST_STATE_H
#define LS_DDP_NEWEST_STATE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What each rank sends to the others. Sent as LS_I64. */
typedef struct state_record {
    int64_t has_state; /* 0: a new process */
    int64_t step;      /* completed ones */
    int64_t shape;     /* a hash of names and sizes of the state's parts */
} state_record;

typedef struct newest_state {
    int source;    /* the lowest rank with the highest step */
    int64_t step;  /* of it */
    bool is_sent;  /* a rank lacks it: the source sends it to all */
    int n_behind;  /* ranks with a state of the step before */
    int n_without; /* new processes */
} newest_state;

/* The same on all ranks. LS_EPEER: no rank has a state; LS_EMISMATCH: a state is more than one step
 * behind, or its parts differ. */
LS_MUST_USE ls_status newest_state_find(const state_record *records, int n, newest_state *out);

#endif
