/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_accel.c - the accelerator of base/compute/accel.h over gpu.h: streams, memory, events,
 * and the errors of the runtime. The device, the loader, ddp and collectives call it through
 * accel.h, from any thread. No call of gpu.h is made under `lock`.
 */
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct cuda_event {
    accel_event base;
    gpu_event *native;
    bool is_timed;
    bool is_recorded;
    bool is_of_compute;      /* recorded in ACCEL_COMPUTE */
    struct cuda_event *next; /* of the free events */
} cuda_event;

/* A block of accel_alloc(). */
typedef struct memory_range {
    uintptr_t begin;
    uintptr_t end;
} memory_range;

/* How long the clock of timed events is used before it is compared with the host's again: their
 * times are floats of milliseconds, which have steps of a microsecond after this time. */
#define CLOCK_NS_MAX  (INT64_C(8) * 1000000000)
#define CLOCK_SPAN_NS (200 * INT64_C(1000)) /* between two readings, on a core of its own */
#define CLOCK_TRIES   8

struct cuda_accel {
    accel base;
    gpu_properties card;
    op_failure *failure;
    cuda_graphs *graphs;      /* NULL: work is queued at once */
    op_kind op;               /* that runs; of the thread that runs operators */
    gpu_stream *clock_stream; /* always empty: its events happen at once */
    gpu_event *clock_event;
    int64_t clock_ns;           /* when clock_event happened; 0: not recorded yet */
    pthread_mutex_t clock_lock; /* of the clock; held during calls of gpu.h */
    pthread_mutex_t lock;       /* of all that follows */
    cuda_event *free_events[2]; /* [1]: timed */
    memory_range *ranges;       /* sorted */
    size_t n_ranges;
    size_t ranges_capacity;
    _Atomic(bool) is_lost;
    char lost_text[512];
};

static cuda_accel *accel_from(accel *base)
{
    return (cuda_accel *)base;
}

accel *cuda_accel_base(cuda_accel *a)
{
    return &a->base;
}

op_failure *cuda_accel_failure(cuda_accel *a)
{
    return a->failure;
}

void cuda_accel_enter(const cuda_accel *a)
{
    // A failure here is also that of the next call.
    (void)gpu_device_set(a->base.index);
}

/* --- errors --- */

/* The first loss is the one that all later calls report. */
static void note_loss_text(cuda_accel *a, const char *format, ...) LS_PRINTF(2, 3);

static void note_loss_text(cuda_accel *a, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    pthread_mutex_lock(&a->lock);
    if (!atomic_load_explicit(&a->is_lost, memory_order_relaxed)) {
        // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is
        (void)vsnprintf(a->lost_text, sizeof(a->lost_text), format, args);
        // Pairs with the load in cuda_accel_check(): the text is complete.
        atomic_store_explicit(&a->is_lost, true, memory_order_release);
    }
    pthread_mutex_unlock(&a->lock);
    va_end(args);
}

static void note_loss(cuda_accel *a, const char *call, const char *why)
{
    note_loss_text(a,
                   "%s (%s, PCI %s) can no longer be used by this process: %s failed: %s. The "
                   "cause is an earlier kernel or the card itself. Start again from the last "
                   "checkpoint; CUDA_LAUNCH_BLOCKING=1 shows the operator, the kernel's log "
                   "(dmesg, Xid) faults of the card",
                   a->base.name, a->card.name, a->card.bus_id, call, why);
}

ls_status cuda_accel_check(cuda_accel *a, gpu_error error, const char *call)
{
    char why[256];
    gpu_failure failure;

    if (error == 0 && !atomic_load_explicit(&a->is_lost, memory_order_acquire))
        return LS_OK;
    failure = error == 0 ? GPU_FAILURE_LOST : gpu_failure_of(error);
    if (failure == GPU_FAILURE_LOST && error != 0)
        note_loss(a, call, gpu_error_text(why, sizeof(why), error));
    if (atomic_load_explicit(&a->is_lost, memory_order_acquire))
        return cu_fail(LS_ESYSTEM, "%s", a->lost_text);
    return cu_fail(failure == GPU_FAILURE_OUT_OF_MEMORY ? LS_ENOMEM : LS_ESYSTEM,
                   "%s: %s failed: %s", a->base.name, call,
                   gpu_error_text(why, sizeof(why), error));
}

