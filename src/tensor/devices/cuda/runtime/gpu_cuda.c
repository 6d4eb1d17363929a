/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_cuda.c - gpu.h over CUDA's runtime, of which each function is one call. The runtime is linked
 * in; it loads the driver at its first call, so that this module loads on machines without one.
 */
#include "tensor/devices/cuda/runtime/gpu.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

const char gpu_platform[] = "cuda";

/* --- errors --- */

gpu_failure gpu_failure_of(gpu_error error)
{
    switch ((cudaError_t)error) {
    case cudaErrorMemoryAllocation:
        return GPU_FAILURE_OUT_OF_MEMORY;
    case cudaErrorInsufficientDriver: {
        gpu_versions v; // the same error for a driver that is too old and for none

        gpu_get_versions(&v);
        return v.driver == 0 ? GPU_FAILURE_NO_DRIVER : GPU_FAILURE_OLD_DRIVER;
    }
    case cudaErrorStubLibrary:
        return GPU_FAILURE_NO_DRIVER;
    case cudaErrorNoDevice:
        return GPU_FAILURE_NO_DEVICE;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
    case cudaErrorUnknown:
        return GPU_FAILURE_LOST;
    default:
        return GPU_FAILURE_OTHER;
    }
}

/* What to do about errors of the machine that CUDA's texts do not explain. */
static const char *remedy(cudaError_t e)
{
    switch (e) {
    case cudaErrorSystemNotReady:
        return "; start nvidia-fabricmanager";
    case cudaErrorSystemDriverMismatch:
        return "; the driver was updated: restart the machine, or load its kernel module again";
    case cudaErrorDevicesUnavailable:
        return "; another process uses the card, whose compute mode is exclusive (nvidia-smi -q)";
    case cudaErrorInitializationError:
    case cudaErrorUnknown:
        return "; see dmesg, and whether nvidia-smi works";
    default:
        return "";
    }
}

const char *gpu_error_text(char *buf, size_t n, gpu_error error)
{
    const cudaError_t e = (cudaError_t)error;

    (void)snprintf(buf, n, "%s: %s%s", cudaGetErrorName(e), cudaGetErrorString(e), remedy(e));
    return buf;
}

/* A failed call is also the runtime's "last error"; takes it back, so that it is not reported as
 * that of a later launch. */
static gpu_error checked(cudaError_t e)
{
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return (gpu_error)e;
}

/* --- cards --- */

void gpu_get_versions(gpu_versions *out)
{
    *out = (gpu_versions){
        .runtime = CUDART_VERSION,
        .dnn = (int)cudnnGetVersion(),
        .dnn_needed = CUDNN_VERSION,
        .dnn_runtime = (int)cudnnGetCudartVersion(),
        .blas = (int)cublasLtGetVersion(),
        .blas_needed = CUBLAS_VERSION,
    };
    if (checked(cudaDriverGetVersion(&out->driver)) != 0)
        out->driver = 0;
}

gpu_error gpu_device_count(int *out)
{
    return checked(cudaGetDeviceCount(out));
}

gpu_error gpu_device_set(int index)
{
    return checked(cudaSetDevice(index));
}

gpu_error gpu_device_properties(int index, gpu_properties *out)
{
    struct cudaDeviceProp p;
    const gpu_error e = checked(cudaGetDeviceProperties(&p, index));

    if (e != 0)
        return e;
    *out = (gpu_properties){.major = p.major,
                            .minor = p.minor,
                            .has_tensor_cores = p.major >= 8,
                            .n_processors = p.multiProcessorCount,
                            .total_bytes = p.totalGlobalMem};
    (void)snprintf(out->name, sizeof(out->name), "%.63s", p.name);
    return checked(cudaDeviceGetPCIBusId(out->bus_id, sizeof(out->bus_id), index));
}

gpu_error gpu_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    return checked(cudaMemGetInfo(free_bytes, total_bytes));
}

/* --- memory --- */

gpu_error gpu_malloc(void **out, size_t bytes)
{
    return checked(cudaMalloc(out, bytes));
}

gpu_error gpu_free(void *block)
{
    return checked(cudaFree(block));
}

