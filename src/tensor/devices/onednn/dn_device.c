/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_device.c - the oneDNN device as a module: opens it, allocates memory, selects kernels.
 * device.c loads it.
 *
 * Open it after fork: OpenMP's threads do not survive one.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/broadcast.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT       64
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

const device_host *dn_host;

void dn_note(ls_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)dn_host->vfail(status, format, args);
    va_end(args);
}

/* --- life --- */

static void dn_close(device_state *self)
{
    if (self == NULL)
        return;
    threads_end(self);
    primitive_free_all(self);
    layout_free_all(self);
    dn_host->free(self->scratch);
    if (self->stream != NULL)
        (void)dnnl_stream_destroy(self->stream);
    if (self->engine != NULL)
        (void)dnnl_engine_destroy(self->engine);
    dn_host->free(self);
}

static void write_fingerprint(device_state *self)
{
    char version[32];

    compat_version(version, sizeof(version));
    if (self->thread_invariant) {
        (void)snprintf(self->fingerprint, sizeof(self->fingerprint), "onednn %s %s any threads",
                       version, compat_isa());
        return;
    }
    (void)snprintf(self->fingerprint, sizeof(self->fingerprint), "onednn %s %s %d thread%s",
                   version, compat_isa(), self->threads, self->threads == 1 ? "" : "s");
}

static ls_status dn_open(const device_settings *settings, device_state **out)
{
    device_state *self;
    conv2d_set convolutions;
    const char *bad;

    if (!conv2d_set_parse(settings->convolutions, &convolutions, &bad))
        return dn_fail(LS_EINVAL,
                       "LOCKSTEP_CONVOLUTIONS: \"%.*s\" is not one of onednn, few, rows, winograd, "
                       "product, pairs, blocked, channels_last",
                       (int)strcspn(bad, ","), bad);
    if (settings->cpu_isa != NULL && !compat_set_isa(settings->cpu_isa))
        return dn_fail(
            LS_EUNSUPPORTED,
            "cpu_isa (--cpu-isa) %s: oneDNN uses %s; the processor lacks the instructions, "
            "or the first device of this process or ONEDNN_MAX_CPU_ISA chose others",
            settings->cpu_isa, compat_isa());
    self = dn_host->alloc(1, sizeof(*self));
    if (self == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a oneDNN device");
    self->threads = settings->threads;
    self->thread_invariant = settings->thread_invariant;
    self->isa = isa_level_of(compat_isa());
    self->simd = simd_table_for(self->isa);
    self->convolutions = convolutions;
    self->has_bf16 = compat_has_bf16();
    if (dnnl_engine_create(&self->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&self->stream, self->engine, dnnl_stream_default_flags) !=
            dnnl_success) {
        dn_close(self);
        return dn_fail(LS_EUNSUPPORTED, "oneDNN cannot use this processor");
    }
    write_fingerprint(self);
    *out = self;
    return LS_OK;
}

static const char *dn_fingerprint(device_state *self)
{
    return self->fingerprint;
}

static void dn_drop_layout(device_state *self, const layout *l)
{
    LS_UNUSED(self);
    layout_use(l, -1);
}

static void dn_watch(device_state *self, device_watch fn, void *arg)
{
    self->watch = fn;
    self->watch_arg = arg;
}

/* --- memory --- */

/* Large blocks use huge pages: sequential reads of small pages walk the page table every 4 KiB. */
static void *dn_alloc(device_state *self, size_t bytes)
{
    const bool large = bytes >= HUGE_PAGE_BYTES;
    void *block = dn_host->alloc_aligned(large ? HUGE_PAGE_BYTES : ALIGNMENT, bytes);

    LS_UNUSED(self);
    if (block != NULL && large)
        (void)madvise(block, bytes & ~(HUGE_PAGE_BYTES - 1), MADV_HUGEPAGE);
    return block;
}

static void dn_free(device_state *self, void *block, size_t bytes)
{
    LS_UNUSED(self);
    LS_UNUSED(bytes);
    dn_host->free(block);
}

/* --- kernels --- */

static const kernel_fn kernels[OP_COUNT] = {
#define OPERATOR(KIND, name, ...) [OP_##KIND] = dn_##name,
#define STEP_OPERATOR(...)
#include "tensor/operators.inc"
};

/* Kernels of our own that copy 16-bit floats, or convert them piece by piece. */
static bool converts(op_kind op)
{
    switch (op) {
    case OP_CONCAT:
    case OP_SLICE:
    case OP_SLICE_BACKWARD:
    case OP_PERMUTE:
    case OP_DROPOUT:
    case OP_CAST:
    case OP_COPY:
    case OP_ADD_INTO:
    case OP_BINARY:
    case OP_ADD_RELU:
    case OP_RELU:
    case OP_RELU_BACKWARD:
    case OP_ACTIVATE:
    case OP_ACTIVATE_BACKWARD:
    case OP_BATCH_NORM:
    case OP_BATCH_NORM_BACKWARD:
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_BACKWARD:
    case OP_AVG_POOL2D:
    case OP_AVG_POOL2D_BACKWARD:
        return true;
    default:
        return false;
    }
}

static bool multiplies(op_kind op)
{
    switch (op) {
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA:
    case OP_CONV2D_BACKWARD_WEIGHTS:
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_WEIGHTS:
    case OP_MATMUL:
        return true;
    default:
        return false;
    }
}

static bool reads_halves(const device_state *self, const op_call *call)
{
    const ls_tensor *first = device_typed(call);

    if (!tensor_is_half(first))
        return false;
    if (converts(call->op))
        return true;
    if (call->op == OP_ATTENTION || call->op == OP_ATTENTION_BACKWARD)
        return attention_fits_tiles(self, call);
    return self->has_bf16 && first->dtype == LS_BF16 && multiplies(call->op);
}

static bool repeats(op_kind op)
{
    return op == OP_BINARY || op == OP_EXPAND || op == OP_SELECT;
}

/* Decided by what forward and backward have in common: a backward never gets masks or indices of
 * cpu_ref. The first input has the type that counts; an empty batch shows in any tensor. */
static bool is_ours(const device_state *self, const op_call *call)
{
    const ls_tensor *first = device_typed(call);

    if (first->dtype != LS_F32 && !reads_halves(self, call))
        return false;
    for (int i = 0; i < call->n_in; i++) {
        if (call->in[i] != NULL && call->in[i]->count == 0)
            return false;
    }
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] != NULL && call->out[i]->count == 0)
            return false;
    }
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is an output
    return first->n_dims >= 1 || (repeats(call->op) && call->out[0]->n_dims >= 1);
}

