/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_graph.h - what gpu_host.c, gpu_host_stream.c and gpu_host_graph.c share: error numbers,
 * streams, and how work is counted.
 */
#ifndef LS_TENSOR_CUDA_GPU_HOST_GRAPH_H
#define LS_TENSOR_CUDA_GPU_HOST_GRAPH_H

#include "tensor/cuda/gpu_host.h"

#include <pthread.h>

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

/* A copy of a piece of work; its arguments follow it. */
typedef struct gpu_host_node {
    struct gpu_host_node *next;
    gpu_host_work work;
} gpu_host_node;

struct gpu_stream {
    int card;
    gpu_graph *recorded; /* NULL: the stream does not record */
    bool has_failed;     /* its capture */
    bool is_delayed;     /* `thread` runs the work */
    pthread_t thread;
    uint64_t random;  /* of the thread */
    unsigned n_paced; /* likewise: pieces of work until it draws again whether it waits */
    bool is_slow;     /* it waits */
    /* under the lock of gpu_host_stream.c: */
    gpu_host_node *first;
    gpu_host_node **end;
    uint64_t n_queued;
    uint64_t n_done;
    bool is_ending;
};

/* --- gpu_host.c --- */

/* Every call that queues work to a card begins with this; counts it in *counter. */
gpu_error gpu_host_count(int card, uint64_t *counter);

/* Counts down to the failure of a call; *counter is 0 when none is asked for. */
bool gpu_host_is_due(uint64_t *counter);

/* HOST_LOST when the cards are lost. */
gpu_error gpu_host_check_lost(void);

/* All cards are lost. */
void gpu_host_lose(void);

/* The calling thread's card. */
int gpu_host_card(void);

/* A zeroed record that *counter counts; NULL: no memory. */
void *gpu_host_make(size_t bytes, size_t *counter);
void gpu_host_unmake(void *record, size_t *counter);

/* --- gpu_host_stream.c --- */

/* Runs the work, now or in the stream's thread. */
gpu_error gpu_host_run(gpu_stream *stream, const gpu_host_work *work);

/* --- gpu_host_graph.c --- */

/* Freed with cu_host->free(); NULL: no memory. */
gpu_host_node *gpu_host_copy_work(const gpu_host_work *work);

/* HOST_RECORDING if the stream records: its capture fails. */
gpu_error gpu_host_refuse_stream(gpu_stream *stream);

/* Adds a copy of the work to what the stream records. */
gpu_error gpu_host_record(gpu_stream *stream, const gpu_host_work *work);

#endif
