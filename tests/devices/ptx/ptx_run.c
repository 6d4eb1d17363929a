/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_run.c - runs kernels of translate.py on the CPU. The threads of some blocks are coroutines
 * which run in random order, each to its next barrier, instruction of a warp or atomic. A kernel is
 * at fault when threads do not meet there, or by what ptx_memory.c checks.
 */
#include "devices/ptx/ptx_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum {
    AT_ONCE = 4,             /* blocks, of kernels that are not cooperative */
    STACK_BYTES = 64 * 1024, /* of a thread */
    IDLE_PASSES = 8          /* in which threads only wait for memory to change, until they hang */
};

ptx_state run;

static block blocks[PTX_RESIDENT];
static jmp_buf scheduler;
static fiber *current;

/* --- random order --- */

static uint32_t random_below(uint32_t n)
{
    run.random ^= run.random << 13;
    run.random ^= run.random >> 7;
    run.random ^= run.random << 17;
    return (uint32_t)(run.random >> 32) % n;
}

static void shuffle(uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        values[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t k = random_below(i);
        const uint32_t v = values[k];

        values[k] = values[i - 1];
        values[i - 1] = v;
    }
}

/* --- coroutines --- */

/* Back to the scheduler, until it resumes the thread. */
static void leave(fiber *f, fiber_state state, int line)
{
    f->state = state;
    f->line = line;
    if (_setjmp(f->context) == 0)
        _longjmp(scheduler, 1);
}

/* A coroutine serves one thread after the other. */
static void fiber_main(void)
{
    for (;;) {
        fiber *f = current;

        run.of->kernel->run(&f->seen);
        leave(f, FIBER_DONE, 0);
    }
}

static void start(fiber *f)
{
    ucontext_t context;

    if (f->stack == NULL)
        f->stack =
            mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->stack == MAP_FAILED || getcontext(&context) != 0)
        abort();
    f->is_started = true;
    context.uc_stack.ss_sp = f->stack;
    context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&context, fiber_main, 0);
    (void)setcontext(&context);
}

static void resume(fiber *f)
{
    current = f;
    if (_setjmp(scheduler) != 0)
        return;
    if (f->is_started)
        _longjmp(f->context, 1);
    start(f);
}

/* --- faults --- */

void ptx_fault(fiber *f, int line, const char *format, ...)
{
    const int n = snprintf(run.text, run.text_bytes,
                           "%s, thread %u of block %u, line %d: ", run.of->kernel->name,
                           f->seen.thread, f->seen.block, line);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(run.text + n, run.text_bytes - (size_t)n, format, args);
    va_end(args);
    run.has_failed = true;
    leave(f, FIBER_DONE, line); // never resumed
}

static void fault_of_block(const char *format, ...)
{
    const int n = snprintf(run.text, run.text_bytes, "%s: ", run.of->kernel->name);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(run.text + n, run.text_bytes - (size_t)n, format, args);
    va_end(args);
    run.has_failed = true;
}

void trap(ptx_thread *t, int line)
{
    ptx_fault((fiber *)t, line, "trap");
}

/* --- barriers and instructions of warps --- */

void ptx_let_others_run(fiber *f, int line)
{
    if (random_below(4) == 0)
        leave(f, FIBER_READY, line);
}

void ptx_wait_for_memory(fiber *f, int line)
{
    leave(f, FIBER_SPINS, line);
}

void bar_sync(ptx_thread *t, int line, uint32_t number)
{
    if (number != 0)
        ptx_fault((fiber *)t, line, "barrier %u, but kernels use barrier 0 alone", number);
    leave((fiber *)t, FIBER_AT_BARRIER, line);
}

void barrier_sync(ptx_thread *t, int line, uint32_t number)
{
    bar_sync(t, line, number);
}

void ptx_exchange(fiber *f, int line, exchange e)
{
    f->exchange = e;
    leave(f, FIBER_AT_EXCHANGE, line);
}

/* in: the value, and the lane to take another's from. */
static void run_shuffle(fiber *lanes)
{
    for (uint32_t i = 0; i < PTX_LANES; i++)
        *lanes[i].exchange.out = *lanes[lanes[i].exchange.in[1]].exchange.in;
}

