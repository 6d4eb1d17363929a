/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_balance.c - runs with --balance whose ranks have given speeds, which change: the bits of
 * weights, losses and evaluations are those of one rank, whatever the partitions were.
 */
#include "base/alloc.h"
#include "base/report/json.h"
#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int n_shards_of_all(int n)
{
    int sum = 0;

    for (int i = 0; i < n; i++)
        sum += small_results[i].n_shards;
    return sum;
}

static const int64_t ms = 1000000;

/* Every second rank is three times slower; every 12 steps the others are. */
static int64_t alternating(int rank, int64_t step)
{
    return (step / 12 + rank) % 2 == 0 ? 10 * ms : 30 * ms;
}

/* The first rank is useless at first, later the last one of four or two. */
static int64_t one_useless(int rank, int64_t step)
{
    const bool is_useless = step < 30 ? rank == 0 : rank % 2 == 1;

    return is_useless ? 500 * ms : 10 * ms;
}

static int64_t equal(int rank, int64_t step)
{
    return (10 + (step + rank) % 2) * ms; // with noise
}

static small_job make_job(int64_t shards, int64_t (*shard_ns)(int rank, int64_t step))
{
    small_job job = {.flags = small_flags(small_dir),
                     .batch_norm = 1,
                     .dropout = 0.3,
                     .pad = 1,
                     .shard_ns = shard_ns};

    job.flags.device = "cpu_ref";
    job.flags.batch_size = 2;
    job.flags.clip_grad_norm = 0.5;
    job.flags.shards = shards;
    job.flags.balance = "";
    job.flags.epochs = 4;
    job.flags.print_freq = 7; // reports have counts of shards that were moved
    return job;
}

static void changing_partitions_have_the_bits_of_one_rank(void **state)
{
    const small_job job = make_job(8, alternating);
    const small_result alone = small_run_on(1, &job);

    (void)state;
    for (int n = 2; n <= 4; n++) {
        const small_result r = small_run_on(n, &job);

        small_assert_same(&r, &alone);
        assert_true(r.n_changes >= 2);
        assert_int_equal(n_shards_of_all(n), 8);
    }
}

static void ranks_without_shards_take_part(void **state)
{
    small_job job = make_job(8, one_useless);
    small_result alone;

    (void)state;
    job.flags.epochs = 8; // until rank 0 has asked for a shard again
    alone = small_run_on(1, &job);
    for (int n = 2; n <= 4; n += 2) {
        const small_result r = small_run_on(n, &job);

        small_assert_same(&r, &alone);
        assert_true(r.n_changes >= 2);
        assert_int_equal(small_results[n - 1].n_shards, 0);
        assert_true(small_results[0].n_shards > 0);
    }
}

static void fewer_shards_than_ranks_are_computed(void **state)
{
    small_job job = make_job(2, one_useless);
    small_result alone;
    small_result four;

    (void)state;
    job.flags.epochs = 1;
    alone = small_run_on(1, &job);
    four = small_run_on(4, &job);
    small_assert_same(&four, &alone);
    assert_int_equal(n_shards_of_all(4), 2);
}

/* A batch norm has running statistics; no evaluation sends them. */
static void a_save_has_the_buffers_of_the_last_step(void **state)
{
    small_job job = make_job(2, one_useless);
    char paths[2][128];

    (void)state;
    job.has_no_test_set = 1;
    job.flags.epochs = 1;
    for (int i = 0; i < 2; i++) {
        text_format(paths[i], sizeof(paths[i]), "%s/buffers%d.safetensors", small_dir, i);
        job.flags.save = paths[i];
        (void)small_run_on(i == 0 ? 1 : 3, &job);
    }
    assert_int_equal(small_results[0].n_shards, 0);
    small_assert_same_file(paths[0], paths[1]);
}

static void equal_ranks_keep_their_partition(void **state)
{
    const small_job job = make_job(8, equal);
    const small_result r = small_run_on(2, &job);

    (void)state;
    assert_int_equal(r.n_changes, 0);
    assert_int_equal(r.n_shards, 4);
}

