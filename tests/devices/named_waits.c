/* SPDX-License-Identifier: Apache-2.0 */
/*
 * named_waits.c - the entry of liblockstep_cudahost.so: counts the waits of its accelerators by
 * their names, and lets those that tests ask for do nothing (gpu_host.h). The device registers its
 * accelerators through the table of the core's functions, where this file takes its place.
 */
#include "devices/gpu_host.h"

#include "base/thread.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <string.h>

/* That of cuda_device.c, which is compiled with another name. */
const device_ops *cudahost_device(const device_host *host);

static ls_mutex lock = {PTHREAD_MUTEX_INITIALIZER}; /* of the members of gpu_host */
static const device_host *core;
static const accel_ops *inner; /* of cuda_accel.c */

static void add_to(uint64_t *counter, uint64_t n)
{
    ls_mutex_lock(&lock);
    *counter += n;
    ls_mutex_unlock(&lock);
}

/* Counts the wait. */
static bool works(const char *what)
{
    gpu_host *state = gpu_host_state();
    size_t i = 0;
    bool is_dropped;

    ls_mutex_lock(&lock);
    while (i < state->n_waits && strcmp(state->waits[i].name, what) != 0)
        i++;
    if (i == state->n_waits && i < GPU_HOST_WAITS)
        state->waits[state->n_waits++] = (gpu_host_wait){.name = what};
    if (i < GPU_HOST_WAITS)
        state->waits[i].n++;
    is_dropped = state->dropped != NULL && strcmp(state->dropped, what) == 0;
    ls_mutex_unlock(&lock);
    return !is_dropped;
}

static ls_status named_queue_wait(ls_queue *queue, accel_event *event, const char *what)
{
    return works(what) ? inner->queue_wait(queue, event, what) : LS_OK;
}

static ls_status named_event_wait(accel_event *event, const char *what)
{
    if (!works(what))
        return LS_OK;
    add_to(&gpu_host_state()->n_host_waits, 1);
    return inner->event_wait(event, what);
}

static ls_status named_synchronize(accel *self, const char *what)
{
    if (!works(what))
        return LS_OK;
    add_to(&gpu_host_state()->n_host_waits, 1);
    return inner->synchronize(self, what);
}

static void waiting_free(accel *self, void *block)
{
    add_to(&gpu_host_state()->n_host_waits, 1);
    inner->free(self, block);
}

static ls_status counted_copy(ls_queue *queue, void *dst, const void *src, size_t bytes,
                              accel_direction direction)
{
    if (direction != ACCEL_ON_DEVICE)
        add_to(&gpu_host_state()->n_host_bytes, bytes);
    return inner->copy(queue, dst, src, bytes, direction);
}

static void register_named(accel *a)
{
    static accel_ops named;

    ls_mutex_lock(&lock);
    if (inner == NULL) {
        inner = a->ops;
        named = *inner;
        named.queue_wait = named_queue_wait;
        named.event_wait = named_event_wait;
        named.synchronize = named_synchronize;
        named.free = waiting_free;
        named.copy = counted_copy;
    }
    a->ops = &named;
    ls_mutex_unlock(&lock);
    core->accel_register(a);
}

/* The users' work has ended then, and with the rest of the work its failures are known: those of
 * operators, and of host memory that was freed too early. */
static void unregister_named(accel *a)
{
    const bool is_complete = cuda_accel_failure((cuda_accel *)a) != NULL; // else it failed to open

    core->accel_unregister(a);
    if (is_complete && inner->synchronize(a, "tests: end") != LS_OK)
        add_to(&gpu_host_state()->n_lost_failures, 1);
}

LS_API const device_ops *lockstep_device(const device_host *host);

const device_ops *lockstep_device(const device_host *host)
{
    static device_host own;

    if (host->abi == DEVICE_ABI) {
        own = *host;
        own.accel_register = register_named;
        own.accel_unregister = unregister_named;
        core = host;
        host = &own;
    }
    return cudahost_device(host);
}
