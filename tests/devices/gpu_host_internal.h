/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_internal.h - what the files of gpu_host.h share: error numbers, streams, memory, and how
 * work is counted.
 */
#ifndef TESTS_DEVICES_GPU_HOST_INTERNAL_H
#define TESTS_DEVICES_GPU_HOST_INTERNAL_H

#include "devices/gpu_host.h"

#include "base/rng.h"
#include "base/thread.h"
#include "devices/ptx/ptx.h"

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
    HOST_RECORDING,
    HOST_FREED_EARLY,
    HOST_KERNEL_FAULT
};

/* A copy of a piece of work; its arguments follow it. */
typedef struct gpu_host_node {
    struct gpu_host_node *next;
    gpu_host_work work;
} gpu_host_node;

/* How a stream treats its next pieces of work. */
typedef enum gpu_host_pace {
    PACE_AT_ONCE,
    PACE_DELAYED,     /* after a random time */
    PACE_ON_DEMAND,   /* when a wait needs them, or at held_until */
    PACE_AFTER_OTHERS /* when the other streams of the card cannot go on, or then */
} gpu_host_pace;

struct gpu_stream {
    int card;
    gpu_graph *recorded; /* NULL: the stream does not record */
    bool has_failed;     /* its capture */
    uint64_t delay_us;   /* above 0: `thread` runs the work */
    ls_thread thread;
    /* of the thread: */
    ls_rng rng;
    gpu_host_pace pace;
    uint64_t pace_left; /* pieces of work until a new pace is drawn */
    int64_t held_until; /* ls_deadline_ms() */
    /* under the lock of gpu_host_stream.c: */
    struct gpu_stream *next; /* of the process */
    gpu_host_node *first;
    gpu_host_node **end;
    uint64_t n_queued;
    uint64_t n_done;
    uint64_t n_demanded; /* work up to this piece is not held back */
    bool is_blocked;     /* it waits for an event of another stream */
    bool is_ending;
};

/* --- gpu_host.c --- */

/* Every call that queues work to a card begins with this; counts it in *counter. */
gpu_error gpu_host_count(int card, uint64_t *counter);

/* GPU_HOST_RECORD=FILE: name, blocks and threads of each launch are written to the file, for a card
 * with the multiprocessors of an H100, but neither kernels nor the loops in place of libraries run,
 * and memory is not filled: networks may be as large as on a card. */
bool gpu_host_records_only(void);

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

void gpu_host_make_context(void); /* of the calling thread's card, as CUDA's runtime does */

/* Whether the calling thread's card has so much memory, or may have another page-locked block; they
 * are counted until they are given back. */
gpu_error gpu_host_take_bytes(size_t bytes);
void gpu_host_give_bytes(size_t bytes);
gpu_error gpu_host_take_pinned(void);
void gpu_host_give_pinned(void);

/* In a forked child. */
void gpu_host_free_locks(void);

/* --- gpu_host_memory.c --- */

void gpu_host_free_memory_lock(void); /* likewise */

/* The blocks of memory that work may read and write, at most `most`; returns how many. */
size_t gpu_host_ranges(ptx_range *out, size_t most);

bool gpu_host_is_device_memory(const void *p);

/* Replaces addresses of device memory in `args`, at multiples of their size, by addresses that can
 * be read and written. */
void gpu_host_translate(void *args, size_t bytes);

/* --- gpu_host_ptx.c --- */

/* Loads these modules of kernels, FILE,FILE...; NULL: none, kernels are those compiled as C. */
void gpu_host_load_kernels(const char *files);
bool gpu_host_has_kernels(void);
gpu_error gpu_host_run_kernel(const gpu_kernel *kernel, const void *args, unsigned n_blocks,
                              unsigned n_threads);

/* --- gpu_host_stream.c --- */

/* Whether work that is queued copies from or to this host memory. */
bool gpu_host_is_copied(const void *start, size_t bytes);

/* Runs the work, now or in the stream's thread. */
gpu_error gpu_host_run(gpu_stream *stream, const gpu_host_work *work);

/* --- gpu_host_graph.c --- */

/* Freed with ls_free(); NULL: no memory. */
gpu_host_node *gpu_host_copy_work(const gpu_host_work *work);

/* HOST_RECORDING if the stream records: its capture fails. */
gpu_error gpu_host_refuse_stream(gpu_stream *stream);

/* Adds a copy of the work to what the stream records. */
gpu_error gpu_host_record(gpu_stream *stream, const gpu_host_work *work);

#endif
