/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_fake.c - NCCL's interface for tests, over the streams of nccl_fake_stream.h:
 * libnccl_fake.so, loaded through LOCKSTEP_NCCL_LIBRARY. Ranks are processes or threads of one
 * host; each pair has a mailbox in shared memory. Every operation is a set of sends and receives
 * that the stream's thread makes, and a reduction with the arithmetic of the native backend.
 *
 * FAKE_NCCL in the environment has faults: "busy=N" (each call is in progress for N polls),
 * "late=N" (each is in its stream only from the N-th poll on), "remote_error=K", "hang=K" (in the
 * K-th operation of a communicator, which does not end), "no_id=K" (creating an id fails with the
 * K-th of id_errors), "slow_abort=MS", "no_register" (registering memory fails), "no_alloc" (as if
 * there was no memory), "slow_end=MS" (of a communicator that is not aborted).
 * "rank=R": the faults are those of rank R.
 *
 * The process is ended when a registration ends after its memory was freed or while an operation
 * uses that, when it does not end before the communicator is destroyed, and when ranks of an
 * operation differ in whether their memory is registered. It answers as NCCL 2.32 does;
 * libnccl_fake_old.so (FAKE_NCCL_OLD) is of a version without registration.
 */
#include "comm/backends/nccl/nccl_api.h"
#include "comm/nccl_fake_stream.h"
#include "comm/backends/reduce.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

// The prototypes are NCCL's own, whose header may be missing.
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define EXPORT     __attribute__((visibility("default")))
#define BOX_BYTES  8192
#define MOST_SCALE 64

typedef struct mailbox {
    atomic_int is_full;
    bool is_registered; /* the sender's memory */
    size_t bytes;
    unsigned char data[BOX_BYTES];
} mailbox;

typedef struct shared {
    atomic_int n_arrived;
    mailbox boxes[]; /* from * n + to */
} shared;

typedef struct move {
    bool is_send;
    int peer;
    unsigned char *data;
    size_t bytes;
    size_t n_done;
} move;

/* One call: its buffers in host memory. */
typedef struct item {
    const void *src;
    void *dst; /* on the device; NULL: this rank has no result */
    size_t src_bytes;
    size_t dst_bytes;
    unsigned char *in;
    unsigned char *out;
    unsigned char *parts; /* of all ranks, for a reduction */
    size_t count;
    ls_dtype type;
    ls_reduce_op op;
    double divisor;
} item;

/* The calls of a group. */
typedef struct batch {
    struct batch *next;
    nccl_comm *comm;
    void *stream;
    item *items;
    int n_items;
    move *moves;
    int n_moves;
    bool is_registered; /* the memory of one of its items */
    bool hangs;
    void *done; /* the mark behind it */
} batch;

/* Of device memory. */
typedef struct registration {
    struct registration *next;
    unsigned char *start;
    size_t bytes;
} registration;

struct nccl_comm {
    int n;
    int rank;
    shared *shm;
    size_t bytes;
    char name[64];
    atomic_bool is_aborted;
    batch *batches;
    int n_batches;
    batch *late; /* a call that is not in its stream yet, after n_late more polls; NULL: none */
    int n_late;
    int n_busy; /* polls that still answer NCCL_IN_PROGRESS */
    int error;
    double scales[MOST_SCALE];
    int n_scales;
    void *stream; /* of the last operation */
    registration *registrations;
};

static _Thread_local int group_depth;
static _Thread_local batch *open_batch;
static _Thread_local const char *last_error_text = "";

static void give_up(const char *why)
{
    (void)fprintf(stderr, "fake NCCL: %s\n", why);
    abort();
}

/* --- faults --- */

/* The number of a fault of this rank, 0: it has none. */
static int fault(const char *name, int rank)
{
    const char *text = getenv("FAKE_NCCL");
    const char *of = text == NULL ? NULL : strstr(text, "rank=");
    const char *at = text == NULL ? NULL : strstr(text, name);

    if (at == NULL || (of != NULL && rank >= 0 && atoi(of + strlen("rank=")) != rank))
        return 0;
    at += strlen(name);
    return *at == '=' ? atoi(at + 1) : 1;
}

