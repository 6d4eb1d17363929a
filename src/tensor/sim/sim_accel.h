/* SPDX-License-Identifier: Apache-2.0 */
/* sim_accel.h - the accelerator of the simulated device, and how its kernels queue work. */
#ifndef LS_TENSOR_SIM_ACCEL_H
#define LS_TENSOR_SIM_ACCEL_H

#include "base/accel.h"

/* An accelerator with its memory and three threads, not registered. */
LS_MUST_USE ls_status sim_accel_create(int index, accel **out);
/* Executes what is queued, unless the device is lost, and frees all of it. */
void sim_accel_destroy(accel *self);

/* Work of a kernel. run() returns the operator's failure with the text in ls_last_error(); free()
 * follows it, and is called alone when the device is lost. */
typedef struct sim_task sim_task;
struct sim_task {
    ls_status (*run)(sim_task *self);
    void (*free)(sim_task *self);
};

/* Queues the task and takes it, also when it fails. */
LS_MUST_USE ls_status sim_queue_task(ls_queue *queue, sim_task *task);

/* As arena_alias() of this accelerator's memory. */
void *sim_accel_alias(accel *a, const void *p, size_t bytes);

#endif
