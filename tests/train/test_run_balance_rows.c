/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_balance_rows.c - runs with --balance rows, whose ranks have given speeds or rows that
 * take longer: the division follows the speed, the batches of all ranks together stay, and so does
 * what is learned, but for rounding.
 */
#include "base/alloc.h"
#include "base/report/json.h"
#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 8, TEXT_BYTES = 8192 }; /* rows of a rank on average */

/* So long that the true times of the rest of a step do not matter. */
static const int64_t row_ns = 1000000000;

static int64_t half_as_fast(int rank, int64_t step)
{
    (void)step;
    return (1 + rank) * row_ns;
}

static int64_t five_to_three(int rank, int64_t step)
{
    (void)step;
    return rank == 0 ? 3 * row_ns : 5 * row_ns;
}

static int64_t seven_to_one(int rank, int64_t step)
{
    (void)step;
    return rank == 0 ? row_ns : 7 * row_ns;
}

static int64_t useless(int rank, int64_t step)
{
    (void)step;
    return rank == 0 ? 1000 * row_ns : row_ns;
}

/* Every second rank is three times slower; every 12 steps the others are. */
static int64_t alternating(int rank, int64_t step)
{
    return (step / 12 + rank) % 2 == 0 ? row_ns : 3 * row_ns;
}

static int64_t equal(int rank, int64_t step)
{
    return row_ns + (step + rank) % 2; // with noise
}

/* A convex problem: rounding does not grow. */
static small_job make_job(int64_t (*shard_ns)(int rank, int64_t step))
{
    small_job job = {.flags = small_flags(small_dir), .shard_ns = shard_ns};

    job.flags.device = "cpu_ref";
    job.flags.batch_size = BATCH;
    job.flags.balance = "rows";
    job.flags.epochs = 4;
    job.flags.print_freq = 7;
    return job;
}

/* The same batches in one process. */
static small_result run_alone(const small_job *job, int ranks)
{
    small_job alone = *job;

    alone.flags.balance = NULL;
    alone.shard_ns = NULL;
    alone.flags.batch_size *= ranks;
    return small_run(&alone);
}

static void assert_near(const small_result *a, const small_result *b, double most)
{
    for (size_t i = 0; i < SMALL_WEIGHTS; i++)
        if (!((double)a->weights[i] - (double)b->weights[i] <= most &&
              (double)b->weights[i] - (double)a->weights[i] <= most))
            fail_msg("weight %zu is %g, not %g", i, (double)a->weights[i], (double)b->weights[i]);
    assert_int_equal(a->state.step, b->state.step);
    assert_true(a->state.test_loss - b->state.test_loss <= most &&
                b->state.test_loss - a->state.test_loss <= most);
}

/* By all ranks of the last run. */
static int n_seen(int ranks, int sample)
{
    int n = 0;

    for (int r = 0; r < ranks; r++)
        n += small_results[r].n_seen[sample];
    return n;
}

static void gradients_are_those_of_the_whole_batch(void **state)
{
    static const struct {
        int64_t (*shard_ns)(int rank, int64_t step);
        int rows[2];
    } cases[] = {{five_to_three, {10, 6}}, {seven_to_one, {14, 2}}, {useless, {2, 14}}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const small_job job = make_job(cases[i].shard_ns);
        const small_result r = small_run_on(2, &job);
        const small_result alone = run_alone(&job, 2);

        assert_int_equal(alone.status, LS_OK);
        assert_int_equal(small_results[0].n_rows, cases[i].rows[0]);
        assert_int_equal(small_results[1].n_rows, cases[i].rows[1]);
        assert_near(&r, &alone, 1e-4);
    }
}

/* 384 rows in 128 units. An epoch is one short batch. */
static void large_batches_are_divided_in_units(void **state)
{
    small_job job = make_job(half_as_fast);

    (void)state;
    job.flags.batch_size = 192;
    job.flags.epochs = 30;
    (void)small_run_on(2, &job);
    assert_int_equal(small_results[0].n_rows % 3, 0);
    assert_in_range(small_results[0].n_rows, 252, 258);
    assert_int_equal(small_results[0].n_rows + small_results[1].n_rows, 384);
}

static void each_sample_is_seen_as_often_as_without_it(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) {
        small_job job = make_job(alternating);
        int seen[SMALL_TRAIN];
        small_result r;

        job.flags.balance = NULL;
        job.shard_ns = NULL;
        (void)small_run_on(n, &job);
        for (int i = 0; i < SMALL_TRAIN; i++)
            seen[i] = n_seen(n, i);
        job = make_job(alternating);
        r = small_run_on(n, &job);
        assert_true(r.n_changes >= 2);
        for (int i = 0; i < SMALL_TRAIN; i++) {
            assert_int_equal(n_seen(n, i), seen[i]);
            if (SMALL_TRAIN % n == 0) // no rank's samples are filled up
                assert_int_equal(seen[i], 4);
        }
    }
}