/* What a call that was accepted answers. */
static int accepted(nccl_comm *c)
{
    c->n_busy = fault("busy", c->rank);
    return c->n_busy > 0 ? NCCL_IN_PROGRESS : NCCL_SUCCESS;
}

/* --- moving bytes, in the thread of a queue --- */

static mailbox *box_of(const nccl_comm *c, const move *m)
{
    const int from = m->is_send ? c->rank : m->peer;
    const int to = m->is_send ? m->peer : c->rank;

    return &c->shm->boxes[from * c->n + to];
}

/* Messages of one pair and direction keep their order. */
static bool is_next(const batch *b, int i)
{
    for (int k = 0; k < i; k++) {
        const move *m = &b->moves[k];

        if (m->is_send == b->moves[i].is_send && m->peer == b->moves[i].peer &&
            m->n_done < m->bytes)
            return false;
    }
    return true;
}

static bool try_move(const batch *b, move *m)
{
    mailbox *box = box_of(b->comm, m);
    const size_t left = m->bytes - m->n_done;

    if (atomic_load_explicit(&box->is_full, memory_order_acquire) == (m->is_send ? 1 : 0))
        return false;
    if (m->is_send) {
        box->bytes = left < BOX_BYTES ? left : BOX_BYTES;
        box->is_registered = b->is_registered;
        memcpy(box->data, m->data + m->n_done, box->bytes);
        m->n_done += box->bytes;
        atomic_store_explicit(&box->is_full, 1, memory_order_release);
        return true;
    }
    if (box->is_registered != b->is_registered)
        give_up("memory of an operation is registered on one rank, not on another");
    memcpy(m->data + m->n_done, box->data, box->bytes);
    m->n_done += box->bytes;
    atomic_store_explicit(&box->is_full, 0, memory_order_release);
    return true;
}

/* False: the communicator was aborted. */
static bool run_moves(batch *b)
{
    bool all = false;

    while (!all && !atomic_load(&b->comm->is_aborted)) {
        bool moved = false;

        all = !b->hangs;
        for (int i = 0; i < b->n_moves && !b->hangs; i++) {
            move *m = &b->moves[i];

            if (m->n_done == m->bytes)
                continue;
            all = false;
            if (is_next(b, i))
                moved |= try_move(b, m);
        }
        if (!moved && !all)
            (void)sched_yield();
    }
    return all;
}

static void reduce(const nccl_comm *c, const item *it)
{
    reduce_operand operands[64];

    for (int r = 0; r < c->n; r++)
        operands[r] = (reduce_operand){it->parts + (size_t)r * it->dst_bytes, r, 1, false};
    reduce_tree(it->out, operands, c->n, it->count, it->type, it->op, true, it->divisor);
}

static void run_batch(void *arg)
{
    batch *b = arg;

    if (!run_moves(b))
        return;
    for (int i = 0; i < b->n_items; i++) {
        if (b->items[i].parts != NULL && b->items[i].dst != NULL && b->items[i].count > 0)
            reduce(b->comm, &b->items[i]);
    }
}

/* --- batches --- */

static void free_batch(batch *b)
{
    for (int i = 0; i < b->n_items; i++) {
        fake_free_host(b->stream, b->items[i].in);
        fake_free_host(b->stream, b->items[i].out);
        free(b->items[i].parts);
    }
    fake_free_mark(b->stream, b->done);
    free(b->items);
    free(b->moves);
    free(b);
}

