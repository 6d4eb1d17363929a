/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_balance.c - partitions of shards by speed, and of units of rows: against all others, and in
 * simulated trainings of ranks with random speeds, noise, outliers and changes of speed.
 */
#include "ddp/balance.h"
#include "ddp/shard_tree.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MOST = 12 };

static const int64_t ms = 1000000;

/* --- a simulated training --- */

typedef struct training {
    balancer b;
    balance_meter meters[RANKS_MOST];
    balance_speed speeds[RANKS_MOST]; /* as published in the step before */
    int64_t shard_ns[RANKS_MOST];     /* the true ones */
    int64_t fixed_ns;
    int64_t unit_ns; /* of the exchange */
    int64_t once_ns; /* of a rank's shards, however many it has */
    int noise;       /* per cent; of each measured time, in both directions */
    int outliers;    /* per mille of the steps of a rank */
    uint64_t seed;
    int64_t step;
} training;

static uint64_t draw(training *t, int r, int what)
{
    return ls_hash3(t->seed, (uint64_t)t->step, (uint64_t)(r * 16 + what));
}

static void begin_with(training *t, int shards, int ranks, int least, balance_sum sum)
{
    *t = (training){.fixed_ns = ms, .seed = 1};
    assert_int_equal(balancer_open(&t->b, shards, ranks, least, sum), LS_OK);
    for (int r = 0; r < ranks; r++)
        t->shard_ns[r] = 10 * ms;
}

static void begin(training *t, int shards, int ranks, int least)
{
    begin_with(t, shards, ranks, least, BALANCE_BY_PIECES);
}

static int count_of(const training *t, int r)
{
    return t->b.starts[r + 1] - t->b.starts[r];
}

static void assert_counts(const training *t, const int *counts)
{
    for (int r = 0; r < t->b.ranks; r++)
        assert_int_equal(count_of(t, r), counts[r]);
}

/* All shards belong to one rank each, in order, and no rank has too few. */
static void assert_partition(const training *t)
{
    assert_int_equal(t->b.starts[0], 0);
    assert_int_equal(t->b.starts[t->b.ranks], t->b.shards);
    for (int r = 0; r < t->b.ranks; r++)
        assert_true(count_of(t, r) >= t->b.least);
}

/* With noise and outliers. */
static int64_t measured_ns(training *t, int r)
{
    int64_t ns = t->shard_ns[r];

    ns += ns * ((int64_t)(draw(t, r, 0) % (uint64_t)(2 * t->noise + 1)) - t->noise) / 100;
    if (draw(t, r, 1) % 1000 < (uint64_t)t->outliers)
        ns *= 2 + (int64_t)(draw(t, r, 2) % 500);
    return ns;
}

static int most_pieces(const training *t)
{
    const bool has_pieces = t->b.sum != BALANCE_ONE_SUM;
    int most = has_pieces ? 0 : 1;

    for (int r = 0; r < t->b.ranks && has_pieces; r++) {
        const int n = shard_count_pieces(t->b.shards, shard_range_of(t->b.starts, r));

        most = n > most ? n : most;
    }
    return most;
}

/* Whether the partition changes after it. */
static bool step(training *t)
{
    int64_t own[RANKS_MOST];
    int64_t longest = 0;
    bool has_changed;
    int counts[RANKS_MOST];

    for (int r = 0; r < t->b.ranks; r++) {
        counts[r] = count_of(t, r);
        own[r] = counts[r] * measured_ns(t, r);
        own[r] += counts[r] > 0 ? t->once_ns : 0;
        longest = own[r] > longest ? own[r] : longest;
    }
    longest += (most_pieces(t) + 1) * t->unit_ns;
    has_changed = balancer_step(&t->b, t->speeds);
    assert_partition(t);
    for (int r = 0; r < t->b.ranks; r++) {
        balance_meter_add(&t->meters[r], counts[r], own[r], t->fixed_ns);
        t->speeds[r] = balance_meter_speed(&t->meters[r], longest - own[r]);
    }
    t->step++;
    return has_changed;
}

