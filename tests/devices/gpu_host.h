/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host.h - the device "cudahost" of the tests: the CUDA device of src/tensor/devices/cuda/ over
 * a runtime in host memory (gpu_host*.c), with its kernels compiled as C, and loops in place of
 * cuDNN and cuBLASLt. The module liblockstep_cudahost.so is built with the tests only. Here is what
 * tests control and count; cudahost() of cudahost.h finds it.
 *
 * Device memory cannot be read by the host: a dereference is a SIGSEGV whose text names the block.
 * With delay_us the work of a stream is executed by a thread: at once, after a random time, as late
 * as possible or after the other streams, as seeded random numbers decide. So a missing wait
 * becomes a wrong result; tests remove the waits of base/compute/accel.h by their names.
 */
#ifndef TESTS_DEVICES_GPU_HOST_H
#define TESTS_DEVICES_GPU_HOST_H

#include "tensor/devices/cuda/runtime/gpu.h"

#define GPU_HOST_WAITS 128

/* Calls of a wait of base/compute/accel.h. */
typedef struct gpu_host_wait {
    const char *name;
    uint64_t n;
} gpu_host_wait;

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
    uint64_t n_launches;      /* of kernels, since the module was loaded */
    unsigned n_blocks;        /* that kernels run with; 0: as they are launched */
    unsigned n_threads;       /* of each block, which run in turn from barrier to barrier; 0: one */
    bool is_reversed;         /* they run in descending order */
    uint64_t n_copies;        /* copies and fills, since then */
    bool expects_collectives; /* gpu_expect_collectives() was called */
    uint64_t refuse_update_at;    /* the n-th gpu_graph_update() from now refuses */
    uint64_t fail_record_at;      /* the n-th piece of work that is recorded fails its capture */
    uint64_t fail_instantiate_at; /* the n-th gpu_graph_instantiate() finds no memory */
    size_t n_graphs;              /* that exist now, executable ones too */
    uint64_t n_graph_launches;    /* since the module was loaded */
    int64_t clock_ns;             /* added to the times of events that are recorded from now on */
    uint64_t delay_us; /* of streams that are created from now on: work is run by a thread, some of
                        * it after a random time of at most this; 0: when it is queued */
    uint64_t seed;     /* of these times */
    /* No work runs, and new memory takes no pages, so networks may be as large as on a card: for
     * tests that only ask what would be launched. Set before the device is opened, or by
     * GPU_HOST_RECORD=FILE: name, blocks and threads of each launch are written to the file, for a
     * card with the multiprocessors of an H100. */
    bool is_dry;
    void (*in_capture_begin)(void); /* called by each gpu_capture_begin(); NULL: nothing */

    /* named_waits.c: the accelerator, since the module was loaded */
    const char *dropped;                 /* waits of this name do nothing; NULL: all work */
    gpu_host_wait waits[GPU_HOST_WAITS]; /* that were called, also those that did nothing */
    size_t n_waits;
    uint64_t n_host_waits;    /* calls that blocked the host, or would have on a slower card */
    uint64_t n_host_bytes;    /* of copies from and to host memory */
    uint64_t n_lost_failures; /* devices that had one when they were closed: lost, or no wait had
                               * returned the failure of an operator */

    uint64_t n_allocations; /* of device memory, since then */
    gpu_error (*launch_host)(gpu_stream *stream, void (*fn)(void *arg), void *arg); /* of gpu.h, */
    gpu_error (*device_set)(int index); /* for the NCCL of the tests */
    int (*pointer_device)(const void *p);
    gpu_error (*allocate)(void **out, size_t bytes);
    gpu_error (*release)(void *start);
    void *(*address)(const void *p, size_t bytes); /* gpu_host_address() */
} gpu_host;

/* A piece of work: run(args). The arguments are copied, with what gpu_host_translate() does. */
typedef struct gpu_host_work {
    gpu_error (*run)(const void *args);
    const void *args;
    size_t args_bytes;
    size_t shape;      /* an executable graph is not updated with work of another shape */
    uint64_t *counter; /* of the state, incremented when it runs; NULL: it does not count */
    const void *host;  /* the side of a copy that is host memory, or NULL */
    size_t host_bytes;
} gpu_host_work;

/* Queues it: runs it now, or if the stream records, when the graph is launched. */
gpu_error gpu_host_queue(gpu_stream *stream, const gpu_host_work *work);

/* Where work that a stream executes reads and writes `bytes` of device memory; NULL when they are
 * not within one block. */
void *gpu_host_address(const void *p, size_t bytes);

/* The one state of the process. */
gpu_host *gpu_host_state(void);

#define GPU_HOST_STATE "gpu_host_state" /* the symbol */
typedef gpu_host *(*gpu_host_state_fn)(void);

#endif