/* Frees the batches that are done; true when none is left. */
static bool reap(nccl_comm *c)
{
    batch **at = &c->batches;

    while (*at != NULL) {
        batch *b = *at;

        if (b->done != NULL && !fake_is_past(b->stream, b->done)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free_batch(b);
    }
    return c->batches == NULL;
}

static bool is_inside(const registration *r, const void *p)
{
    return (const unsigned char *)p >= r->start && (const unsigned char *)p < r->start + r->bytes;
}

/* Whether an item of the batch is in the memory. */
static bool touches(const batch *b, const registration *r)
{
    for (int i = 0; i < b->n_items; i++) {
        if (is_inside(r, b->items[i].src) || is_inside(r, b->items[i].dst))
            return true;
    }
    return false;
}

static bool is_registered(const batch *b)
{
    const registration *r = b->comm->registrations;

    while (r != NULL && !touches(b, r))
        r = r->next;
    return r != NULL;
}

static int enqueue(batch *b)
{
    nccl_comm *c = b->comm;
    bool ok = true;

    (void)reap(c);
    c->stream = b->stream;
    c->n_batches++;
    b->hangs =
        fault("hang", c->rank) == c->n_batches || fault("remote_error", c->rank) == c->n_batches;
    if (fault("remote_error", c->rank) == c->n_batches)
        c->error = NCCL_REMOTE_ERROR;
    b->is_registered = is_registered(b);
    for (int i = 0; i < b->n_items && ok; i++) {
        const item *it = &b->items[i];

        if (it->src_bytes > 0)
            ok = fake_copy_to_host(b->stream, it->in, it->src, it->src_bytes);
    }
    ok = ok && fake_call(b->stream, run_batch, b);
    for (int i = 0; i < b->n_items && ok; i++) {
        const item *it = &b->items[i];

        if (it->dst != NULL && it->dst_bytes > 0)
            ok = fake_copy_to_device(b->stream, it->dst, it->out, it->dst_bytes);
    }
    if (ok)
        b->done = fake_mark(b->stream);
    b->next = c->batches;
    c->batches = b;
    return b->done != NULL ? accepted(c) : NCCL_UNHANDLED_CUDA_ERROR;
}

/* What the call of the batch answers. */
static int start(batch *b)
{
    nccl_comm *c = b->comm;

    c->n_late = fault("late", c->rank);
    if (c->n_late == 0)
        return enqueue(b);
    c->late = b;
    return NCCL_IN_PROGRESS;
}

static void enqueue_late(nccl_comm *c)
{
    const item *it = c->late->items;

    fake_select_card(it->src != NULL ? it->src : it->dst); // any thread may poll
    if (enqueue(c->late) != NCCL_SUCCESS)
        give_up("a late call fails");
    c->late = NULL;
}

static batch *batch_for(nccl_comm *c, void *stream)
{
    batch *b = open_batch;

    if (b == NULL)
        b = calloc(1, sizeof(*b));
    if (b == NULL)
        abort();
    b->comm = c;
    b->stream = stream;
    if (group_depth > 0)
        open_batch = b;
    return b;
}

static int end_call(batch *b)
{
    return group_depth > 0 ? NCCL_SUCCESS : start(b);
}

static unsigned char *host_memory(const batch *b, size_t bytes)
{
    unsigned char *memory = fake_alloc_host(b->stream, bytes > 0 ? bytes : 1);

    if (memory == NULL)
        abort();
    return memory;
}

static item *add_item(batch *b, const void *src, size_t src_bytes, void *dst, size_t dst_bytes)
{
    item *it;

    b->items = realloc(b->items, (size_t)(b->n_items + 1) * sizeof(*b->items));
    if (b->items == NULL)
        abort();
    it = &b->items[b->n_items++];
    *it = (item){.src = src, .src_bytes = src_bytes, .dst = dst, .dst_bytes = dst_bytes};
    it->in = host_memory(b, src_bytes);
    it->out = host_memory(b, dst_bytes);
    return it;
}

static void add_move(batch *b, bool is_send, int peer, unsigned char *data, size_t bytes)
{
    b->moves = realloc(b->moves, (size_t)(b->n_moves + 1) * sizeof(*b->moves));
    if (b->moves == NULL)
        abort();
    b->moves[b->n_moves++] = (move){.is_send = is_send, .peer = peer, .data = data, .bytes = bytes};
}

/* --- types --- */

static ls_dtype type_of(int type)
{
    switch (type) {
    case NCCL_INT8:
        return LS_I8;
    case NCCL_UINT8:
        return LS_U8;
    case NCCL_INT32:
        return LS_I32;
    case NCCL_INT64:
        return LS_I64;
    case NCCL_FLOAT16:
        return LS_F16;
    case NCCL_BFLOAT16:
        return LS_BF16;
    case NCCL_FLOAT32:
        return LS_F32;
    default:
        return LS_F64;
    }
}

static void set_reduction(const nccl_comm *c, item *it, size_t count, int type, int op)
{
    static const ls_reduce_op ops[] = {[NCCL_SUM] = LS_SUM,
                                       [NCCL_PROD] = LS_PROD,
                                       [NCCL_MAX] = LS_MAX,
                                       [NCCL_MIN] = LS_MIN,
                                       [NCCL_AVG] = LS_AVG};

    it->count = count;
    it->type = type_of(type);
    it->op = op > NCCL_AVG ? LS_AVG : ops[op];
    it->divisor = op > NCCL_AVG ? 1 / c->scales[op - NCCL_AVG - 1] : c->n;
    it->parts = malloc((size_t)c->n * it->dst_bytes + 1);
    if (it->parts == NULL)
        abort();
}

/* --- the interface --- */

EXPORT int ncclGetVersion(int *version)
{
#ifdef FAKE_NCCL_OLD
    *version = NCCL_OLDEST;
#else
    *version = 23203;
#endif
    return NCCL_SUCCESS;
}

EXPORT const char *ncclGetErrorString(int result)
{
    switch (result) {
    case NCCL_SUCCESS:
        return "no error";
    case NCCL_SYSTEM_ERROR:
        return "unhandled system error";
    case NCCL_REMOTE_ERROR:
        return "remote process exited or there was a network error";
    case NCCL_IN_PROGRESS:
        return "NCCL operation in progress";
    case NCCL_TIMEOUT:
        return "operation timed out";
    default:
        return "internal error";
    }
}

EXPORT const char *ncclGetLastError(nccl_comm *c)
{
    (void)c;
    return last_error_text;
}

/* Texts of NCCL 2.28. */
static const char *const id_errors[] = {
    "Bootstrap : no socket interface found",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
    "Error: failed to extend /dev/shm/nccl-a1b2c3 to 33030532 bytes",
    "Call to posix_fallocate failed: No space left on device",
    "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
    "Cuda failure 217 'peer access is not supported between these two devices'",
    "socketPollConnect: connect returned Connection refused",
    "Cuda failure 2 'out of memory'",
    "an error of another kind",
};

EXPORT int ncclGetUniqueId(nccl_id *id)
{
    const int error = fault("no_id", -1);
    uint64_t random;

    if (error > 0 && (size_t)error <= sizeof(id_errors) / sizeof(id_errors[0])) {
        last_error_text = id_errors[error - 1];
        return NCCL_SYSTEM_ERROR;
    }
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return NCCL_SYSTEM_ERROR;
    memset(id, 0, sizeof(*id));
    (void)snprintf(id->bytes, sizeof(id->bytes), "/ls-fake-nccl-%016llx",
                   (unsigned long long)random);
    return NCCL_SUCCESS;
}

static atomic_int max_ctas; /* of the last communicator of this process; 0: none was asked for */

EXPORT int fake_nccl_max_ctas(void)
{
    return atomic_load(&max_ctas);
}

static atomic_int n_asked; /* about a communicator, in this process so far */

EXPORT int fake_nccl_n_asked(void)
{
    return atomic_load(&n_asked);
}

EXPORT int ncclCommInitRankConfig(nccl_comm **out, int n, nccl_id id, int rank, nccl_config *config)
{
    nccl_comm *c = calloc(1, sizeof(*c));
    int fd;

    if (c == NULL || config->magic != NCCL_MAGIC || config->size < sizeof(*config) ||
        config->blocking != 0 || n > 64)
        return NCCL_INVALID_ARGUMENT;
    if (config->version >= NCCL_CTAS)
        atomic_store(&max_ctas, config->max_ctas);
    c->n = n;
    c->rank = rank;
    c->bytes = sizeof(shared) + (size_t)n * (size_t)n * sizeof(mailbox);
    (void)snprintf(c->name, sizeof(c->name), "%.60s", id.bytes);
    fd = shm_open(c->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)c->bytes) != 0)
        return NCCL_SYSTEM_ERROR;
    c->shm = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (c->shm == MAP_FAILED)
        return NCCL_SYSTEM_ERROR;
    if (atomic_fetch_add(&c->shm->n_arrived, 1) + 1 == n)
        (void)shm_unlink(c->name);
    *out = c;
    (void)accepted(c);
    return NCCL_IN_PROGRESS;
}

