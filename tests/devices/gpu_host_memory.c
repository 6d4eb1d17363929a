/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_memory.c - the memory of gpu.h in host memory, for tests. Device memory is mapped twice:
 * without access at the addresses that callers hold, and readable and writable at a fixed distance
 * from them, for work (gpu_host_translate()). A handler of SIGSEGV names the block that the host
 * dereferenced. New and freed memory has the bytes 0xFF, NaN in every floating type.
 */
#include "devices/gpu_host_internal.h"

#include "base/status.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FORBID(p, bytes) __asan_poison_memory_region(p, bytes)
#define ALLOW(p, bytes)  __asan_unpoison_memory_region(p, bytes)
#define DRY_GIB          5 /* the sanitizer writes an eighth of it */
#else
#define FORBID(p, bytes) LS_UNUSED(p)
#define ALLOW(p, bytes)  LS_UNUSED(p)
#define DRY_GIB          256
#endif

/* Of all cards; pages take memory when they are written. */
#define ARENA_BYTES ((size_t)4 << 30)
#define DRY_BYTES   ((size_t)DRY_GIB << 30)
#define ALIGNMENT   ((size_t)256) /* of blocks; as much between two belongs to none */
#define GUARD_BYTES 64            /* behind a block, which no kernel writes */
#define GUARD       0xA5

typedef struct block {
    struct block *next; /* ascending offsets */
    size_t offset;
    size_t bytes;
    uint64_t number; /* of the allocation, from 1 */
    int card;
} block;

/* In front of page-locked memory. */
typedef struct pinned_head {
    _Alignas(256) struct pinned_head *next; /* of `pinned`, or of those that were freed early */
    size_t bytes;
} pinned_head;

/* The memory of all cards; all of it under the lock, but for the handler. */
static struct {
    pid_t owner; /* a forked child makes memory of its own */
    size_t bytes;
    char *base;  /* no access */
    char *alias; /* the same bytes */
    block *first;
    uint64_t n_allocations;
} arena;
static pinned_head *pinned; /* of all cards, under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;

/* --- the handler: async-signal-safe functions only --- */

static bool is_device_memory(const void *p)
{
    return (const char *)p >= arena.base && (const char *)p < arena.base + arena.bytes &&
           arena.base != NULL;
}

static void put(const char *text)
{
    const ssize_t ignored = write(STDERR_FILENO, text, strlen(text));

    LS_UNUSED(ignored);
}

