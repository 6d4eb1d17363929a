/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_graph.c - records the work of a stream in segments and launches each as one graph
 * (cuda_graph.h). cuda_accel.c calls it. While the stream records, the lock is held from
 * graphs_enter() to graphs_leave(), so that no thread ends a segment within a piece of work.
 *
 * CUDA's relaxed mode of capture is used: any thread may end a segment, and calls that allocate or
 * load code are not refused, in this thread or in those of the loader and of NCCL. The calls that
 * a recording stream cannot take in any mode are made between graphs_pause() and graphs_resume().
 */
#include "tensor/devices/cuda/runtime/cuda_graph.h"

#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <pthread.h>
#include <string.h>

/* Executable graphs that are kept at most; the one that was used least recently goes first. */
#define EXECUTABLES_MOST 64

/* Work of one segment at most: a program that never waits is launched in parts. */
#define SEGMENT_MOST 2048

/* Slots for code that was used before, three quarters of them filled; then it starts again. */
#define CODE_SLOTS 4096
#define CODES_MOST (CODE_SLOTS / 4 * 3)

typedef struct executable {
    gpu_graph_exec *graph; /* NULL: a free slot */
    uint64_t key;
    uint64_t last_use;
} executable;

typedef enum graph_state {
    AT_BOUNDARY,
    RECORDING,
    QUEUING, /* at once, until the next boundary */
} graph_state;

struct cuda_graphs {
    gpu_stream *stream;
    pthread_mutex_t lock; /* of all that follows; held during calls of gpu.h that do not wait */
    graph_state state;
    int n_pauses;
    pthread_t recorder; /* the thread that began the segment */
    uint64_t key;       /* of the segment: of its sequence of work */
    int n_recorded;
    executable executables[EXECUTABLES_MOST];
    graph_counts counts;
    int n_codes;
    uint64_t codes[CODE_SLOTS]; /* open addressing; 0: free */
};

/* The finalizer of splitmix64 (Steele, Lea and Flood 2014) over both. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a + UINT64_C(0x9e3779b97f4a7c15)) ^ (b * UINT64_C(0xd1342543de82ef95));

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

ls_status graphs_open(gpu_stream *stream, cuda_graphs **out)
{
    cuda_graphs *g = cu_host->alloc(1, sizeof(*g));

    if (g == NULL)
        return cu_fail(LS_ENOMEM, "no memory for CUDA graphs");
    g->stream = stream;
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return LS_OK;
}

/* --- executable graphs; with the lock --- */

/* A graph that is running is freed by the runtime when it is done. */
static void drop(executable *x)
{
    if (x->graph != NULL)
        (void)gpu_graph_exec_destroy(x->graph);
    x->graph = NULL;
}

static void drop_all(cuda_graphs *g)
{
    for (int i = 0; i < EXECUTABLES_MOST; i++)
        drop(&g->executables[i]);
}

/* That of the segment's key, else the slot to replace: a free one or the least recently used. */
static executable *find_executable(cuda_graphs *g)
{
    executable *oldest = &g->executables[0];

    for (int i = 0; i < EXECUTABLES_MOST; i++) {
        executable *x = &g->executables[i];

        if (x->graph != NULL && x->key == g->key)
            return x;
        if (oldest->graph != NULL && (x->graph == NULL || x->last_use < oldest->last_use))
            oldest = x;
    }
    return oldest;
}

/* Executable graphs take device memory, which those of other segments give back. */
static gpu_error instantiate(cuda_graphs *g, gpu_graph *graph, executable *x)
{
    gpu_error e;

    drop(x);
    e = gpu_graph_instantiate(&x->graph, graph);
    if (e != 0 && gpu_failure_of(e) == GPU_FAILURE_OUT_OF_MEMORY) {
        drop_all(g);
        e = gpu_graph_instantiate(&x->graph, graph);
    }
    g->counts.n_instantiated++;
    x->key = g->key;
    return e;
}

static gpu_error launch(cuda_graphs *g, gpu_graph *graph, const char **call)
{
    executable *x = find_executable(g);
    bool is_updated = false;
    gpu_error e = 0;

    *call = "graph_update";
    if (x->graph != NULL && x->key == g->key)
        e = gpu_graph_update(x->graph, graph, &is_updated);
    if (e == 0 && !is_updated) {
        *call = "graph_instantiate";
        e = instantiate(g, graph, x);
    }
    if (e != 0)
        return e;
    x->last_use = ++g->counts.n_launches;
    *call = "graph_launch";
    return gpu_graph_launch(x->graph, g->stream);
}

/* --- segments; with the lock --- */

static gpu_error begin_segment(cuda_graphs *g, const char **call)
{
    const gpu_error e = gpu_capture_begin(g->stream);

    *call = "capture_begin";
    if (e != 0)
        return e;
    g->state = RECORDING;
    g->recorder = pthread_self();
    g->key = 0;
    g->n_recorded = 0;
    return 0;
}

