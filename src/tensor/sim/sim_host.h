/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_host.h - the core's functions that the simulated device calls, and what its files share about
 * the settings and counters of sim.h. The module has copies of base and tensor of its own, whose
 * error texts and allocation counters are not those of the core. What a driver would allocate
 * itself (queued work, events) comes from ls_calloc(), which the core does not count.
 */
#ifndef LS_TENSOR_SIM_HOST_H
#define LS_TENSOR_SIM_HOST_H

#include "tensor/device.h"
#include "tensor/sim/sim.h"

extern const device_host *sim_host;

/* Sets the core's error text. */
void sim_note(ls_status status, const char *format, ...) LS_PRINTF(2, 3);
#define sim_fail(status, ...) (sim_note((status), __VA_ARGS__), (status))

/* --- sim_control.c --- */

typedef enum sim_count {
    COUNT_OPERATORS,
    COUNT_COPIES,
    COUNT_HOST_BYTES,
    COUNT_CALLS,
    COUNT_ALLOCATIONS,
    COUNT_HOST_WAITS,
    COUNT_LOST_FAILURES,
    COUNT_KINDS
} sim_count;

void control_count(sim_count kind);
void control_add(sim_count kind, uint64_t n);

/* Seed and delay of a device that is opened now. LS_EINVAL: a variable is not a number. */
LS_MUST_USE ls_status control_pace(uint64_t *seed, int64_t *delay_us);

bool control_allocation_fails(void); /* counts the allocation */
bool control_item_loses(void);       /* whether the device is lost at this item */
bool control_wait_works(const char *what);

#endif