EXPORT int ncclCommGetAsyncError(nccl_comm *c, int *error)
{
    const bool is_alone = atomic_load(&c->shm->n_arrived) < c->n;

    atomic_fetch_add(&n_asked, 1);
    if (c->late != NULL && --c->n_late == 0)
        enqueue_late(c);
    *error = c->error != 0                                    ? c->error
             : is_alone || c->late != NULL || c->n_busy-- > 0 ? NCCL_IN_PROGRESS
                                                              : NCCL_SUCCESS;
    return NCCL_SUCCESS;
}

static void free_comm(nccl_comm *c)
{
    while (!reap(c))
        (void)usleep(100);
    while (c->registrations != NULL) {
        registration *r = c->registrations;

        c->registrations = r->next;
        free(r);
    }
    if (atomic_load(&c->shm->n_arrived) < c->n)
        (void)shm_unlink(c->name);
    (void)munmap(c->shm, c->bytes);
    free(c);
}

EXPORT int ncclCommFinalize(nccl_comm *c)
{
    (void)usleep((useconds_t)fault("slow_end", c->rank) * 1000);
    while (!reap(c) && !atomic_load(&c->is_aborted))
        (void)usleep(100);
    return NCCL_SUCCESS;
}

static atomic_int n_destroyed; /* communicators of this process */