static bool is_lost(const cuda_accel *a)
{
    return atomic_load_explicit(&a->is_lost, memory_order_relaxed);
}

/* --- graphs --- */

/* The work that was recorded can no longer be run, so that later work would compute with what it
 * should have written: a loss. */
static ls_status check_graphs(cuda_accel *a, gpu_error error, const char *call)
{
    char why[256];

    if (error != 0 && gpu_failure_of(error) != GPU_FAILURE_LOST)
        note_loss_text(a,
                       "%s: the CUDA graph of the operators up to %s failed: %s: %s. Their work is "
                       "lost. Start again from the last checkpoint without --cuda-graph and "
                       "LOCKSTEP_CUDA_GRAPH",
                       a->base.name, cu_host->op_name(a->op), call,
                       gpu_error_text(why, sizeof(why), error));
    return cuda_accel_check(a, error, call);
}

ls_status cuda_accel_begin(cuda_accel *a, const graph_node *node)
{
    const char *call = NULL;
    gpu_error e;

    if (a->graphs == NULL || is_lost(a))
        return cuda_accel_check(a, 0, "");
    e = graphs_enter(a->graphs, node, &call);
    // A loss that another thread finds meanwhile is returned by cuda_accel_end(), which unlocks.
    return e == 0 ? LS_OK : check_graphs(a, e, call);
}

ls_status cuda_accel_end(cuda_accel *a, gpu_error error, const char *call)
{
    const char *graph_call = call;
    gpu_error e = 0;

    if (a->graphs != NULL)
        e = graphs_leave(a->graphs, &graph_call);
    // A call that cannot be recorded has failed, too, and says why.
    if (e != 0)
        return check_graphs(a, error != 0 ? error : e, error != 0 ? call : graph_call);
    return cuda_accel_check(a, error, call);
}

ls_status cuda_accel_pause(cuda_accel *a)
{
    const char *call = NULL;
    gpu_error e = 0;

    if (a->graphs != NULL)
        e = graphs_pause(a->graphs, &call);
    return check_graphs(a, e, call);
}

/* For callers that go on after a failure: it is that of the next call. */
static void pause_always(cuda_accel *a)
{
    const ls_status st = cuda_accel_pause(a);

    LS_UNUSED(st);
}

void cuda_accel_resume(cuda_accel *a)
{
    if (a->graphs != NULL)
        graphs_resume(a->graphs);
}

void cuda_accel_forget_graphs(cuda_accel *a)
{
    if (a->graphs == NULL)
        return;
    pause_always(a);
    graphs_forget(a->graphs);
    cuda_accel_resume(a);
}

void cuda_accel_name_operator(cuda_accel *a, op_kind op)
{
    a->op = op;
}

graph_counts cuda_accel_count_graphs(cuda_accel *a)
{
    return a->graphs == NULL ? (graph_counts){0} : graphs_count(a->graphs);
}

/* Waits for all queues, and not for the card, where another accelerator of this process may
 * record. */
static gpu_error synchronize_queues(cuda_accel *a)
{
    gpu_error e = 0;

    pause_always(a);
    for (int i = 0; i < ACCEL_QUEUES && e == 0; i++) {
        if (a->base.queues[i].native != NULL)
            e = gpu_stream_synchronize(a->base.queues[i].native);
    }
    cuda_accel_resume(a);
    return e;
}

ls_status cuda_accel_check_library(cuda_accel *a, ls_status st, const char *library)
{
    gpu_error error;

    if (st == LS_OK)
        return LS_OK;
    error = synchronize_queues(a);
    return error != 0 && gpu_failure_of(error) == GPU_FAILURE_LOST
               ? cuda_accel_check(a, error, library)
               : st;
}

