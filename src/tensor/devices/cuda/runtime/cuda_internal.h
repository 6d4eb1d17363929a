/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_internal.h - the internals of the CUDA device: state, accelerator, errors, launches.
 *
 * Activations of (N,C,H,W) are NHWC in memory (cuda_nhwc), images for 16-bit convolutions also with
 * padded channels (cuda_nhwc8), everything else is row-major. A kernel queues its work in
 * cu_stream() and returns.
 *
 * Threads  One thread at a time runs operators; any thread may call the accelerator.
 *
 * tensor/devices/cuda/runtime/: the accelerator of the CUDA device: queues, memory, events, graphs
 * over gpu.h. ops/ and dnn/ use it through this header.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_RUNTIME_CUDA_INTERNAL_H
#define LS_TENSOR_DEVICES_CUDA_RUNTIME_CUDA_INTERNAL_H

#include "tensor/device.h"

#include "tensor/devices/cuda/runtime/cuda_graph.h"
#include "tensor/devices/cuda/runtime/failure.h"
#include "tensor/devices/cuda/runtime/gpu.h"

/* --- what the library gave us --- */

extern const device_host *cu_host;

/* Sets the error text. */
void cu_note(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* Sets the error text; the value is `status`. A macro: the compiler sees that it is not LS_OK. */
#define cu_fail(status, ...) (cu_note((status), __VA_ARGS__), (status))

/* --- the accelerator --- */

typedef struct cuda_accel cuda_accel;

/* Opens card `index`, which exists, and registers the accelerator. `graphs`: the work of
 * ACCEL_COMPUTE is launched as CUDA graphs. */
LS_MUST_USE ls_status cuda_accel_open(int index, const gpu_properties *card, bool graphs,
                                      cuda_accel **out);

/* Unregisters and frees it. NULL is allowed. Blocks until all queues are empty. */
void cuda_accel_close(cuda_accel *a);

accel *cuda_accel_base(cuda_accel *a);

/* Where kernels write failures of operators. */
op_failure *cuda_accel_failure(cuda_accel *a);

/* Selects the card for the runtime's calls of this thread. */
void cuda_accel_enter(const cuda_accel *a);

/* The status of a call of gpu.h: LS_ENOMEM, or LS_ESYSTEM with the call's name and the runtime's
 * text. After the loss of the card every check fails with the text of that loss. */
ls_status cuda_accel_check(cuda_accel *a, gpu_error error, const char *call);

/* The status of a call of `library`. A library reports a failure of the card before it as its own:
 * after a failure this waits for the card, and if that is lost returns its status instead. */
ls_status cuda_accel_check_library(cuda_accel *a, ls_status st, const char *library);

/* Between the two, and nowhere else, work is queued in ACCEL_COMPUTE by gpu.h or a library; with
 * graphs it may be recorded. No function of the accelerator may be called between them.
 * cuda_accel_end() is cuda_accel_check(), and also returns a failure to record. It must not be
 * called if cuda_accel_begin() has failed. */
LS_MUST_USE ls_status cuda_accel_begin(cuda_accel *a, const graph_node *node);
ls_status cuda_accel_end(cuda_accel *a, gpu_error error, const char *call);

/* Between the two nothing is recorded: for waits, frees and code that is loaded or measured.
 * cuda_accel_resume() is called also if cuda_accel_pause() has failed. */
LS_MUST_USE ls_status cuda_accel_pause(cuda_accel *a);
void cuda_accel_resume(cuda_accel *a);

/* Queues what is recorded and destroys the executable graphs: before code of theirs is unloaded. */
void cuda_accel_forget_graphs(cuda_accel *a);

/* The operator that runs, for texts of failures. */
void cuda_accel_name_operator(cuda_accel *a, op_kind op);

graph_counts cuda_accel_count_graphs(cuda_accel *a);

/* --- the device --- */

#define CUDA_TICKETS 1024

typedef struct dnn_cache dnn_cache;
typedef struct gemm_engine gemm_engine;

struct device_state {
    ls_device *device; /* this one, as the host table knows it */
    cuda_accel *accel;
    gpu_properties card;
    bool is_deterministic;  /* no operator may give other bits in another run */
    bool tf32_convolutions; /* F32 convolutions may use TF32 */
    bool tf32_matrices;     /* F32 matrix products may */
    bool autotune;          /* plans of cuDNN are measured */
    uint64_t n_launches;    /* of kernels and of plans of the libraries */
    unsigned *tickets;      /* CUDA_TICKETS counters of blocks, 0 between kernels */
    dnn_cache *dnn;         /* cuda_math.h: NULL before its first use */
    gemm_engine *gemm;      /* the same */
    void *workspace;        /* of plans and matrix products */
    size_t workspace_bytes;
    packed *packs; /* packed.c: the copies of all parameters */
    char fingerprint[224];
};

/* The stream of operators. */
static inline gpu_stream *cu_stream(device_state *self)
{
    return (gpu_stream *)accel_queue(cuda_accel_base(self->accel), ACCEL_COMPUTE)->native;
}

/* cuda_accel_check() of gpu_FUNCTION(...). */
#define cu_call(self, function, ...)                                                               \
    cuda_accel_check((self)->accel, gpu_##function(__VA_ARGS__), #function)

/* Queues a kernel of our own; `args` is copied. n_blocks 0: nothing. */
LS_MUST_USE ls_status cu_launch(device_state *self, const gpu_kernel *kernel, unsigned n_blocks,
                                unsigned n_threads, const void *args);

/* Queues a fill, or a copy within device memory. */
LS_MUST_USE ls_status cu_fill(device_state *self, void *dst, int byte, size_t bytes);
LS_MUST_USE ls_status cu_copy(device_state *self, void *dst, const void *src, size_t bytes);

/* --- layouts --- */

struct layout {
    const char *name;
};

/* (N, H, W, C) in memory, for tensors of four dimensions. Row-major is NULL. */
extern const layout cuda_nhwc;

/* (N, H, W, 8) in memory with zeros behind C: tensors of four dimensions, 16 bits and 2 to 7
 * channels, as convolutions read them. Only cuda_cast() places tensors so; kernels that do not read
 * this layout get a row-major tensor instead. */
extern const layout cuda_nhwc8;
#define CUDA_CHANNELS_PADDED 8

/* Whether convolutions of this type that are not grouped read images of so many channels so. */
static inline bool cuda_pads_channels(ls_dtype type, int64_t channels)
{
    return (type == LS_F16 || type == LS_BF16) && channels > 1 && channels < CUDA_CHANNELS_PADDED;
}

#endif
