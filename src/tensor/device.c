/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - runs operators on devices and moves their memory: autograd and tensors call
 * device_run(). An operator that a host device has no kernel for runs in cpu_ref on plain layouts,
 * or if it is one of mixed precision through widen.h.
 */
#include "tensor/device.h"

#include "base/alloc.h"
#include "tensor/op_profile.h"
#include "tensor/sequence.h"
#include "tensor/widen.h"

#include <string.h>

static const char *const op_names[OP_COUNT] = {
#define OPERATOR(KIND, name, ...) #name,
#include "tensor/operators.inc"
};

const char *device_op_name(op_kind op)
{
    return op < OP_COUNT ? op_names[op] : "?";
}

/* --- running --- */

static ls_status all_plain(ls_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++) {
        void *data;

        if (tensors[i] != NULL && tensors[i]->storage != NULL)
            LS_TRY(tensor_plain(tensors[i], &data));
    }
    return LS_OK;
}

/* The reference kernel, when the device has none of its own. */
static ls_status run_reference(ls_device *device, const op_call *call)
{
    char text[TENSOR_TEXT_BYTES];
    kernel_fn kernel;

    // cpu_ref cannot read the memory of a stream device.
    kernel = device->accel == NULL ? cpu_ref_device_ops.find_kernel(NULL, call) : NULL;
    // all_plain() uses OP_COPY: without a kernel for it this would not end.
    if (call->op == OP_COPY && !(tensor_is_plain(call->in[0]) && tensor_is_plain(call->out[0])))
        return ls_fail(LS_EINTERNAL, "device %s has no copy out of its own layout",
                       device->ops->name);
    LS_TRY(all_plain(call->in, call->n_in));
    LS_TRY(all_plain(call->out, call->n_out));
    if (kernel == NULL)
        return ls_fail(LS_EUNSUPPORTED, "no kernel for %s of %s on device %s",
                       device_op_name(call->op),
                       tensor_text(text, sizeof(text), device_typed(call)), device->ops->name);
    return kernel(NULL, call);
}

/* Increments the versions of what the call has written. */
static inline void mark_written(const op_call *call)
{
    const char *const writer = device_op_name(call->op);

    for (int i = 0; i < call->n_out; i++)
        tensor_written(call->out[i], writer);
    if (call->op == OP_BATCH_NORM && call->attrs.training && call->attrs.momentum > 0) {
        tensor_written(call->in[3], writer);
        tensor_written(call->in[4], writer);
        tensor_written(call->in[5], writer);
    }
}

/* Without widening. */
static ls_status run_kernel(ls_device *device, const op_call *call)
{
    const kernel_fn kernel = device->ops->find_kernel(device->state, call);

    return kernel == NULL ? run_reference(device, call) : kernel(device->state, call);
}

static inline ls_status run_viewed(ls_device *device, const op_call *call, widen_run_fn run)
{
    sequence_view view;
    ls_status st;

    if (!sequence_occurs(call))
        return run(device, call);
    st = sequence_open(call, &view);
    if (st == LS_OK)
        st = run(device, call);
    sequence_close(&view);
    return st;
}

/* A part of a widened operator. */
static ls_status run_part(ls_device *device, const op_call *call)
{
    LS_TRY(run_viewed(device, call, run_kernel));
    mark_written(call);
    return LS_OK;
}

static ls_status run_or_widen(ls_device *device, const op_call *call)
{
    const kernel_fn kernel = device->ops->find_kernel(device->state, call);

    if (kernel != NULL)
        return kernel(device->state, call);
    if (device->accel == NULL && cpu_ref_device_ops.find_kernel(NULL, call) == NULL &&
        widen_needed(call))
        return widen_run(device, call, run_part);
    return run_reference(device, call);
}

static ls_status run_one(ls_device *device, const op_call *call)
{
    LS_TRY(run_viewed(device, call, run_or_widen));
    mark_written(call);
    return LS_OK;
}

static ls_status run_many(ls_device *device, const op_call *calls, int n)
{
    if (device->ops->run_many == NULL) {
        for (int i = 0; i < n; i++)
            LS_TRY(run_one(device, &calls[i]));
        return LS_OK;
    }
    LS_TRY(device->ops->run_many(device->state, calls, n));
    for (int i = 0; i < n; i++)
        mark_written(&calls[i]);
    return LS_OK;
}

/* An operator may run others, which belong to it. */
static ls_status run_profiled(ls_device *device, const op_call *calls, int n)
{
    op_profile *p = device->profile;
    op_record r;
    ls_status st = device_synchronize(device, "device: profile");

    device->profile = NULL;
    op_profile_begin(p, &r, calls, n);
    if (st == LS_OK)
        st = n == 1 ? run_one(device, calls) : run_many(device, calls, n);
    if (st == LS_OK)
        st = device_synchronize(device, "device: profile");
    device->profile = p;
    op_profile_end(p, &r, calls, st);
    return st;
}

ls_status device_run(ls_device *device, const op_call *call)
{
    return device->profile != NULL ? run_profiled(device, call, 1) : run_one(device, call);
}

ls_status device_run_many(ls_device *device, const op_call *calls, int n)
{
    if (n == 0)
        return LS_OK;
    return device->profile != NULL ? run_profiled(device, calls, n) : run_many(device, calls, n);
}

ls_status device_calls(ls_device *device, int n, op_call **out)
{
    if (n > device->n_calls) {
        op_call *calls = ls_calloc((size_t)n, sizeof(*calls));

        if (calls == NULL)
            return ls_fail(LS_ENOMEM, "no memory for %d operator calls", n);
        ls_free(device->calls);
        device->calls = calls;
        device->n_calls = n;
    }
    *out = device->calls;
    return LS_OK;
}

/* --- memory --- */

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
