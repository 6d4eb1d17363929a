/* SPDX-License-Identifier: Apache-2.0 */
/* test_forecast.c - forecasts of steps, against cases computed by hand, and their input. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/text.h"
#include "cli/plan/calibrate.h"
#include "comm/backends/native/plan/schedule.h"

#include <math.h>
#include <string.h>

#define SEGMENT_BYTES ((size_t)256 << 10) /* the default of the backend */

#define assert_fails_with(expr, status_, part)                                                     \
    do {                                                                                           \
        assert_int_equal((expr), (status_));                                                       \
        if (strstr(ls_last_error(), part) == NULL)                                                 \
            fail_msg("\"%s\" is not in: %s", part, ls_last_error());                               \
    } while (0)

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * fabs(expected) + 1e-15)
        fail_msg("%.12g is not %.12g", got, expected);
}

/* 1 s without backward, and 2 s of backward. */
static const forecast_bucket two_buckets[] = {{1, 100e6}, {2, 50e6}};
static const forecast_step step = {
    .other_s = 1, .backward_s = 2, .end_bytes = 64, .buckets = two_buckets, .n_buckets = 2};

static forecast_result make(const forecast_link *link, int n)
{
    const forecast_case c = {.n = n, .compute = 1};

    return forecast_make(&step, link, &c);
}

static void one_machine_sends_nothing(void **state)
{
    const forecast_link link = {.bytes_per_s = 1, .latency_s = 9, .copy_s_per_byte = 1};
    const forecast_result r = make(&link, 1);

    LS_UNUSED(state);
    assert_near(r.step_s, 3);
    assert_near(r.efficiency, 1);
    assert_near(r.sent_bytes, 0);
    assert_int_equal(r.bound, FORECAST_COMPUTE);
}

static void a_fast_link_hides_all_but_the_last_bucket(void **state)
{
    // two machines: 100 MB in 1 s from 1 s on, 50 MB in 0.5 s from 2 s on
    const forecast_link link = {.bytes_per_s = 100e6};
    const forecast_result r = make(&link, 2);

    LS_UNUSED(state);
    assert_near(r.step_s, 3.5);
    assert_near(r.batches_per_s, 2 / 3.5);
    assert_near(r.efficiency, 3 / 3.5);
    assert_near(r.sent_bytes, 150e6 + 64);
    assert_int_equal(r.bound, FORECAST_BANDWIDTH);
}

static void a_slow_link_is_a_queue(void **state)
{
    // 10 s from 1 s on, then 5 s; with half the bytes 5 s and 2.5 s
    const forecast_link link = {.bytes_per_s = 10e6};
    const forecast_case half = {.n = 2, .compute = 1, .has_half_bytes = true};

    LS_UNUSED(state);
    assert_near(make(&link, 2).step_s, 17);
    assert_near(forecast_make(&step, &link, &half).step_s, 9.5);
    // four machines send 1.5 times as much as two
    assert_near(make(&link, 4).step_s, 1 + 1 + 1.5 * 15);
}

static void latency_counts_once_behind_the_last_bucket(void **state)
{
    // messages over 64 KiB are announced: two rounds are four messages
    const forecast_link link = {.bytes_per_s = 1e12, .latency_s = 0.25};
    const forecast_result r = make(&link, 2);

    LS_UNUSED(state);
    assert_near(r.step_s, 3 + 1 + 50e6 / 1e12);
    assert_int_equal(r.bound, FORECAST_LATENCY);
}

static void copying_delays_backward(void **state)
{
    // 10 ns a byte: 1 s for the first bucket, which ends at 2 s; backward at 3 s; then 0.5 s
    const forecast_link link = {.copy_s_per_byte = 10e-9};
    const forecast_result r = make(&link, 2);

    LS_UNUSED(state);
    assert_near(r.step_s, 1 + 3 + 0.5);
    assert_int_equal(r.bound, FORECAST_COPYING);
}