static int run(training *t, int steps)
{
    int n_changes = 0;

    for (int i = 0; i < steps; i++)
        n_changes += step(t);
    return n_changes;
}

/* --- means and meters --- */

static void a_mean_is_of_the_middle_of_the_last_steps(void **state)
{
    balance_times t = {.n = 0};

    (void)state;
    assert_int_equal(balance_times_middle(&t), 0);
    balance_times_add(&t, 0); // a clock that stands, or goes back
    balance_times_add(&t, -5);
    balance_times_add(&t, 7);
    assert_int_equal(balance_times_middle(&t), 0);
    balance_times_add(&t, INT64_MAX); // or jumps
    assert_int_equal(balance_times_middle(&t), 7);
    for (int i = 0; i < 100; i++)
        balance_times_add(&t, 1000 + i);
    assert_int_equal(balance_times_middle(&t), 1095);
}

static void a_rank_without_shards_asks_for_one_in_growing_intervals(void **state)
{
    balance_meter m = {.n_idle = 0};
    int64_t interval = BALANCE_RETRY;

    (void)state;
    for (int i = 0; i < 4; i++)
        balance_meter_add(&m, 2, 20, 5);
    assert_int_equal(balance_meter_speed(&m, 0).shard_ns, 10);
    for (int attempt = 0; attempt < 10; attempt++) {
        for (int64_t i = 1; i <= interval; i++) {
            balance_meter_add(&m, 0, 0, 5);
            assert_int_equal(balance_meter_speed(&m, 0).shard_ns == 0, i == interval);
        }
        for (int i = 0; i < 3; i++)
            balance_meter_add(&m, 1, 90, 5);
        assert_int_equal(balance_meter_speed(&m, 0).shard_ns, 90);
        interval = 2 * interval < BALANCE_RETRY_MOST ? 2 * interval : BALANCE_RETRY_MOST;
    }
    for (int i = 0; i < BALANCE_RETRY; i++) // it has kept its shards: from the beginning
        balance_meter_add(&m, 1, 10, 5);
    for (int i = 0; i < BALANCE_RETRY; i++)
        balance_meter_add(&m, 0, 0, 5);
    assert_int_equal(balance_meter_speed(&m, 0).shard_ns, 0);
}

/* --- the planner --- */

/* The shortest time of all partitions, which starts[] counts up as the digits of a number. */
static int64_t shortest_of_all(const balancer *b, const balance_speed *speeds)
{
    int64_t shortest = INT64_MAX;
    int starts[RANKS_MOST + 1] = {0};
    int r = 1;

    starts[b->ranks] = b->shards;
    while (r > 0) {
        bool is_allowed = true;
        int64_t ns;

        for (int i = 1; i < b->ranks; i++)
            starts[i] = starts[i] > starts[i - 1] ? starts[i] : starts[i - 1];
        for (int i = 0; i < b->ranks; i++)
            is_allowed = is_allowed && starts[i + 1] - starts[i] >= b->least;
        ns = balancer_predict(b, speeds, starts);
        shortest = is_allowed && ns < shortest ? ns : shortest;
        for (r = b->ranks - 1; r > 0 && starts[r] == b->shards; r--)
            starts[r] = 0;
        if (r > 0)
            starts[r]++;
    }
    return shortest;
}

