/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_measure.c - how lockstep bench calls an operation and computes times: one rank, with a
 * fake operation, on host memory and on that of a device whose events tell times of their own.
 */
#include "base/unit.h"

#include "cli/bench/bench.h"

#include "base/compute/accel.h"

#include <lockstep/lockstep.h>

#include <stdlib.h>

/* What bench_call() below has been asked for. */
static struct {
    int n_calls;
    int64_t operations;
    int64_t most_times; /* operations of one call */
    ls_queue *queue;    /* of the last call */
    int n_queued;       /* calls with a queue */
    bool is_issue_timed;
    bool is_wrong; /* the results are to be so */
    uintptr_t src;
    uintptr_t dst;
} seen;

/* In the place of call.c: an all_reduce of one rank, whose call takes 3 us to return. */
ls_status bench_call(ls_comm *comm, const bench_case *c, const bench_buffers *buffers,
                     int64_t times, ls_queue *queue, int64_t *issue_ns)
{
    (void)comm;
    seen.queue = queue;
    seen.n_queued += queue != NULL;
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
static bench_time measure_on(ls_queue *queue, const bench_options *o, ls_dtype type, bench **b)
{
    static ls_comm *comm;
    const bench_case c = {.kind = COLL_ALL_REDUCE, .type = type, .count = 16, .n = 1, .root = -1};
    bench_result result;
    bench *opened;

    if (comm == NULL)
        assert_ok(ls_init(NULL, &comm));
    seen.n_calls = seen.n_queued = 0;
    seen.operations = seen.most_times = 0;
    assert_ok(bench_open(comm, queue, o, &opened));
    assert_ok(bench_measure(opened, &c, true, &result));
    if (b != NULL)
        *b = opened;
    else
        bench_close(opened);
    return result.side[0];
}

static bench_time measure(const bench_options *o, ls_dtype type, bench **b)
{
    return measure_on(NULL, o, type, b);
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

/* --- device memory: a device whose queue runs at once --- */

static struct {
    int64_t clock_ns; /* later by one more microsecond with each recorded event */
    int n_recorded;
    int n_synchronized;
    int n_events;
    int n_blocks;
} card;

typedef struct card_event {
    accel_event base;
    int64_t ns;
} card_event;

static void *card_alloc(accel *self, size_t bytes)
{
    LS_UNUSED(self);
    card.n_blocks++;
    return malloc(bytes);
}

static void card_free(accel *self, void *block)
{
    LS_UNUSED(self);
    card.n_blocks -= block != NULL;
    free(block);
}

static ls_status card_copy(ls_queue *queue, void *dst, const void *src, size_t bytes,
                           accel_direction direction)
{
    LS_UNUSED(queue);
    LS_UNUSED(direction);
    memcpy(dst, src, bytes);
    return LS_OK;
}

static ls_status card_fill(ls_queue *queue, void *dst, int byte, size_t bytes)
{
    LS_UNUSED(queue);
    memset(dst, byte, bytes);
    return LS_OK;
}

static ls_status card_event_create(accel *self, bool timed, accel_event **out)
{
    card_event *e = calloc(1, sizeof(*e));

    assert_true(timed && e != NULL);
    e->base.accel = self;
    *out = &e->base;
    card.n_events++;
    return LS_OK;
}

static void card_event_destroy(accel_event *event)
{
    card.n_events--;
    free(event);
}

static ls_status card_event_record(accel_event *event, ls_queue *queue)
{
    LS_UNUSED(queue);
    card.clock_ns += 1000 * card.n_recorded++;
    ((card_event *)event)->ns = card.clock_ns;
    return LS_OK;
}

static ls_status card_event_ns(accel_event *event, int64_t *ns)
{
    *ns = ((card_event *)event)->ns;
    return LS_OK;
}

static ls_status card_synchronize(accel *self, const char *what)
{
    LS_UNUSED(self);
    LS_UNUSED(what);
    card.n_synchronized++;
    return LS_OK;
}

static const accel_ops card_ops = {.name = "card",
                                   .alloc = card_alloc,
                                   .free = card_free,
                                   .alloc_host = card_alloc,
                                   .free_host = card_free,
                                   .copy = card_copy,
                                   .fill = card_fill,
                                   .event_create = card_event_create,
                                   .event_destroy = card_event_destroy,
                                   .event_record = card_event_record,
                                   .event_ns = card_event_ns,
                                   .synchronize = card_synchronize};

static bench_time measure_on_card(const bench_options *o)
{
    static accel the_card = {.ops = &card_ops, .name = "card:0"};
    bench_time t;
    bench *b;

    the_card.queues[ACCEL_COMPUTE].accel = &the_card;
    card.n_recorded = card.n_synchronized = 0;
    t = measure_on(accel_queue(&the_card, ACCEL_COMPUTE), o, LS_F32, &b);
    bench_close(b);
    assert_int_equal(card.n_blocks, 0);
    assert_int_equal(card.n_events, 0);
    return t;
}

static void the_host_waits_for_queued_operations_once(void **state)
{
    bench_options o = options();

    LS_UNUSED(state);
    assert_true(measure_on_card(&o).time_us > 0);
    assert_int_equal(seen.n_queued, 2 * 4);             // all iterations, out of place and in place
    assert_int_equal(card.n_synchronized, 2 * (1 + 2)); // the source; after warm-up; at the end
    o.blocking = 2;
    (void)measure_on_card(&o);
    assert_int_equal(seen.n_queued, 0);
    assert_int_equal(card.n_synchronized, 2);
}

static void results_in_device_memory_are_checked(void **state)
{
    bench_options o = options();

    LS_UNUSED(state);
    o.check = 1;
    assert_int_equal(measure_on_card(&o).wrong, 0);
    assert_null(seen.queue); // the check waits for the result
    seen.is_wrong = true;
    assert_int_equal(measure_on_card(&o).wrong, 16);
    seen.is_wrong = false;
}

static void times_of_single_operations_come_from_the_device(void **state)
{
    bench_options o = options();
    bench_time t;

    LS_UNUSED(state);
    o.intervals = 1;
    o.aggregate = 1;
    t = measure_on_card(&o); // 1, 2, 3 and 4 us
    assert_true(t.single.min_us > 0.999 && t.single.min_us < 1.001);
    assert_true(t.single.max_us > 3.999 && t.single.max_us < 4.001);
    assert_true(t.time_us > 2.499 && t.time_us < 2.501);
    o.aggregate = 2;
    assert_true(measure_on_card(&o).single.max_us < 2.001);
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
        cmocka_unit_test(the_host_waits_for_queued_operations_once),
        cmocka_unit_test(results_in_device_memory_are_checked),
        cmocka_unit_test(times_of_single_operations_come_from_the_device),
    };

    return cmocka_run_group_tests_name("bench measure", tests, NULL, NULL);
}
