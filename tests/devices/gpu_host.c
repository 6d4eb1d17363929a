/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host.c - gpu.h in host memory, for tests of the device on machines without a GPU: cards,
 * errors, copies and kernels.
 */
#include "devices/gpu_host_internal.h"

#include "base/alloc.h"
#include "base/status.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

const char gpu_platform[] = "cudahost";

#define HOST_THREADS     256 /* of a block at most */
#define STACK_ALIGNMENT  256
#define HOST_STACK_BYTES (1 << 16) /* of each */
#define H100_PROCESSORS  132

static const struct {
    const char *text;
    gpu_failure failure;
} errors[] = {
    [HOST_OK] = {"no error", GPU_FAILURE_OTHER},
    [HOST_OUT_OF_MEMORY] = {"out of memory", GPU_FAILURE_OUT_OF_MEMORY},
    [HOST_LOST] = {"unspecified launch failure", GPU_FAILURE_LOST},
    [HOST_NO_DRIVER] = {"CUDA driver version is insufficient", GPU_FAILURE_NO_DRIVER},
    [HOST_OLD_DRIVER] = {"CUDA driver version is insufficient", GPU_FAILURE_OLD_DRIVER},
    [HOST_NO_DEVICE] = {"no CUDA-capable device is detected", GPU_FAILURE_NO_DEVICE},
    [HOST_WRONG_CARD] = {"the current card is not that of the stream", GPU_FAILURE_OTHER},
    [HOST_WRONG_BLOCK] = {"not the address of a block", GPU_FAILURE_OTHER},
    [HOST_NOT_RECORDED] = {"the event was not recorded", GPU_FAILURE_OTHER},
    [HOST_DIVERGED] = {"not all threads of a block have reached a barrier", GPU_FAILURE_LOST},
    [HOST_RECORDING] = {"operation not permitted when stream is capturing", GPU_FAILURE_OTHER},
    [HOST_OVERRUN] = {"a kernel has written past the end of a block", GPU_FAILURE_LOST},
    [HOST_KERNEL_FAULT] = {"a kernel has failed", GPU_FAILURE_LOST},
    [HOST_FREED_EARLY] = {"host memory was freed while a copy of it was queued", GPU_FAILURE_LOST},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static gpu_host state = {
    .n_devices = 2,
    .versions = {.driver = 13000,
                 .runtime = 13000,
                 .dnn = 91900,
                 .dnn_needed = 91900,
                 .dnn_runtime = 13020,
                 .blas = 130100,
                 .blas_needed = 130100},
    .major = 9,
    .total_bytes = (size_t)1 << 30,
    .busy_percent = 50,
    .launch_host = gpu_launch_host,
    .device_set = gpu_device_set,
    .pointer_device = gpu_pointer_device,
    .allocate = gpu_malloc,
    .release = gpu_free,
    .address = gpu_host_address,
};

static _Thread_local int current;

/* For tests of whole programs: GPU_HOST_ and a name. */
static void read_variable(const char *name, uint64_t *out)
{
    const char *text = getenv(name); // NOLINT(concurrency-mt-unsafe): never set

    if (text != NULL)
        *out = strtoull(text, NULL, 10);
}

static FILE *launch_record; // NULL: there is none

static void open_record(const char *path)
{
    if (path == NULL)
        return;
    launch_record = fopen(path, "we");
    LS_ASSERT(launch_record != NULL);
    state.is_dry = true;
}

static void read_environment(void)
{
    uint64_t bytes = state.total_bytes;
    uint64_t driver = (uint64_t)state.versions.driver;
    uint64_t devices = (uint64_t)state.n_devices;
    uint64_t blocks = state.n_blocks;

    read_variable("GPU_HOST_BYTES", &bytes);
    read_variable("GPU_HOST_DRIVER", &driver);
    read_variable("GPU_HOST_DEVICES", &devices);
    read_variable("GPU_HOST_BLOCKS", &blocks);
    read_variable("GPU_HOST_DELAY_US", &state.delay_us);
    read_variable("GPU_HOST_SEED", &state.seed);
    gpu_host_load_kernels(getenv("GPU_HOST_KERNELS")); // NOLINT(concurrency-mt-unsafe): never set
    open_record(getenv("GPU_HOST_RECORD"));            // NOLINT(concurrency-mt-unsafe): never set
    state.total_bytes = (size_t)bytes;
    state.versions.driver = (int)driver;
    state.n_devices = (int)devices;
    state.n_blocks = (unsigned)blocks;
}

LS_API gpu_host *gpu_host_state(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, read_environment);
    return &state;
}

