/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_local.c - runs with --sync-every: the same bits of weights, losses, evaluations and
 * files on any number of ranks, with and without an interruption; what does not go together. The
 * network has a convolution, a batch norm and a dropout, the images are padded and cropped at
 * random.
 */
#include <lockstep/checkpoint.h>

#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static small_job make_job(int64_t islands, int64_t every)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .dropout = 0.3, .pad = 1};

    job.flags.batch_size = 7;
    job.flags.clip_grad_norm = 0.5;
    job.flags.shards = islands;
    job.flags.sync_every = every;
    job.flags.optimizer = "adamw";
    job.flags.lr = 0.01;
    job.flags.epochs = 2;
    return job;
}

static void any_number_of_ranks_gives_the_same_bits(void **state)
{
    (void)state;
    for (int islands = 4; islands <= 5; islands++) {
        const small_job job = make_job(islands, 3);
        const small_result alone = small_run_on(1, &job);

        for (int n = 2; n <= islands; n++) {
            const small_result r = small_run_on(n, &job);

            small_assert_same(&r, &alone);
        }
    }
}

static void fragments_and_fewer_bits_keep_the_bits(void **state)
{
    static small_result exact;
    const small_job exact_job = make_job(5, 4);

    (void)state;
    exact = small_run_on(2, &exact_job);
    for (int i = 0; i < 7; i++) {
        static const char *const types[] = {NULL, "bf16", "fp16", "int8", "int4", NULL, "int4"};
        small_job job = exact_job;
        small_result alone;

        job.flags.sync_fragments = i == 1 || i == 5 ? 0 : i == 6 ? 2 : 3;
        job.flags.sync_delay = i == 5 ? 3 : i == 6 ? 2 : 0;
        job.flags.compress = types[i];
        alone = small_run_on(1, &job);
        assert_memory_not_equal(alone.weights, exact.weights, sizeof(exact.weights));
        for (int n = 2; n <= 5; n += 3) {
            const small_result r = small_run_on(n, &job);

            small_assert_same(&r, &alone);
        }
    }
}

static void a_rank_is_an_island_without_shards(void **state)
{
    small_job job = make_job(4, 3);
    const small_result shards = small_run_on(2, &job);
    small_result ranks;

    (void)state;
    job.flags.shards = 0;
    ranks = small_run_on(4, &job);
    small_assert_same(&shards, &ranks);
}

/* Plain SGD, whose steps add up: a mean of parameters after each step is a mean of gradients. */
static void a_mean_of_parameters_in_each_step_is_ddp(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result ddp;
    small_result local;

    (void)state;
    job.flags.momentum = 0;
    ddp = small_run_on(2, &job);
    job.flags.sync_every = 1;
    job.flags.outer_lr = 1;
    job.flags.outer_momentum = -1;
    local = small_run_on(2, &job);
    for (int i = 0; i < SMALL_WEIGHTS; i++)
        assert_float_equal(local.weights[i], ddp.weights[i], 2e-5);
    assert_int_equal(local.state.step, ddp.state.step);
    assert_float_equal(local.state.test_loss, ddp.state.test_loss, 2e-5);
}

static void weights_and_accumulated_batches_work(void **state)
{
    small_job job = make_job(0, 2);
    small_result plain;
    small_result weighed;

    (void)state;
    job.flags.accumulate = 2;
    plain = small_run_on(2, &job);
    assert_int_equal(plain.status, LS_OK);
    job.weight = 3; // of each row
    weighed = small_run_on(2, &job);
    for (int i = 0; i < SMALL_WEIGHTS; i++)
        assert_float_equal(weighed.weights[i], plain.weights[i], 1e-3);
}

/* Whether a state of step `step` has a mean that is not applied yet. */
static bool has_flight(const char *path, int64_t step)
{
    int64_t flight[4] = {0};
    const ls_named item = {.name = "outer.flight", .bytes = flight, .n_bytes = sizeof(flight)};
    ls_checkpoint *file;

    assert_int_equal(ls_checkpoint_open(path, &file), LS_OK);
    assert_int_equal(ls_checkpoint_load(file, &item, 1, LS_LOAD_SUBSET), LS_OK);
    ls_checkpoint_close(file);
    return flight[1] >= 0 && flight[2] <= step && flight[3] > step;
}

