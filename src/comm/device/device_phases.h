/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_phases.h - when a device executes the phases of a program (comm_device_phase() in comm.h),
 * for the timeline of --trace. A phase has a timed event at each end; both are read when they have
 * happened, at a later phase or at the end of the group, so no call waits for the device. At most
 * DEVICE_PHASES_PENDING phases are pending; others are dropped and counted.
 */
#ifndef LS_COMM_DEVICE_DEVICE_PHASES_H
#define LS_COMM_DEVICE_DEVICE_PHASES_H

#include "comm/engine.h"

#define DEVICE_PHASES_PENDING 64

/* The group is destroyed, or an accelerator is closed: records or drops all phases, and destroys
 * their events. Under the engine's lock. */
void device_phases_close(ls_comm *comm);

#endif
