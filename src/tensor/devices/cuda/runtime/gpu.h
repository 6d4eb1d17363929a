/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - the part of a GPU runtime that the device uses, in plain C types.
 *
 * gpu_cuda.c implements it over CUDA's runtime; tests/devices/, for tests, in host memory. Each
 * function does what the CUDA function of its name does (HIP has the same names), so the comments
 * state only what differs. Only gpu_*.c, kernels (.cu) and library wrappers include vendor headers.
 *
 * Threads  As in CUDA: any thread, but each thread selects its card with gpu_device_set().
 */
#ifndef LS_TENSOR_DEVICES_CUDA_RUNTIME_GPU_H
#define LS_TENSOR_DEVICES_CUDA_RUNTIME_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_stream gpu_stream; /* the runtime's own: a cudaStream_t */
typedef struct gpu_event gpu_event;

/* The runtime's error number; 0: success. */
typedef int gpu_error;

/* What an error means for the device. */
typedef enum gpu_failure {
    GPU_FAILURE_OTHER,         /* the call failed; later calls may succeed */
    GPU_FAILURE_OUT_OF_MEMORY, /* of the call that allocates */
    GPU_FAILURE_LOST,          /* the card or its context is unusable from now on */
    GPU_FAILURE_NO_DRIVER,     /* libcuda.so.1 was not found */
    GPU_FAILURE_OLD_DRIVER,    /* the driver is older than the runtime needs */
    GPU_FAILURE_NO_DEVICE,     /* the driver sees no card */
} gpu_failure;

gpu_failure gpu_failure_of(gpu_error error);

/* "cudaErrorMemoryAllocation: out of memory", into `buf`, which it returns. */
const char *gpu_error_text(char *buf, size_t n, gpu_error error);

/* The device's name: "cuda", or "cudahost" for tests. */
extern const char gpu_platform[];

/* --- cards --- */

typedef struct gpu_properties {
    char name[64]; /* "NVIDIA H100 80GB HBM3" */
    int major;     /* sm_90: 9 and 0 */
    int minor;
    bool has_tensor_cores; /* as the kernels of attention_tiles.cu need: sm_80 and later */
    int n_processors;      /* streaming multiprocessors */
    size_t total_bytes;    /* of device memory */
    char bus_id[32];       /* "0000:04:00.0", of the PCI bus; its domain may have eight digits */
} gpu_properties;

/* Versions of libraries as the libraries number them: 13000 is CUDA 13.0, 91900 is cuDNN 9.19.0.
 * 0: not known, of the driver: there is none. */
typedef struct gpu_versions {
    int driver;      /* the newest CUDA that the driver supports */
    int runtime;     /* of CUDA, compiled against */
    int dnn;         /* found */
    int dnn_needed;  /* compiled against */
    int dnn_runtime; /* the CUDA that it was built for */
    int blas;        /* found */
    int blas_needed; /* compiled against */
} gpu_versions;

void gpu_get_versions(gpu_versions *out);

gpu_error gpu_device_count(int *out);
gpu_error gpu_device_set(int index);
gpu_error gpu_device_properties(int index, gpu_properties *out);
gpu_error gpu_memory_info(size_t *free_bytes, size_t *total_bytes);

/* The share of the last moments in which a kernel of any process ran; -1: not known. */
int gpu_busy_percent(const char *bus_id);

/* --- memory --- */

typedef enum gpu_direction { GPU_TO_DEVICE, GPU_TO_HOST, GPU_ON_DEVICE } gpu_direction;

gpu_error gpu_malloc(void **out, size_t bytes);
/* The work that uses it is done. */
gpu_error gpu_free(void *block);

/* Page-locked host memory of all cards, which kernels read and write at the same address. */
gpu_error gpu_malloc_host(void **out, size_t bytes);
gpu_error gpu_free_host(void *block);

/* The card whose memory `p` points into; -1: host memory. */
int gpu_pointer_device(const void *p);

gpu_error gpu_memcpy_async(void *dst, const void *src, size_t bytes, gpu_direction direction,
                           gpu_stream *stream);
