/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_islands.c - runs with --sync-every and --islands: one island is DDP but for the outer
 * optimizer, the same bits over all transports and after an interruption, stop signals, failures,
 * output, and what is refused. tests/ddp/test_local_ranks.c compares the numbers of a loop.
 */
#include "base/alloc.h"
#include "base/file.h"
#include "train/small_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static small_job make_job(const char *islands, int64_t every)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .dropout = 0.3, .pad = 1};

    job.flags.batch_size = 7;
    job.flags.clip_grad_norm = 0.5;
    job.flags.islands = islands;
    job.flags.sync_every = every;
    job.flags.optimizer = "adamw";
    job.flags.lr = 0.01;
    job.flags.epochs = 2;
    return job;
}

/* Whose rounding differs where parameters are the last mean less their difference from it. */
static void one_island_without_momentum_is_ddp(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result ddp;
    small_result local;

    (void)state;
    ddp = small_run_on(2, &job);
    job.flags.sync_every = 3;
    job.flags.islands = "1";
    job.flags.outer_lr = 1;
    job.flags.outer_momentum = -1;
    local = small_run_on(2, &job);
    for (int i = 0; i < SMALL_WEIGHTS; i++)
        assert_float_equal(local.weights[i], ddp.weights[i], 2e-5);
    assert_int_equal(local.state.step, ddp.state.step);
    assert_float_equal(local.state.test_loss, ddp.state.test_loss, 2e-5);
}

static void as_many_islands_as_ranks_are_the_ranks(void **state)
{
    small_job job = make_job(NULL, 3);
    const small_result ranks = small_run_on(3, &job);
    small_result islands;

    (void)state;
    job.flags.islands = "3";
    islands = small_run_on(3, &job);
    small_assert_same(&islands, &ranks);
}

/* What is averaged, how it is sent, and the batches of a step. */
static const struct {
    int n;
    const char *islands;
    int64_t fragments, delay, accumulate;
    const char *compress;
    int64_t steps; /* done when the run is interrupted: between two means, or while one is sent */
} kinds[] = {
    {4, "2", 0, 0, 0, NULL, 6},   {3, "2", 2, 1, 0, "int4", 6}, {4, "2", 2, 2, 0, "bf16", 7},
    {5, "2", 0, 3, 2, "int8", 5}, {4, "1", 0, 3, 0, NULL, 5},   {4, "host", 2, 0, 0, "fp16", 5},
};

static small_job job_of(size_t kind)
{
    small_job job = make_job(kinds[kind].islands, 4);

    job.flags.sync_fragments = kinds[kind].fragments;
    job.flags.sync_delay = kinds[kind].delay;
    job.flags.accumulate = kinds[kind].accumulate;
    job.flags.compress = kinds[kind].compress;
    return job;
}

static void transports_do_not_change_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(kinds); i++) {
        const small_job job = job_of(i);
        small_result of[2];

        for (int k = 0; k < 2; k++) {
            assert_int_equal(setenv("LOCKSTEP_TRANSPORT", k == 0 ? "shm" : "tcp", 1), 0);
            of[k] = small_run_on(kinds[i].n, &job);
        }
        assert_int_equal(unsetenv("LOCKSTEP_TRANSPORT"), 0);
        small_assert_same(&of[1], &of[0]);
    }
}

static void a_run_resumes_with_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(kinds); i++) {
        small_job job = job_of(i);
        small_result whole;
        small_result rest;

        job.flags.save = path_in("whole.safetensors");
        whole = small_run_on(kinds[i].n, &job);
        job.flags.save = path_in("rest.safetensors");
        job.flags.steps = kinds[i].steps;
        (void)small_run_on(kinds[i].n, &job);
        job.flags.steps = 0;
        job.flags.resume = "";
        rest = small_run_on(kinds[i].n, &job);
        assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
        assert_true(rest.state.test_loss == whole.state.test_loss);
        assert_int_equal(rest.state.step, whole.state.step);
        small_assert_same_file(path_in("rest.safetensors"), path_in("whole.safetensors"));
    }
}

/* Islands may have other numbers of ranks than before, as those of shards have. */
static void a_state_fits_the_same_number_of_islands_only(void **state)
{
    static small_result before;
    small_job job = make_job("2", 3);

    (void)state;
    job.flags.steps = 4;
    job.flags.save = path_in("two.safetensors");
    before = small_run_on(4, &job);
    job.flags.resume = "";
    (void)small_run_on(4, &job); // has no steps left
    assert_memory_equal(small_results[0].weights, before.weights, sizeof(before.weights));
    job.flags.save = NULL;
    job.flags.resume = path_in("two.safetensors");
    job.flags.steps = 0;
    (void)small_run_on(3, &job);
    job.flags.islands = NULL;
    (void)small_run_on(2, &job);
    job.flags.islands = "1";
    small_expect_error(2, &job,
                       "has 2 islands, this run 1: resume with --shards 2, which any number of "
                       "ranks up to it can have, or --islands 2");
}