static void buffers_are_broadcast_before_forward(void **state)
{
    const forecast_link link = {.bytes_per_s = 1e6, .latency_s = 0.01};
    const forecast_bucket tiny = {2, 1000};
    const forecast_step buffers = {.other_s = 1,
                                   .backward_s = 2,
                                   .end_bytes = 64,
                                   .buffer_bytes = 1e5,
                                   .buckets = &tiny,
                                   .n_buckets = 1};
    const forecast_case c = {.n = 8, .compute = 1};

    LS_UNUSED(state);
    // three hops of 0.11 s; 7 times 1000 bytes in one round
    assert_near(forecast_make(&buffers, &link, &c).step_s, 3 + 3 * 0.11 + 0.007 + 0.01);
}

static void machines_of_unequal_speed_wait_or_are_balanced(void **state)
{
    const forecast_link link = {.bytes_per_s = 1e15};
    const double speeds[] = {1, 0.5};
    forecast_case c = {.n = 2, .compute = 1, .speeds = speeds, .n_speeds = 2};
    forecast_result r = forecast_make(&step, &link, &c);

    LS_UNUSED(state);
    assert_true(fabs(r.step_s - 6) < 1e-6);
    assert_true(fabs(r.efficiency - 2.0 / 3) < 1e-6);
    assert_int_equal(r.bound, FORECAST_SLOWEST);
    c.is_balanced = true;
    r = forecast_make(&step, &link, &c);
    assert_true(fabs(r.step_s - 4) < 1e-6);
    assert_true(fabs(r.efficiency - 1) < 1e-6);
    assert_int_equal(r.bound, FORECAST_COMPUTE);
}

static void rounds_and_bytes_are_those_of_the_algorithms(void **state)
{
    static const struct {
        double bytes;
        int n;
        double rounds;
        double sent;
    } rows[] = {
        {1e6, 1, 0, 0},
        {8, 2, 1, 8},
        {65536, 2, 1, 65536},          // whole
        {65540, 2, 2, 65540},          // slices
        {1e6, 2, 4, 1e6},              // announced
        {8192, 8, 1, 7 * 8192.0},      // whole
        {512, 16, 1, 15 * 512.0},      // whole
        {1024, 16, 4, 4096},           // doubling
        {1024, 64, 6, 6144},           // doubling
        {16384, 4, 2, 24576},          // slices
        {1e6, 16, 2, 1e6 * 1.875},     // slices of 62.5 kB
        {1e6, 32, 20, 1e6 * 1.9375},   // halving, announced
        {64e3, 64, 12, 64e3 * 1.96875} // halving
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        const forecast_exchange e = forecast_all_reduce(rows[i].bytes, rows[i].n);

        print_message("%.0f bytes, %d machines\n", rows[i].bytes, rows[i].n);
        assert_near(e.rounds, rows[i].rounds);
        assert_near(e.sent, rows[i].sent);
    }
}

/* What a rank sends in the plans of the engine, and in how many rounds. */
static forecast_exchange follow_plan(const coll *op, const plan_choice *choice, int n, int rank)
{
    plan_input in = plan_input_of(op, n, rank, NULL, choice);
    forecast_exchange e = {.rounds = 0};
    plan made = {0};

    for (size_t chunk = 0; chunk < choice->n_chunks; chunk++) {
        size_t longest = 0;
        uint64_t rounds = 0; // a bit for each; steps of rounds may be mixed
        int n_rounds;

        in.first = chunk * choice->chunk;
        plan_reset(&made);
        choice->rule->fn(&made, &in);
        assert_false(made.failed);
        for (size_t i = 0; i < made.n_steps; i++) {
            const plan_step *s = &made.steps[i];

            if (s->action != PLAN_SEND)
                continue;
            assert_true(s->round < 64);
            rounds |= UINT64_C(1) << s->round;
            longest = s->bytes > longest ? s->bytes : longest;
            e.sent += (double)s->bytes;
        }
        n_rounds = __builtin_popcountll(rounds);
        e.rounds = fmax(e.rounds, longest > 65536 ? 2 * n_rounds : n_rounds);
    }
    plan_free(&made);
    return e;
}

