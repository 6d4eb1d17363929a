/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_late.c - the rank that comes last finishes its operations while the others have published
 * theirs and do not run, as where they wait for a core. The team without an engine, as in
 * native_team.c.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "comm/native_team_rank.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define COUNT      2000   /* elements of an operation that is not inline; one piece */
#define LONG       300000 /* several chunks of each rank's slice */
#define PIECE      ((size_t)8192)
#define WAIT_LIMIT 60000 /* tries of a millisecond */
#define N_BUFFERS  3

typedef struct late_case {
    const char *rows; /* of LOCKSTEP_ALGORITHMS */
    coll_kind kind;
    int n_ranks;
    bool is_shared;
    size_t count;
} late_case;

typedef struct late_run {
    const late_case *c;
    const algorithm_table *table;
    atomic_int n_started;
    atomic_bool has_last_finished;
} late_run;

static bool reaches(const atomic_int *value, int wanted)
{
    for (int i = 0; i < WAIT_LIMIT && atomic_load(value) < wanted; i++)
        poll(NULL, 0, 1);
    return atomic_load(value) >= wanted;
}

static void fill(float *data, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(value + (int)(i % 7));
}

static bool is_sum(const float *data, size_t count, int n, int factor)
{
    // The sum of value + i % 7 over ranks 0 .. n - 1, whose value is the rank.
    for (size_t i = 0; i < count; i++)
        if (data[i] != (float)(factor * (n * (n - 1) / 2 + n * (int)(i % 7))))
            return false;
    return true;
}

static float *allocate(team_rank *r, const late_case *c)
{
    void *memory = NULL;

    if (!c->is_shared)
        return ls_alloc_aligned(64, c->count * sizeof(float));
    return segment_create(r->l, SEGMENT_KEY_NONE, c->count * sizeof(float), &memory) == LS_OK
               ? memory
               : NULL;
}

static void release(team_rank *r, const late_case *c, float *data)
{
    if (c->is_shared)
        (void)segment_destroy(r->l, data);
    else
        ls_free(data);
}

static int run_late(const comm_boot *boot, void *arg)
{
    late_run *run = arg;
    const late_case *c = run->c;
    const bool is_last = boot->rank == boot->size - 1;
    float *data;
    team_rank *r = ls_calloc(1, sizeof(*r));

    RANK_CHECK(r != NULL);
    r->table = run->table;
    RANK_CHECK(team_rank_open(r, boot, PIECE) == LS_OK);
    RANK_CHECK((data = allocate(r, c)) != NULL);
    for (int round = 0; round < 2; round++) {
        const bool is_late = round == 1;
        coll op;

        // The last rank has mapped the others' memory by then, but they not its new memory, which
        // it frees when it has finished.
        if (is_late && is_last) {
            release(r, c, data);
            RANK_CHECK((data = allocate(r, c)) != NULL);
        }
        fill(data, c->count, boot->rank);
        if (is_late && is_last)
            RANK_CHECK(reaches(&run->n_started, boot->size - 1));
        op = team_rank_op(c->kind, LS_F32, LS_SUM, c->kind == COLL_REDUCE ? boot->size - 1 : -1,
                          data, data, c->count);
        team_rank_start(r, 0, &op);
        if (is_late && !is_last) {
            atomic_fetch_add(&run->n_started, 1);
            for (int i = 0; i < WAIT_LIMIT && !atomic_load(&run->has_last_finished); i++)
                poll(NULL, 0, 1);
            RANK_CHECK(atomic_load(&run->has_last_finished));
        }
        RANK_CHECK(team_rank_wait(r, 0) == LS_OK);
        RANK_CHECK((c->kind == COLL_REDUCE && !is_last) || is_sum(data, c->count, boot->size, 1));
    }
    release(r, c, data);
    if (is_last)
        atomic_store(&run->has_last_finished, true);
    team_rank_close(r);
    ls_free(r);
    return 0;
}

