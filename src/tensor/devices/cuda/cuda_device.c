/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_device.c - the CUDA device as a module: finds the card, opens it, selects kernels. device.c
 * loads it. Every reason for which a card cannot be used has its own text with the remedy.
 */
#include "tensor/devices/cuda/dnn/cuda_math.h"
#include "tensor/devices/cuda/ops/own.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const device_host *cu_host;

const layout cuda_nhwc = {"nhwc"};
const layout cuda_nhwc8 = {"nhwc8"};

void cu_note(ls_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)cu_host->vfail(status, format, args);
    va_end(args);
}

/* --- finding the card --- */

#define VERSION_FORMAT      "%d.%d"
#define CUDA_VERSION_OF(v)  (v) / 1000, (v) % 1000 / 10
#define CUDNN_VERSION_OF(v) (v) / 10000, (v) % 10000 / 100

static ls_status fail_without_cards(const gpu_versions *v, gpu_error error)
{
    char why[256];

    switch (gpu_failure_of(error)) {
    case GPU_FAILURE_NO_DRIVER:
        return cu_fail(LS_EUNSUPPORTED,
                       "no CUDA device: no driver (libcuda.so.1 not found); install NVIDIA's "
                       "driver, start a container with --gpus all, or use --device cpu");
    case GPU_FAILURE_OLD_DRIVER:
        return cu_fail(LS_EUNSUPPORTED,
                       "no CUDA device: the driver supports CUDA " VERSION_FORMAT
                       ", this build of Lockstep needs CUDA %d.0 or newer; update the driver, or "
                       "build with an older toolkit",
                       CUDA_VERSION_OF(v->driver), v->runtime / 1000);
    case GPU_FAILURE_NO_DEVICE:
        return cu_fail(LS_EUNSUPPORTED,
                       "no CUDA device: the driver sees no card; see nvidia-smi and "
                       "CUDA_VISIBLE_DEVICES, or use --device cpu");
    default:
        return cu_fail(LS_EUNSUPPORTED, "no CUDA device: %s",
                       gpu_error_text(why, sizeof(why), error));
    }
}

/* Libraries older than the headers lack functions or behave differently. */
static ls_status check_libraries(const gpu_versions *v)
{
    if (v->dnn / 10000 != v->dnn_needed / 10000 || v->dnn < v->dnn_needed / 100 * 100)
        return cu_fail(LS_EUNSUPPORTED,
                       "no CUDA device: cuDNN " VERSION_FORMAT " is installed, this build of "
                       "Lockstep needs " VERSION_FORMAT " or a newer %d.x; install it, or name its "
                       "folder in LOCKSTEP_CUDA_LIBRARIES",
                       CUDNN_VERSION_OF(v->dnn), CUDNN_VERSION_OF(v->dnn_needed),
                       v->dnn_needed / 10000);
    if (v->dnn_runtime / 1000 != v->runtime / 1000)
        return cu_fail(LS_EUNSUPPORTED,
                       "no CUDA device: the cuDNN " VERSION_FORMAT " that is installed is for CUDA "
                       "%d, this build of Lockstep for CUDA %d; install the other one (pip install "
                       "nvidia-cudnn-cu%d), or name its folder in LOCKSTEP_CUDA_LIBRARIES",
                       CUDNN_VERSION_OF(v->dnn), v->dnn_runtime / 1000, v->runtime / 1000,
                       v->runtime / 1000);
    return LS_OK;
}

static const char *visible_devices(void)
{
    const char *value = getenv("CUDA_VISIBLE_DEVICES"); // NOLINT(concurrency-mt-unsafe): never set

    return value == NULL ? "not set" : value;
}

static ls_status choose_card(const device_settings *settings, int n, int *out)
{
    const char *plural = n == 1 ? " is" : "s are";

    if (settings->index >= n)
        return cu_fail(LS_EINVAL,
                       "device %s:%d: %d CUDA device%s visible, numbered from 0 "
                       "(CUDA_VISIBLE_DEVICES: %.100s)",
                       gpu_platform, settings->index, n, plural, visible_devices());
    *out = settings->index;
    if (settings->index >= 0)
        return LS_OK;
    *out = settings->local_rank % n;
    if (settings->local_rank < n || settings->share_gpu)
        return LS_OK;
    return cu_fail(LS_EINVAL,
                   "LOCAL_RANK %d, but %d CUDA device%s visible (CUDA_VISIBLE_DEVICES: %.100s): "
                   "start at most %d rank%s on this machine; or use --share-gpu, or --device "
                   "cuda:0 if each rank sees a card of its own",
                   settings->local_rank, n, plural, visible_devices(), n, n == 1 ? "" : "s");
}