gpu_error gpu_malloc_host(void **out, size_t bytes)
{
    return checked(cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
}

gpu_error gpu_free_host(void *block)
{
    return checked(cudaFreeHost(block));
}

int gpu_pointer_device(const void *p)
{
    struct cudaPointerAttributes a;

    if (checked(cudaPointerGetAttributes(&a, p)) != 0)
        return -1;
    return a.type == cudaMemoryTypeDevice ? a.device : -1;
}

gpu_error gpu_memcpy_async(void *dst, const void *src, size_t bytes, gpu_direction direction,
                           gpu_stream *stream)
{
    static const enum cudaMemcpyKind kinds[] = {
        [GPU_TO_DEVICE] = cudaMemcpyHostToDevice,
        [GPU_TO_HOST] = cudaMemcpyDeviceToHost,
        [GPU_ON_DEVICE] = cudaMemcpyDeviceToDevice,
    };

    return checked(cudaMemcpyAsync(dst, src, bytes, kinds[direction], (cudaStream_t)stream));
}

gpu_error gpu_memset_async(void *dst, int byte, size_t bytes, gpu_stream *stream)
{
    return checked(cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)stream));
}

/* --- streams and events --- */

gpu_error gpu_stream_create(gpu_stream **out, bool high_priority)
{
    int low = 0;
    int high = 0;
    cudaStream_t stream;
    gpu_error e = checked(cudaDeviceGetStreamPriorityRange(&low, &high));

    if (e == 0)
        e = checked(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                 high_priority ? high : low));
    if (e == 0)
        *out = (gpu_stream *)stream;
    return e;
}

gpu_error gpu_stream_destroy(gpu_stream *stream)
{
    return checked(cudaStreamDestroy((cudaStream_t)stream));
}

gpu_error gpu_stream_synchronize(gpu_stream *stream)
{
    return checked(cudaStreamSynchronize((cudaStream_t)stream));
}

gpu_error gpu_stream_wait_event(gpu_stream *stream, gpu_event *event)
{
    return checked(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0));
}

gpu_error gpu_launch_host(gpu_stream *stream, void (*fn)(void *arg), void *arg)
{
    return checked(cudaLaunchHostFunc((cudaStream_t)stream, fn, arg));
}

gpu_error gpu_event_create(gpu_event **out, bool timed)
{
    cudaEvent_t event;
    const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    const gpu_error e = checked(cudaEventCreateWithFlags(&event, flags));

    if (e == 0)
        *out = (gpu_event *)event;
    return e;
}

gpu_error gpu_event_destroy(gpu_event *event)
{
    return checked(cudaEventDestroy((cudaEvent_t)event));
}

gpu_error gpu_event_record(gpu_event *event, gpu_stream *stream)
{
    return checked(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream));
}

gpu_error gpu_event_query(gpu_event *event, bool *done)
{
    const cudaError_t e = cudaEventQuery((cudaEvent_t)event);

    *done = e == cudaSuccess;
    if (e != cudaErrorNotReady)
        return checked(e);
    (void)cudaGetLastError();
    return 0;
}

gpu_error gpu_event_synchronize(gpu_event *event)
{
    return checked(cudaEventSynchronize((cudaEvent_t)event));
}

gpu_error gpu_event_elapsed_ms(gpu_event *start, gpu_event *end, float *out)
{
    return checked(cudaEventElapsedTime(out, (cudaEvent_t)start, (cudaEvent_t)end));
}

/* --- graphs --- */

gpu_error gpu_capture_begin(gpu_stream *stream)
{
    return checked(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeRelaxed));
}

gpu_error gpu_capture_check(gpu_stream *stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const gpu_error e = checked(cudaStreamIsCapturing((cudaStream_t)stream, &status));

    if (e != 0)
        return e;
    return status == cudaStreamCaptureStatusActive ? 0
                                                   : (gpu_error)cudaErrorStreamCaptureInvalidated;
}

gpu_error gpu_capture_end(gpu_stream *stream, gpu_graph **out)
{
    cudaGraph_t graph = NULL;
    const gpu_error e = checked(cudaStreamEndCapture((cudaStream_t)stream, &graph));

    *out = (gpu_graph *)graph;
    return e;
}

gpu_error gpu_graph_destroy(gpu_graph *graph)
{
    return checked(cudaGraphDestroy((cudaGraph_t)graph));
}