gpu_error gpu_memset_async(void *dst, int byte, size_t bytes, gpu_stream *stream);

/* --- streams and events --- */

/* A stream that does not wait for the default stream; with the highest priority of the card or the
 * lowest one. */
gpu_error gpu_stream_create(gpu_stream **out, bool high_priority);
gpu_error gpu_stream_destroy(gpu_stream *stream);
gpu_error gpu_stream_synchronize(gpu_stream *stream);
gpu_error gpu_stream_wait_event(gpu_stream *stream, gpu_event *event);
gpu_error gpu_launch_host(gpu_stream *stream, void (*fn)(void *arg), void *arg);

/* `timed`: gpu_event_elapsed_ms() may be asked. */
gpu_error gpu_event_create(gpu_event **out, bool timed);
gpu_error gpu_event_destroy(gpu_event *event);
gpu_error gpu_event_record(gpu_event *event, gpu_stream *stream);
gpu_error gpu_event_query(gpu_event *event, bool *done);
gpu_error gpu_event_synchronize(gpu_event *event);
/* Negative when `end` happened before `start`. */
gpu_error gpu_event_elapsed_ms(gpu_event *start, gpu_event *end, float *out);

/* --- graphs --- */

typedef struct gpu_graph gpu_graph;           /* recorded work: a cudaGraph_t */
typedef struct gpu_graph_exec gpu_graph_exec; /* what is launched: a cudaGraphExec_t */

/* Work that any thread queues in the stream is recorded, and not run, until gpu_capture_end(); in
 * CUDA's relaxed mode. Waits for the stream, events in it, and copies from or to host memory are
 * not allowed meanwhile: they fail, and so does the capture. */
gpu_error gpu_capture_begin(gpu_stream *stream);
/* The error of a capture that has failed; what was recorded is lost. */
gpu_error gpu_capture_check(gpu_stream *stream);
/* Ends it, also one that has failed: then *out is NULL. */
gpu_error gpu_capture_end(gpu_stream *stream, gpu_graph **out);
gpu_error gpu_graph_destroy(gpu_graph *graph);

gpu_error gpu_graph_instantiate(gpu_graph_exec **out, gpu_graph *graph);
/* Gives an executable graph the arguments of `graph`, for later launches; *done false: it refuses,
 * because the graphs differ in more, and is as before. */
gpu_error gpu_graph_update(gpu_graph_exec *exec, gpu_graph *graph, bool *done);
gpu_error gpu_graph_launch(gpu_graph_exec *exec, gpu_stream *stream);
/* A launch that has not ended yet is not affected. */
gpu_error gpu_graph_exec_destroy(gpu_graph_exec *exec);

/* --- kernels --- */

typedef void (*gpu_function)(void);

/* A kernel takes one struct by value, of at most GPU_ARGS_MAX bytes. `function` is the runtime's
 * own: for CUDA a __global__ function, for the host a gpu_host_function. `second` is not NULL in
 * kernels of two parts, where the second part begins when all blocks have finished the first: for
 * the host it is that part, for CUDA `function`, which has both with a barrier between them. */
typedef struct gpu_kernel {
    const char *name;
    gpu_function function;
    gpu_function second;
    size_t args_bytes;
} gpu_kernel;

#define GPU_ARGS_MAX 4096

/* Runs one thread of block number `block`. */
typedef void (*gpu_host_function)(const void *args, unsigned block, unsigned n_blocks,
                                  unsigned thread, unsigned n_threads);

/* Between threads of a block of the host: returns when all have called it. */
void gpu_host_barrier(void);

/* Queues n_blocks (at least 1) blocks of n_threads; `args` is copied before it returns. A kernel of
 * two parts gets fewer blocks where the card cannot run as many at once. */
gpu_error gpu_launch(const gpu_kernel *kernel, unsigned n_blocks, unsigned n_threads,
                     const void *args, gpu_stream *stream);

/* From now on kernels of two parts leave processors to collectives, which may run beside them. */
void gpu_expect_collectives(void);

#ifdef __cplusplus
}
#endif

#endif