static void the_last_rank_waits_for_no_rank_that_does_not_run(void **state)
{
    static const late_case cases[] = {
        {"all:staged", COLL_ALL_REDUCE, 2, false, COUNT},
        {"all:staged", COLL_REDUCE, 2, false, COUNT},
        {"all:shared,all:staged", COLL_ALL_REDUCE, 2, true, 10 * COUNT},
        {"all:shared,all:staged", COLL_ALL_REDUCE, 2, true, LONG},
        {"all:shared,all:staged", COLL_ALL_REDUCE, 4, true, LONG},
        {"all:shared,all:staged", COLL_REDUCE, 3, true, LONG},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        algorithm_table *table = NULL;
        late_run run = {.c = &cases[i]};

        print_message("case %zu\n", i);
        assert_int_equal(algorithm_table_create(cases[i].rows, &table), LS_OK);
        run.table = table;
        assert_int_equal(ranks_run(AS_THREADS, cases[i].n_ranks, run_late, &run), 0);
        algorithm_table_free(table);
    }
}

/* Each of several operations on one buffer, started at once, adds up what the one before gave. */
static int run_chain(const comm_boot *boot, void *arg)
{
    const int n_works = 4;
    const size_t *count = arg;
    float *data = ls_alloc_aligned(64, *count * sizeof(float));
    team_rank *r = ls_calloc(1, sizeof(*r));

    RANK_CHECK(r != NULL && data != NULL);
    RANK_CHECK(team_rank_open(r, boot, PIECE) == LS_OK);
    for (int round = 0; round < 50; round++) {
        int factor = 1;

        fill(data, *count, boot->rank);
        for (int i = 0; i < n_works; i++) {
            const coll op = team_rank_op(COLL_ALL_REDUCE, LS_F32, LS_SUM, -1, data, data, *count);

            team_rank_start(r, i, &op);
            factor *= i == 0 ? 1 : boot->size;
        }
        for (int i = n_works - 1; i >= 0; i--)
            RANK_CHECK(team_rank_wait(r, i) == LS_OK);
        RANK_CHECK(is_sum(data, *count, boot->size, factor));
    }
    team_rank_close(r);
    ls_free(data);
    ls_free(r);
    return 0;
}

static void an_operation_sends_what_the_one_before_has_written(void **state)
{
    static size_t counts[] = {1, 2, 100, 2000};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(counts); i++) {
        assert_int_equal(ranks_run(AS_THREADS, 2, run_chain, &counts[i]), 0);
        assert_int_equal(ranks_run(AS_THREADS, 3, run_chain, &counts[i]), 0);
    }
}

/* --- ranks that only give --- */

typedef struct ahead_run {
    coll_kind kind;
    size_t count; /* of a part */
    int n_ranks;
    atomic_int n_given; /* ranks that only give, and have finished */
} ahead_run;

static bool gives_only(const ahead_run *run, int rank)
{
    return run->kind == COLL_BROADCAST || run->kind == COLL_SCATTER ? rank == 0 : rank != 0;
}

static int run_ahead(const comm_boot *boot, void *arg)
{
    ahead_run *run = arg;
    const int n_given =
        run->kind == COLL_BROADCAST || run->kind == COLL_SCATTER ? 1 : boot->size - 1;
    const size_t count = run->count;
    float *src = ls_alloc_aligned(64, (size_t)boot->size * count * sizeof(float));
    float *dst = ls_alloc_aligned(64, (size_t)boot->size * count * sizeof(float));
    team_rank *r = ls_calloc(1, sizeof(*r));
    coll op;

    RANK_CHECK(r != NULL && src != NULL && dst != NULL);
    RANK_CHECK(team_rank_open(r, boot, PIECE) == LS_OK);
    for (size_t i = 0; i < (size_t)boot->size * count; i++)
        src[i] = (float)(boot->rank + 1);
    op = team_rank_op(run->kind, LS_F32, LS_SUM, 0, src, dst, count);
    if (!gives_only(run, boot->rank))
        RANK_CHECK(reaches(&run->n_given, n_given));
    RANK_CHECK(team_rank_run(r, &op) == LS_OK);
    if (gives_only(run, boot->rank))
        atomic_fetch_add(&run->n_given, 1);
    if (run->kind == COLL_BROADCAST || run->kind == COLL_SCATTER)
        RANK_CHECK(dst[0] == 1.0F && dst[count - 1] == 1.0F);
    else if (boot->rank == 0 && run->kind == COLL_REDUCE)
        RANK_CHECK(dst[count - 1] == (float)(boot->size * (boot->size + 1) / 2));
    else if (boot->rank == 0)
        RANK_CHECK(dst[(size_t)boot->size * count - 1] == (float)boot->size);
    team_rank_close(r);
    ls_free(src);
    ls_free(dst);
    ls_free(r);
    return 0;
}

