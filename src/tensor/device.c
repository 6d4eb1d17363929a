/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - runs operators on devices, and brings tensors into plain layout by one: autograd and
 * tensor_access.c call it. An operator that a host device has no kernel for runs in cpu_ref on
 * plain layouts, or if it is one of mixed precision through widen.h.
 */
#include "tensor/device.h"

#include "base/alloc.h"
#include "tensor/op_profile.h"
#include "tensor/sequence.h"
#include "tensor/test_flip.h"
#include "tensor/widen.h"

static const char *const op_names[OP_COUNT] = {
#define OPERATOR(KIND, name, ...) #name,
#include "tensor/operators.inc"
};

const char *device_op_name(op_kind op)
{
    return op < OP_COUNT ? op_names[op] : "?";
}

/* --- plain layout --- */

/* Swaps the memory of `a` and `b`, but not their users, versions and packed copies. */
static void swap_memory(storage *a, storage *b)
{
    const storage was = *a;

    a->data = b->data;
    a->bytes = b->bytes;
    a->layout = b->layout;
    b->data = was.data;
    b->bytes = was.bytes;
    b->layout = was.layout;
}

/* Brings the storage of `t` into plain layout: OP_COPY, by `run`, fills a plain copy, and the two
 * swap their memory. */
static ls_status make_plain(const ls_tensor *t, device_run_fn run)
{
    ls_tensor src = *t;
    ls_tensor *copy;
    ls_status st;

    LS_ASSERT(t->offset == 0 && !t->storage->borrowed);
    LS_TRY(tensor_like(t, &copy));
    st = tensor_place(copy, NULL, 0);
    if (st == LS_OK)
        st = run(t->device,
                 &(op_call){.op = OP_COPY, .n_in = 1, .n_out = 1, .in = {&src}, .out = {copy}});
    if (st == LS_OK)
        swap_memory(t->storage, copy->storage);
    ls_tensor_destroy(copy);
    return st;
}

/* Out of a layout of the device, by its own kernel. */
static ls_status run_copy(ls_device *device, const op_call *call)
{
    sequence_view view = {.n = 0};
    kernel_fn kernel;
    ls_status st;

    if (sequence_occurs(call))
        (void)sequence_open(call, &view);
    kernel = device->ops->find_kernel(device->state, call);
    st = kernel != NULL ? kernel(device->state, call)
                        : ls_fail(LS_EINTERNAL, "device %s has no copy out of its own layout",
                                  device->ops->name);
    sequence_close(&view);
    return st;
}

static ls_status all_plain(ls_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++) {
        if (tensors[i] != NULL && tensors[i]->storage != NULL &&
            tensors[i]->storage->layout != NULL)
            LS_TRY(make_plain(tensors[i], run_copy));
    }
    return LS_OK;
}

/* --- running --- */

/* The reference kernel, when the device has none of its own. */
static ls_status run_reference(ls_device *device, const op_call *call)
{
    char text[TENSOR_TEXT_BYTES];
    kernel_fn kernel;

    // cpu_ref cannot read the memory of a stream device.
    kernel = device->accel == NULL ? cpu_ref_device_ops.find_kernel(NULL, call) : NULL;
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
        tensor_written(call->in[6], writer);
    }
}

/* Without widening. */
static ls_status run_kernel(ls_device *device, const op_call *call)
{
    const kernel_fn kernel = device->ops->find_kernel(device->state, call);

    return kernel == NULL ? run_reference(device, call) : kernel(device->state, call);
}

static inline ls_status run_viewed(ls_device *device, const op_call *call, device_run_fn run)
{
    sequence_view view;
    ls_status st;

    if (!sequence_occurs(call))
        return run(device, call);
    if (!sequence_open(call, &view)) {
        LS_TRY(all_plain(call->in, call->n_in));
        LS_TRY(all_plain(call->out, call->n_out));
    }
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
    const ls_status st =
        device->profile != NULL ? run_profiled(device, call, 1) : run_one(device, call);

    if (device->flip != NULL && st == LS_OK)
        test_flip_results(device->flip, call, 1);
    return st;
}

ls_status device_run_many(ls_device *device, const op_call *calls, int n)
{
    ls_status st;

    if (n == 0)
        return LS_OK;
    st = device->profile != NULL ? run_profiled(device, calls, n) : run_many(device, calls, n);
    if (device->flip != NULL && st == LS_OK)
        test_flip_results(device->flip, calls, n);
    return st;
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

ls_status tensor_plain(ls_tensor *t, void **out)
{
    char text[TENSOR_TEXT_BYTES];

    if (t->storage == NULL)
        return ls_fail(
            LS_EINVAL,
            "tensor: the memory of %s was released by backward; ls_tape_keep() retains it",
            tensor_text(text, sizeof(text), t));
    if (t->storage->layout != NULL)
        LS_TRY(make_plain(t, device_run));
    *out = tensor_elements(t);
    return LS_OK;
}