static uint32_t shuffled(ptx_thread *t, int line, uint32_t v, uint32_t from, uint32_t last,
                         uint32_t mask, bool *is_inside)
{
    const uint32_t in[2] = {v, from < PTX_LANES ? from : t->thread % PTX_LANES};
    uint32_t out;

    if (mask != ~0U || last != PTX_LANES - 1)
        ptx_fault((fiber *)t, line, "shuffle with mask %#x, limit %u: kernels shuffle whole warps",
                  mask, last);
    ptx_exchange((fiber *)t, line, (exchange){run_shuffle, in, &out});
    if (is_inside != NULL)
        *is_inside = from < PTX_LANES;
    return out;
}

uint32_t shfl_sync_down_b32(ptx_thread *t, int line, uint32_t v, uint32_t distance, uint32_t last,
                            uint32_t mask, bool *is_inside)
{
    return shuffled(t, line, v, t->thread % PTX_LANES + distance, last, mask, is_inside);
}

uint32_t shfl_sync_bfly_b32(ptx_thread *t, int line, uint32_t v, uint32_t lanes, uint32_t last,
                            uint32_t mask, bool *is_inside)
{
    return shuffled(t, line, v, t->thread % PTX_LANES ^ lanes, last, mask, is_inside);
}

/* Executes the instruction that all lanes of a warp have reached. */
static void meet_at_exchange(block *b, uint32_t first)
{
    fiber *lanes = &b->fibers[first];
    uint32_t n_here = 0;
    bool can_come = false;

    for (uint32_t i = 0; i < PTX_LANES; i++) {
        n_here += lanes[i].state == FIBER_AT_EXCHANGE && lanes[i].line == lanes[0].line;
        can_come = can_come || lanes[i].state == FIBER_READY || lanes[i].state == FIBER_SPINS;
    }
    if (n_here == PTX_LANES) {
        lanes[0].exchange.run(lanes);
        for (uint32_t i = 0; i < PTX_LANES; i++)
            lanes[i].state = FIBER_READY;
        return;
    }
    for (uint32_t i = 0; i < PTX_LANES && !can_come; i++) {
        if (lanes[i].state == FIBER_AT_EXCHANGE) {
            fault_of_block("lanes of a warp diverge: the instruction of a warp at line %d is not "
                           "reached by all",
                           lanes[i].line);
            return;
        }
    }
}

/* Lets all threads go on when they are at a barrier. */
static void meet_at_barrier(block *b)
{
    const uint32_t n = run.of->n_threads;
    uint32_t n_here = 0;
    uint32_t n_done = 0;
    int line = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_done += b->fibers[i].state == FIBER_DONE;
        if (b->fibers[i].state == FIBER_AT_BARRIER) {
            n_here++;
            line = b->fibers[i].line;
        }
    }
    b->is_done = n_done == n;
    if (n_here == 0 || n_here + n_done < n)
        return;
    for (uint32_t i = 0; i < n; i++) {
        if (b->fibers[i].state == FIBER_DONE || b->fibers[i].line != line) {
            fault_of_block("threads of block %u diverge: the barrier at line %d is not reached by "
                           "thread %u",
                           b->number, line, i);
            return;
        }
        b->fibers[i].state = FIBER_READY;
    }
    b->segment = ++run.n_segments;
}

/* --- the scheduler --- */

static void start_block(block *b, uint32_t number)
{
    const ptx_launch *l = run.of;

    b->number = number;
    b->is_live = true;
    b->is_done = false;
    b->segment = ++run.n_segments;
    b->observed = 0;
    b->acquired = 0;
    memset(b->shared, 0xFF, l->kernel->shared_bytes);
    memset(b->cells, 0, l->kernel->shared_bytes * sizeof(*b->cells));
    for (uint32_t i = 0; i < l->n_threads; i++) {
        fiber *f = &b->fibers[i];

        f->seen = (ptx_thread){.args = l->args,
                               .thread = i,
                               .n_threads = l->n_threads,
                               .block = number,
                               .n_blocks = l->n_blocks,
                               .workspace = (uint64_t)(uintptr_t)run.workspace};
        f->block = b;
        f->number = number * l->n_threads + i;
        f->state = FIBER_READY;
        f->n_copies = 0;
    }
}

