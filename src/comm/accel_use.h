/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accel_use.h - what a group keeps of an accelerator (staging memory, events, a communicator of
 * NCCL) ends before the accelerator is closed. engine.c and group.c call it.
 */
#ifndef LS_COMM_ACCEL_USE_H
#define LS_COMM_ACCEL_USE_H

#include "base/accel.h"
#include "comm/engine.h"

/* The group starts to use this accelerator; nothing if it does already. Under the lock. */
LS_MUST_USE ls_status accel_use_begin(ls_comm *comm, accel *owner);

/* The group ends: its accelerators do not call it any more. Not under the lock, because closing an
 * accelerator takes it. */
void accel_use_end_all(ls_comm *comm);

#endif
