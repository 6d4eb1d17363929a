/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance.c - runs the conformance suite for one backend and transport:
 * test_comm_conformance TRANSPORT [threads|few|RANKS [few]]. Every other backend only adds its row
 * to CMakeLists.txt. LS_TEST_FULL=1 adds 8 ranks.
 */
#include "base/unit.h"
#include "comm/conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT 4096

/* What processes do to each other the thread sanitizer does not see; ranks that are threads are
 * there for it. */
#if defined(__SANITIZE_THREAD__)
static const bool is_tsan = true;
#else
static const bool is_tsan = false;
#endif

static const char *transport;
static bool as_threads;
static bool is_short; /* fewer counts and numbers of ranks */
static int n_ranks;   /* 0: several numbers in turn */

/* None, one, odd ones, one more than a segment of float32 and of float64 holds, and many
 * segments. */
static const size_t counts[] = {0, 1, 37, SEGMENT / 8 + 1, SEGMENT / 4 + 1, 12 * SEGMENT / 4 + 3};

static const size_t few_counts[] = {1, SEGMENT / 4 + 1, 3 * SEGMENT + 3};

static ls_status everything(const ls_test_rank *self, void *arg)
{
    const size_t *n_of = is_short ? few_counts : counts;
    const int n = is_short ? (int)LS_COUNT_OF(few_counts) : (int)LS_COUNT_OF(counts);
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_CHECK(ls_comm_rank(comm) == self->rank && ls_comm_size(comm) == self->size);
    LS_TRY(conformance_reductions(comm, n_of, n));
    LS_TRY(conformance_movers(comm, n_of, n));
    LS_TRY(conformance_vectors(comm));
    LS_TRY(conformance_messages(comm));
    LS_TRY(conformance_handles(comm));
    LS_TRY(conformance_groups(comm));
    LS_TRY(ls_comm_status(comm));
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Parts of several pieces, in place, from and to rank 1. */
static ls_status large_parts(ls_comm *comm, const ls_test_rank *self)
{
    const size_t count = 300007;
    const size_t mine = (size_t)self->rank * count;
    guarded g;
    float *x;

    LS_TRY(guarded_make(&g, comm, (size_t)self->size * count * sizeof(float)));
    x = (float *)(void *)g.data;
    guarded_poison(&g);
    for (size_t k = 0; k < count; k++)
        x[mine + k] = (float)conformance_input(self->rank, k, LS_SUM);
    LS_TRY(ls_gather(comm, x + mine, x, count, LS_F32, 1, NULL));
    for (size_t k = 0; self->rank == 1 && k < (size_t)self->size * count; k++)
        LS_CHECK(x[k] == (float)conformance_input((int)(k / count), k % count, LS_SUM));
    if (self->rank != 1)
        guarded_poison(&g);
    LS_TRY(ls_scatter(comm, x, x + mine, count, LS_F32, 1, NULL));
    for (size_t k = 0; k < count; k++)
        LS_CHECK(x[mine + k] == (float)conformance_input(self->rank, k, LS_SUM));
    LS_TRY(guarded_check(&g, "parts"));
    guarded_free(&g);
    return LS_OK;
}

/* Round the ring, all at once; each rank sends twice, from and to memory of both kinds. */
static ls_status ring_of_messages(ls_comm *comm, const ls_test_rank *self, size_t count)
{
    const int next = (self->rank + 1) % self->size;
    const int last = (self->rank + self->size - 1) % self->size;
    guarded from[2];
    guarded to[2];
    ls_work *works[4];

    for (int i = 0; i < 2; i++) {
        float *x;

        LS_TRY(guarded_make(&from[i], comm, count * sizeof(float)));
        LS_TRY(guarded_make(&to[i], i == 0 ? comm : NULL, count * sizeof(float)));
        guarded_poison(&to[i]);
        x = (float *)(void *)from[i].data;
        for (size_t k = 0; k < count; k++)
            x[k] = (float)conformance_input(self->rank, k + (size_t)i, LS_SUM);
        LS_TRY(ls_send(comm, x, count, LS_F32, next, i, &works[i]));
    }
    for (int i = 1; i >= 0; i--)
        LS_TRY(ls_recv(comm, to[i].data, count, LS_F32, i == 0 ? LS_ANY_SOURCE : last, i,
                       &works[2 + i]));
    for (int i = 0; i < 4; i++)
        LS_TRY(ls_work_wait(works[i]));
    for (int i = 0; i < 2; i++) {
        const float *x = (const float *)(const void *)to[i].data;

        for (size_t k = 0; k < count; k++)
            LS_CHECK(x[k] == (float)conformance_input(last, k + (size_t)i, LS_SUM));
        LS_TRY(guarded_check(&to[i], "messages"));
        guarded_free(&from[i]);
        guarded_free(&to[i]);
    }
    return LS_OK;
}

/* Few types and many elements, with pieces of the default size. */
static ls_status large(const ls_test_rank *self, void *arg)
{
    static const size_t many[] = {(256 << 10) / 4 + 1, 600011};
    ls_comm *comm;
    guarded g;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (size_t i = 0; i < LS_COUNT_OF(many); i++) {
        float *x;

        LS_TRY(guarded_make(&g, i == 0 ? comm : NULL, many[i] * sizeof(float)));
        x = (float *)(void *)g.data;
        for (size_t k = 0; k < many[i]; k++)
            x[k] = (float)conformance_input(self->rank, k, LS_SUM);
        LS_TRY(ls_all_reduce(comm, x, x, many[i], LS_F32, LS_SUM, NULL));
        for (size_t k = 0; k < many[i]; k++) {
            float expected;

            conformance_put_reduced(LS_F32, &expected, 0, k, self->size, LS_SUM, 1);
            LS_CHECK(x[k] == expected);
        }
        LS_TRY(ls_broadcast(comm, x, x, many[i], LS_F32, self->size - 1, NULL));
        LS_TRY(guarded_check(&g, "x"));
        guarded_free(&g);
    }
    LS_TRY(large_parts(comm, self));
    LS_TRY(ring_of_messages(comm, self, 400013));
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Many ranks: every operation, the common type, what is inline and what is not. */
static ls_status subset(const ls_test_rank *self, void *arg)
{
    static const size_t sizes[] = {1, 2050};
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(conformance_reductions(comm, sizes, (int)LS_COUNT_OF(sizes)));
    LS_TRY(conformance_movers(comm, sizes, (int)LS_COUNT_OF(sizes)));
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Very many ranks: each operation a few times, and messages with two of all. */
static ls_status few(const ls_test_rank *self, void *arg)
{
    static const size_t sizes[] = {1, 2050};
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(conformance_each(comm, sizes, (int)LS_COUNT_OF(sizes)));
    LS_TRY(ring_of_messages(comm, self, 2050));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void run(int n, ls_test_body body)
{
    const ls_test_job job = {.n = n, .body = body, .transport = transport, .deadline_ms = 240000};

    assert_true(as_threads ? ls_test_threads(&job) : ls_test_ranks(&job, NULL));
}

static void every_operation_gives_the_reference_bits(void **state)
{
    const int usual = is_short && !as_threads ? 3 : 5;
    const int most = ls_test_number("LS_TEST_FULL", 0) != 0 ? 8 : usual;

    LS_UNUSED(state);
    if (n_ranks > 0) {
        run(n_ranks, is_short ? few : subset);
        return;
    }
    (void)setenv("LOCKSTEP_SEGMENT", "4096", 1);
    for (int n = is_short ? 2 : 1; n <= most; n += n == 3 && is_short ? 2 : n < 5 ? 1 : 3) {
        print_message("%d ranks over %s\n", n, transport);
        run(n, everything);
    }
}

static void large_operations_give_the_reference_bits(void **state)
{
    LS_UNUSED(state);
    (void)unsetenv("LOCKSTEP_SEGMENT");
    if (n_ranks > 0)
        return;
    for (int n = 2; n <= 3; n++)
        run(n, large);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_gives_the_reference_bits),
        cmocka_unit_test(large_operations_give_the_reference_bits),
    };

    if (argc < 2) {
        fprintf(stderr, "usage: %s shm|tcp [threads|few|RANKS [few]]\n", argv[0]);
        return 2;
    }
    transport = argv[1];
    as_threads = argc > 2 && strcmp(argv[2], "threads") == 0;
    is_short = as_threads || is_tsan || (argc > 2 && strcmp(argv[argc - 1], "few") == 0);
    n_ranks = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