/* The ranks of its island know of the signal after the step, all others after the next mean. */
static void ranks_stop_together(void **state)
{
    small_job job = make_job("2", 3);

    (void)state;
    for (int delay = 0; delay <= 2; delay += 2) {
        job.flags.sync_delay = delay;
        for (job.stop_at = 5; job.stop_at <= 6; job.stop_at++) {
            const small_result r = small_run_on(4, &job);

            assert_int_equal(r.state.step, delay == 0 ? 6 : job.stop_at == 5 ? 5 : 8);
            assert_true(r.state.stopping);
        }
    }
}

/* --- failures --- */

static ls_status killed_rank(const ls_test_rank *self, void *arg)
{
    small_job job = *(const small_job *)arg;

    if (self->rank != self->size - 1)
        job.kill_at = job.exit_at = job.leave_at = 0;
    return small_rank(self, &job);
}

/* Of the last rank of the last island, while a mean is sent. */
static void a_failure_in_an_island_ends_the_run_on_all_ranks(void **state)
{
    static small_job jobs[4];

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        jobs[i] = make_job("2", 4);
        jobs[i].flags.sync_delay = 3;
        jobs[i].flags.compress = i % 2 == 0 ? NULL : "int4";
    }
    jobs[0].kill_at = 6;
    jobs[1].exit_at = 6;
    jobs[2].leave_at = 6;
    jobs[3].spoil_at = 5;
    jobs[3].spoil_by = (double)NAN;
    jobs[3].flags.check_nan = 1;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        static ls_test_outcome outcomes[4];

        memset(small_results, 0, 4 * sizeof(*small_results));
        assert_false(
            ls_test_ranks(&(ls_test_job){.n = 4, .body = killed_rank, .arg = &jobs[i]}, outcomes));
        for (int r = 0; r < 4; r++) {
            assert_false(outcomes[r].was_killed);
            if (r < 3 && strstr(small_results[r].error, "rank 3") == NULL)
                fail_msg("case %d, rank %d: \"%s\" does not name rank 3", (int)i, r,
                         small_results[r].error);
        }
    }
}

/* --- output --- */

static char *output; /* of rank 0, in shared memory */

enum { OUTPUT_BYTES = 16384 };

static ls_status shown_rank(const ls_test_rank *self, void *arg)
{
    small_job job = *(const small_job *)arg;
    small_result r;

    if (self->rank > 0)
        return small_rank(self, arg);
    LS_TRY(ls_test_init(self, &job.comm));
    r = small_run_captured(&job, STDOUT_FILENO, output, OUTPUT_BYTES);
    ls_comm_destroy(job.comm);
    return r.status;
}

static void output_and_metrics_are_those_of_all_ranks(void **state)
{
    small_job job = make_job("2", 3);
    char *metrics;
    size_t n;

    (void)state;
    job.flags.metrics = path_in("islands.jsonl");
    assert_true(ls_test_ranks(&(ls_test_job){.n = 3, .body = shown_rank, .arg = &job}, NULL));
    assert_non_null(strstr(output, "2 islands, ranks of each: 2 1\n"));
    assert_non_null(strstr(output, "epochs on 3 ranks"));
    assert_int_equal(file_read(path_in("islands.jsonl"), 1 << 20, &metrics, &n), LS_OK);
    assert_non_null(strstr(metrics, "\"ranks\":3"));
    ls_free(metrics);
}

/* --- flags --- */

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *islands;
        int64_t every, shards;
        const char *text;
    } cases[] = {
        {"2", 3, 0, "--islands 2 on 1 rank: an island has at least one"},
        {"0", 3, 0, "--islands 0: must be a number of islands, at least 1, or host"},
        {"-1", 3, 0, "--islands -1: must be a number"},
        {"two", 3, 0, "--islands two: must be a number"},
        {"2x", 3, 0, "--islands 2x: must be a number"},
        {"", 3, 0, "--islands : must be a number"},
        {"hosts", 3, 0, "--islands hosts: must be a number"},
        {"9999999", 3, 0, "--islands 9999999: must be a number"},
        {"2", 0, 0, "--islands needs --sync-every H"},
        {"host", 0, 0, "--islands needs --sync-every H"},
        {"2", 3, 4, "--islands 2 does not go with --shards 4, whose shards are the islands"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        small_job job = make_job(cases[i].islands, cases[i].every);

        job.flags.shards = cases[i].shards;
        small_expect_error(1, &job, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_island_without_momentum_is_ddp),
        cmocka_unit_test(as_many_islands_as_ranks_are_the_ranks),
        cmocka_unit_test(transports_do_not_change_bits),
        cmocka_unit_test(a_run_resumes_with_the_same_bits),
        cmocka_unit_test(a_state_fits_the_same_number_of_islands_only),
        cmocka_unit_test(ranks_stop_together),
        cmocka_unit_test(a_failure_in_an_island_ends_the_run_on_all_ranks),
        cmocka_unit_test(output_and_metrics_are_those_of_all_ranks),
        cmocka_unit_test(what_cannot_be_is_refused),
    };

    output = ls_test_shared(OUTPUT_BYTES);
    if (output == NULL)
        return 1;
    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
