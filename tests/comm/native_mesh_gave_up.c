/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_gave_up.c - a source gives up an operation while a slow reader copies from its
 * memory, and then overwrites the memory. The reader's result has wrong bytes, so it must fail. The
 * linker puts the functions below in front of the copies (-Wl,--wrap): the reader stops in the
 * middle of the first copy from the source's memory until the source has overwritten it.
 */
#include "comm/native_mesh_ranks.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/backends/native/memory/copy.h"
#include "comm/backends/reduce.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

void *__real_memcpy(void *dst, const void *src, size_t bytes);
void *__wrap_memcpy(void *dst, const void *src, size_t bytes);
void *__real_memmove(void *dst, const void *src, size_t bytes);
void *__wrap_memmove(void *dst, const void *src, size_t bytes);
void *__real_copy_string(void *dst, const void *src, size_t bytes);
void *__wrap_copy_string(void *dst, const void *src, size_t bytes);
void __real_reduce_tree(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                        ls_dtype type, ls_reduce_op op, bool final, double divisor);
void __wrap_reduce_tree(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                        ls_dtype type, ls_reduce_op op, bool final, double divisor);

#if defined(__SANITIZE_THREAD__)
#define RANKS                                                                                      \
    2 /* a third rank would read what the source overwrites: a data race, as it is meant */
#else
#define RANKS 3
#endif
#define SOURCE 0
#define READER 1
#define REUSED 0xEE /* what the source writes after it has given up */
#define FEW    100000
#define MANY   1000000 /* a message of so many bytes is copied by both sides */

enum { RUNNING = 0, READER_IS_IN_COPY, SOURCE_HAS_OVERWRITTEN };

typedef struct scenario {
    const char *name;
    coll op;
    bool has_shared_src; /* memory that all ranks can reach */
    bool has_shared_dst;
    bool is_read_from_dst; /* the reader copies the source's result, not its contribution */
} scenario;

typedef struct progress_of {
    const scenario *now;
    uint8_t *from; /* the source's buffer */
    size_t bytes;
    atomic_int stage;
    atomic_int n_over;
    atomic_bool is_missed; /* other ranks have reduced the reader's slice before it could */
} progress_of;

static _Thread_local progress_of *stops_for; /* of the reader's thread, until it has stopped */

static void wait_for_stage(progress_of *p, int stage)
{
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);

    while (atomic_load(&p->stage) < stage && ls_deadline_left(deadline_ms) != 0)
        (void)poll(NULL, 0, 1);
}

/* Stops the reader if it is about to read the source's memory. */
static bool stops_at(const void *src)
{
    progress_of *p = stops_for;
    const uintptr_t at = (uintptr_t)src;

    if (p == NULL || at < (uintptr_t)p->from || at >= (uintptr_t)p->from + p->bytes)
        return false;
    stops_for = NULL;
    return true;
}

static void stop(progress_of *p)
{
    atomic_store(&p->stage, READER_IS_IN_COPY);
    wait_for_stage(p, SOURCE_HAS_OVERWRITTEN);
}

static void *copy_slowly(void *(*copy)(void *, const void *, size_t), void *dst, const void *src,
                         size_t bytes)
{
    progress_of *p = stops_for;
    const size_t half = bytes / 2;

    if (!stops_at(src))
        return copy(dst, src, bytes);
    (void)copy(dst, src, half);
    stop(p);
    (void)copy((char *)dst + half, (const char *)src + half, bytes - half);
    return dst;
}

void *__wrap_memcpy(void *dst, const void *src, size_t bytes)
{
    return copy_slowly(__real_memcpy, dst, src, bytes);
}

void *__wrap_memmove(void *dst, const void *src, size_t bytes)
{
    return copy_slowly(__real_memmove, dst, src, bytes);
}

void *__wrap_copy_string(void *dst, const void *src, size_t bytes)
{
    return copy_slowly(__real_copy_string, dst, src, bytes);
}

void __wrap_reduce_tree(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                        ls_dtype type, ls_reduce_op op, bool final, double divisor)
{
    progress_of *p = stops_for;

    for (int i = 0; i < n_operands; i++) {
        if (stops_at(operands[i].data))
            stop(p);
    }
    __real_reduce_tree(dst, operands, n_operands, count, type, op, final, divisor);
    // "direct" writes where other ranks read.
    if (stops_at(dst))
        stop(p);
}

/* --- the ranks --- */