gpu_failure gpu_failure_of(gpu_error error)
{
    return errors[error].failure;
}

const char *gpu_error_text(char *buf, size_t n, gpu_error error)
{
    (void)snprintf(buf, n, "error %d: %s", error, errors[error].text);
    return buf;
}

/* The functions below that end in _locked are called with the lock. */

static bool is_due_locked(uint64_t *counter)
{
    return *counter > 0 && --*counter == 0;
}

gpu_error gpu_host_check_lost(void)
{
    bool is_lost;

    pthread_mutex_lock(&lock);
    is_lost = state.is_lost;
    pthread_mutex_unlock(&lock);
    return is_lost ? HOST_LOST : HOST_OK;
}

void gpu_host_lose(void)
{
    pthread_mutex_lock(&lock);
    state.is_lost = true;
    pthread_mutex_unlock(&lock);
}

/* As CUDA's runtime, of the calling thread's card. */
static void make_context_locked(void)
{
    state.contexts |= 1U << current;
}

bool gpu_host_is_due(uint64_t *counter)
{
    bool is_due;

    pthread_mutex_lock(&lock);
    is_due = is_due_locked(counter);
    pthread_mutex_unlock(&lock);
    return is_due;
}

gpu_error gpu_host_count(int card, uint64_t *counter)
{
    gpu_error e = HOST_OK;

    pthread_mutex_lock(&lock);
    if (is_due_locked(&state.lose_at))
        state.is_lost = true;
    ++*counter;
    if (state.is_lost)
        e = HOST_LOST;
    else if (card != current)
        e = HOST_WRONG_CARD;
    pthread_mutex_unlock(&lock);
    return e;
}

void *gpu_host_make(size_t bytes, size_t *counter)
{
    void *made = cu_host->alloc(1, bytes);

    pthread_mutex_lock(&lock);
    *counter += made != NULL;
    pthread_mutex_unlock(&lock);
    return made;
}

void gpu_host_unmake(void *record, size_t *counter)
{
    pthread_mutex_lock(&lock);
    --*counter;
    pthread_mutex_unlock(&lock);
    cu_host->free(record);
}

/* --- cards --- */

void gpu_get_versions(gpu_versions *out)
{
    *out = gpu_host_state()->versions;
}

gpu_error gpu_device_count(int *out)
{
    if (state.versions.driver == 0)
        return HOST_NO_DRIVER;
    if (state.versions.driver / 1000 < state.versions.runtime / 1000)
        return HOST_OLD_DRIVER;
    if (state.n_devices == 0)
        return HOST_NO_DEVICE;
    *out = state.n_devices;
    return HOST_OK;
}

int gpu_host_card(void)
{
    return current;
}

gpu_error gpu_device_set(int index)
{
    current = index;
    return gpu_host_check_lost();
}

gpu_error gpu_device_properties(int index, gpu_properties *out)
{
    *out = (gpu_properties){.name = "host memory",
                            .major = state.major,
                            .minor = state.minor,
                            // What C cannot be compiled from exists as PTX alone.
                            .has_tensor_cores = gpu_host_has_kernels() || launch_record != NULL,
                            .n_processors = launch_record != NULL ? H100_PROCESSORS : 4,
                            .total_bytes = state.total_bytes};
    (void)snprintf(out->bus_id, sizeof(out->bus_id), "10000000:%02x:00.0", (unsigned)index & 0xFF);
    return gpu_host_check_lost();
}

gpu_error gpu_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    pthread_mutex_lock(&lock);
    *total_bytes = state.total_bytes;
    *free_bytes = state.total_bytes - state.used_bytes;
    pthread_mutex_unlock(&lock);
    return gpu_host_check_lost();
}

int gpu_busy_percent(const char *bus_id)
{
    (void)bus_id;
    return state.busy_percent;
}

/* --- memory, counted --- */

void gpu_host_make_context(void)
{
    pthread_mutex_lock(&lock);
    make_context_locked();
    pthread_mutex_unlock(&lock);
}

gpu_error gpu_host_take_bytes(size_t bytes)
{
    gpu_error e = HOST_OK;
    bool fails;

    pthread_mutex_lock(&lock);
    make_context_locked();
    state.n_allocations++;
    fails = is_due_locked(&state.fail_malloc_at);
    if (state.is_lost)
        e = HOST_LOST;
    else if (fails || bytes > state.total_bytes - state.used_bytes)
        e = HOST_OUT_OF_MEMORY;
    else
        state.used_bytes += bytes;
    pthread_mutex_unlock(&lock);
    return e;
}

