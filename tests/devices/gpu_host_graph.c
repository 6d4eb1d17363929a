/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_graph.c - the captures and graphs of gpu.h in host memory, for tests: a stream that
 * records copies the work and its arguments, and a graph runs them in their order when it is
 * launched. gpu_host_stream.c runs it.
 */
#include "devices/gpu_host_internal.h"

#include "base/alloc.h"

#include <string.h>

typedef gpu_host_node node;

/* A multiple of the alignment of any type. */
#define NODE_BYTES ((sizeof(node) + 31) / 32 * 32)

struct gpu_graph {
    node *first;
    node **end;
};

/* What is launched: nodes of the graph of which it was made, or of the last update. */
struct gpu_graph_exec {
    node *first;
};

static gpu_host *state(void)
{
    return gpu_host_state();
}

/* --- captures --- */

gpu_error gpu_host_refuse_stream(gpu_stream *stream)
{
    if (stream->recorded == NULL)
        return HOST_OK;
    stream->has_failed = true;
    return HOST_RECORDING;
}

gpu_error gpu_capture_begin(gpu_stream *stream)
{
    gpu_graph *graph;

    if (stream->recorded != NULL)
        return gpu_host_refuse_stream(stream);
    if (state()->in_capture_begin != NULL)
        state()->in_capture_begin();
    graph = gpu_host_make(sizeof(*graph), &state()->n_graphs);
    if (graph == NULL)
        return HOST_OUT_OF_MEMORY;
    graph->end = &graph->first;
    stream->recorded = graph;
    stream->has_failed = false;
    return HOST_OK;
}

gpu_error gpu_capture_check(gpu_stream *stream)
{
    return stream->has_failed ? HOST_RECORDING : HOST_OK;
}

gpu_error gpu_capture_end(gpu_stream *stream, gpu_graph **out)
{
    gpu_graph *graph = stream->recorded;

    *out = NULL;
    if (graph == NULL)
        return HOST_RECORDING;
    stream->recorded = NULL;
    if (stream->has_failed) {
        (void)gpu_graph_destroy(graph);
        return HOST_RECORDING;
    }
    *out = graph;
    return HOST_OK;
}

gpu_host_node *gpu_host_copy_work(const gpu_host_work *work)
{
    // A driver's own memory is not the library's: its allocations are not counted.
    node *n = ls_calloc(1, NODE_BYTES + work->args_bytes);

    if (n == NULL)
        return NULL;
    n->work = *work;
    n->work.args = memcpy((char *)n + NODE_BYTES, work->args, work->args_bytes);
    gpu_host_translate((char *)n + NODE_BYTES, work->args_bytes);
    return n;
}

gpu_error gpu_host_record(gpu_stream *stream, const gpu_host_work *work)
{
    gpu_graph *graph = stream->recorded;
    node *n;

    if (gpu_host_is_due(&state()->fail_record_at))
        return gpu_host_refuse_stream(stream);
    if (gpu_capture_check(stream) != HOST_OK)
        return HOST_RECORDING;
    n = gpu_host_copy_work(work);
    if (n == NULL)
        return HOST_OUT_OF_MEMORY;
    *graph->end = n;
    graph->end = &n->next;
    return HOST_OK;
}

/* --- graphs --- */

static void free_nodes(node *n)
{
    while (n != NULL) {
        node *next = n->next;

        ls_free(n);
        n = next;
    }
}

gpu_error gpu_graph_destroy(gpu_graph *graph)
{
    free_nodes(graph->first);
    gpu_host_unmake(graph, &state()->n_graphs);
    return HOST_OK;
}

/* Copies of the nodes; false: no memory. */
static bool copy_nodes(const node *from, node **out)
{
    node **end = out;

    *out = NULL;
    for (; from != NULL; from = from->next) {
        *end = gpu_host_copy_work(&from->work);
        if (*end == NULL) {
            free_nodes(*out);
            return false;
        }
        end = &(*end)->next;
    }
    return true;
}

gpu_error gpu_graph_instantiate(gpu_graph_exec **out, gpu_graph *graph)
{
    gpu_graph_exec *exec = NULL;

    if (!gpu_host_is_due(&state()->fail_instantiate_at))
        exec = gpu_host_make(sizeof(*exec), &state()->n_graphs);
    *out = exec;
    if (exec != NULL && copy_nodes(graph->first, &exec->first))
        return HOST_OK;
    if (exec != NULL)
        gpu_host_unmake(exec, &state()->n_graphs);
    *out = NULL;
    return HOST_OUT_OF_MEMORY;
}

/* Whether both have the same sequence of kinds and shapes. */
static bool are_alike(const node *a, const node *b)
{
    while (a != NULL && b != NULL && a->work.run == b->work.run && a->work.shape == b->work.shape) {
        a = a->next;
        b = b->next;
    }
    return a == NULL && b == NULL;
}

gpu_error gpu_graph_update(gpu_graph_exec *exec, gpu_graph *graph, bool *done)
{
    node *updated;

    *done = false;
    if (gpu_host_is_due(&state()->refuse_update_at) || !are_alike(exec->first, graph->first))
        return HOST_OK;
    if (!copy_nodes(graph->first, &updated))
        return HOST_OUT_OF_MEMORY;
    free_nodes(exec->first);
    exec->first = updated;
    *done = true;
    return HOST_OK;
}

gpu_error gpu_graph_launch(gpu_graph_exec *exec, gpu_stream *stream)
{
    gpu_error e = gpu_host_refuse_stream(stream);

    if (e == HOST_OK)
        e = gpu_host_count(stream->card, &state()->n_graph_launches);
    for (const node *n = exec->first; n != NULL && e == HOST_OK; n = n->next) {
        if (n->work.counter != NULL)
            e = gpu_host_count(stream->card, n->work.counter);
        if (e == HOST_OK)
            e = gpu_host_run(stream, &n->work);
    }
    return e;
}

gpu_error gpu_graph_exec_destroy(gpu_graph_exec *exec)
{
    free_nodes(exec->first);
    gpu_host_unmake(exec, &state()->n_graphs);
    return HOST_OK;
}
