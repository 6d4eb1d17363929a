/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_graph.h - what gpu_host.c and gpu_host_graph.c share: error numbers, streams, and how
 * work is counted.
 */
#ifndef LS_TENSOR_CUDA_GPU_HOST_GRAPH_H
#define LS_TENSOR_CUDA_GPU_HOST_GRAPH_H

#include "tensor/cuda/gpu_host.h"

/* Error numbers. */
enum {
    HOST_OK,
    HOST_OUT_OF_MEMORY,
    HOST_LOST,
    HOST_NO_DRIVER,
    HOST_OLD_DRIVER,
    HOST_NO_DEVICE,
    HOST_WRONG_CARD,
    HOST_WRONG_BLOCK,
    HOST_OVERRUN,
    HOST_NOT_RECORDED,
    HOST_DIVERGED,
    HOST_RECORDING
};

struct gpu_stream {
    int card;
    gpu_graph *recorded; /* NULL: the stream does not record */
    bool has_failed;     /* its capture */
};

/* --- gpu_host.c --- */

/* Every call that queues work to a card begins with this; counts it in *counter. */
gpu_error gpu_host_count(int card, uint64_t *counter);

/* Counts down to the failure of a call; *counter is 0 when none is asked for. */
bool gpu_host_is_due(uint64_t *counter);

/* A zeroed record that *counter counts; NULL: no memory. */
void *gpu_host_make(size_t bytes, size_t *counter);
void gpu_host_unmake(void *record, size_t *counter);

/* --- gpu_host_graph.c --- */

/* HOST_RECORDING if the stream records: its capture fails. */
gpu_error gpu_host_refuse_stream(gpu_stream *stream);

/* Adds a copy of the work to what the stream records. */
gpu_error gpu_host_record(gpu_stream *stream, const gpu_host_work *work);

#endif