static void equal_ranks_have_the_bits_of_a_run_without_it(void **state)
{
    small_job job = make_job(equal);
    small_result balanced;
    small_result plain;

    (void)state;
    job.batch_norm = 1;
    job.dropout = 0.3;
    job.pad = 1;
    for (int n = 1; n <= 3; n++) {
        job.flags.balance = "rows";
        job.shard_ns = equal;
        balanced = small_run_on(n, &job);
        assert_int_equal(balanced.n_changes, 0);
        job.flags.balance = NULL;
        job.shard_ns = NULL;
        plain = small_run_on(n, &job);
        small_assert_same(&balanced, &plain);
    }
}

/* Measured, not given. */
static void a_rank_whose_rows_take_longer_gets_fewer(void **state)
{
    small_job job = make_job(NULL);

    (void)state;
    job.row_us[0] = 500;
    job.row_us[1] = 1500;
    job.stop_when_divided = 1;
    job.flags.epochs = 100;
    (void)small_run_on(2, &job);
    assert_true(small_results[0].state.stopping);
    assert_true(2 * small_results[0].n_rows >= 3 * small_results[1].n_rows);
    assert_int_equal(small_results[0].n_rows + small_results[1].n_rows, 2 * BATCH);
}

static void other_flags_go_with_it(void **state)
{
    static small_job jobs[8]; // large
    static small_result alone;
    static small_result two;

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        jobs[i] = make_job(alternating);
    jobs[0].flags.accumulate = 2;
    jobs[1].weight = 3;
    jobs[2].flags.drop_last = 1;
    jobs[3].flags.check_replicas = 3;
    jobs[3].flags.heal = 1;
    jobs[4].batch_norm = 1;
    jobs[4].flags.sync_bn = 1;
    jobs[5].flags.compress = "bf16";
    jobs[6].flags.compress = "powersgd:1";
    jobs[7].flags.precision = "fp16";
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        two = small_run_on(2, &jobs[i]);
        assert_true(two.n_changes >= 1);
        if (i >= 5) // rounded
            continue;
        alone = run_alone(&jobs[i], 2);
        assert_near(&two, &alone, i == 4 ? 1e-2 : 1e-4);
    }
}

/* It needs two rows where a row has one value of a channel. Last batches have 6, 10 and 6 rows. */
static void no_rank_has_too_few_rows_for_a_batch_norm(void **state)
{
    static const int64_t batches[] = {4, 5, 7};
    small_job job = make_job(useless);

    (void)state;
    job.flat_batch_norm = 1;
    for (size_t i = 0; i < LS_COUNT_OF(batches); i++) {
        job.flags.batch_size = batches[i];
        (void)small_run_on(2, &job);
        assert_int_equal(small_results[0].n_rows, 2);
    }
}

/* The run that stops is divided, the rest begins with equal numbers. */
static void a_run_resumes_within_an_epoch(void **state)
{
    small_job job = make_job(five_to_three);
    const small_result whole = small_run_on(2, &job);
    int seen[SMALL_TRAIN];
    small_result r;

    (void)state;
    job.flags.save = path_in("rows.safetensors");
    job.stop_at = whole.state.step / 2 + 3;
    r = small_run_on(2, &job);
    assert_int_equal(r.state.step, job.stop_at);
    assert_true(r.n_changes >= 1);
    for (int i = 0; i < SMALL_TRAIN; i++)
        seen[i] = n_seen(2, i);
    job.stop_at = 0;
    job.flags.resume = "";
    r = small_run_on(2, &job);
    assert_near(&r, &whole, 1e-4);
    for (int i = 0; i < SMALL_TRAIN; i++)
        assert_int_equal(seen[i] + n_seen(2, i), 4);
}

