/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_memory.c - loads, stores, copies, atomics and fences of kernels that ptx_run.c runs, with
 * checks: of bounds, alignment, shared memory that was not written, copies that are not waited for,
 * and races. Two accesses of a byte race if one of them writes, their threads differ and nothing
 * orders them: within a block a barrier does; between blocks, a fence behind the first and an
 * atomic and a fence in front of the second.
 */
#include "devices/ptx/ptx_internal.h"

#include <stdlib.h>
#include <string.h>

enum { N_TRACKED = 1 << 20 }; /* bytes of global memory; the last access of others is not known */

typedef struct tracked {
    uint64_t address;
    cell cell;
} tracked;

static tracked *table;
static uint32_t first_segment; /* of the launch */
static uint32_t clock_now;     /* counts atomics and fences of the launch */
static uint32_t *fenced;       /* of each thread: the clock at its last fence, */
static uint32_t *published;    /* and at the last one in front of an atomic of its block */

void ptx_begin_memory(void)
{
    if (table == NULL)
        table = calloc(N_TRACKED, sizeof(*table));
    fenced = calloc((size_t)run.of->n_blocks * run.of->n_threads, sizeof(*fenced));
    published = calloc((size_t)run.of->n_blocks * run.of->n_threads, sizeof(*published));
    if (table == NULL || fenced == NULL || published == NULL)
        abort();
    first_segment = run.n_segments + 1;
    clock_now = 0;
    memset(run.workspace, 0, sizeof(run.workspace));
}

void ptx_end_memory(void)
{
    free(fenced);
    free(published);
}

/* --- races --- */

/* Whether another block has seen by atomics and fences what this access did. */
static bool is_ordered(const fiber *f, const access *earlier)
{
    const uint32_t clock = earlier->clock;
    const block *b = f->block;

    if (published[earlier->thread] <= clock)
        return false;
    return b->acquired > clock || (b->observed > clock && fenced[f->number] > b->observed);
}

static bool conflicts(const fiber *f, const access *earlier)
{
    if (earlier->segment < first_segment)
        return false;
    if (earlier->segment == f->block->segment)
        return earlier->by_several || earlier->thread != f->number;
    return earlier->thread / run.of->n_threads != f->block->number && !is_ordered(f, earlier);
}

static access this_access(const fiber *f)
{
    return (access){.thread = f->number, .segment = f->block->segment, .clock = clock_now};
}

static void note_read(fiber *f, int line, cell *c)
{
    access now = this_access(f);

    if (conflicts(f, &c->write))
        ptx_fault(f, line, "a race: reads what thread %u of the launch writes", c->write.thread);
    now.by_several =
        c->read.segment == now.segment && (c->read.by_several || c->read.thread != now.thread);
    c->read = now;
}

static void note_write(fiber *f, int line, cell *c)
{
    if (conflicts(f, &c->write))
        ptx_fault(f, line, "a race: writes what thread %u of the launch writes", c->write.thread);
    if (conflicts(f, &c->read))
        ptx_fault(f, line, "a race: writes what thread %u of the launch reads", c->read.thread);
    c->write = this_access(f);
}

/* --- global memory --- */

static bool is_inside(const ptx_range *r, uint64_t address, size_t bytes)
{
    const uint64_t start = (uint64_t)(uintptr_t)r->start;

    return address >= start && address - start < r->bytes && bytes <= r->bytes - (address - start);
}