/* The state is saved within a round and within an epoch, with a delay while a mean is sent. */
static void a_run_resumes_on_other_ranks_with_the_same_bits(void **state)
{
    static const struct {
        int fragments, delay, rest; /* steps of the last, unfinished round */
    } cases[] = {{0, 0, 3}, {2, 0, 3}, {2, 1, 2}, {2, 2, 3}, {0, 3, 1}};

    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        small_job job = make_job(5, 4);
        small_result whole;
        small_result rest;

        (void)state;
        job.flags.sync_fragments = cases[i].fragments;
        job.flags.sync_delay = cases[i].delay;
        job.flags.compress = cases[i].fragments == 0 ? NULL : "int4";
        job.flags.save = path_in("whole.safetensors");
        whole = small_run_on(1, &job);
        job.flags.save = path_in("rest.safetensors");
        job.flags.steps = whole.state.step / 8 * 4 + cases[i].rest;
        (void)small_run_on(3, &job);
        if (cases[i].delay > 0)
            assert_true(has_flight(path_in("rest.resume.safetensors"), job.flags.steps));
        job.flags.steps = 0;
        job.flags.resume = "";
        rest = small_run_on(cases[i].fragments == 0 ? 5 : 2, &job);
        assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
        assert_true(rest.state.test_loss == whole.state.test_loss);
        assert_int_equal(rest.state.step, whole.state.step);
        small_assert_same_file(path_in("rest.safetensors"), path_in("whole.safetensors"));
    }
}

/* One rank stops at once; if one of several is asked, all stop after the next mean. */
static void ranks_stop_together(void **state)
{
    for (int n = 1; n <= 2; n++) {
        small_job job = make_job(0, 3);
        small_result r;

        (void)state;
        job.stop_at = 5;
        r = small_run_on(n, &job);
        assert_int_equal(r.state.step, n == 1 ? 5 : 6);
        assert_true(r.state.stopping);
    }
}

/* With a delay a rank that is asked does not begin: the other one sends a mean meanwhile. */
static void ranks_stop_where_a_delayed_mean_is_applied(void **state)
{
    small_job job = make_job(0, 4);

    (void)state;
    job.flags.sync_delay = 2;
    for (job.stop_at = 2; job.stop_at <= 5; job.stop_at++) {
        const small_result r = small_run_on(2, &job);

        assert_int_equal(r.state.step, 6);
        assert_true(r.state.stopping);
    }
}

/* Rank 0 is asked a step before rank 1. */
static ls_status stopping_rank(const ls_test_rank *self, void *arg)
{
    small_job job = *(const small_job *)arg;

    LS_TRY(ls_test_init(self, &job.comm));
    job.stop_at += self->rank;
    small_results[self->rank] = small_run(&job);
    ls_comm_destroy(job.comm);
    return small_results[self->rank].status;
}

/* Long before the next mean; a resumed run has the bits of one that was not stopped. */
static void ranks_that_are_all_stopped_do_not_wait_for_a_mean(void **state)
{
    small_job job = make_job(2, 1000);
    const small_result whole = small_run_on(2, &job);
    small_result rest;

    (void)state;
    job.flags.save = path_in("stopped.safetensors");
    job.stop_at = 4;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = stopping_rank, .arg = &job}, NULL));
    for (int i = 0; i < 2; i++) {
        assert_true(small_results[i].state.stopping);
        assert_int_equal(small_results[i].state.step, 5);
    }
    job.stop_at = 0;
    job.flags.resume = "";
    rest = small_run_on(1, &job);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
}

/* Both names have the same length. */
static void rename_in_file(const char *path, const char *from, const char *to)
{
    replace_in_file(path, from, to, strlen(from));
}

/* The first fragment, sent after step 2, becomes the seventh. */
static void damage_flight(const char *path)
{
    const int64_t flight[] = {2, 0, 2, 4};
    const int64_t damaged[] = {2, 7, 2, 4};

    replace_in_file(path, flight, damaged, sizeof(flight));
}

static void states_that_do_not_fit_are_refused(void **state)
{
    small_job job = make_job(2, 3);

    (void)state;
    job.flags.steps = 4;
    job.flags.save = path_in("two.safetensors");
    (void)small_run_on(2, &job);
    job.flags.resume = "";
    job.flags.steps = 6;
    job.flags.sync_every = 0;
    small_expect_error(2, &job, "the outer optimizer and 2 islands of --sync-every");
    job.flags.sync_every = 3;
    job.flags.sync_delay = 1;
    small_expect_error(2, &job, "saved with --sync-delay 0, this run has 1: resume without it");
    job.flags.sync_delay = 0;
    job.flags.shards = 3;
    small_expect_error(1, &job, "has 2 islands, this run 3: resume with --shards 2");
    job.flags.shards = 2;
    rename_in_file(path_in("two.resume.safetensors"), "outer.fc.bias.momentum_buffer\":{",
                   "outer.fc.bias.momentum_other!\":{"); // the tensor, not its digest
    job.flags.no_verify = 1;                             // the digests would name it first
    small_expect_error(2, &job, "outer.fc.bias.momentum_buffer");
}