/* With at most 9 shards all boundaries are within the window. */
static void no_other_partition_is_shorter(void **state)
{
    static const balance_sum sums[] = {BALANCE_EXCHANGE, BALANCE_BY_PIECES, BALANCE_ONE_SUM};
    const uint64_t seed = 7;

    (void)state;
    print_message("seed %d\n", (int)seed);
    for (uint64_t i = 0; i < 3000; i++) {
        const int ranks = 1 + (int)(ls_hash3(seed, i, 0) % 4);
        const int shards = ranks + (int)(ls_hash3(seed, i, 1) % 6);
        balance_speed speeds[RANKS_MOST] = {{0}};
        balancer b;

        assert_int_equal(balancer_open(&b, shards, ranks, (int)(i % 2), sums[i % 3]), LS_OK);
        b.unit_ns[0] = (int64_t)(ls_hash3(seed, i, 2) % 40);
        b.unit_ns[1] = i % 3 == 0 ? -1 : b.unit_ns[0]; // not measured, or the same
        for (int r = 0; r < ranks; r++) {
            speeds[r].shard_ns = 1 + (int64_t)(ls_hash3(seed, i, 10 + (uint64_t)r) % 100);
            speeds[r].fixed_ns = (int64_t)(ls_hash3(seed, i, 20 + (uint64_t)r) % 50);
        }
        balancer_begin(&b, speeds);
        assert_int_equal(balancer_predict(&b, speeds, b.starts), shortest_of_all(&b, speeds));
        balancer_close(&b);
    }
}

static void speeds_decide_within_20_steps(void **state)
{
    static const struct {
        int shards;
        int64_t factor;
        int counts[2];
    } cases[] = {{12, 2, {8, 4}}, {16, 3, {12, 4}}, {16, 2, {11, 5}}, {64, 2, {43, 21}}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        training t;

        begin(&t, cases[i].shards, 2, 0);
        t.fixed_ns = ms / 100;
        assert_int_equal(run(&t, 30), 0);
        t.shard_ns[1] *= cases[i].factor;
        assert_true(run(&t, 20) >= 1);
        assert_counts(&t, cases[i].counts);
        assert_int_equal(run(&t, 200), 0);
        t.shard_ns[1] /= cases[i].factor; // the other program has ended
        assert_true(run(&t, 20) >= 1);
        assert_counts(&t, (int[]){cases[i].shards / 2, cases[i].shards / 2});
        balancer_close(&t.b);
    }
}

/* 11 of 16 shards have 3 pieces, 10 have 2. */
static void an_exchange_that_costs_more_has_fewer_pieces(void **state)
{
    training t;

    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(&t, 16, 2, 0);
        t.shard_ns[1] *= 2;
        t.unit_ns = i == 0 ? ms / 10 : 15 * ms;
        run(&t, 40);
        assert_counts(&t, i == 0 ? (int[]){11, 5} : (int[]){10, 6});
        assert_int_equal(run(&t, 200), 0);
        balancer_close(&t.b);
    }
}

/* As where the times of a rank depend on its number of shards. */
static void returns_become_rare(void **state)
{
    training t;
    int n_changes = 0;

    (void)state;
    begin(&t, 12, 2, 0);
    for (int i = 0; i < 100; i++) {
        t.shard_ns[1] = i % 2 == 0 ? 14 * ms : 10 * ms; // 7 and 5 shards, or 6 and 6
        n_changes += run(&t, 20);
    }
    assert_in_range(n_changes, 2, 8);
    t.shard_ns[1] = 14 * ms;
    run(&t, 2 * BALANCE_AGREE_MOST + 20);
    assert_counts(&t, (int[]){7, 5});
    run(&t, BALANCE_QUIET);
    t.shard_ns[1] = 10 * ms;
    run(&t, 2 * BALANCE_AGREE_MOST + 20);
    t.shard_ns[1] = 14 * ms; // as at first again
    run(&t, BALANCE_QUIET);
    t.shard_ns[1] = 10 * ms;
    assert_int_equal(run(&t, 20), 1);
    balancer_close(&t.b);
}

static void one_long_step_changes_nothing(void **state)
{
    training t;

    (void)state;
    begin(&t, 16, 2, 0);
    run(&t, 30);
    for (int i = 0; i < 20; i++) {
        t.shard_ns[1] = 5000 * ms; // stopped
        assert_false(step(&t));
        t.shard_ns[1] = i % 2 == 0 ? -3 * ms : 0; // the clock is set
        assert_false(step(&t));
        t.shard_ns[1] = 10 * ms;
        assert_int_equal(run(&t, 10), 0);
    }
    balancer_close(&t.b);
}