/* Binary search: ranges are ascending. */
static bool is_known(uint64_t address, size_t bytes)
{
    static size_t last;
    size_t low = 0;
    size_t high = run.of->n_ranges;

    if (last < high && is_inside(&run.of->ranges[last], address, bytes))
        return true;
    while (low < high) {
        const size_t middle = (low + high) / 2;

        if ((uint64_t)(uintptr_t)run.of->ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    last = low == 0 ? 0 : low - 1;
    return low > 0 && is_inside(&run.of->ranges[last], address, bytes);
}

/* Where these bytes are. */
static void *find_global(fiber *f, int line, uint64_t address, size_t bytes)
{
    const ptx_range workspace = {run.workspace, sizeof(run.workspace)};

    if (address % bytes != 0)
        ptx_fault(f, line, "an access of %zu bytes at %#llx is misaligned", bytes,
                  (unsigned long long)address);
    if (!is_known(address, bytes) && !is_inside(&workspace, address, bytes))
        ptx_fault(f, line, "an access of %zu bytes at %#llx is out of bounds", bytes,
                  (unsigned long long)address);
    return (void *)(uintptr_t)address;
}

static cell *tracked_cell(uint64_t address)
{
    tracked *t = &table[address % N_TRACKED];

    if (t->address != address)
        *t = (tracked){.address = address};
    return &t->cell;
}

void load_global(ptx_thread *t, int line, uint64_t address, void *out, size_t bytes,
                 ptx_strength strength)
{
    fiber *f = (fiber *)t;
    const void *from = find_global(f, line, address, bytes);

    if (strength == PTX_ACQUIRE) {
        ptx_wait_for_memory(f, line);
        f->block->acquired = ++clock_now;
    }
    for (size_t i = 0; i < bytes && strength == PTX_WEAK; i++)
        note_read(f, line, tracked_cell(address + i));
    memcpy(out, from, bytes);
}

void store_global(ptx_thread *t, int line, uint64_t address, const void *v, size_t bytes,
                  ptx_strength strength)
{
    fiber *f = (fiber *)t;
    void *to = find_global(f, line, address, bytes);
    // Threads may write the value that is there: a flag that several set.
    const bool is_noted = strength == PTX_WEAK && memcmp(to, v, bytes) != 0;

    for (size_t i = 0; i < bytes && is_noted; i++)
        note_write(f, line, tracked_cell(address + i));
    memcpy(to, v, bytes);
}

/* --- shared memory --- */

static void check_shared(fiber *f, int line, uint64_t offset, size_t bytes)
{
    if (offset % bytes != 0)
        ptx_fault(f, line, "an access of %zu bytes of shared memory at %llu is misaligned", bytes,
                  (unsigned long long)offset);
    if (offset > run.of->kernel->shared_bytes || bytes > run.of->kernel->shared_bytes - offset)
        ptx_fault(f, line, "an access of %zu bytes of shared memory at %llu is out of bounds",
                  bytes, (unsigned long long)offset);
}

void load_shared(ptx_thread *t, int line, uint64_t offset, void *out, size_t bytes,
                 ptx_strength strength)
{
    fiber *f = (fiber *)t;

    (void)strength;
    check_shared(f, line, offset, bytes);
    for (size_t i = 0; i < bytes; i++) {
        cell *c = &f->block->cells[offset + i];

        if (c->is_pending)
            ptx_fault(f, line,
                      "byte %llu of shared memory is read, a copy to which is not waited "
                      "for",
                      (unsigned long long)offset);
        if (c->write.segment == 0)
            ptx_fault(f, line, "byte %llu of shared memory was not written",
                      (unsigned long long)offset);
        note_read(f, line, c);
    }
    memcpy(out, f->block->shared + offset, bytes);
}

static void note_shared_write(fiber *f, int line, uint64_t offset, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        cell *c = &f->block->cells[offset + i];

        if (c->is_pending)
            ptx_fault(f, line,
                      "byte %llu of shared memory is written, a copy to which is not "
                      "waited for",
                      (unsigned long long)offset);
        note_write(f, line, c);
    }
}

void store_shared(ptx_thread *t, int line, uint64_t offset, const void *v, size_t bytes,
                  ptx_strength strength)
{
    fiber *f = (fiber *)t;

    (void)strength;
    check_shared(f, line, offset, bytes);
    note_shared_write(f, line, offset, bytes);
    memcpy(f->block->shared + offset, v, bytes);
}

/* --- copies from global to shared memory --- */

void cp_async_cg_shared_global(ptx_thread *t, int line, uint64_t to, uint64_t from, uint32_t bytes,
                               uint32_t filled)
{
    fiber *f = (fiber *)t;
    copy *c = &f->copies[f->n_copies];

    if (f->n_copies == MAX_COPIES || bytes > sizeof(c->data) || filled > bytes)
        ptx_fault(f, line, "a copy of %u bytes, %u of zeros, behind %d that are not waited for",
                  bytes, bytes - filled, f->n_copies);
    check_shared(f, line, to, bytes);
    note_shared_write(f, line, to, bytes);
    for (uint32_t i = 0; i < bytes; i++)
        f->block->cells[to + i].is_pending = true;
    *c = (copy){.offset = (uint32_t)to, .bytes = bytes};
    if (from % bytes != 0)
        ptx_fault(f, line, "a copy of %u bytes from %#llx is misaligned", bytes,
                  (unsigned long long)from);
    if (filled > 0)
        load_global(t, line, from, c->data, filled, PTX_WEAK);
    f->n_copies++;
}

void cp_async_ca_shared_global(ptx_thread *t, int line, uint64_t to, uint64_t from, uint32_t bytes,
                               uint32_t filled)
{
    cp_async_cg_shared_global(t, line, to, from, bytes, filled);
}

/* Only now the bytes are there: a copy may take so long. */
void cp_async_wait_all(ptx_thread *t, int line)
{
    fiber *f = (fiber *)t;

    for (int i = 0; i < f->n_copies; i++) {
        const copy *c = &f->copies[i];

        for (uint32_t k = 0; k < c->bytes; k++)
            f->block->cells[c->offset + k].is_pending = false;
        store_shared(t, line, c->offset, c->data, c->bytes, PTX_WEAK);
    }
    f->n_copies = 0;
}

/* --- atomics and fences --- */

/* What the threads of a block did before their fences, other blocks can know of by this atomic. */
static void publish(const fiber *f)
{
    const uint32_t n = run.of->n_threads;
    const size_t first = (size_t)f->block->number * n;

    memcpy(published + first, fenced + first, n * sizeof(*published));
}

/* Where the number is, after others may have run. */
static uint32_t *begin_atomic(fiber *f, int line, uint64_t address)
{
    uint32_t *at = find_global(f, line, address, sizeof(*at));

    ptx_let_others_run(f, line);
    publish(f);
    f->block->observed = ++clock_now;
    return at;
}

uint32_t atom_global_add_u32(ptx_thread *t, int line, uint64_t address, uint32_t v)
{
    uint32_t *at = begin_atomic((fiber *)t, line, address);
    const uint32_t was = *at;

    *at += v;
    return was;
}

uint32_t atom_global_cas_b32(ptx_thread *t, int line, uint64_t address, uint32_t old, uint32_t v)
{
    uint32_t *at = begin_atomic((fiber *)t, line, address);
    const uint32_t was = *at;

    if (was == old)
        *at = v;
    return was;
}

/* A release is a fence of all that has reached the thread by a barrier: of its block. */
uint32_t atom_add_release_gpu_u32(ptx_thread *t, int line, uint64_t address, uint32_t v)
{
    const uint32_t first = t->block * t->n_threads;

    ++clock_now;
    for (uint32_t i = 0; i < t->n_threads; i++)
        fenced[first + i] = clock_now;
    return atom_global_add_u32(t, line, address, v);
}

void membar_gl(ptx_thread *t, int line)
{
    fiber *f = (fiber *)t;

    ptx_let_others_run(f, line);
    fenced[f->number] = ++clock_now;
}

void membar_sys(ptx_thread *t, int line)
{
    membar_gl(t, line);
}