static void a_mean_under_way_needs_its_fragments(void **state)
{
    small_job job = make_job(2, 4);

    (void)state;
    job.flags.sync_fragments = 2;
    job.flags.sync_delay = 2;
    job.flags.steps = 3;
    job.flags.save = path_in("flight.safetensors");
    (void)small_run_on(2, &job);
    job.flags.resume = "";
    job.flags.steps = 6;
    job.flags.sync_delay = 0;
    small_expect_error(2, &job, "saved with --sync-delay 2, this run has 0: resume with it");
    job.flags.sync_delay = 1;
    job.flags.sync_fragments = 3;
    small_expect_error(2, &job,
                       "of one of 2 fragments that is not applied yet: resume with "
                       "--sync-fragments 2");
    damage_flight(path_in("flight.resume.safetensors"));
    job.flags.sync_fragments = 2;
    job.flags.no_verify = 1;
    small_expect_error(2, &job, "outer.flight of the state is damaged: fragment 7 of 2");
}

/* As post-local SGD begins. */
static void islands_begin_with_a_state_of_ddp(void **state)
{
    small_job job = make_job(4, 0);
    small_result one;
    small_result two;

    (void)state;
    job.flags.steps = 4;
    job.flags.save = path_in("ddp.safetensors");
    (void)small_run_on(2, &job);
    job.flags.steps = 0;
    job.flags.sync_every = 3;
    job.flags.resume = path_in("ddp.safetensors");
    job.flags.save = NULL;
    one = small_run_on(1, &job);
    two = small_run_on(4, &job);
    small_assert_same(&one, &two);
}

static void an_evaluation_sends_no_differences(void **state)
{
    small_job job = make_job(2, 3);

    (void)state;
    job.flags.compress = "int4";
    job.flags.save = path_in("evaluated.safetensors");
    job.flags.steps = 3;
    (void)small_run_on(2, &job);
    job.flags.save = NULL;
    job.flags.init = path_in("evaluated.safetensors");
    job.flags.evaluate = 1;
    assert_int_equal(small_run_on(2, &job).status, LS_OK);
}

static void what_does_not_go_together_is_refused(void **state)
{
    static small_job jobs[11];
    static const char *const texts[] = {"--balance",
                                        "--sync-bn",
                                        "--check-replicas",
                                        "--precision fp16",
                                        "--accumulate and --shards",
                                        "--sync-fragments 4: must be at most --sync-every 3",
                                        "--outer-lr and --outer-momentum need --sync-every",
                                        "--sync-fragments needs --sync-every",
                                        "--compress int4 needs --sync-every",
                                        "--sync-delay needs --sync-every",
                                        "--sync-delay 2: must be at most --sync-every"};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        jobs[i] = make_job(2, 3);
    jobs[0].flags.balance = "";
    jobs[1].flags.sync_bn = 1;
    jobs[2].flags.check_replicas = 1;
    jobs[3].flags.precision = "fp16";
    jobs[4].flags.accumulate = 2;
    jobs[5].flags.sync_fragments = 4;
    jobs[6].flags.sync_every = 0;
    jobs[6].flags.outer_lr = 1;
    jobs[7].flags.sync_every = 0;
    jobs[7].flags.sync_fragments = 2;
    jobs[8].flags.sync_every = 0;
    jobs[8].flags.compress = "int4";
    jobs[9].flags.sync_every = 0;
    jobs[9].flags.sync_delay = 1;
    jobs[10].flags.sync_fragments = 2;
    jobs[10].flags.sync_delay = 2;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        small_expect_error(1, &jobs[i], texts[i]);
}

static void a_card_is_refused(void **state)
{
    small_job job = make_job(2, 3);

    (void)state;
    job.flags.device = "cudahost";
    small_expect_error(1, &job, "--sync-every: ls_local_sgd_create: local SGD on device cudahost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(fragments_and_fewer_bits_keep_the_bits),
        cmocka_unit_test(a_rank_is_an_island_without_shards),
        cmocka_unit_test(a_mean_of_parameters_in_each_step_is_ddp),
        cmocka_unit_test(weights_and_accumulated_batches_work),
        cmocka_unit_test(a_run_resumes_on_other_ranks_with_the_same_bits),
        cmocka_unit_test(ranks_stop_together),
        cmocka_unit_test(ranks_stop_where_a_delayed_mean_is_applied),
        cmocka_unit_test(ranks_that_are_all_stopped_do_not_wait_for_a_mean),
        cmocka_unit_test(states_that_do_not_fit_are_refused),
        cmocka_unit_test(a_mean_under_way_needs_its_fragments),
        cmocka_unit_test(islands_begin_with_a_state_of_ddp),
        cmocka_unit_test(an_evaluation_sends_no_differences),
        cmocka_unit_test(what_does_not_go_together_is_refused),
        cmocka_unit_test(a_card_is_refused),
    };

    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
