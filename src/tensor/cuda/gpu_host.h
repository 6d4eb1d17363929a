/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host.h - how tests control gpu_host.c: the cards and versions that it reports, and the calls
 * that fail. Tests find gpu_host_state() with dlsym() in liblockstep_cudahost.so.
 */
#ifndef LS_TENSOR_CUDA_GPU_HOST_H
#define LS_TENSOR_CUDA_GPU_HOST_H

#include "tensor/cuda/gpu.h"

typedef struct gpu_host {
    int n_devices;         /* 2 at first */
    gpu_versions versions; /* driver 0: no driver; at first all as needed */
    int major;             /* of all cards; 9.0 at first */
    int minor;
    size_t total_bytes;      /* memory of each card; 1 GiB at first */
    int busy_percent;        /* 50 at first */
    uint64_t fail_malloc_at; /* the n-th gpu_malloc() from now finds no memory; 0: none */
    uint64_t fail_pinned_at; /* the same of gpu_malloc_host() */
    uint64_t lose_at;        /* all cards are lost at the n-th call from now that queues work */
    bool is_lost;            /* every call fails; tests set it to false afterwards */
    unsigned contexts;       /* bit i: a call has made a context on card i */
    size_t used_bytes;       /* of all cards, of device memory that is allocated now */
    size_t n_pinned;         /* blocks of page-locked memory */
    size_t n_streams;        /* that exist now */
    size_t n_events;
    uint64_t n_launches; /* of kernels, since the module was loaded */
    unsigned n_blocks;   /* that kernels run with; 0: as they are launched */
    unsigned n_threads;  /* of each block, which run in turn from barrier to barrier; 0: one */
    bool is_reversed;    /* they run in descending order */
    uint64_t n_copies;   /* copies and fills, since then */
    uint64_t refuse_update_at;    /* the n-th gpu_graph_update() from now refuses */
    uint64_t fail_record_at;      /* the n-th piece of work that is recorded fails its capture */
    uint64_t fail_instantiate_at; /* the n-th gpu_graph_instantiate() finds no memory */
    size_t n_graphs;              /* that exist now, executable ones too */
    uint64_t n_graph_launches;    /* since the module was loaded */
    int64_t clock_ns;             /* added to the times of events that are recorded from now on */
    uint64_t delay_us; /* of streams that are created from now on: work is run by a thread, some of
                        * it after a random time of at most this; 0: when it is queued */
    uint64_t seed;     /* of these times */
    gpu_error (*launch_host)(gpu_stream *stream, void (*fn)(void *arg), void *arg); /* of gpu.h, */
    int (*pointer_device)(const void *p); /* for the NCCL of the tests */
} gpu_host;

/* A piece of work: run(args). The arguments are copied. */
typedef struct gpu_host_work {
    gpu_error (*run)(const void *args);
    const void *args;
    size_t args_bytes;
    size_t shape;      /* an executable graph is not updated with work of another shape */
    uint64_t *counter; /* of the state, incremented when it runs; NULL: it does not count */
} gpu_host_work;

/* Queues it: runs it now, or if the stream records, when the graph is launched. */
gpu_error gpu_host_queue(gpu_stream *stream, const gpu_host_work *work);

/* Between threads of a block of the kernel that runs: returns when all have called it. */
void gpu_host_barrier(void);

/* The one state of the process. */
gpu_host *gpu_host_state(void);

#define GPU_HOST_STATE "gpu_host_state" /* the symbol */
typedef gpu_host *(*gpu_host_state_fn)(void);

#endif