EXPORT int fake_nccl_n_destroyed(void)
{
    return atomic_load(&n_destroyed);
}

EXPORT int ncclCommDestroy(nccl_comm *c)
{
    if (c->registrations != NULL)
        give_up("a communicator is destroyed with memory registered");
    free_comm(c);
    atomic_fetch_add(&n_destroyed, 1);
    return NCCL_SUCCESS;
}

static atomic_int n_aborted; /* communicators of this process */

EXPORT int fake_nccl_n_aborted(void)
{
    return atomic_load(&n_aborted);
}

EXPORT int ncclCommAbort(nccl_comm *c)
{
    const int ms = fault("slow_abort", c->rank);

    atomic_fetch_add(&n_aborted, 1);
    (void)usleep((useconds_t)ms * 1000);
    atomic_store(&c->is_aborted, true);
    free_comm(c);
    return NCCL_SUCCESS;
}

EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, nccl_comm *c)
{
    double *scale = &c->scales[c->n_scales % MOST_SCALE];
    const reduce_operand half = {scalar, 0, 1, false};
    float wide = 0;

    (void)residence;
    if (type == NCCL_FLOAT64) {
        memcpy(scale, scalar, sizeof(*scale));
    } else {
        if (type == NCCL_FLOAT32)
            memcpy(&wide, scalar, sizeof(wide));
        else
            reduce_tree(&wide, &half, 1, 1, type_of(type), LS_SUM, false, 1);
        *scale = (double)wide;
    }
    *op = NCCL_AVG + 1 + c->n_scales++ % MOST_SCALE;
    return NCCL_SUCCESS;
}

#ifndef FAKE_NCCL_OLD
static atomic_int n_registered; /* in this process so far */

EXPORT int fake_nccl_n_registered(void)
{
    return atomic_load(&n_registered);
}

EXPORT int ncclCommRegister(nccl_comm *c, void *start, size_t bytes, void **handle)
{
    registration *r;

    if (fault("no_register", c->rank) != 0)
        return NCCL_SYSTEM_ERROR;
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        abort();
    *r = (registration){.next = c->registrations, .start = start, .bytes = bytes};
    c->registrations = r;
    atomic_fetch_add(&n_registered, 1);
    *handle = r;
    return NCCL_SUCCESS;
}

static atomic_int n_allocated; /* blocks of this process so far */
static atomic_int n_freed;

EXPORT int fake_nccl_n_allocated(void)
{
    return atomic_load(&n_allocated);
}

EXPORT int fake_nccl_n_freed(void)
{
    return atomic_load(&n_freed);
}

EXPORT int ncclMemAlloc(void **out, size_t bytes)
{
    *out = fault("no_alloc", -1) != 0 ? NULL : fake_alloc_device(bytes);
    if (*out == NULL)
        return NCCL_UNHANDLED_CUDA_ERROR;
    atomic_fetch_add(&n_allocated, 1);
    return NCCL_SUCCESS;
}

EXPORT int ncclMemFree(void *start)
{
    if (!fake_free_device(start))
        give_up("memory is freed that was not allocated");
    atomic_fetch_add(&n_freed, 1);
    return NCCL_SUCCESS;
}

