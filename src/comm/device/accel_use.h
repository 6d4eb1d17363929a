/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accel_use.h - what groups keep of an accelerator (staging memory, events, communicators of NCCL,
 * also those that still end after their group) ends before the accelerator is closed. engine.c and
 * device_phases.c call it.
 */
#ifndef LS_COMM_DEVICE_ACCEL_USE_H
#define LS_COMM_DEVICE_ACCEL_USE_H

#include "base/compute/accel.h"
#include "comm/engine.h"

/* A group of the engine starts to use this accelerator; nothing if one does already. Under the
 * lock. */
LS_MUST_USE ls_status accel_use_begin(engine *e, accel *owner);

/* The engine ends: its accelerators do not call it any more. Not under the lock, because closing an
 * accelerator takes it. */
void accel_use_end_all(engine *e);

#endif
