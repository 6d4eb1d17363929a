/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - finds and opens devices, and runs operators on them: autograd and tensors call
 * device_run(). An operator that a host device has no kernel for runs in cpu_ref on plain layouts,
 * or if it is one of mixed precision through widen.h.
 */
#include "tensor/device.h"

#include <lockstep/log.h>

#include "base/alloc.h"
#include "base/config.h"
#include "base/options.h"
#include "base/text.h"
#include "base/thread.h"
#include "tensor/module.h"
#include "tensor/omp_spin.h"
#include "tensor/pool.h"
#include "tensor/widen.h"

#include <stdlib.h>
#include <string.h>

static const device_ops *const built_in[] = {&cpu_ref_device_ops};

static const char *const op_names[OP_COUNT] = {
#define NAME_OF(OP, name) [OP_##OP] = #name,
    OP_LIST(NAME_OF)
#undef NAME_OF
};

const char *device_op_name(op_kind op)
{
    return op < OP_COUNT ? op_names[op] : "?";
}

/* --- opening --- */

static const device_ops *find_built_in(const char *name)
{
    for (size_t i = 0; i < LS_COUNT_OF(built_in); i++) {
        if (text_equal(built_in[i]->name, name))
            return built_in[i];
    }
    return NULL;
}

/* The number of ranks on this machine, from the launcher's variables; 1 without them. */
static ls_status local_ranks(int64_t *out)
{
    static const char *const names[] = {"LOCKSTEP_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};

    *out = 1;
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        const char *value = getenv(names[i]); // NOLINT(concurrency-mt-unsafe): never set

        if (value != NULL && value[0] != '\0')
            return text_parse_int(value, names[i], 1, 1 << 20, out);
    }
    return LS_OK;
}

/* The device's threads, and GOMP_SPINCOUNT for those of all ranks together. */
static ls_status resolve_threads(int asked, int *out, const char **spin_count)
{
    const int cores = ls_usable_cores(NULL);
    int64_t threads = asked;
    int64_t ranks;

    if (asked < 0)
        return ls_fail(LS_EINVAL, "device: %d threads; 0 takes the default", asked);
    if (threads == 0)
        LS_TRY(config_int(CONFIG_THREADS, &threads));
    LS_TRY(local_ranks(&ranks));
    if (threads == 0)
        threads = cores / ranks;
    *out = threads < 1 ? 1 : (int)threads;
    *spin_count = omp_spin_count(*out * ranks, cores);
    return LS_OK;
}

/* Opens the device of `ops`; takes `module`. */
static ls_status open_ops(const device_ops *ops, void *module, const device_settings *settings,
                          ls_device **out)
{
    ls_device *device = ls_calloc(1, sizeof(*device));
    ls_status st;

    if (device == NULL) {
        module_unload(module);
        return ls_fail(LS_ENOMEM, "no memory for a device");
    }
    device->ops = ops;
    device->module = module;
    st = pool_create(&device->pool);
    if (st == LS_OK)
        st = ops->open(settings, &device->state);
    if (st != LS_OK) {
        ls_free(device->pool);
        ls_free(device);
        module_unload(module);
        return st;
    }
    if (ops->accelerator != NULL)
        device->accel = ops->accelerator(device->state);
    *out = device;
    return LS_OK;
}

static ls_status open_named(const char *name, const device_settings *settings,
                            const char *spin_count, ls_device **out)
{
    const device_ops *ops = find_built_in(name);
    void *module = NULL;
    char **environment;
    ls_status st;

    if (ops != NULL)
        return open_ops(ops, NULL, settings, out);
    environment = omp_spin_enter(spin_count);
    st = module_load(name, &ops, &module);
    omp_spin_leave(environment);
    return st == LS_OK ? open_ops(ops, module, settings, out) : st;
}

/* The best processor device of this installation; the slow one only with a warning. */
static ls_status open_cpu(const device_settings *settings, const char *spin_count, ls_device **out)
{
    const ls_status st = open_named("onednn", settings, spin_count, out);

    if (st == LS_OK || st == LS_EINVAL) // a mistake in a setting is no reason for a slow device
        return st;
    ls_log(LS_LOG_WARN, "tensor", "training will be slow with plain C kernels: %s",
           ls_last_error());
    return open_named("cpu_ref", settings, spin_count, out);
}