static void a_rank_that_is_50_times_slower_gets_nothing(void **state)
{
    training t;
    int64_t n_used = 0;

    (void)state;
    begin(&t, 16, 3, 0);
    t.shard_ns[0] *= 50;
    run(&t, 25);
    assert_counts(&t, (int[]){0, 8, 8});
    for (int i = 0; i < 3000; i++) {
        (void)step(&t);
        n_used += count_of(&t, 0) > 0;
    }
    assert_in_range(n_used, 10, 80); // of attempts
    t.shard_ns[0] = 10 * ms;
    run(&t, BALANCE_RETRY_MOST + 20);
    assert_true(count_of(&t, 0) >= 5);
    balancer_close(&t.b);
}

static void each_rank_keeps_a_shard_where_it_must(void **state)
{
    training t;

    (void)state;
    begin(&t, 16, 3, 1);
    t.shard_ns[0] *= 50;
    run(&t, 25);
    assert_int_equal(count_of(&t, 0), 1);
    balancer_close(&t.b);
}

/* The two fast ranks are found, wherever the shards are at first. */
static void fewer_shards_than_ranks_go_to_the_fast_ones(void **state)
{
    (void)state;
    for (int fast = 0; fast < 5; fast++) {
        training t;

        begin(&t, 2, 5, 0);
        for (int r = 0; r < 5; r++)
            t.shard_ns[r] = r == fast || r == (fast + 2) % 5 ? 10 * ms : 100 * ms;
        run(&t, 400);
        run(&t, 40); // perhaps after an attempt
        assert_int_equal(count_of(&t, fast), 1);
        assert_int_equal(count_of(&t, (fast + 2) % 5), 1);
        balancer_close(&t.b);
    }
}

/* Units of rows: no boundary costs more than another. */
static void rows_are_divided_by_speed_alone(void **state)
{
    static const struct {
        int units;
        int64_t factor;
        int counts[2];
    } cases[] = {{16, 7, {14, 2}}, {128, 2, {86, 42}}, {200, 3, {150, 50}}, {64, 50, {62, 2}}};
    training t;

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        begin_with(&t, cases[i].units, 2, 2, BALANCE_ONE_SUM);
        t.fixed_ns = ms / 100;
        t.unit_ns = 15 * ms; // of the sum
        assert_int_equal(run(&t, 30), 0);
        t.shard_ns[1] *= cases[i].factor;
        assert_true(run(&t, 20) >= 1);
        assert_in_range(count_of(&t, 0), cases[i].counts[0] - 1, cases[i].counts[0]);
        assert_int_equal(run(&t, 200), 0);
        for (int k = 0; k < 10; k++) {
            t.shard_ns[0] *= 100; // it is stopped for one step
            assert_false(step(&t));
            t.shard_ns[0] /= 100;
            assert_int_equal(run(&t, 10), 0);
        }
        t.shard_ns[1] /= cases[i].factor;
        assert_true(run(&t, 20) >= 1);
        assert_counts(&t, (int[]){cases[i].units / 2, cases[i].units / 2});
        balancer_close(&t.b);
    }
}

static void unknown_ranks_begin_as_the_slowest_one(void **state)
{
    const balance_speed speeds[] = {{10, 0, 0}, {20, 0, 0}, {0, 0, 0}};
    const balance_speed none[3] = {{0}};
    training t;

    (void)state;
    begin(&t, 16, 3, 0);
    balancer_begin(&t.b, speeds);
    assert_counts(&t, (int[]){8, 4, 4});
    balancer_close(&t.b);
    begin(&t, 16, 3, 0);
    balancer_begin(&t.b, none);
    assert_counts(&t, (int[]){6, 5, 5});
    balancer_close(&t.b);
}

/* --- random trainings --- */

static int64_t true_time(const training *t, const int *starts)
{
    int64_t longest = 0;

    for (int r = 0; r < t->b.ranks; r++) {
        const int64_t ns = (starts[r + 1] - starts[r]) * t->shard_ns[r];

        longest = ns > longest ? ns : longest;
    }
    return longest;
}

