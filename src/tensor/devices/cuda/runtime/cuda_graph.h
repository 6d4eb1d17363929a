/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_graph.h - the work of one stream as CUDA graphs, for cuda_accel.c.
 *
 * The work between two boundaries is a segment: it is recorded, and at the boundary one graph
 * launch queues all of it. A boundary is a point at which another stream or the host could see what
 * the stream has done: graphs_pause(). Each segment is recorded again, with the arguments of this
 * step, and the executable graph of an earlier segment of the same sequence of work is updated; so
 * a step computes what it computes without graphs.
 *
 * Threads  Any thread. A call between graphs_enter() and graphs_leave() holds a lock; between
 *          graphs_pause() and graphs_resume() none is held.
 * Failure  The functions return the error of *call, a function of gpu.h. What was recorded is then
 *          lost, and the stream must not be used any more.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_RUNTIME_CUDA_GRAPH_H
#define LS_TENSOR_DEVICES_CUDA_RUNTIME_CUDA_GRAPH_H

#include "tensor/devices/cuda/runtime/gpu.h"

#include "base/status.h"

typedef struct cuda_graphs cuda_graphs;

typedef enum graph_kind {
    GRAPH_KERNEL,
    GRAPH_PLAN,    /* of cuDNN */
    GRAPH_PRODUCT, /* of cuBLASLt */
    GRAPH_COPY,    /* within device memory */
    GRAPH_FILL,
    GRAPH_CALL, /* of a host function */
} graph_kind;

/* One piece of work. Its addresses and arguments may change between segments. */
typedef struct graph_node {
    graph_kind kind;
    uint64_t code; /* which kernel, plan or product */
    size_t bytes;  /* of copies and fills */
} graph_node;

LS_MUST_USE ls_status graphs_open(gpu_stream *stream, cuda_graphs **out);

/* The stream has no work left. What is still recorded is not run. NULL is allowed. */
void graphs_close(cuda_graphs *g);

/* Between the two, the caller queues the work of `node` in the stream. It is recorded, or queued at
 * once: the first time that code is used, because the driver may load it then, which takes memory
 * and waits; and until the next boundary after that. After a failure of graphs_enter(),
 * graphs_leave() must not be called. */
gpu_error graphs_enter(cuda_graphs *g, const graph_node *node, const char **call);
gpu_error graphs_leave(cuda_graphs *g, const char **call);

/* Queues what is recorded. Until graphs_resume(), which follows also after a failure, work is
 * queued at once: calls of gpu.h that a recording stream cannot take are allowed. */
gpu_error graphs_pause(cuda_graphs *g, const char **call);
void graphs_resume(cuda_graphs *g);

/* Queues what this thread has recorded, before it waits for something. */
gpu_error graphs_flush_own(cuda_graphs *g, const char **call);

/* Destroys all executable graphs, before code that they may refer to is unloaded. */
void graphs_forget(cuda_graphs *g);

/* Since graphs_open(). */
typedef struct graph_counts {
    uint64_t n_launches;
    uint64_t n_instantiated; /* the other launches have updated a graph */
} graph_counts;

graph_counts graphs_count(cuda_graphs *g);

#endif