gpu_error gpu_graph_instantiate(gpu_graph_exec **out, gpu_graph *graph)
{
    cudaGraphExec_t exec = NULL;
    const gpu_error e = checked(cudaGraphInstantiate(&exec, (cudaGraph_t)graph, 0));

    *out = e == 0 ? (gpu_graph_exec *)exec : NULL;
    return e;
}

gpu_error gpu_graph_update(gpu_graph_exec *exec, gpu_graph *graph, bool *done)
{
    cudaGraphExecUpdateResultInfo info;
    const gpu_error e =
        checked(cudaGraphExecUpdate((cudaGraphExec_t)exec, (cudaGraph_t)graph, &info));

    *done = e == 0;
    return e == (gpu_error)cudaErrorGraphExecUpdateFailure ? 0 : e;
}

gpu_error gpu_graph_launch(gpu_graph_exec *exec, gpu_stream *stream)
{
    return checked(cudaGraphLaunch((cudaGraphExec_t)exec, (cudaStream_t)stream));
}

gpu_error gpu_graph_exec_destroy(gpu_graph_exec *exec)
{
    return checked(cudaGraphExecDestroy((cudaGraphExec_t)exec));
}

/* --- kernels --- */

/* Processors that kernels of two parts leave to collectives: they start only when all their blocks
 * find a place, and would wait for the end of a collective, which holds up to 16 processors. */
#define SPARED_PROCESSORS 16

static atomic_bool has_collectives;

void gpu_expect_collectives(void)
{
    atomic_store(&has_collectives, true);
}

/* What CUDA says of a kernel of two parts, asked once in each thread. */
typedef struct residency {
    const void *function; /* NULL: the entry is free */
    int card;
    unsigned n_threads;
    int processors;
    int blocks; /* of a processor at once */
} residency;

static gpu_error ask_residency(residency *r)
{
    const gpu_error e =
        checked(cudaDeviceGetAttribute(&r->processors, cudaDevAttrMultiProcessorCount, r->card));

    if (e != 0)
        return e;
    return checked(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&r->blocks, r->function,
                                                                 (int)r->n_threads, 0));
}

static gpu_error find_residency(const void *function, unsigned n_threads, residency *out)
{
    static _Thread_local residency known[16]; // twice as many as there are such kernels
    const size_t n = sizeof(known) / sizeof(known[0]);
    size_t i = 0;
    gpu_error e;

    *out = (residency){.function = function, .n_threads = n_threads};
    e = checked(cudaGetDevice(&out->card));
    while (i < n && known[i].function != NULL &&
           (known[i].function != function || known[i].card != out->card ||
            known[i].n_threads != n_threads))
        i++;
    if (e == 0 && i < n && known[i].function != NULL)
        *out = known[i];
    else if (e == 0)
        e = ask_residency(out);
    if (e == 0 && i < n)
        known[i] = *out;
    return e;
}

static gpu_error launch_two_parts(const void *function, dim3 grid, dim3 block, void **params,
                                  cudaStream_t stream)
{
    residency r;
    const gpu_error e = find_residency(function, block.x, &r);
    unsigned most;

    if (e != 0)
        return e;
    if (atomic_load(&has_collectives) && r.processors >= 4 * SPARED_PROCESSORS)
        r.processors -= SPARED_PROCESSORS;
    most = (unsigned)(r.processors * r.blocks);
    if (grid.x > most)
        grid.x = most;
    return checked(cudaLaunchCooperativeKernel(function, grid, block, params, 0, stream));
}

gpu_error gpu_launch(const gpu_kernel *kernel, unsigned n_blocks, unsigned n_threads,
                     const void *args, gpu_stream *stream)
{
    const dim3 grid = {n_blocks, 1, 1};
    const dim3 block = {n_threads, 1, 1};
    const void *function;
    void *params[1];

    // C has no conversion of a function's address; the runtime reads, but does not write, `args`.
    memcpy(&function, &kernel->function, sizeof(function));
    memcpy(&params[0], &args, sizeof(args));
    if (kernel->second != NULL)
        return launch_two_parts(function, grid, block, params, (cudaStream_t)stream);
    return checked(cudaLaunchKernel(function, grid, block, params, 0, (cudaStream_t)stream));
}