static void a_rank_that_only_gives_a_small_contribution_waits_for_none(void **state)
{
    static const coll_kind kinds[] = {COLL_BROADCAST, COLL_REDUCE, COLL_GATHER, COLL_SCATTER};
    // Inline, and one piece through staging.
    static const size_t counts[] = {1, PIECE / sizeof(float)};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(kinds) * LS_COUNT_OF(counts); i++) {
        ahead_run run = {.kind = kinds[i / 2], .count = counts[i % 2]};

        if (run.kind == COLL_SCATTER && run.count > 1)
            run.count /= 4;
        for (run.n_ranks = 2; run.n_ranks <= 4; run.n_ranks++) {
            print_message("%s of %zu, %d ranks\n", coll_name(run.kind), run.count, run.n_ranks);
            atomic_store(&run.n_given, 0);
            assert_int_equal(ranks_run(AS_THREADS, run.n_ranks, run_ahead, &run), 0);
        }
    }
}

#define AHEAD 7 /* operations that a rank gives without waiting */

/* The root of broadcasts waits for none of AHEAD, and for the first one before it ends the next. */
static int run_disagreeing(const comm_boot *boot, void *arg)
{
    atomic_int *n_given = arg;
    float x = (float)boot->rank;
    const coll broadcast = team_rank_op(COLL_BROADCAST, LS_F32, LS_SUM, 0, &x, &x, 1);
    const coll barrier = team_rank_op(COLL_BARRIER, LS_F32, LS_SUM, -1, NULL, NULL, 0);
    team_rank *r = ls_calloc(1, sizeof(*r));

    RANK_CHECK(r != NULL);
    RANK_CHECK(team_rank_open(r, boot, PIECE) == LS_OK);
    if (boot->rank == 0) {
        for (int i = 0; i < AHEAD; i++)
            RANK_CHECK(team_rank_run(r, &broadcast) == LS_OK);
        team_rank_start(r, 0, &broadcast);
        for (int i = 0; i < 1000; i++)
            (void)team_progress(r->t);
        RANK_CHECK(!r->is_done[0]);
        atomic_store(n_given, 1);
        RANK_CHECK(team_rank_wait(r, 0) == LS_EMISMATCH);
    } else {
        RANK_CHECK(reaches(n_given, 1));
        RANK_CHECK(team_rank_run(r, &barrier) == LS_EMISMATCH);
    }
    RANK_CHECK(r->cause.kind == CAUSE_MISMATCH);
    RANK_CHECK(strstr(r->text, "rank 0 called broadcast #1 ") != NULL);
    RANK_CHECK(strstr(r->text, "rank 1 called barrier #1 ") != NULL);
    team_rank_close(r);
    ls_free(r);
    return 0;
}

static void a_rank_that_is_ahead_compares_the_calls_later(void **state)
{
    (void)state;
    for (int k = 0; k < 20; k++) {
        atomic_int n_given = 0;

        assert_int_equal(ranks_run(AS_THREADS, 2, run_disagreeing, &n_given), 0);
    }
}

#define MIXED_COUNT 5000 /* the most elements of one part: some operations are not inline */