static void rounds_and_bytes_are_those_of_the_engines_plans(void **state)
{
    static const size_t sizes[] = {8, 512, 1024, 8192, 16384, 65536, 131072, 1000000, 4000000};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++)
        for (int n = 2; n <= 64; n *= 2) {
            const coll op = {.kind = COLL_ALL_REDUCE,
                             .dtype = LS_F32,
                             .redop = LS_SUM,
                             .count = sizes[i] / sizeof(float)};
            const plan_choice choice = plan_choose(&op, n, NULL, SEGMENT_BYTES, NULL);
            const forecast_exchange e = forecast_all_reduce((double)sizes[i], n);
            forecast_exchange most = {.rounds = 0};

            for (int rank = 0; rank < n; rank++) {
                const forecast_exchange of = follow_plan(&op, &choice, n, rank);

                most.rounds = fmax(most.rounds, of.rounds);
                most.sent = fmax(most.sent, of.sent);
            }
            print_message("%zu bytes, %d machines, %s: %g rounds, %g bytes\n", sizes[i], n,
                          choice.rule->name, most.rounds, most.sent);
            // In a tree the rounds of different ranks follow each other.
            if (!text_equal(choice.rule->name, "tree"))
                assert_near(e.rounds, most.rounds);
            // Slices are whole cache lines.
            assert_true(fabs(e.sent - most.sent) <= 0.05 * most.sent + 64.0 * n);
        }
}

static void the_knee_is_where_a_doubling_brings_little(void **state)
{
    const forecast_result rows[] = {{.efficiency = 1},
                                    {.efficiency = 0.9},
                                    {.efficiency = 0.7},
                                    {.efficiency = 0.5},
                                    {.efficiency = 0.5}};

    LS_UNUSED(state);
    assert_int_equal(forecast_knee(rows, LS_COUNT_OF(rows)), 2);
    assert_int_equal(forecast_knee(rows, 1), 0);
}

/* --- input --- */

static void links_are_read(void **state)
{
    static const char *const wrong[] = {"",          "1Gbit",     "nonsense",      "1Gbit,",
                                        ",1ms",      "1Gbit,1",   "1,1ms",         "-1Gbit,1ms",
                                        "0Gbit,1ms", "1Gbit,-1s", "infGbit,1ms",   "nanGbit,1ms",
                                        "1gb,1ms",   "1Gbit,2h",  "1Gbit,1ms,2ms", "1e99Gbit,1ms"};
    forecast_link link;

    LS_UNUSED(state);
    assert_ok(calibrate_read_link("1.5Gbit,0.2ms", &link));
    assert_near(link.bytes_per_s, 1.5e9 / 8 * 1448 / 1538);
    assert_near(link.latency_s, 1e-4);
    assert_ok(calibrate_read_link("100Mbit,0s", &link));
    assert_near(link.latency_s, 0);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++) {
        print_message("%s\n", wrong[i]);
        assert_fails_with(calibrate_read_link(wrong[i], &link), LS_EINVAL, "such as 1Gbit,0.2ms");
    }
}

static void the_slowest_path_of_a_check_is_the_link(void **state)
{
    static const char report[] =
        "{\"paths\":[{\"round_trip_us\":200,\"bytes_per_s\":1e9},{\"outcome\":\"lost\"},"
        "{\"round_trip_us\":100,\"bytes_per_s\":5e8}]}";
    static const char empty[] = "{\"paths\":[{\"bytes_per_s\":-1}]}";
    forecast_link link;

    LS_UNUSED(state);
    assert_ok(calibrate_read_check(report, strlen(report), "file", &link));
    assert_near(link.bytes_per_s, 5e8);
    assert_near(link.latency_s, 1e-4);
    assert_fails_with(calibrate_read_check(empty, strlen(empty), "file", &link), LS_EFORMAT,
                      "file has no measured path");
    assert_int_not_equal(calibrate_read_check("{", 1, "file", &link), LS_OK);
}