typedef struct buffers {
    size_t bytes;
    uint8_t *src;
    uint8_t *dst;
} buffers;

static uint8_t *new_buffer(mesh_rank *r, bool is_shared, size_t bytes, int fill)
{
    void *memory = NULL;

    if (!is_shared)
        memory = ls_calloc(1, bytes);
    else if (native_backend_ops.alloc(r->state, bytes, &memory) != LS_OK)
        memory = NULL;
    return memory == NULL ? NULL : memset(memory, fill, bytes);
}

static void free_buffer(mesh_rank *r, bool is_shared, uint8_t *memory)
{
    if (is_shared)
        native_backend_ops.free(r->state, memory);
    else
        ls_free(memory);
}

static bool is_message(const scenario *now)
{
    return now->op.kind == COLL_SEND;
}

/* What this rank calls in the scenario. */
static coll operation_of(const scenario *now, int rank, const buffers *b)
{
    coll op = now->op;

    op.src = b->src;
    op.dst = b->dst;
    if (is_message(now) && rank == READER)
        op.kind = COLL_RECV;
    if (is_message(now))
        op.root = rank == READER ? SOURCE : READER;
    return op;
}

static int give_up(mesh_rank *r, progress_of *p, const mesh_work *w)
{
    mesh_drive_until(r, &p->stage, READER_IS_IN_COPY);
    if (atomic_load(&p->is_missed))
        return 0;
    MESH_CHECK(atomic_load(&p->stage) == READER_IS_IN_COPY);
    // The source's own part: after it the reader needs nothing more from the source.
    for (int i = 0; i < 100; i++)
        (void)native_backend_ops.progress(r->state);
    MESH_CHECK(!w->is_done);
    native_backend_ops.abort_group(r->world.group, LS_EDEADLINE, "timed out");
    MESH_CHECK(w->is_done && w->status == LS_EDEADLINE);
    memset(p->from, REUSED, p->bytes);
    atomic_store(&p->stage, SOURCE_HAS_OVERWRITTEN);
    return 0;
}

/* Until the operation has ended, or another rank's part of it is over. */
static void finish_or_break(mesh_rank *r, progress_of *p, const mesh_work *w)
{
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);

    while (!w->is_done && !r->world.is_broken && atomic_load(&p->n_over) == 0 &&
           ls_deadline_left(deadline_ms) != 0) {
        (void)native_backend_ops.progress(r->state);
        (void)poll(NULL, 0, 1);
    }
}

/* Lets the source go on if the reader has read nothing. */
static bool has_missed(const mesh_rank *r, progress_of *p, const mesh_work *w)
{
    const bool is_missed = r->rank == READER && stops_for == p && p->now->has_shared_src &&
                           coll_reduces_whole(p->now->op.kind) && w->is_done && w->status == LS_OK;

    if (is_missed) {
        atomic_store(&p->is_missed, true);
        atomic_store(&p->stage, SOURCE_HAS_OVERWRITTEN);
    }
    return is_missed;
}

static int check_end(mesh_rank *r, const mesh_work *w, const buffers *b)
{
    if (r->rank == READER) {
        MESH_CHECK(!w->is_done && r->world.is_broken);
        MESH_CHECK(r->world.cause.kind == CAUSE_FAULT);
        MESH_CHECK(strstr(r->world.cause.text, "rank 0 gave up") != NULL);
    }
    if (w->is_done && w->status == LS_OK)
        MESH_CHECK(memchr(b->dst, REUSED, b->bytes) == NULL);
    return 0;
}

static int run_operation(mesh_rank *r, progress_of *p, buffers *b)
{
    const bool takes_part = !is_message(p->now) || r->rank == SOURCE || r->rank == READER;
    const coll op = operation_of(p->now, r->rank, b);
    mesh_work w = {0};
    int failed;

    if (r->rank == SOURCE) {
        p->from = p->now->is_read_from_dst ? b->dst : b->src;
        p->bytes = b->bytes;
    }
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    if (r->rank == READER)
        stops_for = p;
    if (takes_part)
        mesh_start(&r->world, &w, &op);
    if (r->rank == SOURCE) {
        failed = give_up(r, p, &w);
    } else {
        finish_or_break(r, p, &w);
        failed = has_missed(r, p, &w) ? 0 : check_end(r, &w, b);
    }
    stops_for = NULL;
    if (r->rank == READER)
        atomic_fetch_add(&p->n_over, 1);
    // No rank frees a buffer that another one still reads.
    mesh_drive_until(r, &p->n_over, 1);
    native_backend_ops.abort_group(r->world.group, LS_ECANCELED, "over");
    return failed;
}