static void a_run_resumes_on_other_ranks_and_without_it(void **state)
{
    small_job job = make_job(five_to_three);
    const small_result whole = small_run_on(2, &job);
    int seen[SMALL_TRAIN];

    (void)state;
    for (int i = 0; i < 2; i++) {
        job.flags.save = path_in("others.safetensors");
        job.flags.resume = NULL;
        job.flags.balance = "rows";
        job.shard_ns = five_to_three;
        job.stop_at = whole.state.step / 2 + 3;
        (void)small_run_on(2, &job);
        for (int k = 0; k < SMALL_TRAIN; k++)
            seen[k] = n_seen(2, k);
        job.stop_at = 0;
        job.flags.resume = "";
        job.flags.balance = i == 0 ? "rows" : NULL;
        job.shard_ns = i == 0 ? five_to_three : NULL;
        assert_int_equal(small_run_on(i == 0 ? 3 : 1, &job).status, LS_OK);
        for (int k = 0; k < SMALL_TRAIN; k++)
            assert_in_range(seen[k] + n_seen(i == 0 ? 3 : 1, k), 4, 7); // some are filled up
    }
}

static void metrics_have_the_rows_of_each_rank(void **state)
{
    small_job job = make_job(alternating);
    char *text;
    int n_lines = 0;
    int n_unequal = 0;

    (void)state;
    job.flags.metrics = path_in("rows.jsonl");
    (void)small_run_on(2, &job);
    text = text_of(job.flags.metrics);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        const json_value *counts;
        json_value *root;

        assert_int_equal(json_parse(line, strlen(line), "a line", &root), LS_OK);
        assert_null(json_get(root, "rank_shards"));
        counts = json_get(root, "rank_rows");
        if (counts != NULL) {
            const int64_t first = json_as_int(json_at(counts, 0), -1);

            assert_int_equal(first + json_as_int(json_at(counts, 1), -1), 2 * BATCH);
            assert_int_equal(json_size(json_get(root, "rank_row_s")), 2);
            n_lines++;
            n_unequal += first != BATCH;
        }
        json_free(root);
    }
    ls_free(text);
    assert_true(n_lines >= 8 && n_unequal >= 4);
}

static char *printed; /* by rank 0, shared */

static ls_status body_printed(const ls_test_rank *self, void *arg)
{
    small_job job = *(const small_job *)arg;
    ls_status st;

    LS_TRY(ls_test_init(self, &job.comm));
    st = self->rank == 0 ? small_run_captured(&job, STDOUT_FILENO, printed, TEXT_BYTES).status
                         : small_run(&job).status;
    ls_comm_destroy(job.comm);
    return st;
}

static void a_run_prints_its_partition(void **state)
{
    static const char *const texts[] = {
        ": rows of the ranks from now on: 10 6\n", "--balance: 1 change of the partition\n",
        "  rank 0: 10 of 16 rows, 3000.0000 ms for a row, waited ",
        "  rank 1: 6 of 16 rows, 5000.0000 ms for a row, waited ",
        "no step capsule: with --balance rows the batches of a step depend on measured times"};
    small_job job = make_job(five_to_three);

    (void)state;
    job.flags.capsule_step = 30;
    job.flags.capsule = path_in("rows.capsule");
    printed = ls_test_shared(TEXT_BYTES);
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_printed, .arg = &job}, NULL));
    for (size_t i = 0; i < LS_COUNT_OF(texts); i++)
        if (strstr(printed, texts[i]) == NULL)
            fail_msg("\"%s\" is not in: %s", texts[i], printed);
}

static void flags_that_contradict_it_are_refused(void **state)
{
    small_job jobs[5];
    static const char *const texts[] = {
        "--balance foo: choose one of shards, rows", "--balance rows does not go with --shards",
        "--sync-every does not go with --balance", "--audit needs --shards V",
        "--balance rows in a program with plain_mean"};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        jobs[i] = make_job(NULL);
    jobs[0].flags.balance = "foo";
    jobs[1].flags.shards = 4;
    jobs[2].flags.sync_every = 4;
    jobs[3].flags.audit = 2;
    jobs[4].plain_mean = 1;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        small_expect_error(1, &jobs[i], texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_the_whole_batch),
        cmocka_unit_test(large_batches_are_divided_in_units),
        cmocka_unit_test(each_sample_is_seen_as_often_as_without_it),
        cmocka_unit_test(equal_ranks_have_the_bits_of_a_run_without_it),
        cmocka_unit_test(a_rank_whose_rows_take_longer_gets_fewer),
        cmocka_unit_test(other_flags_go_with_it),
        cmocka_unit_test(no_rank_has_too_few_rows_for_a_batch_norm),
        cmocka_unit_test(a_run_resumes_within_an_epoch),
        cmocka_unit_test(a_run_resumes_on_other_ranks_and_without_it),
        cmocka_unit_test(metrics_have_the_rows_of_each_rank),
        cmocka_unit_test(a_run_prints_its_partition),
        cmocka_unit_test(flags_that_contradict_it_are_refused),
    };

    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