/* Whether the kernel of the operator has what this call needs. */
static bool has_case(const op_call *call)
{
    const ls_tensor *x = call->in[0];

    switch (call->op) {
    case OP_COPY: // between plain tensors cpu_ref's is as fast, and has all types
        return x->storage->layout != NULL || call->out[0]->storage->layout != NULL;
    case OP_CAST:
        return call->out[0]->dtype != LS_F64 &&
               (x->dtype == LS_F32 || call->out[0]->dtype == LS_F32);
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_BACKWARD:
        return max_pool_fits(call);
    case OP_PERMUTE:
        return x->dtype == LS_F32 || permute_keeps_rows(call);
    case OP_RELU_BACKWARD:
        return call->in[2] == NULL;
    case OP_BINARY:
        return x->dtype == LS_F32 || broadcast_is_whole(x, call->in[1]);
    default:
        return true;
    }
}

/* Whether the kernel takes and gives plain tensors alone. */
static bool is_plain(op_kind op)
{
    switch (op) {
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_BACKWARD:
    case OP_LOG_SOFTMAX:
    case OP_LOG_SOFTMAX_BACKWARD:
    case OP_NLL:
    case OP_NLL_BACKWARD:
    case OP_MSE:
    case OP_MSE_BACKWARD:
    case OP_EMBEDDING:
    case OP_EMBEDDING_BACKWARD:
    case OP_EXTREME:
    case OP_EXTREME_BACKWARD:
    case OP_CUMSUM:
    case OP_MATMUL:
    case OP_LAYER_NORM:
    case OP_SOFTMAX:
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD:
    case OP_LSTM:
    case OP_LSTM_BACKWARD:
    case OP_GRU:
    case OP_GRU_BACKWARD:
        return true;
    default:
        return false;
    }
}

static ls_status run_plain(device_state *self, const op_call *call)
{
    for (int i = 0; i < call->n_in; i++) {
        void *data;

        if (call->in[i] != NULL)
            LS_TRY(dn_host->tensor_plain(call->in[i], &data));
    }
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] != NULL && call->out[i]->storage == NULL)
            LS_TRY(dn_host->tensor_place(call->out[i], NULL, 0));
    }
    return kernels[call->op](self, call);
}

static kernel_fn find_kernel(device_state *self, const op_call *call)
{
    if (call->op >= OP_COUNT || !is_ours(self, call) || !has_case(call))
        return NULL;
    return is_plain(call->op) ? run_plain : kernels[call->op];
}

static const char *slow_type(device_state *self, ls_dtype type)
{
    if (type == LS_F16)
        return "device onednn has no kernels for float16: it computes in float32 and converts "
               "inputs and results; bf16 is faster";
    return self->has_bf16 ? NULL
                          : "this processor has no instructions for bfloat16 (AVX512_BF16, AMX): "
                            "device onednn computes in float32 and converts inputs and results";
}

static const device_ops ops = {
    .abi = DEVICE_ABI,
    .name = "onednn",
    .open = dn_open,
    .close = dn_close,
    .fingerprint = dn_fingerprint,
    .alloc = dn_alloc,
    .free = dn_free,
    .find_kernel = find_kernel,
    .free_packed = packed_free,
    .drop_layout = dn_drop_layout,
    .slow_type = slow_type,
    .watch = dn_watch,
};

LS_API const device_ops *lockstep_device(const device_host *host);

const device_ops *lockstep_device(const device_host *host)
{
    if (host->abi != DEVICE_ABI)
        return NULL;
    dn_host = host;
    return &ops;
}