static int take_part(mesh_rank *r, void *arg)
{
    progress_of *p = arg;
    const scenario *now = p->now;
    buffers b = {.bytes = RANKS * now->op.count};
    int failed;

    b.src = new_buffer(r, now->has_shared_src, b.bytes, 1 + r->rank);
    b.dst = new_buffer(r, now->has_shared_dst, b.bytes, 0);
    MESH_CHECK(b.src != NULL && b.dst != NULL);
    failed = run_operation(r, p, &b);
    free_buffer(r, now->has_shared_src, b.src);
    free_buffer(r, now->has_shared_dst, b.dst);
    return failed;
}

#define OP(kind_, count_, root_)                                                                   \
    .op = {.kind = (kind_), .dtype = LS_U8, .redop = LS_MAX, .count = (count_), .root = (root_)}
#define SHARED_SRC    .has_shared_src = true
#define FROM_DST      .is_read_from_dst = true
#define SHARED_MEMORY .has_shared_src = true, .has_shared_dst = true

static void run(const scenario *all, size_t n, const char *rows)
{
    int failed = 0;

    for (size_t i = 0; i < n; i++) {
        bool is_missed = true;

        print_message("%s\n", all[i].name);
        for (int tries = 0; is_missed && tries < 1000; tries++) {
            progress_of p = {.now = &all[i]};
            const mesh_job job = {
                .size = RANKS, .transport = "auto", .algorithms = rows, .fn = take_part, .arg = &p};

            failed += mesh_run(&job);
            is_missed = atomic_load(&p.is_missed);
        }
        assert_false(is_missed);
    }
    assert_int_equal(failed, 0);
}

static void reader_of_shared_memory_fails_when_the_source_gave_up(void **state)
{
    static const scenario all[] = {
        {"broadcast", OP(COLL_BROADCAST, FEW, SOURCE), SHARED_MEMORY},
        {"scatter", OP(COLL_SCATTER, FEW, SOURCE), SHARED_MEMORY},
        {"gather", OP(COLL_GATHER, FEW, READER), SHARED_SRC},
        {"all_gather", OP(COLL_ALL_GATHER, FEW, -1), SHARED_MEMORY},
        {"all_to_all", OP(COLL_ALL_TO_ALL, FEW, -1), SHARED_MEMORY},
        {"all_reduce", OP(COLL_ALL_REDUCE, FEW, -1), SHARED_MEMORY},
        {"reduce", OP(COLL_REDUCE, FEW, READER), SHARED_MEMORY},
        {"reduce_scatter", OP(COLL_REDUCE_SCATTER, FEW, -1), SHARED_MEMORY},
    };

    (void)state;
    run(all, sizeof(all) / sizeof(all[0]), "all:shared");
}

static void reader_of_user_memory_fails_when_the_source_gave_up(void **state)
{
    static const scenario all[] = {
        {"broadcast", OP(COLL_BROADCAST, FEW, SOURCE)},
        {"scatter", OP(COLL_SCATTER, FEW, SOURCE)},
        {"gather", OP(COLL_GATHER, FEW, READER)},
        {"all_gather", OP(COLL_ALL_GATHER, FEW, -1)},
        {"all_to_all", OP(COLL_ALL_TO_ALL, FEW, -1)},
        {"all_reduce, its result", OP(COLL_ALL_REDUCE, FEW, -1), FROM_DST},
        {"reduce_scatter", OP(COLL_REDUCE_SCATTER, FEW, -1)},
    };

    (void)state;
    run(all, sizeof(all) / sizeof(all[0]), "all:direct");
}

static void receiver_of_a_message_fails_when_the_sender_gave_up(void **state)
{
    static const scenario all[] = {
        {"sent from user memory", OP(COLL_SEND, FEW, -1)},
        {"sent from shared memory", OP(COLL_SEND, FEW, -1), SHARED_SRC},
        {"copied by both sides", OP(COLL_SEND, MANY, -1), SHARED_MEMORY},
    };

    (void)state;
    run(all, sizeof(all) / sizeof(all[0]), NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reader_of_shared_memory_fails_when_the_source_gave_up),
        cmocka_unit_test(reader_of_user_memory_fails_when_the_source_gave_up),
        cmocka_unit_test(receiver_of_a_message_fails_when_the_sender_gave_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