/* Each thread that can, to its next stop. False when all of these only wait for memory. */
static bool run_threads(block *b)
{
    const uint32_t n_warps = run.of->n_threads / PTX_LANES;
    uint32_t warps[PTX_THREADS / PTX_LANES];
    bool has_moved = false;

    shuffle(warps, n_warps);
    for (uint32_t w = 0; w < n_warps; w++) {
        const uint32_t turn = random_below(PTX_LANES);

        for (uint32_t i = 0; i < PTX_LANES && !run.has_failed; i++) {
            fiber *f = &b->fibers[warps[w] * PTX_LANES + (i ^ turn)];
            const bool spins = f->state == FIBER_SPINS;

            if (f->state != FIBER_READY && !spins)
                continue;
            resume(f);
            has_moved = has_moved || !spins || f->state != FIBER_SPINS;
        }
        if (!run.has_failed)
            meet_at_exchange(b, warps[w] * PTX_LANES);
    }
    if (!run.has_failed)
        meet_at_barrier(b);
    return has_moved;
}

/* One pass over the live blocks; new ones take the place of those that end. */
static bool run_pass(const uint32_t *order, uint32_t *n_started, uint32_t *n_done)
{
    const uint32_t n_slots = run.of->is_cooperative ? PTX_RESIDENT : AT_ONCE;
    bool has_moved = false;

    for (uint32_t i = 0; i < n_slots && !run.has_failed; i++) {
        block *b = &blocks[i];

        if (!b->is_live && *n_started < run.of->n_blocks)
            start_block(b, order[(*n_started)++]);
        if (!b->is_live)
            continue;
        has_moved = run_threads(b) || has_moved;
        if (b->is_done) {
            b->is_live = false;
            ++*n_done;
        }
    }
    return has_moved;
}

static void run_blocks(const uint32_t *order)
{
    uint32_t n_started = 0;
    uint32_t n_done = 0;
    int n_idle = 0;

    while (n_done < run.of->n_blocks && !run.has_failed) {
        n_idle = run_pass(order, &n_started, &n_done) ? 0 : n_idle + 1;
        if (n_idle == IDLE_PASSES)
            fault_of_block("threads wait for memory that no thread changes");
    }
}

static void make_ready(block *b, size_t shared_bytes)
{
    if (b->shared_bytes < shared_bytes) {
        free(b->shared);
        free(b->cells);
        b->shared = aligned_alloc(256, (shared_bytes + 255) & ~(size_t)255);
        b->cells = malloc(shared_bytes * sizeof(*b->cells));
        b->shared_bytes = shared_bytes;
        if (b->shared == NULL || b->cells == NULL)
            abort();
    }
    b->is_live = false;
    // What a launch with a fault has left in the middle of a kernel.
    for (uint32_t i = 0; i < PTX_THREADS; i++)
        b->fibers[i].is_started = b->fibers[i].is_started && !run.has_failed;
}

__attribute__((visibility("default"))) bool ptx_run(const ptx_launch *l, char *text, size_t n)
{
    uint32_t *order = calloc(l->n_blocks, sizeof(*order));

    if (order == NULL || l->n_threads % PTX_LANES != 0 || l->n_threads > PTX_THREADS ||
        (l->is_cooperative && l->n_blocks > PTX_RESIDENT))
        abort();
    for (int i = 0; i < PTX_RESIDENT; i++)
        make_ready(&blocks[i], l->kernel->shared_bytes);
    run.of = l;
    run.text = text;
    run.text_bytes = n;
    run.has_failed = false;
    run.random = (l->seed + 1) * 0x9E3779B97F4A7C15;
    ptx_begin_memory();
    shuffle(order, l->n_blocks);
    run_blocks(order);
    ptx_end_memory();
    free(order);
    return !run.has_failed;
}