typedef struct mixed_op {
    coll_kind kind;
    int root;
    size_t count;
} mixed_op;

static mixed_op draw_op(ls_rng *rng, int n)
{
    static const coll_kind kinds[] = {COLL_BROADCAST, COLL_REDUCE,     COLL_GATHER,
                                      COLL_SCATTER,   COLL_ALL_REDUCE, COLL_BARRIER};
    static const size_t counts[] = {1, 100, 1000, 2000, MIXED_COUNT};
    mixed_op o = {.kind = kinds[ls_rng_below(rng, LS_COUNT_OF(kinds))], .root = -1};

    if (coll_has_root(o.kind))
        o.root = (int)ls_rng_below(rng, (uint64_t)n);
    if (o.kind != COLL_BARRIER)
        o.count = counts[ls_rng_below(rng, LS_COUNT_OF(counts))];
    return o;
}

/* Element k of the result, where every rank gives `base` + its rank. */
static float result_of(const mixed_op *o, int n, int base, size_t k)
{
    if (o->kind == COLL_ALL_REDUCE || o->kind == COLL_REDUCE)
        return (float)(n * base + n * (n - 1) / 2);
    return (float)(base + (o->kind == COLL_GATHER ? (int)(k / o->count) : o->root));
}

static size_t result_count(const mixed_op *o, int rank, int n)
{
    if ((o->kind == COLL_REDUCE || o->kind == COLL_GATHER) && rank != o->root)
        return 0;
    return o->kind == COLL_GATHER ? (size_t)n * o->count : o->count;
}

static int run_mixed(const comm_boot *boot, void *arg)
{
    const int n = boot->size;
    const size_t bytes = (size_t)n * MIXED_COUNT * sizeof(float);
    team_rank *r = ls_calloc(1, sizeof(*r));
    float *src = ls_alloc_aligned(64, bytes);
    float *dst = ls_alloc_aligned(64, bytes);
    ls_rng ops; /* the same numbers on all ranks */
    ls_rng pauses;

    RANK_CHECK(r != NULL && src != NULL && dst != NULL);
    RANK_CHECK(team_rank_open(r, boot, PIECE) == LS_OK);
    ls_rng_seed(&ops, *(const uint64_t *)arg);
    ls_rng_seed(&pauses, *(const uint64_t *)arg + 1 + (uint64_t)boot->rank);
    for (int i = 0; i < 600; i++) {
        const mixed_op o = draw_op(&ops, n);
        const coll op = team_rank_op(o.kind, LS_F32, LS_SUM, o.root, src, dst, o.count);

        for (size_t k = 0; k < (size_t)n * o.count; k++)
            src[k] = (float)(i + boot->rank);
        if (ls_rng_below(&pauses, 8) == 0)
            sched_yield();
        RANK_CHECK(team_rank_run(r, &op) == LS_OK);
        for (size_t k = 0; k < result_count(&o, boot->rank, n); k++)
            RANK_CHECK(dst[k] == result_of(&o, n, i, k));
    }
    team_rank_close(r);
    ls_free(r);
    ls_free(src);
    ls_free(dst);
    return 0;
}

static void operations_keep_their_data_while_a_rank_is_ahead(void **state)
{
    (void)state;
    for (int n = 2; n <= 8; n += n < 4 ? 1 : 4) {
        uint64_t seed = (uint64_t)ls_now_ns();

        print_message("%d ranks, seed %" PRIu64 "\n", n, seed);
        assert_int_equal(ranks_run(AS_THREADS, n, run_mixed, &seed), 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_rank_waits_for_no_rank_that_does_not_run),
        cmocka_unit_test(an_operation_sends_what_the_one_before_has_written),
        cmocka_unit_test(a_rank_that_only_gives_a_small_contribution_waits_for_none),
        cmocka_unit_test(a_rank_that_is_ahead_compares_the_calls_later),
        cmocka_unit_test(operations_keep_their_data_while_a_rank_is_ahead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