/* cuda_accel_check() of gpu_FUNCTION(...), on the card of `a`; no call after its loss. */
#define checked(a, function, ...)                                                                  \
    (cuda_accel_enter(a),                                                                          \
     cuda_accel_check((a), is_lost(a) ? 0 : gpu_##function(__VA_ARGS__), #function))

/* Before and after a call of gpu.h on a queue. `node` NULL: the call cannot be recorded. */
static ls_status begin_call(const ls_queue *queue, const graph_node *node)
{
    cuda_accel *a = accel_from(queue->accel);
    ls_status st;

    cuda_accel_enter(a);
    if (is_lost(a) || queue != accel_queue(queue->accel, ACCEL_COMPUTE))
        return cuda_accel_check(a, 0, "");
    if (node != NULL)
        return cuda_accel_begin(a, node);
    st = cuda_accel_pause(a);
    if (st != LS_OK)
        cuda_accel_resume(a);
    return st;
}

static ls_status end_call(const ls_queue *queue, const graph_node *node, gpu_error error,
                          const char *call)
{
    cuda_accel *a = accel_from(queue->accel);

    if (queue == accel_queue(queue->accel, ACCEL_COMPUTE)) {
        if (node != NULL)
            return cuda_accel_end(a, error, call);
        cuda_accel_resume(a);
    }
    return cuda_accel_check(a, error, call);
}

/* Copies the failure of an operator, once: only one of the threads that wait gets it. */
static bool take_record(cuda_accel *a, op_failure *out)
{
    // The device writes it before the event that was waited for.
    volatile op_failure *record = a->failure;
    bool has_failed;

    pthread_mutex_lock(&a->lock);
    has_failed = record->state == FAILURE_WRITTEN;
    if (has_failed) {
        *out = *record;
        record->state = FAILURE_NONE;
    }
    pthread_mutex_unlock(&a->lock);
    return has_failed;
}

static ls_status take_failure(cuda_accel *a)
{
    op_failure f;

    if (!take_record(a, &f))
        return LS_OK;
    if (f.op == OP_BATCH_NORM)
        return cu_fail(LS_EINVAL, "batch_norm: training needs more than one value per channel "
                                  "over all ranks");
    if (f.op == OP_EMBEDDING)
        return cu_fail(LS_EINVAL, "embedding: index %lld at position %lld is outside [0, %lld)",
                       (long long)f.value, (long long)f.row, (long long)f.limit);
    if (f.op >= OP_LSTM && f.op <= OP_GRU_BACKWARD)
        return cu_fail(LS_EINVAL, "%s: length %lld of row %lld is outside [0, %lld]",
                       cu_host->op_name((op_kind)f.op), (long long)f.value, (long long)f.row,
                       (long long)f.limit);
    return cu_fail(LS_EINVAL, "%s: target %lld of row %lld is outside [0, %lld)",
                   cu_host->op_name((op_kind)f.op), (long long)f.value, (long long)f.row,
                   (long long)f.limit);
}

/* The status of a wait: that of its call, or, if it was for ACCEL_COMPUTE, of an operator. */
static ls_status end_wait(cuda_accel *a, gpu_error error, bool is_of_compute, const char *what)
{
    char call[128];
    ls_status st;

    (void)snprintf(call, sizeof(call), "wait \"%s\"", what);
    st = cuda_accel_check(a, error, call);
    return st == LS_OK && is_of_compute ? take_failure(a) : st;
}

/* --- memory --- */

/* The number of ranges that begin at or before `address`. With the lock. */
static size_t ranges_before(const cuda_accel *a, uintptr_t address)
{
    size_t low = 0;
    size_t high = a->n_ranges;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (a->ranges[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* With the lock. */
static bool ranges_grow(cuda_accel *a)
{
    const size_t capacity = a->ranges_capacity == 0 ? 256 : 2 * a->ranges_capacity;
    memory_range *grown = cu_host->alloc(capacity, sizeof(*grown));

    if (grown == NULL)
        return false;
    if (a->n_ranges > 0)
        memcpy(grown, a->ranges, a->n_ranges * sizeof(*grown));
    cu_host->free(a->ranges);
    a->ranges = grown;
    a->ranges_capacity = capacity;
    return true;
}

static bool ranges_add(cuda_accel *a, const void *block, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)block;
    bool done = true;
    size_t at;

    pthread_mutex_lock(&a->lock);
    if (a->n_ranges == a->ranges_capacity)
        done = ranges_grow(a);
    if (done) {
        at = ranges_before(a, begin);
        memmove(&a->ranges[at + 1], &a->ranges[at], (a->n_ranges - at) * sizeof(*a->ranges));
        a->ranges[at] = (memory_range){begin, begin + bytes};
        a->n_ranges++;
    }
    pthread_mutex_unlock(&a->lock);
    return done;
}

static void ranges_remove(cuda_accel *a, const void *block)
{
    size_t at;

    pthread_mutex_lock(&a->lock);
    at = ranges_before(a, (uintptr_t)block);
    if (at > 0 && a->ranges[at - 1].begin == (uintptr_t)block) {
        memmove(&a->ranges[at - 1], &a->ranges[at], (a->n_ranges - at) * sizeof(*a->ranges));
        a->n_ranges--;
    }
    pthread_mutex_unlock(&a->lock);
}

/* A loss that this shows is the error of the next call. */
static void free_block(cuda_accel *a, void *block)
{
    gpu_error e;

    cuda_accel_enter(a);
    e = synchronize_queues(a);
    (void)cuda_accel_check(a, e, "stream_synchronize");
    (void)cuda_accel_check(a, gpu_free(block), "free");
}

static void *cuda_alloc(accel *base, size_t bytes)
{
    cuda_accel *a = accel_from(base);
    void *block = NULL;

    if (checked(a, malloc, &block, bytes == 0 ? 1 : bytes) != LS_OK)
        return NULL;
    if (ranges_add(a, block, bytes))
        return block;
    free_block(a, block);
    return NULL;
}

static void cuda_free(accel *base, void *block)
{
    cuda_accel *a = accel_from(base);

    ranges_remove(a, block);
    free_block(a, block);
}

static void *cuda_alloc_host(accel *base, size_t bytes)
{
    void *block = NULL;

    return checked(accel_from(base), malloc_host, &block, bytes == 0 ? 1 : bytes) == LS_OK ? block
                                                                                           : NULL;
}

static void cuda_free_host(accel *base, void *block)
{
    cuda_accel_enter(accel_from(base));
    (void)cuda_accel_check(accel_from(base), gpu_free_host(block), "free_host");
}

/* The table has the blocks of accel_alloc(), also after a loss; the runtime is asked for those of
 * others (NCCL, the program). */
static accel_owner cuda_owner(accel *base, const void *p)
{
    cuda_accel *a = accel_from(base);
    size_t at;
    bool found;

    pthread_mutex_lock(&a->lock);
    at = ranges_before(a, (uintptr_t)p);
    found = at > 0 && (uintptr_t)p < a->ranges[at - 1].end;
    pthread_mutex_unlock(&a->lock);
    if (found || is_lost(a))
        return found ? ACCEL_OWN : ACCEL_OTHER;
    cuda_accel_enter(a); // the question makes a context on the thread's card
    return gpu_pointer_device(p) == a->base.index ? ACCEL_SAME_CARD : ACCEL_OTHER;
}

static ls_status cuda_memory(accel *base, size_t *free_bytes, size_t *total_bytes)
{
    return checked(accel_from(base), memory_info, free_bytes, total_bytes);
}

/* --- queues --- */

static ls_status cuda_copy(ls_queue *queue, void *dst, const void *src, size_t bytes,
                           accel_direction direction)
{
    static const gpu_direction directions[] = {
        [ACCEL_TO_DEVICE] = GPU_TO_DEVICE,
        [ACCEL_TO_HOST] = GPU_TO_HOST,
        [ACCEL_ON_DEVICE] = GPU_ON_DEVICE,
    };

    // A copy from or to host memory is not recorded: the event that the host waits for follows.
    const graph_node copied = {.kind = GRAPH_COPY, .bytes = bytes};
    const graph_node *node = direction == ACCEL_ON_DEVICE ? &copied : NULL;

    LS_TRY(begin_call(queue, node));
    return end_call(queue, node,
                    gpu_memcpy_async(dst, src, bytes, directions[direction], queue->native),
                    "memcpy_async");
}

static ls_status cuda_fill(ls_queue *queue, void *dst, int byte, size_t bytes)
{
    const graph_node node = {.kind = GRAPH_FILL, .bytes = bytes};

    LS_TRY(begin_call(queue, &node));
    return end_call(queue, &node, gpu_memset_async(dst, byte, bytes, queue->native),
                    "memset_async");
}

static ls_status cuda_call(ls_queue *queue, void (*fn)(void *arg), void *arg)
{
    const graph_node node = {.kind = GRAPH_CALL};

    LS_TRY(begin_call(queue, &node));
    return end_call(queue, &node, gpu_launch_host(queue->native, fn, arg), "launch_host");
}

static ls_status cuda_synchronize(accel *base, const char *what)
{
    cuda_accel *a = accel_from(base);
    gpu_error e;

    cuda_accel_enter(a);
    e = synchronize_queues(a);
    return end_wait(a, e, true, what);
}

/* --- events --- */

static cuda_event *event_from(accel_event *event)
{
    return (cuda_event *)event;
}

/* A free event; NULL: there is none. */
static cuda_event *take_event(cuda_accel *a, bool timed)
{
    cuda_event *e;

    pthread_mutex_lock(&a->lock);
    e = a->free_events[timed];
    if (e != NULL)
        a->free_events[timed] = e->next;
    pthread_mutex_unlock(&a->lock);
    return e;
}

static ls_status cuda_event_create(accel *base, bool timed, accel_event **out)
{
    cuda_accel *a = accel_from(base);
    cuda_event *e = take_event(a, timed);

    if (e == NULL) {
        ls_status st;

        e = cu_host->alloc(1, sizeof(*e));
        if (e == NULL)
            return cu_fail(LS_ENOMEM, "no memory for an event of %s", a->base.name);
        st = checked(a, event_create, &e->native, timed);
        if (st != LS_OK) {
            cu_host->free(e);
            return st;
        }
        e->base.accel = base;
        e->is_timed = timed;
    }
    e->is_recorded = false;
    *out = &e->base;
    return LS_OK;
}

/* Waits that were queued before keep their meaning when the event is recorded again. */
static void cuda_event_destroy(accel_event *event)
{
    cuda_accel *a = accel_from(event->accel);
    cuda_event *e = event_from(event);

    pthread_mutex_lock(&a->lock);
    e->next = a->free_events[e->is_timed];
    a->free_events[e->is_timed] = e;
    pthread_mutex_unlock(&a->lock);
}

static ls_status cuda_event_record(accel_event *event, ls_queue *queue)
{
    cuda_event *e = event_from(event);

    e->is_recorded = true;
    e->is_of_compute = queue == accel_queue(queue->accel, ACCEL_COMPUTE);
    LS_TRY(begin_call(queue, NULL));
    return end_call(queue, NULL, gpu_event_record(e->native, queue->native), "event_record");
}

static ls_status cuda_queue_wait(ls_queue *queue, accel_event *event, const char *what)
{
    cuda_event *e = event_from(event);

    LS_UNUSED(what); // this call does not wait
    if (queue == accel_queue(queue->accel, ACCEL_COMMUNICATION))
        gpu_expect_collectives();
    if (!e->is_recorded)
        return LS_OK;
    LS_TRY(begin_call(queue, NULL));
    return end_call(queue, NULL, gpu_stream_wait_event(queue->native, e->native),
                    "stream_wait_event");
}

/* The card works on what this thread has queued while the thread waits. */
static ls_status flush_own(cuda_accel *a)
{
    const char *call = NULL;
    gpu_error e = 0;

    if (a->graphs != NULL)
        e = graphs_flush_own(a->graphs, &call);
    return check_graphs(a, e, call);
}

static ls_status cuda_event_wait(accel_event *event, const char *what)
{
    cuda_accel *a = accel_from(event->accel);
    cuda_event *e = event_from(event);

    if (!e->is_recorded)
        return LS_OK;
    cuda_accel_enter(a);
    LS_TRY(flush_own(a));
    return end_wait(a, gpu_event_synchronize(e->native), e->is_of_compute, what);
}

static ls_status cuda_event_test(accel_event *event, bool *done)
{
    cuda_event *e = event_from(event);

    *done = true;
    return e->is_recorded ? checked(accel_from(event->accel), event_query, e->native, done) : LS_OK;
}

/* --- the clock of timed events --- */

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Records clock_event between two readings of the host's clock, unless that is recent; several
 * times where another process has taken the core in between. */
static ls_status update_clock(cuda_accel *a)
{
    int64_t before = now_ns();
    int64_t after = before + CLOCK_SPAN_NS;

    if (a->clock_ns != 0 && before - a->clock_ns < CLOCK_NS_MAX)
        return LS_OK;
    for (int i = 0; i < CLOCK_TRIES && after - before >= CLOCK_SPAN_NS; i++) {
        before = now_ns();
        LS_TRY(checked(a, event_record, a->clock_event, a->clock_stream));
        LS_TRY(checked(a, event_synchronize, a->clock_event));
        after = now_ns();
    }
    a->clock_ns = before + (after - before) / 2;
    return LS_OK;
}

static ls_status cuda_event_ns(accel_event *event, int64_t *ns)
{
    cuda_accel *a = accel_from(event->accel);
    cuda_event *e = event_from(event);
    bool done = false;
    float ms = 0;
    ls_status st;

    if (!e->is_timed || !e->is_recorded)
        return cu_fail(LS_EINVAL, "%s: the event has no time: it is not timed or not recorded",
                       a->base.name);
    st = checked(a, event_query, e->native, &done);
    if (st == LS_OK && !done)
        st = cu_fail(LS_EINVAL, "%s: the event has not happened yet", a->base.name);
    if (st != LS_OK)
        return st;
    pthread_mutex_lock(&a->clock_lock);
    st = update_clock(a);
    if (st == LS_OK)
        st = checked(a, event_elapsed_ms, a->clock_event, e->native, &ms);
    if (st == LS_OK)
        *ns = a->clock_ns + (int64_t)((double)ms * 1e6);
    pthread_mutex_unlock(&a->clock_lock);
    return st;
}

/* For NCCL, whose calls concern the thread's current card. */
static void cuda_bind(accel *self)
{
    cuda_accel_enter(accel_from(self));
}

/* --- life --- */

static const accel_ops ops = {
    .name = gpu_platform,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .owner = cuda_owner,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .call = cuda_call,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .queue_wait = cuda_queue_wait,
    .event_wait = cuda_event_wait,
    .event_test = cuda_event_test,
    .event_ns = cuda_event_ns,
    .synchronize = cuda_synchronize,
    .memory = cuda_memory,
    .bind = cuda_bind,
};

static ls_status open_queues(cuda_accel *a)
{
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        gpu_stream *stream = NULL;

        LS_TRY(checked(a, stream_create, &stream, i == ACCEL_COMMUNICATION || i == ACCEL_STAGING));
        a->base.queues[i] = (ls_queue){.accel = &a->base, .native = stream};
    }
    LS_TRY(checked(a, stream_create, &a->clock_stream, true));
    return checked(a, event_create, &a->clock_event, true);
}

ls_status cuda_accel_open(int index, const gpu_properties *card, bool graphs, cuda_accel **out)
{
    cuda_accel *a = cu_host->alloc(1, sizeof(*a));
    void *failure = NULL;
    ls_status st;

    if (a == NULL)
        return cu_fail(LS_ENOMEM, "no memory for the accelerator of card %d", index);
    a->base.ops = &ops;
    a->base.index = index;
    a->card = *card;
    (void)snprintf(a->base.name, sizeof(a->base.name), "%.8s:%d", gpu_platform, index);
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->clock_lock, NULL);
    cu_host->accel_register(&a->base);
    a->op = OP_COUNT;
    st = open_queues(a);
    if (st == LS_OK && graphs)
        st = graphs_open(accel_queue(&a->base, ACCEL_COMPUTE)->native, &a->graphs);
    if (st == LS_OK)
        st = cuda_accel_check(a, gpu_malloc_host(&failure, sizeof(*a->failure)), "malloc_host");
    if (st != LS_OK) {
        cuda_accel_close(a);
        return st;
    }
    a->failure = failure;
    *a->failure = (op_failure){.state = FAILURE_NONE};
    *out = a;
    return LS_OK;
}

static void free_events(cuda_accel *a)
{
    for (int timed = 0; timed < 2; timed++) {
        while (a->free_events[timed] != NULL) {
            cuda_event *e = a->free_events[timed];

            a->free_events[timed] = e->next;
            (void)gpu_event_destroy(e->native);
            cu_host->free(e);
        }
    }
    if (a->clock_event != NULL)
        (void)gpu_event_destroy(a->clock_event);
}

/* After a loss the calls fail, and the driver frees everything when the process ends. */
void cuda_accel_close(cuda_accel *a)
{
    if (a == NULL)
        return;
    cu_host->accel_unregister(&a->base); // users still need queues and memory
    cuda_accel_enter(a);
    (void)synchronize_queues(a);
    graphs_close(a->graphs);
    free_events(a);
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        if (a->base.queues[i].native != NULL)
            (void)gpu_stream_destroy(a->base.queues[i].native);
    }
    if (a->clock_stream != NULL)
        (void)gpu_stream_destroy(a->clock_stream);
    if (a->failure != NULL)
        (void)gpu_free_host(a->failure);
    cu_host->free(a->ranges);
    pthread_mutex_destroy(&a->clock_lock);
    pthread_mutex_destroy(&a->lock);
    cu_host->free(a);
}
