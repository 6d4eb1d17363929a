/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_measure.c - how lockstep bench calls an operation and computes times: one rank, with a
 * fake operation.
 */
#include "base/unit.h"

#include "cli/bench/bench.h"

#include <lockstep/lockstep.h>

#include <stdlib.h>

/* What bench_call() below has been asked for. */
static struct {
    int n_calls;
    int64_t operations;
    int64_t most_times; /* operations of one call */
    bool is_issue_timed;
    bool is_wrong; /* the results are to be so */
    uintptr_t src;
    uintptr_t dst;
} seen;

/* In the place of call.c: an all_reduce of one rank, whose call takes 3 us to return. */
ls_status bench_call(ls_comm *comm, const bench_case *c, const bench_buffers *buffers,
                     int64_t times, int64_t *issue_ns)
{
    (void)comm;
    seen.n_calls++;
    seen.operations += times;
    seen.most_times = times > seen.most_times ? times : seen.most_times;
    seen.is_issue_timed = issue_ns != NULL;
    seen.src = (uintptr_t)buffers->src;
    seen.dst = (uintptr_t)buffers->dst;
    if (issue_ns != NULL)
        *issue_ns += 3000 * times;
    if (!seen.is_wrong && buffers->dst != buffers->src)
        memcpy(buffers->dst, buffers->src, c->count * ls_dtype_size(c->type));
    return LS_OK;
}

static bench_options options(void)
{
    return (bench_options){.max_bytes = 4096,
                           .iterations = 4,
                           .aggregate = 3,
                           .average = BENCH_MEAN,
                           .memory = "user",
                           .notes = ""};
}

/* Measures 16 elements out of place; *b (may be NULL) is for bench_close(). */
static bench_time measure(const bench_options *o, ls_dtype type, bench **b)
{
    static ls_comm *comm;
    const bench_case c = {.kind = BENCH_ALL_REDUCE, .type = type, .count = 16, .n = 1, .root = -1};
    bench_result result;
    bench *opened;

    if (comm == NULL)
        assert_ok(ls_init(NULL, &comm));
    seen.n_calls = 0;
    seen.operations = seen.most_times = 0;
    assert_ok(bench_open(comm, o, &opened));
    assert_ok(bench_measure(opened, &c, true, &result));
    if (b != NULL)
        *b = opened;
    else
        bench_close(opened);
    return result.side[0];
}

static void each_iteration_has_m_operations(void **state)
{
    bench_options o = options();

    LS_UNUSED(state);
    o.warmup = 2;
    (void)measure(&o, LS_F32, NULL);
    assert_int_equal(seen.n_calls, 2 * 6); // out of place and in place
    assert_int_equal(seen.operations, 2 * 6 * 3);
}

static void blocking_modes_1_and_2_wait_for_each_operation(void **state)
{
    bench_options o = options();

    LS_UNUSED(state);
    for (o.blocking = 0; o.blocking <= 3; o.blocking++) {
        const bool each = o.blocking == 1 || o.blocking == 2;

        assert_true(measure(&o, LS_F32, NULL).time_us > 0);
        assert_int_equal(seen.operations, 2 * 4 * 3);
        assert_int_equal(seen.most_times, each ? 1 : 3);
    }
}

static void c_operations_are_checked_until_one_is_wrong(void **state)
{
    bench_options o = options();

    LS_UNUSED(state);
    assert_int_equal(measure(&o, LS_F32, NULL).wrong, -1);
    assert_int_equal(seen.n_calls, 2 * 4);
    o.check = 5;
    assert_int_equal(measure(&o, LS_F32, NULL).wrong, 0);
    assert_int_equal(seen.n_calls, 2 * (4 + 5));
    seen.is_wrong = true; // in place the right values stand there from the start
    assert_int_equal(measure(&o, LS_F32, NULL).wrong, 16);
    assert_int_equal(seen.n_calls, 4 + 1 + 4 + 5);
    seen.is_wrong = false;
}

static void cpu_time_ends_when_the_calls_return(void **state)
{
    bench_options o = options();
    bench_time t;

    LS_UNUSED(state);
    (void)measure(&o, LS_F32, NULL);
    assert_false(seen.is_issue_timed);
    o.cpu_time = 1;
    t = measure(&o, LS_F32, NULL);
    assert_true(t.cpu_us > 2.999 && t.cpu_us < 3.001);
    o.blocking = 2; // these calls return when the operation is over
    t = measure(&o, LS_F32, NULL);
    assert_true(t.cpu_us == t.time_us);
}

static void buffers_are_moved_by_u_elements(void **state)
{
    bench_options o = options();

    LS_UNUSED(state);
    o.check = 1;
    for (o.unalign = 0; o.unalign < 6; o.unalign += 5)
        for (int type = 0; type < LS_DTYPE_COUNT; type++) {
            const size_t moved = (size_t)o.unalign * ls_dtype_size((ls_dtype)type);

            assert_int_equal(measure(&o, (ls_dtype)type, NULL).wrong, 0);
            assert_int_equal(seen.src % 64, moved);
            assert_int_equal(seen.dst % 64, moved);
        }
}

static void skipped_iterations_count_in_the_time_only(void **state)
{
    bench_options o = options();
    const double *samples;
    double sum = 0;
    bench *b;

    LS_UNUSED(state);
    o.intervals = 1;
    o.iterations = 40;
    for (o.skip = 0; o.skip < 40; o.skip += 13) {
        const bench_time t = measure(&o, LS_F32, &b);
        double least = 1e12;
        double most = 0;

        samples = bench_samples(b, 0);
        sum = 0;
        for (int i = 0; i < 40; i++) {
            sum += samples[i];
            if (i >= o.skip) {
                least = samples[i] < least ? samples[i] : least;
                most = samples[i] > most ? samples[i] : most;
            }
        }
        assert_true(t.single.min_us == least && t.single.max_us == most);
        assert_true(t.single.p50_us >= least && t.single.p95_us <= t.single.p99_us);
        assert_true(t.time_us > 0.999 * sum / 40 && t.time_us < 1.001 * sum / 40);
        bench_close(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_iteration_has_m_operations),
        cmocka_unit_test(blocking_modes_1_and_2_wait_for_each_operation),
        cmocka_unit_test(c_operations_are_checked_until_one_is_wrong),
        cmocka_unit_test(cpu_time_ends_when_the_calls_return),
        cmocka_unit_test(buffers_are_moved_by_u_elements),
        cmocka_unit_test(skipped_iterations_count_in_the_time_only),
    };

    return cmocka_run_group_tests_name("bench measure", tests, NULL, NULL);
}
