/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.c - copies and fills of the memory of devices, and its sizes, for tensor.c and all
 * above it. */
#include "tensor/device.h"

#include <string.h>

/* Copies through the compute queue and waits for it. */
static ls_status copy_and_wait(ls_device *device, void *dst, const void *src, size_t bytes,
                               accel_direction direction)
{
    ls_queue *queue = accel_queue(device->accel, ACCEL_COMPUTE);
    accel_event *done;
    ls_status st;

    LS_TRY(accel_event_create(device->accel, false, &done));
    st = accel_copy(queue, dst, src, bytes, direction);
    if (st == LS_OK)
        st = accel_event_record(done, queue);
    if (st == LS_OK)
        st = accel_event_wait(done, direction == ACCEL_TO_HOST ? "device: read" : "device: write");
    accel_event_destroy(done);
    return st;
}

ls_status device_read(ls_device *device, void *host, const void *src, size_t bytes)
{
    if (device->accel != NULL)
        return copy_and_wait(device, host, src, bytes, ACCEL_TO_HOST);
    if (bytes > 0)
        memcpy(host, src, bytes);
    return LS_OK;
}

ls_status device_write(ls_device *device, void *dst, const void *host, size_t bytes)
{
    if (device->accel != NULL)
        return copy_and_wait(device, dst, host, bytes, ACCEL_TO_DEVICE);
    if (bytes > 0)
        memcpy(dst, host, bytes);
    return LS_OK;
}

ls_status device_copy(ls_device *device, void *dst, const void *src, size_t bytes)
{
    if (device->accel != NULL)
        return accel_copy(accel_queue(device->accel, ACCEL_COMPUTE), dst, src, bytes,
                          ACCEL_ON_DEVICE);
    if (bytes > 0)
        memcpy(dst, src, bytes);
    return LS_OK;
}

ls_status device_fill(ls_device *device, void *dst, int byte, size_t bytes)
{
    if (device->accel != NULL)
        return accel_fill(accel_queue(device->accel, ACCEL_COMPUTE), dst, byte, bytes);
    if (bytes > 0)
        memset(dst, byte, bytes);
    return LS_OK;
}

ls_status device_synchronize(ls_device *device, const char *what)
{
    return device->accel == NULL ? LS_OK : accel_synchronize(device->accel, what);
}

/* --- the public functions of queues and memory --- */

ls_queue *ls_device_queue(ls_device *device)
{
    return device == NULL || device->accel == NULL ? NULL
                                                   : accel_queue(device->accel, ACCEL_COMPUTE);
}

ls_status ls_device_synchronize(ls_device *device)
{
    LS_TRY(LS_GIVEN(device));
    return device_synchronize(device, "device: synchronize");
}

ls_status ls_device_memory(ls_device *device, size_t *free_bytes, size_t *total_bytes)
{
    LS_TRY(LS_GIVEN(device));
    LS_TRY(LS_GIVEN(free_bytes));
    LS_TRY(LS_GIVEN(total_bytes));
    if (device->accel == NULL)
        return ls_fail(LS_EUNSUPPORTED, "device %s has no memory of its own", device->ops->name);
    return accel_memory(device->accel, free_bytes, total_bytes);
}

ls_status device_get_usage(const ls_device *device, device_usage *out)
{
    return device->ops->usage == NULL
               ? ls_fail(LS_EUNSUPPORTED, "device %s does not know its usage", device->ops->name)
               : device->ops->usage(device->state, out);
}