static ls_status check_card(const gpu_properties *card, int index)
{
    const int capability = 10 * card->major + card->minor;

    if (capability >= CUDA_LOWEST_ARCHITECTURE)
        return LS_OK;
    return cu_fail(LS_EUNSUPPORTED,
                   "CUDA device %d (%s) is an sm_%d, this build of Lockstep needs at least sm_%d; "
                   "build with LOCKSTEP_CUDA_ARCHITECTURES=%d if the toolkit supports that, or use "
                   "--device cpu",
                   index, card->name, capability, CUDA_LOWEST_ARCHITECTURE, capability);
}

/* The card for these settings, and what it is. */
typedef struct found_card {
    int index;
    gpu_properties card;
    gpu_versions versions;
} found_card;

static ls_status count_cards(gpu_versions *versions, int *n)
{
    gpu_error error;

    *n = 0;
    gpu_get_versions(versions);
    error = gpu_device_count(n);
    return error != 0 ? fail_without_cards(versions, error) : check_libraries(versions);
}

static ls_status find_card(const device_settings *settings, found_card *out)
{
    gpu_error error;
    int n;

    LS_TRY(count_cards(&out->versions, &n));
    LS_TRY(choose_card(settings, n, &out->index));
    error = gpu_device_properties(out->index, &out->card);
    if (error != 0)
        return fail_without_cards(&out->versions, error);
    return check_card(&out->card, out->index);
}

static ls_status cuda_probe(const device_settings *settings)
{
    found_card found;

    return find_card(settings, &found);
}

static ls_status cuda_count(int *out)
{
    gpu_versions versions;

    return count_cards(&versions, out);
}

/* --- memory --- */

static void *cuda_alloc(device_state *self, size_t bytes)
{
    accel *a = cuda_accel_base(self->accel);

    return a->ops->alloc(a, bytes);
}

static void cuda_free(device_state *self, void *block, size_t bytes)
{
    accel *a = cuda_accel_base(self->accel);

    LS_UNUSED(bytes);
    a->ops->free(a, block);
}

static ls_status make_tickets(device_state *self)
{
    const size_t bytes = CUDA_TICKETS * sizeof(*self->tickets);

    self->tickets = cuda_alloc(self, bytes);
    if (self->tickets == NULL)
        return cu_fail(LS_ENOMEM, "no device memory for counters of blocks");
    return cu_fill(self, self->tickets, 0, bytes);
}

/* --- life --- */

static void cuda_close(device_state *self)
{
    if (self == NULL)
        return;
    if (self->accel != NULL)
        cuda_accel_forget_graphs(self->accel); // their code is that of cuDNN's plans
    if (self->tickets != NULL)
        cuda_free(self, self->tickets, CUDA_TICKETS * sizeof(*self->tickets));
    cuda_math_close(self);
    cuda_accel_close(self->accel);
    cu_host->free(self);
}

/* What decides the bits: card, versions, and the two settings. */
static void write_fingerprint(device_state *self, const found_card *found)
{
    const gpu_versions *v = &found->versions;

    (void)snprintf(self->fingerprint, sizeof(self->fingerprint),
                   "%s %s sm_%d%d cuda " VERSION_FORMAT " driver " VERSION_FORMAT
                   " cudnn " VERSION_FORMAT " tf32 %s%s",
                   cuda_accel_base(self->accel)->name, found->card.name, found->card.major,
                   found->card.minor, CUDA_VERSION_OF(v->runtime), CUDA_VERSION_OF(v->driver),
                   CUDNN_VERSION_OF(v->dnn),
                   self->tf32_matrices       ? "all"
                   : self->tf32_convolutions ? "convolutions"
                                             : "none",
                   self->is_deterministic ? " deterministic" : "");
}

static ls_status cuda_open(const device_settings *settings, device_state **out)
{
    found_card found;
    device_state *self;
    ls_status st;

    LS_TRY(find_card(settings, &found));
    self = cu_host->alloc(1, sizeof(*self));
    if (self == NULL)
        return cu_fail(LS_ENOMEM, "no memory for a CUDA device");
    self->device = settings->device;
    self->card = found.card;
    self->is_deterministic = settings->deterministic;
    self->autotune = settings->autotune;
    self->tf32_matrices = strcmp(settings->tf32, "all") == 0;
    self->tf32_convolutions = strcmp(settings->tf32, "none") != 0;
    st = cuda_accel_open(found.index, &found.card, settings->graphs, &self->accel);
    if (st == LS_OK)
        st = make_tickets(self);
    if (st != LS_OK) {
        cuda_close(self);
        return st;
    }
    write_fingerprint(self, &found);
    *out = self;
    return LS_OK;
}

static const char *cuda_fingerprint(device_state *self)
{
    return self->fingerprint;
}

static accel *cuda_accelerator(device_state *self)
{
    return cuda_accel_base(self->accel);
}

/* --- kernels --- */