void gpu_host_give_bytes(size_t bytes)
{
    pthread_mutex_lock(&lock);
    state.used_bytes -= bytes;
    pthread_mutex_unlock(&lock);
}

gpu_error gpu_host_take_pinned(void)
{
    bool fails;

    pthread_mutex_lock(&lock);
    make_context_locked();
    fails = is_due_locked(&state.fail_pinned_at);
    state.n_pinned += !fails;
    pthread_mutex_unlock(&lock);
    return fails ? HOST_OUT_OF_MEMORY : HOST_OK;
}

void gpu_host_give_pinned(void)
{
    pthread_mutex_lock(&lock);
    state.n_pinned--;
    pthread_mutex_unlock(&lock);
}

/* --- transfers --- */

/* A copy, a fill or a call. */
typedef struct host_transfer {
    void *dst;
    const void *src;
    int byte;
    size_t bytes;
    void (*fn)(void *arg);
    void *arg;
} host_transfer;

static gpu_error run_copy(const void *args)
{
    const host_transfer *t = args;

    memmove(t->dst, t->src, t->bytes);
    return HOST_OK;
}

static gpu_error run_fill(const void *args)
{
    const host_transfer *t = args;

    memset(t->dst, t->byte, t->bytes);
    return HOST_OK;
}

static gpu_error run_call(const void *args)
{
    const host_transfer *t = args;

    t->fn(t->arg);
    return HOST_OK;
}

static gpu_error queue_transfer(gpu_stream *stream, gpu_error (*run)(const void *args),
                                const host_transfer *t, const void *host)
{
    return gpu_host_queue(stream, &(gpu_host_work){.run = run,
                                                   .args = t,
                                                   .args_bytes = sizeof(*t),
                                                   .shape = t->bytes,
                                                   .counter = &state.n_copies,
                                                   .host = host,
                                                   .host_bytes = host == NULL ? 0 : t->bytes});
}

/* Device memory lies in one block, host memory in none. */
static gpu_error check_side(const void *p, size_t bytes, bool is_host)
{
    if (is_host)
        return gpu_host_is_device_memory(p) ? HOST_WRONG_BLOCK : HOST_OK;
    return gpu_host_address(p, bytes) == NULL ? HOST_WRONG_BLOCK : HOST_OK;
}

gpu_error gpu_memcpy_async(void *dst, const void *src, size_t bytes, gpu_direction direction,
                           gpu_stream *stream)
{
    const void *host = direction == GPU_TO_DEVICE ? src : direction == GPU_TO_HOST ? dst : NULL;
    gpu_error e = host == NULL ? HOST_OK : gpu_host_refuse_stream(stream);

    if (e == HOST_OK)
        e = check_side(dst, bytes, direction == GPU_TO_HOST);
    if (e == HOST_OK)
        e = check_side(src, bytes, direction == GPU_TO_DEVICE);
    if (e != HOST_OK)
        return e;
    return queue_transfer(stream, run_copy,
                          &(host_transfer){.dst = dst, .src = src, .bytes = bytes}, host);
}

gpu_error gpu_memset_async(void *dst, int byte, size_t bytes, gpu_stream *stream)
{
    const gpu_error e = check_side(dst, bytes, false);

    if (e != HOST_OK)
        return e;
    return queue_transfer(stream, run_fill,
                          &(host_transfer){.dst = dst, .byte = byte, .bytes = bytes}, NULL);
}

gpu_error gpu_launch_host(gpu_stream *stream, void (*fn)(void *arg), void *arg)
{
    return queue_transfer(stream, run_call, &(host_transfer){.fn = fn, .arg = arg}, NULL);
}

/* --- kernels --- */

/* The kernel that runs. One at a time: its shared memory is static. */
static struct {
    pthread_mutex_t lock;
    gpu_host_function run;
    const void *args;
    unsigned block;
    unsigned n_blocks;
    unsigned n_threads;
    unsigned thread; /* of the block, that runs */
    ucontext_t launcher;
    ucontext_t threads[HOST_THREADS];
    bool is_done[HOST_THREADS];
} launched = {.lock = PTHREAD_MUTEX_INITIALIZER};