/* Steps of 100 us, of which backward takes 60, from 40 on; the third bucket is the last one. */
static void write_trace(text_buf *out, int n_steps, const char *extra)
{
    text_append(out, "{\"traceEvents\":[%s", extra);
    for (int i = 0; i < n_steps; i++) {
        const int at = 100 * i;

        text_append(out,
                    "{\"cat\":\"phase\",\"name\":\"backward\",\"ts\":%d,\"dur\":60,\"pid\":0},"
                    "{\"cat\":\"operation\",\"ts\":%d,\"pid\":0,\"args\":{\"site\":\"bucket 1/2\","
                    "\"bytes\":4000}},"
                    "{\"cat\":\"operation\",\"ts\":%d,\"pid\":0,\"args\":{\"site\":\"bucket 2/2\","
                    "\"bytes\":8000}},"
                    "{\"cat\":\"operation\",\"ts\":%d,\"pid\":0,\"args\":{\"site\":\"ddp step\","
                    "\"bytes\":96}},"
                    "{\"cat\":\"operation\",\"ts\":%d,\"pid\":0,\"args\":{\"site\":\"ddp buffers\""
                    ",\"bytes\":456}}%s",
                    at + 40, at + 60, at + 99, at + 100, at + 110, i + 1 < n_steps ? "," : "]}");
    }
    assert_ok(text_status(out));
}

static ls_status read_trace(int n_steps, const char *extra, forecast_step *out)
{
    text_buf text = {0};
    ls_status st;

    write_trace(&text, n_steps, extra);
    st = calibrate_read_trace(text_str(&text), strlen(text_str(&text)), "file", out);
    text_free(&text);
    return st;
}

static void free_step(const forecast_step *s)
{
    ls_free((forecast_bucket *)(uintptr_t)s->buckets);
}

static void steps_are_read_from_a_trace(void **state)
{
    // other ranks, and times that no clock gives
    static const char others[] =
        "{\"cat\":\"phase\",\"name\":\"backward\",\"ts\":641,\"pid\":1},"
        "{\"cat\":\"phase\",\"name\":\"backward\",\"ts\":-5,\"pid\":0},"
        "{\"ts\":1e300,\"pid\":0,\"args\":{\"site\":\"ddp step\",\"bytes\":1}},"
        "{\"ts\":610,\"pid\":0,\"args\":{\"site\":\"bucket 99999999/1\",\"bytes\":1}},"
        "{\"ts\":610,\"pid\":0,\"args\":{\"site\":\"bucket -1/1\",\"bytes\":1}},7,null,";
    forecast_step got;

    LS_UNUSED(state);
    assert_ok(read_trace(8, others, &got));
    assert_near(got.other_s, 40e-6);
    assert_near(got.backward_s, 60e-6);
    assert_int_equal(got.n_buckets, 2);
    assert_near(got.buckets[0].ready_s, 20e-6);
    assert_near(got.buckets[0].bytes, 4000);
    assert_near(got.buckets[1].ready_s, 59e-6);
    assert_near(got.end_bytes, 96);
    assert_near(got.buffer_bytes, 456);
    free_step(&got);
}

static void traces_without_steps_are_refused(void **state)
{
    static const char empty[] = "{\"traceEvents\":[]}";
    forecast_step got;

    LS_UNUSED(state);
    assert_fails_with(calibrate_read_trace(empty, strlen(empty), "file", &got), LS_EFORMAT,
                      "file has no training step");
    free_step(&got);
    assert_fails_with(read_trace(6, "", &got), LS_EFORMAT,
                      "file has 6 training steps; a plan needs 7");
    free_step(&got);
    assert_int_not_equal(calibrate_read_trace("[", 1, "file", &got), LS_OK);
    free_step(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_machine_sends_nothing),
        cmocka_unit_test(a_fast_link_hides_all_but_the_last_bucket),
        cmocka_unit_test(a_slow_link_is_a_queue),
        cmocka_unit_test(latency_counts_once_behind_the_last_bucket),
        cmocka_unit_test(copying_delays_backward),
        cmocka_unit_test(buffers_are_broadcast_before_forward),
        cmocka_unit_test(machines_of_unequal_speed_wait_or_are_balanced),
        cmocka_unit_test(rounds_and_bytes_are_those_of_the_algorithms),
        cmocka_unit_test(rounds_and_bytes_are_those_of_the_engines_plans),
        cmocka_unit_test(the_knee_is_where_a_doubling_brings_little),
        cmocka_unit_test(links_are_read),
        cmocka_unit_test(the_slowest_path_of_a_check_is_the_link),
        cmocka_unit_test(steps_are_read_from_a_trace),
        cmocka_unit_test(traces_without_steps_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