static ls_status resolve_name(const char *given, const char **out)
{
    *out = given;
    return given != NULL && given[0] != '\0' ? LS_OK : config_text(CONFIG_DEVICE, out);
}

/* Adds the devices for users to the reason; cpu_ref is for tests. */
static ls_status fail_with_alternatives(ls_status st)
{
    char why[LS_ERROR_BYTES];

    text_format(why, sizeof(why), "%.700s", ls_last_error());
    return ls_fail(st, "%s; available here: cpu (the default)%s", why,
                   module_check("onednn") == LS_OK ? ", which computes with oneDNN" : "");
}

ls_status device_check(const char *name)
{
    ls_status st;

    LS_TRY(resolve_name(name, &name));
    if (text_equal(name, "cpu") || find_built_in(name) != NULL)
        return LS_OK;
    st = module_check(name);
    return st == LS_OK ? LS_OK : fail_with_alternatives(st);
}

ls_status ls_device_open(const ls_device_options *opt, ls_device **out)
{
    ls_device_options o;
    const char *spin_count = NULL;
    const char *name;
    device_settings settings = {.index = -1};

    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_context(OPTIONS_COPY(ls_device_options, opt, &o), "device"));
    LS_TRY(device_check(o.name));
    LS_TRY(resolve_name(o.name, &name));
    LS_TRY(resolve_threads(o.threads, &settings.threads, &spin_count));
    LS_TRY(config_text(CONFIG_CONVOLUTIONS, &settings.convolutions));
    if (text_equal(name, "cpu"))
        return open_cpu(&settings, spin_count, out);
    return open_named(name, &settings, spin_count, out);
}

ls_status ls_device_close(ls_device *device)
{
    size_t n_tensors;

    if (device == NULL)
        return LS_OK;
    n_tensors = pool_live_tensors(device);
    if (n_tensors > 0 || device->n_users > 0)
        return ls_fail(LS_EINVAL,
                       "device %s is in use by %zu tensors and %zu tapes and models; destroy them "
                       "before the device is closed",
                       device->ops->name, n_tensors, device->n_users);
    pool_destroy(device);
    device->ops->close(device->state);
    module_unload(device->module);
    ls_free(device->calls);
    ls_free(device);
    return LS_OK;
}

const char *ls_device_name(const ls_device *device)
{
    return device == NULL ? NULL : device->ops->name;
}

const char *ls_device_fingerprint(const ls_device *device)
{
    return device == NULL ? NULL : device->ops->fingerprint(device->state);
}

const char *device_slow_type(const ls_device *device, ls_dtype type)
{
    return device->ops->slow_type == NULL ? NULL : device->ops->slow_type(device->state, type);
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
    if (kernel == NULL && device->accel == NULL && widen_needed(call))
        return widen_run(device, call);
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
static void mark_written(const op_call *call)
{
    for (int i = 0; i < call->n_out; i++)
        tensor_written(call->out[i]);
    if (call->op == OP_BATCH_NORM && call->attrs.training) {
        tensor_written(call->in[3]);
        tensor_written(call->in[4]);
    }
}

ls_status device_run(ls_device *device, const op_call *call)
{
    const kernel_fn kernel = device->ops->find_kernel(device->state, call);

    if (kernel == NULL)
        LS_TRY(run_reference(device, call));
    else
        LS_TRY(kernel(device->state, call));
    mark_written(call);
    return LS_OK;
}

ls_status device_run_many(ls_device *device, const op_call *calls, int n)
{
    if (n == 0)
        return LS_OK;
    if (device->ops->run_many == NULL) {
        for (int i = 0; i < n; i++)
            LS_TRY(device_run(device, &calls[i]));
        return LS_OK;
    }
    LS_TRY(device->ops->run_many(device->state, calls, n));
    for (int i = 0; i < n; i++)
        mark_written(&calls[i]);
    return LS_OK;
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