void gpu_host_barrier(void)
{
    if (launched.n_threads > 1)
        (void)swapcontext(&launched.threads[launched.thread], &launched.launcher);
}

static void thread_main(void)
{
    launched.run(launched.args, launched.block, launched.n_blocks, launched.thread,
                 launched.n_threads);
    launched.is_done[launched.thread] = true;
}

static void begin_thread(unsigned thread, unsigned char *stack)
{
    (void)getcontext(&launched.threads[thread]);
    launched.threads[thread].uc_stack.ss_sp = stack;
    launched.threads[thread].uc_stack.ss_size = HOST_STACK_BYTES;
    launched.threads[thread].uc_link = &launched.launcher;
    makecontext(&launched.threads[thread], thread_main, 0);
    launched.is_done[thread] = false;
}

/* Runs the threads in turn, each to its next barrier, until all are done. */
static gpu_error run_block(unsigned char *stacks)
{
    unsigned n_done = 0;

    for (unsigned t = 0; t < launched.n_threads; t++)
        begin_thread(t, stacks + t * (size_t)HOST_STACK_BYTES);
    while (n_done == 0) {
        for (unsigned t = 0; t < launched.n_threads; t++) {
            launched.thread = state.is_reversed ? launched.n_threads - 1 - t : t;
            (void)swapcontext(&launched.launcher, &launched.threads[launched.thread]);
            n_done += launched.is_done[launched.thread];
        }
    }
    return n_done == launched.n_threads ? HOST_OK : HOST_DIVERGED;
}

static gpu_error run_blocks_of_threads(void)
{
    unsigned char *stacks =
        ls_alloc_aligned(STACK_ALIGNMENT, launched.n_threads * (size_t)HOST_STACK_BYTES);
    gpu_error e = stacks == NULL ? HOST_OUT_OF_MEMORY : HOST_OK;

    for (unsigned block = 0; e == HOST_OK && block < launched.n_blocks; block++) {
        launched.block = block;
        e = run_block(stacks);
    }
    ls_free(stacks);
    return e;
}

static gpu_error run_part(gpu_function function)
{
    launched.run = (gpu_host_function)function;
    if (launched.n_threads > 1)
        return run_blocks_of_threads();
    for (unsigned block = 0; block < launched.n_blocks; block++)
        launched.run(launched.args, block, launched.n_blocks, 0, 1);
    return HOST_OK;
}

static gpu_error run_parts(const gpu_kernel *kernel)
{
    const gpu_error e = run_part(kernel->function);

    return e == HOST_OK && kernel->second != NULL ? run_part(kernel->second) : e;
}

/* A launch of a kernel, with the part of `args` that its arguments need. */
typedef struct host_launch {
    const gpu_kernel *kernel;
    unsigned n_blocks;
    unsigned n_threads;
    _Alignas(16) unsigned char args[GPU_ARGS_MAX];
} host_launch;

static gpu_error run_kernel(const void *args)
{
    const host_launch *l = args;
    gpu_error e;

    pthread_mutex_lock(&launched.lock);
    launched.args = l->args;
    launched.n_blocks = state.n_blocks > 0 ? state.n_blocks : l->n_blocks;
    launched.n_threads = state.n_threads > 0 ? state.n_threads : 1;
    if (gpu_host_has_kernels())
        e = gpu_host_run_kernel(l->kernel, l->args, launched.n_blocks,
                                state.n_threads > 0 ? state.n_threads : l->n_threads);
    else
        e = run_parts(l->kernel);
    pthread_mutex_unlock(&launched.lock);
    return e;
}

gpu_error gpu_launch(const gpu_kernel *kernel, unsigned n_blocks, unsigned n_threads,
                     const void *args, gpu_stream *stream)
{
    host_launch l;

    if (launch_record != NULL)
        (void)fprintf(launch_record, "%s %u %u\n", kernel->name, n_blocks, n_threads);
    l.kernel = kernel;
    l.n_blocks = n_blocks;
    l.n_threads = n_threads;
    memcpy(l.args, args, kernel->args_bytes);
    return gpu_host_queue(
        stream, &(gpu_host_work){.run = run_kernel,
                                 .args = &l,
                                 .args_bytes = offsetof(host_launch, args) + kernel->args_bytes,
                                 .counter = &state.n_launches});
}

void gpu_expect_collectives(void)
{
    state.expects_collectives = true;
}

void gpu_host_free_locks(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&launched.lock, NULL);
}