static gpu_error end_segment(cuda_graphs *g, const char **call)
{
    gpu_graph *graph = NULL;
    gpu_error e;

    *call = "capture_end";
    g->state = AT_BOUNDARY;
    e = gpu_capture_end(g->stream, &graph);
    if (e == 0)
        e = launch(g, graph, call);
    if (graph != NULL)
        (void)gpu_graph_destroy(graph);
    return e;
}

/* --- code that was used before; with the lock --- */

static bool has_code(const graph_node *node)
{
    return node->kind == GRAPH_KERNEL || node->kind == GRAPH_PLAN || node->kind == GRAPH_PRODUCT;
}

static uint64_t code_of(const graph_node *node)
{
    return mix((uint64_t)node->kind, node->code) | 1; // 0 is a free slot
}

/* The slot of that code, or the free one for it. */
static uint64_t *code_slot(cuda_graphs *g, uint64_t code)
{
    size_t at = (size_t)(code >> 32) % CODE_SLOTS;

    while (g->codes[at] != 0 && g->codes[at] != code)
        at = (at + 1) % CODE_SLOTS;
    return &g->codes[at];
}

static bool is_loaded(cuda_graphs *g, const graph_node *node)
{
    return !has_code(node) || *code_slot(g, code_of(node)) != 0;
}

static void note_loaded(cuda_graphs *g, const graph_node *node)
{
    if (is_loaded(g, node))
        return;
    if (g->n_codes == CODES_MOST) {
        memset(g->codes, 0, sizeof(g->codes));
        g->n_codes = 0;
    }
    *code_slot(g, code_of(node)) = code_of(node);
    g->n_codes++;
}

/* --- the functions of the accelerator --- */

void graphs_close(cuda_graphs *g)
{
    gpu_graph *graph = NULL;

    if (g == NULL)
        return;
    if (g->state == RECORDING && gpu_capture_end(g->stream, &graph) == 0 && graph != NULL)
        (void)gpu_graph_destroy(graph);
    drop_all(g);
    pthread_mutex_destroy(&g->lock);
    cu_host->free(g);
}

/* Work that is recorded counts in the key; other work loads its code. */
static void note_node(cuda_graphs *g, const graph_node *node)
{
    if (g->state != RECORDING) {
        note_loaded(g, node);
        return;
    }
    g->key = mix(mix(g->key, code_of(node)), node->bytes);
    g->n_recorded++;
}

gpu_error graphs_enter(cuda_graphs *g, const graph_node *node, const char **call)
{
    gpu_error e = 0;
    bool can_record;

    pthread_mutex_lock(&g->lock);
    can_record = g->n_pauses == 0 && is_loaded(g, node);
    if (g->state == RECORDING && (!can_record || g->n_recorded == SEGMENT_MOST))
        e = end_segment(g, call);
    if (e == 0 && g->state == AT_BOUNDARY && can_record)
        e = begin_segment(g, call);
    if (e != 0) {
        pthread_mutex_unlock(&g->lock);
        return e;
    }
    if (g->state == AT_BOUNDARY)
        g->state = QUEUING;
    note_node(g, node);
    return 0;
}

gpu_error graphs_leave(cuda_graphs *g, const char **call)
{
    gpu_graph *graph = NULL;
    gpu_error e = 0;

    if (g->state == RECORDING)
        e = gpu_capture_check(g->stream);
    if (e != 0) {
        *call = "capture_check";
        g->state = AT_BOUNDARY;
        (void)gpu_capture_end(g->stream, &graph);
    }
    if (graph != NULL)
        (void)gpu_graph_destroy(graph);
    pthread_mutex_unlock(&g->lock);
    return e;
}

gpu_error graphs_pause(cuda_graphs *g, const char **call)
{
    gpu_error e = 0;

    pthread_mutex_lock(&g->lock);
    if (g->state == RECORDING)
        e = end_segment(g, call);
    g->n_pauses++;
    pthread_mutex_unlock(&g->lock);
    return e;
}

void graphs_resume(cuda_graphs *g)
{
    pthread_mutex_lock(&g->lock);
    g->n_pauses--;
    if (g->n_pauses == 0)
        g->state = AT_BOUNDARY;
    pthread_mutex_unlock(&g->lock);
}

gpu_error graphs_flush_own(cuda_graphs *g, const char **call)
{
    gpu_error e = 0;

    pthread_mutex_lock(&g->lock);
    if (g->state == RECORDING && pthread_equal(g->recorder, pthread_self()))
        e = end_segment(g, call);
    pthread_mutex_unlock(&g->lock);
    return e;
}

void graphs_forget(cuda_graphs *g)
{
    pthread_mutex_lock(&g->lock);
    drop_all(g);
    pthread_mutex_unlock(&g->lock);
}

graph_counts graphs_count(cuda_graphs *g)
{
    graph_counts counts;

    pthread_mutex_lock(&g->lock);
    counts = g->counts;
    pthread_mutex_unlock(&g->lock);
    return counts;
}