static void (*const kernels[OP_COUNT])(own_operands *o, const op_call *call) = {
#define OPERATOR(KIND, name, ...) cuda_##name,
#include "tensor/operators.inc"
};

static ls_status run(device_state *self, const op_call *call)
{
    own_operands o = own_begin(self);

    kernels[call->op](&o, call);
    return own_end(&o);
}

static bool is_padded(const ls_tensor *t)
{
    return t != NULL && t->storage != NULL && own_is_padded(t);
}

/* Whether a kernel reads input i with padded channels. */
static bool reads_padded(op_kind op, int i)
{
    return op == OP_COPY || op == OP_CONV2D_BACKWARD_WEIGHTS ||
           ((op == OP_CONV2D || op == OP_CONV2D_BACKWARD_DATA) && i == 0);
}

static bool needs_unpadding(const op_call *call)
{
    bool needs = false;

    for (int i = 0; i < call->n_in; i++)
        needs |= is_padded(call->in[i]) && !reads_padded(call->op, i);
    for (int i = 0; i < call->n_out; i++)
        needs |= is_padded(call->out[i]);
    return needs;
}

static ls_status unpad(ls_tensor *t)
{
    void *plain;

    return is_padded(t) ? cu_host->tensor_plain(t, &plain) : LS_OK;
}

static ls_status run_unpadded(device_state *self, const op_call *call)
{
    for (int i = 0; i < call->n_in; i++)
        LS_TRY(unpad(call->in[i]));
    for (int i = 0; i < call->n_out; i++)
        LS_TRY(unpad(call->out[i]));
    cuda_accel_name_operator(self->accel, call->op);
    return run(self, call);
}

static kernel_fn find_kernel(device_state *self, const op_call *call)
{
    cuda_accel_enter(self->accel); // the kernel queues in this thread
    cuda_accel_name_operator(self->accel, call->op);
    return needs_unpadding(call) ? run_unpadded : run;
}

static ls_status run_many(device_state *self, const op_call *calls, int n)
{
    if (own_is_update(calls[0].op)) {
        cuda_accel_enter(self->accel);
        cuda_accel_name_operator(self->accel, calls[0].op);
        return own_run_updates(self, calls, n);
    }
    for (int i = 0; i < n; i++)
        LS_TRY(find_kernel(self, &calls[i])(self, &calls[i]));
    return LS_OK;
}

ls_status cu_launch(device_state *self, const gpu_kernel *kernel, unsigned n_blocks,
                    unsigned n_threads, const void *args)
{
    const graph_node node = {.kind = GRAPH_KERNEL, .code = (uint64_t)(uintptr_t)kernel};

    if (n_blocks == 0)
        return LS_OK;
    self->n_launches++;
    LS_TRY(cuda_accel_begin(self->accel, &node));
    return cuda_accel_end(
        self->accel, gpu_launch(kernel, n_blocks, n_threads, args, cu_stream(self)), kernel->name);
}

ls_status cu_fill(device_state *self, void *dst, int byte, size_t bytes)
{
    ls_queue *queue = accel_queue(cuda_accel_base(self->accel), ACCEL_COMPUTE);

    return queue->accel->ops->fill(queue, dst, byte, bytes);
}

ls_status cu_copy(device_state *self, void *dst, const void *src, size_t bytes)
{
    ls_queue *queue = accel_queue(cuda_accel_base(self->accel), ACCEL_COMPUTE);

    return queue->accel->ops->copy(queue, dst, src, bytes, ACCEL_ON_DEVICE);
}

static ls_status cuda_usage(device_state *self, device_usage *out)
{
    accel *a = cuda_accel_base(self->accel);
    const graph_counts graphs = cuda_accel_count_graphs(self->accel);
    size_t free_bytes = 0;

    *out = (device_usage){.n_launches = self->n_launches,
                          .n_graph_launches = graphs.n_launches,
                          .n_graphs_made = graphs.n_instantiated,
                          .busy_percent = gpu_busy_percent(self->card.bus_id)};
    LS_TRY(a->ops->memory(a, &free_bytes, &out->total_bytes));
    out->used_bytes = out->total_bytes - free_bytes;
    return LS_OK;
}

static const device_ops ops = {
    .abi = DEVICE_ABI,
    .name = gpu_platform,
    .probe = cuda_probe,
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .fingerprint = cuda_fingerprint,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .find_kernel = find_kernel,
    .free_packed = packed_free,
    .accelerator = cuda_accelerator,
    .run_many = run_many,
    .usage = cuda_usage,
    .has_graphs = true,
};

LS_API const device_ops *lockstep_device(const device_host *host);

const device_ops *lockstep_device(const device_host *host)
{
    if (host->abi != DEVICE_ABI)
        return NULL;
    cu_host = host;
    return &ops;
}
