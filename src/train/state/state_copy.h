/* SPDX-License-Identifier: Apache-2.0 */
/* state_copy.h - a copy in memory of the tensors and bytes of a run's state. train/run/capsule.c
 * holds copies of the state before a step. */
#ifndef LS_TRAIN_STATE_STATE_COPY_H
#define LS_TRAIN_STATE_STATE_COPY_H

#include "train/state/state_file.h"

/* Zero-initialise. */
typedef struct state_copy {
    name_list list;   /* owns tensors and bytes, which lie on the devices of the originals */
    bool is_complete; /* the copy is that of the last state_copy_take() */
} state_copy;

/* Copies all items; memory of an earlier copy with as many items is used again. LS_ENOMEM. */
LS_MUST_USE ls_status state_copy_take(state_copy *c, const name_list *from);
void state_copy_free(state_copy *c);
/* Bytes of the elements of a list. */
size_t state_copy_bytes(const name_list *list);

#endif
