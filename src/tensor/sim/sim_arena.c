/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_arena.c - the simulated device's memory, for sim_accel.c. The same pages are mapped twice:
 * without access at the addresses that tensors hold, and readable and writable at a fixed distance
 * from them. A handler of SIGSEGV names the block that the host dereferenced.
 */
#include "tensor/sim/sim_arena.h"

#include "base/thread.h"
#include "tensor/sim/sim_host.h"

#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)4 << 30) /* pages take memory when they are written */
#define ALIGNMENT   ((size_t)256)
#define MAX_ARENAS  64

typedef struct block {
    struct block *next; /* ascending offsets */
    size_t offset;
    size_t bytes;
    uint64_t number; /* of the allocation, from 1 */
} block;

struct sim_arena {
    char *base;  /* no access */
    char *alias; /* the same bytes */
    ls_mutex lock;
    block *first;
    size_t used;
    uint64_t n_allocations;
};

/* The arenas, for the handler. A slot is claimed and freed atomically. */
static _Atomic(sim_arena *) arenas[MAX_ARENAS];
static ls_mutex handler_lock = {PTHREAD_MUTEX_INITIALIZER};
static struct sigaction previous;

/* --- the handler: async-signal-safe functions only --- */

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
static void put_block(const sim_arena *arena, size_t offset)
{
    const block *b = arena->first;

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
    for (int i = 0; i < MAX_ARENAS; i++) {
        const sim_arena *arena = atomic_load(&arenas[i]);

        if (arena == NULL || !arena_owns(arena, info->si_addr))
            continue;
        put("sim: the host dereferenced device memory at D+0x");
        put_number((uint64_t)((char *)info->si_addr - arena->base), 16);
        put_block(arena, (size_t)((char *)info->si_addr - arena->base));
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
    ls_mutex_lock(&handler_lock);
    if (sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction != on_fault &&
        sigaction(SIGSEGV, &action, NULL) == 0)
        previous = now;
    ls_mutex_unlock(&handler_lock);
}

/* --- life --- */

static bool claim_slot(sim_arena *arena)
{
    for (int i = 0; i < MAX_ARENAS; i++) {
        sim_arena *none = NULL;

        if (atomic_compare_exchange_strong(&arenas[i], &none, arena))
            return true;
    }
    return false;
}

static void free_slot(sim_arena *arena)
{
    for (int i = 0; i < MAX_ARENAS; i++) {
        sim_arena *same = arena;

        if (atomic_compare_exchange_strong(&arenas[i], &same, NULL))
            return;
    }
}

/* Not a file of its own: RLIMIT_FSIZE does not count a card's memory. */
static bool map_twice(sim_arena *arena)
{
    const int none = MAP_ANONYMOUS | MAP_NORESERVE;
    char *both = mmap(NULL, 2 * ARENA_BYTES, PROT_NONE, MAP_PRIVATE | none, -1, 0);
    char *alias;

    if (both == MAP_FAILED)
        return false;
    alias = both + ARENA_BYTES;
    // An old size of 0 maps shared pages once more. The system call itself: UCX, which MPICH loads,
    // replaces mremap() by a function of four arguments.
    if (mmap(both, ARENA_BYTES, PROT_NONE, MAP_SHARED | MAP_FIXED | none, -1, 0) == MAP_FAILED ||
        syscall(SYS_mremap, both, (size_t)0, ARENA_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, alias) !=
            (long)(intptr_t)alias ||
        mprotect(alias, ARENA_BYTES, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(both, 2 * ARENA_BYTES);
        return false;
    }
    arena->base = both;
    arena->alias = alias;
    return true;
}

ls_status arena_create(sim_arena **out)
{
    sim_arena *arena = sim_host->alloc(1, sizeof(*arena));

    if (arena == NULL)
        return sim_fail(LS_ENOMEM, "sim: no memory for a device");
    ls_mutex_init(&arena->lock);
    if (!map_twice(arena) || !claim_slot(arena)) {
        arena_destroy(arena);
        return sim_fail(LS_ESYSTEM, "sim: no address space for a device's memory");
    }
    install_handler();
    *out = arena;
    return LS_OK;
}

void arena_destroy(sim_arena *arena)
{
    if (arena == NULL)
        return;
    free_slot(arena);
    while (arena->first != NULL) {
        block *b = arena->first;

        arena->first = b->next;
        sim_host->free(b);
    }
    if (arena->base != NULL)
        (void)munmap(arena->base, 2 * ARENA_BYTES);
    ls_mutex_destroy(&arena->lock);
    sim_host->free(arena);
}

/* --- blocks --- */

/* The link behind which there is a gap of `bytes`, at *offset; NULL: none is large enough. */
static block **find_gap(sim_arena *arena, size_t bytes, size_t *offset)
{
    block **link = &arena->first;

    *offset = ALIGNMENT; // so that no block starts where the arena does
    while (*link != NULL && (*link)->offset - *offset < bytes) {
        // One unit between two blocks belongs to none of them.
        *offset =
            (*link)->offset + (((*link)->bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1)) + ALIGNMENT;
        link = &(*link)->next;
    }
    return *link != NULL || ARENA_BYTES - *offset >= bytes ? link : NULL;
}

void *arena_alloc(sim_arena *arena, size_t bytes)
{
    block *b = bytes <= ARENA_BYTES / 2 ? sim_host->alloc(1, sizeof(*b)) : NULL;
    size_t offset;
    block **link;

    if (b == NULL)
        return NULL;
    ls_mutex_lock(&arena->lock);
    link = find_gap(arena, bytes + ALIGNMENT, &offset);
    if (link != NULL) {
        *b = (block){
            .next = *link, .offset = offset, .bytes = bytes, .number = ++arena->n_allocations};
        *link = b;
        arena->used += bytes;
        memset(arena->alias + offset, 0xFF, bytes);
    }
    ls_mutex_unlock(&arena->lock);
    if (link == NULL)
        sim_host->free(b);
    return link == NULL ? NULL : arena->base + offset;
}

void arena_free(sim_arena *arena, void *start)
{
    const size_t offset = (size_t)((char *)start - arena->base);
    block **link = &arena->first;
    block *b;

    ls_mutex_lock(&arena->lock);
    while (*link != NULL && (*link)->offset != offset)
        link = &(*link)->next;
    b = *link;
    LS_ASSERT(b != NULL); // freed twice, or not from here
    *link = b->next;
    arena->used -= b->bytes;
    memset(arena->alias + offset, 0xFF, b->bytes);
    ls_mutex_unlock(&arena->lock);
    sim_host->free(b);
}

bool arena_owns(const sim_arena *arena, const void *p)
{
    return (const char *)p >= arena->base && (const char *)p < arena->base + ARENA_BYTES;
}

void *arena_alias(sim_arena *arena, const void *p, size_t bytes)
{
    size_t offset;
    const block *b;

    if (!arena_owns(arena, p))
        return NULL;
    offset = (size_t)((const char *)p - arena->base);
    ls_mutex_lock(&arena->lock);
    b = arena->first;
    while (b != NULL && (offset < b->offset || offset > b->offset + b->bytes))
        b = b->next;
    if (b != NULL && bytes > b->offset + b->bytes - offset)
        b = NULL;
    ls_mutex_unlock(&arena->lock);
    return b == NULL ? NULL : arena->alias + offset;
}

void *arena_alias_of_any(const void *p, size_t bytes)
{
    for (int i = 0; i < MAX_ARENAS; i++) {
        sim_arena *arena = atomic_load(&arenas[i]);

        if (arena != NULL && arena_owns(arena, p))
            return arena_alias(arena, p, bytes);
    }
    return NULL;
}

void arena_memory(sim_arena *arena, size_t *free_bytes, size_t *total_bytes)
{
    ls_mutex_lock(&arena->lock);
    *free_bytes = ARENA_BYTES - arena->used;
    ls_mutex_unlock(&arena->lock);
    *total_bytes = ARENA_BYTES;
}