static void put_number(uint64_t value, unsigned base)
{
    char text[24];
    size_t at = sizeof(text) - 1;

    text[at] = '\0';
    do {
        text[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value > 0);
    put(text + at);
}

/* Another thread may change the list meanwhile; the process ends in any case. */
static void put_block(size_t offset)
{
    const block *b = arena.first;

    while (b != NULL && (offset < b->offset || offset >= b->offset + b->bytes))
        b = b->next;
    if (b == NULL) {
        put(" (in no block: freed, or past the end of one)\n");
        return;
    }
    put(" (byte ");
    put_number(offset - b->offset, 10);
    put(" of the block of ");
    put_number(b->bytes, 10);
    put(" bytes of allocation ");
    put_number(b->number, 10);
    put(")\n");
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    void *frames[32];

    LS_UNUSED(number);
    LS_UNUSED(context);
    if (is_device_memory(info->si_addr)) {
        put("cudahost: the host dereferenced device memory at D+0x");
        put_number((uint64_t)((char *)info->si_addr - arena.base), 16);
        put_block((size_t)((char *)info->si_addr - arena.base));
        backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    }
    // The access is repeated and faults again, now with the handler that was there before.
    (void)sigaction(SIGSEGV, &previous, NULL);
}

static void install_handler(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction now;
    void *frame;

    (void)backtrace(&frame, 1); // loads the unwinder, which the handler must not
    (void)sigemptyset(&action.sa_mask);
    if (sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction != on_fault &&
        sigaction(SIGSEGV, &action, NULL) == 0)
        previous = now;
}

/* --- the functions that end in _locked are called with the lock --- */

/* Not a file of its own: RLIMIT_FSIZE does not count a card's memory. */
static char *map_twice(void)
{
    const int none = MAP_ANONYMOUS | MAP_NORESERVE;
    char *both = mmap(NULL, 2 * arena.bytes, PROT_NONE, MAP_PRIVATE | none, -1, 0);
    char *alias = both + arena.bytes;

    if (both == MAP_FAILED)
        return NULL;
    // An old size of 0 maps shared pages once more. The system call itself: UCX, which MPICH loads,
    // replaces mremap() by a function of four arguments.
    if (mmap(both, arena.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | none, -1, 0) == MAP_FAILED ||
        syscall(SYS_mremap, both, (size_t)0, arena.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, alias) !=
            (long)(intptr_t)alias ||
        mprotect(alias, arena.bytes, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(both, 2 * arena.bytes);
        return NULL;
    }
    return both;
}

/* The blocks of the process that this one was forked from stay with it. */
static bool open_arena_locked(void)
{
    if (arena.base == NULL || arena.owner != getpid()) {
        arena.first = NULL;
        arena.n_allocations = 0;
        arena.owner = getpid();
        arena.bytes = gpu_host_state()->is_dry ? DRY_BYTES : ARENA_BYTES;
        arena.base = map_twice();
        arena.alias = arena.base + arena.bytes;
        if (arena.base != NULL)
            FORBID(arena.alias, arena.bytes);
    }
    install_handler(); // another library may have taken its place
    return arena.base != NULL;
}

static void set_unknown(char *data, size_t bytes)
{
    if (!gpu_host_state()->is_dry)
        memset(data, 0xFF, bytes);
}

/* The link behind which there is a gap of `bytes`, at *offset; NULL: none is large enough. */
static block **find_gap_locked(size_t bytes, size_t *offset)
{
    block **link = &arena.first;

    *offset = ALIGNMENT; // so that no block starts where the arena does
    while (*link != NULL && (*link)->offset - *offset < bytes) {
        *offset =
            (*link)->offset + (((*link)->bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1)) + ALIGNMENT;
        link = &(*link)->next;
    }
    return *link != NULL || arena.bytes - *offset >= bytes ? link : NULL;
}

static bool add_block_locked(block *b, size_t bytes)
{
    size_t offset = 0;
    block **link = NULL;

    if (open_arena_locked() && bytes <= arena.bytes / 2)
        link = find_gap_locked(bytes + ALIGNMENT, &offset);
    if (link == NULL)
        return false;
    *b = (block){.next = *link,
                 .offset = offset,
                 .bytes = bytes,
                 .number = ++arena.n_allocations,
                 .card = gpu_host_card()};
    *link = b;
    ALLOW(arena.alias + offset, bytes + GUARD_BYTES);
    set_unknown(arena.alias + offset, bytes);
    memset(arena.alias + offset + bytes, GUARD, GUARD_BYTES);
    FORBID(arena.alias + offset + bytes, GUARD_BYTES);
    return true;
}

/* The block that has all of these bytes; NULL: there is none. */
static const block *find_block_locked(const void *p, size_t bytes)
{
    const size_t offset = is_device_memory(p) ? (size_t)((const char *)p - arena.base) : 0;
    const block *b = arena.owner == getpid() ? arena.first : NULL;

    while (b != NULL && (offset < b->offset || offset >= b->offset + b->bytes))
        b = b->next;
    return b == NULL || bytes > b->offset + b->bytes - offset ? NULL : b;
}

void gpu_host_free_memory_lock(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* --- device memory --- */

gpu_error gpu_malloc(void **out, size_t bytes)
{
    gpu_error e = gpu_host_take_bytes(bytes);
    block *b = e == HOST_OK ? cu_host->alloc(1, sizeof(*b)) : NULL;
    bool is_added;

    if (e != HOST_OK)
        return e;
    pthread_mutex_lock(&lock);
    is_added = b != NULL && add_block_locked(b, bytes);
    if (is_added)
        *out = arena.base + b->offset;
    pthread_mutex_unlock(&lock);
    if (is_added)
        return HOST_OK;
    gpu_host_give_bytes(bytes);
    cu_host->free(b);
    return HOST_OUT_OF_MEMORY;
}

/* Takes the block at this address out of the list; NULL: there is none. */
static block *take_block(const void *start, bool *is_intact)
{
    block **link = &arena.first;
    block *b;

    pthread_mutex_lock(&lock);
    while (*link != NULL && arena.base + (*link)->offset != start)
        link = &(*link)->next;
    b = *link;
    if (b != NULL) {
        char *data = arena.alias + b->offset;

        *link = b->next;
        ALLOW(data, b->bytes + GUARD_BYTES);
        for (size_t i = 0; i < GUARD_BYTES; i++)
            *is_intact = *is_intact && (unsigned char)data[b->bytes + i] == GUARD;
        set_unknown(data, b->bytes);
        FORBID(data, b->bytes + GUARD_BYTES);
    }
    pthread_mutex_unlock(&lock);
    return b;
}

gpu_error gpu_free(void *start)
{
    bool is_intact = true;
    block *b = take_block(start, &is_intact);

    if (b == NULL)
        return HOST_WRONG_BLOCK;
    gpu_host_give_bytes(b->bytes);
    cu_host->free(b);
    return is_intact ? gpu_host_check_lost() : HOST_OVERRUN;
}

int gpu_pointer_device(const void *p)
{
    const block *b;
    int card;

    gpu_host_make_context();
    pthread_mutex_lock(&lock);
    b = find_block_locked(p, 1);
    card = b == NULL ? -1 : b->card;
    pthread_mutex_unlock(&lock);
    return card;
}

/* --- what work reads and writes --- */

void *gpu_host_address(const void *p, size_t bytes)
{
    const block *b;

    pthread_mutex_lock(&lock);
    b = find_block_locked(p, bytes);
    pthread_mutex_unlock(&lock);
    return b == NULL ? NULL : arena.alias + ((const char *)p - arena.base);
}

bool gpu_host_is_device_memory(const void *p)
{
    bool is_device;

    pthread_mutex_lock(&lock);
    is_device = is_device_memory(p);
    pthread_mutex_unlock(&lock);
    return is_device;
}

/* A number that looks like an address of this range would be changed as well: the range is one of
 * 2^15 parts of the address space, and kernels' numbers are small. */
void gpu_host_translate(void *args, size_t bytes)
{
    char *word = args;

    pthread_mutex_lock(&lock);
    for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
        char *p;

        memcpy(&p, word + at, sizeof(p));
        if (is_device_memory(p)) {
            p = arena.alias + (p - arena.base);
            memcpy(word + at, &p, sizeof(p));
        }
    }
    pthread_mutex_unlock(&lock);
}

/* --- page-locked memory --- */

gpu_error gpu_malloc_host(void **out, size_t bytes)
{
    pinned_head *head = NULL;
    const gpu_error e = gpu_host_take_pinned();

    *out = NULL;
    if (e == HOST_OK)
        head = cu_host->alloc_aligned(sizeof(*head), sizeof(*head) + bytes);
    if (head == NULL) {
        if (e == HOST_OK)
            gpu_host_give_pinned();
        return HOST_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    *head = (pinned_head){.next = pinned, .bytes = bytes};
    pinned = head;
    pthread_mutex_unlock(&lock);
    *out = memset(head + 1, 0xFF, bytes);
    return gpu_host_check_lost();
}

static void take_pinned(const pinned_head *head)
{
    pinned_head **link = &pinned;

    pthread_mutex_lock(&lock);
    while (*link != head)
        link = &(*link)->next;
    *link = head->next;
    pthread_mutex_unlock(&lock);
}

/* The work would use what the block becomes next: it is kept. */
static gpu_error keep_early(pinned_head *head)
{
    static pinned_head *freed_early;

    pthread_mutex_lock(&lock);
    head->next = freed_early;
    freed_early = head;
    pthread_mutex_unlock(&lock);
    return HOST_FREED_EARLY;
}

gpu_error gpu_free_host(void *start)
{
    pinned_head *head = (pinned_head *)start - 1;

    gpu_host_give_pinned();
    take_pinned(head);
    if (gpu_host_is_copied(start, head->bytes))
        return keep_early(head);
    memset(start, 0xFF, head->bytes);
    cu_host->free(head);
    return gpu_host_check_lost();
}

/* --- what kernels may access --- */

size_t gpu_host_ranges(ptx_range *out, size_t most)
{
    size_t n = 0;

    pthread_mutex_lock(&lock);
    for (const block *b = arena.first; b != NULL && n < most; b = b->next)
        out[n++] = (ptx_range){arena.alias + b->offset, b->bytes};
    for (const pinned_head *head = pinned; head != NULL && n < most; head = head->next)
        out[n++] = (ptx_range){head + 1, head->bytes};
    pthread_mutex_unlock(&lock);
    return n;
}