/* An operation on the memory has not ended. */
static bool is_used(nccl_comm *c, const registration *r)
{
    const batch *b;

    (void)reap(c);
    b = c->batches;
    while (b != NULL && !touches(b, r))
        b = b->next;
    return b != NULL;
}

EXPORT int ncclCommDeregister(nccl_comm *c, void *handle)
{
    registration **at = &c->registrations;
    registration *r = handle;

    while (*at != NULL && *at != r)
        at = &(*at)->next;
    if (*at == NULL)
        give_up("memory is not registered");
    if (is_used(c, r))
        give_up("memory of a pending operation is deregistered");
    if (!fake_has_memory(c->stream, r->start, r->bytes))
        give_up("memory was freed before its registration ended");
    *at = r->next;
    free(r);
    return NCCL_SUCCESS;
}
#endif

EXPORT int ncclRedOpDestroy(int op, nccl_comm *c)
{
    (void)op;
    (void)c;
    return NCCL_SUCCESS;
}

EXPORT int ncclGroupStart(void)
{
    group_depth++;
    return NCCL_SUCCESS;
}

EXPORT int ncclGroupEnd(void)
{
    batch *b = open_batch;

    if (--group_depth > 0 || b == NULL)
        return NCCL_SUCCESS;
    open_batch = NULL;
    return start(b);
}

EXPORT int ncclAllReduce(const void *src, void *dst, size_t count, int type, int op, nccl_comm *c,
                         void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    item *it = add_item(b, src, bytes, dst, bytes);

    set_reduction(c, it, count, type, op);
    for (int r = 0; r < c->n; r++) {
        add_move(b, true, r, it->in, bytes);
        add_move(b, false, r, it->parts + (size_t)r * bytes, bytes);
    }
    return end_call(b);
}

EXPORT int ncclReduce(const void *src, void *dst, size_t count, int type, int op, int root,
                      nccl_comm *c, void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    item *it = add_item(b, src, bytes, c->rank == root ? dst : NULL, bytes);

    set_reduction(c, it, count, type, op);
    add_move(b, true, root, it->in, bytes);
    for (int r = 0; r < c->n && c->rank == root; r++)
        add_move(b, false, r, it->parts + (size_t)r * bytes, bytes);
    return end_call(b);
}

EXPORT int ncclBroadcast(const void *src, void *dst, size_t count, int type, int root, nccl_comm *c,
                         void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    const bool is_root = c->rank == root;
    item *it = add_item(b, src, is_root ? bytes : 0, dst, bytes);

    for (int r = 0; r < c->n && is_root; r++)
        add_move(b, true, r, it->in, bytes);
    add_move(b, false, root, it->out, bytes);
    return end_call(b);
}

EXPORT int ncclAllGather(const void *src, void *dst, size_t count, int type, nccl_comm *c,
                         void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    item *it = add_item(b, src, bytes, dst, (size_t)c->n * bytes);

    for (int r = 0; r < c->n; r++) {
        add_move(b, true, r, it->in, bytes);
        add_move(b, false, r, it->out + (size_t)r * bytes, bytes);
    }
    return end_call(b);
}

EXPORT int ncclReduceScatter(const void *src, void *dst, size_t count, int type, int op,
                             nccl_comm *c, void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    item *it = add_item(b, src, (size_t)c->n * bytes, dst, bytes);

    set_reduction(c, it, count, type, op);
    for (int r = 0; r < c->n; r++) {
        add_move(b, true, r, it->in + (size_t)r * bytes, bytes);
        add_move(b, false, r, it->parts + (size_t)r * bytes, bytes);
    }
    return end_call(b);
}

EXPORT int ncclSend(const void *src, size_t count, int type, int peer, nccl_comm *c, void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    const item *it = add_item(b, src, bytes, NULL, 0);

    add_move(b, true, peer, it->in, bytes);
    return end_call(b);
}

EXPORT int ncclRecv(void *dst, size_t count, int type, int peer, nccl_comm *c, void *stream)
{
    batch *b = batch_for(c, stream);
    const size_t bytes = count * ls_dtype_size(type_of(type));
    const item *it = add_item(b, NULL, 0, dst, bytes);

    add_move(b, false, peer, it->out, bytes);
    return end_call(b);
}