static void other_flags_keep_the_bits(void **state)
{
    small_job jobs[] = {make_job(8, alternating), make_job(4, alternating),
                        make_job(8, alternating), make_job(8, alternating),
                        make_job(8, one_useless)};

    (void)state;
    jobs[0].flags.compress = "bf16";
    jobs[1].flags.accumulate = 2;
    jobs[2].flags.sync_bn = 1;
    jobs[2].is_one_call = 1;
    jobs[3].flags.precision = "fp16";
    jobs[3].flags.check_replicas = 3;
    jobs[3].flags.heal = 1;
    jobs[4].weight = 3;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        const small_result alone = small_run_on(1, &jobs[i]);
        const small_result three = small_run_on(3, &jobs[i]);

        small_assert_same(&three, &alone);
        assert_true(three.n_changes >= 1);
    }
}

/* The whole run is on one rank; the other one stops in a partition by speed. */
static void a_run_resumes_on_other_ranks(void **state)
{
    small_job job = make_job(8, alternating);
    const small_result whole = small_run_on(1, &job);
    small_result rest;

    (void)state;
    job.flags.save = path_in("balanced.safetensors");
    job.stop_at = 40;
    rest = small_run_on(3, &job);
    assert_int_equal(rest.state.step, 40);
    assert_true(rest.n_changes >= 1);
    job.stop_at = 0;
    job.flags.resume = "";
    rest = small_run_on(2, &job);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
    assert_true(rest.state.test_loss == whole.state.test_loss);
    assert_int_equal(rest.state.step, whole.state.step);
}

static void metrics_have_the_shards_of_each_rank(void **state)
{
    small_job job = make_job(8, alternating);
    char *text;
    int n_lines = 0;
    int n_unequal = 0;

    (void)state;
    job.flags.metrics = path_in("balanced.jsonl");
    (void)small_run_on(2, &job);
    text = text_of(job.flags.metrics);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        const json_value *counts;
        json_value *root;

        assert_int_equal(json_parse(line, strlen(line), "a line", &root), LS_OK);
        counts = json_get(root, "rank_shards");
        if (counts != NULL) {
            const int64_t first = json_as_int(json_at(counts, 0), -1);

            assert_int_equal(first + json_as_int(json_at(counts, 1), -1), 8);
            assert_int_equal(json_size(json_get(root, "rank_shard_s")), 2);
            n_lines++;
            n_unequal += first != 4;
        }
        json_free(root);
    }
    ls_free(text);
    assert_true(n_lines >= 8 && n_unequal >= 4);
}

static void assert_refused(int n, const small_job *job, const char *text)
{
    small_job copy = *job;
    bool has_text = false;

    assert_false(ls_test_ranks(&(ls_test_job){.n = n, .body = small_rank, .arg = &copy}, NULL));
    // The first rank that fails has the text; the others may still have been joining.
    for (int i = 0; i < n; i++)
        has_text = has_text || strstr(small_results[i].error, text) != NULL;
    assert_true(has_text);
}

static void flags_that_contradict_it_are_refused(void **state)
{
    small_job job = make_job(0, NULL);

    (void)state;
    assert_refused(1, &job, "--balance needs --shards V");
    job = make_job(2, NULL);
    job.flags.sync_bn = 1;
    assert_refused(3, &job,
                   "2 shards on 3 ranks: there must be at least as many shards as ranks "
                   "with sync_batch_norm (--sync-bn)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changing_partitions_have_the_bits_of_one_rank),
        cmocka_unit_test(ranks_without_shards_take_part),
        cmocka_unit_test(fewer_shards_than_ranks_are_computed),
        cmocka_unit_test(a_save_has_the_buffers_of_the_last_step),
        cmocka_unit_test(equal_ranks_keep_their_partition),
        cmocka_unit_test(other_flags_keep_the_bits),
        cmocka_unit_test(a_run_resumes_on_other_ranks),
        cmocka_unit_test(metrics_have_the_shards_of_each_rank),
        cmocka_unit_test(flags_that_contradict_it_are_refused),
    };

    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