/* What the ranks can know: one without shards may have become faster. */
static int64_t known_ns(const training *t, int r)
{
    const int64_t published = t->speeds[r].shard_ns;

    if (count_of(t, r) > 0 || published == 0)
        return t->shard_ns[r];
    return published > t->shard_ns[r] ? published : t->shard_ns[r];
}

/* The shortest of all partitions, without the exchange. */
static int64_t ideal_time(const training *t)
{
    int64_t low = 0;
    int64_t high = INT64_MAX / 4;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        int64_t n = 0;

        for (int r = 0; r < t->b.ranks; r++)
            n += middle / known_ns(t, r) > t->b.least ? middle / known_ns(t, r) : t->b.least;
        if (n >= t->b.shards)
            high = middle;
        else
            low = middle;
    }
    for (int r = 0; r < t->b.ranks && t->b.least > 0; r++)
        high = t->shard_ns[r] > high ? t->shard_ns[r] : high;
    return high;
}

static void change_speeds(training *t, int phase)
{
    for (int r = 0; r < t->b.ranks; r++) {
        const uint64_t h = ls_hash3(t->seed, 1000 + (uint64_t)phase, (uint64_t)r);

        t->shard_ns[r] = ms * (int64_t)(10 + h % 40);
        if (h >> 32 & 1)
            t->shard_ns[r] *= 1 + (int64_t)(h >> 40) % 6;
    }
}

static void random_trainings_converge_and_stay(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        const int ranks = 1 + (int)(ls_hash3(seed, 0, 1) % RANKS_MOST);
        const int shards = ranks * (4 + (int)(ls_hash3(seed, 0, 2) % 30));
        training t;

        begin_with(&t, shards, ranks, (int)(seed % 2),
                   seed % 4 == 3 ? BALANCE_ONE_SUM : BALANCE_BY_PIECES);
        t.seed = seed;
        t.noise = (int)(ls_hash3(seed, 0, 3) % 6);
        t.outliers = (int)(ls_hash3(seed, 0, 4) % 30);
        t.unit_ns = (int64_t)(ls_hash3(seed, 0, 5) % 2) * ms / 20;
        t.once_ns = (int64_t)(ls_hash3(seed, 0, 6) % 3) * ms;
        for (int phase = 0; phase < 4; phase++) {
            int64_t ideal;
            int n_changes = 0;
            int n_long = 0;

            change_speeds(&t, phase);
            (void)run(&t, 60);
            ideal = ideal_time(&t);
            for (int i = 0; i < 50; i++) {
                n_changes += step(&t);
                n_long += true_time(&t, t.b.starts) > ideal / 100 * 110;
            }
            // Some are attempts with ranks that have no shards.
            if (n_long > 20 || n_changes > 3)
                fail_msg("seed %llu, phase %d: %d ranks, %d shards, noise %d %%: %d of 50 steps "
                         "are 10 %% too long, %d changes",
                         (unsigned long long)seed, phase, ranks, shards, t.noise, n_long,
                         n_changes);
        }
        balancer_close(&t.b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mean_is_of_the_middle_of_the_last_steps),
        cmocka_unit_test(a_rank_without_shards_asks_for_one_in_growing_intervals),
        cmocka_unit_test(no_other_partition_is_shorter),
        cmocka_unit_test(speeds_decide_within_20_steps),
        cmocka_unit_test(an_exchange_that_costs_more_has_fewer_pieces),
        cmocka_unit_test(returns_become_rare),
        cmocka_unit_test(one_long_step_changes_nothing),
        cmocka_unit_test(a_rank_that_is_50_times_slower_gets_nothing),
        cmocka_unit_test(each_rank_keeps_a_shard_where_it_must),
        cmocka_unit_test(fewer_shards_than_ranks_go_to_the_fast_ones),
        cmocka_unit_test(rows_are_divided_by_speed_alone),
        cmocka_unit_test(unknown_ranks_begin_as_the_slowest_one),
        cmocka_unit_test(random_trainings_converge_and_stay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
