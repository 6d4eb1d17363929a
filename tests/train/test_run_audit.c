/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_audit.c - runs with --audit: an audit changes no bits; a rank whose results are made
 * wrong (tensor/test_flip.h) is found and named, and with --heal the run has the bits of an
 * undisturbed one. The network has a convolution, a batch norm and a dropout, the images are padded
 * and cropped at random.
 */
#include "base/alloc.h"
#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int64_t ms = 1000000;

static small_job make_job(int64_t shards, int64_t audit)
{
    small_job job = {.flags = small_flags(small_dir),
                     .batch_norm = 1,
                     .dropout = 0.3,
                     .pad = 1,
                     .flip_rank = -1};

    job.flags.device = "cpu_ref"; // stream devices are refused
    job.flags.batch_size = 5;
    job.flags.clip_grad_norm = 0.5;
    job.flags.shards = shards;
    job.flags.epochs = 2;
    job.flags.audit = audit;
    job.flags.print_freq = 7; // reports lie within audited steps
    return job;
}

/* --- without a fault --- */

static void assert_audit_changes_nothing(const small_job *job, int n)
{
    small_job without = *job;
    small_result plain;
    small_result audited;

    without.flags.audit = without.flags.heal = 0;
    plain = small_run_on(n, &without);
    audited = small_run_on(n, job);
    small_assert_same(&audited, &plain);
    assert_true(!job->is_one_call || audited.value == plain.value);
}

static void audits_change_no_bits(void **state)
{
    (void)state;
    for (int shards = 4; shards <= 5; shards++)
        for (int n = 2; n <= shards; n++)
            for (int every = 1; every <= 3; every += 2) {
                const small_job job = make_job(shards, every);

                assert_audit_changes_nothing(&job, n);
            }
}

/* The speeds of ranks change, and the last one has no shards at last. */
static int64_t unequal(int rank, int64_t step)
{
    return (step / 6 + rank) % 2 == 0 ? 10 * ms : (rank == 2 ? 500 : 30) * ms;
}

static void audits_change_no_bits_with_other_flags(void **state)
{
    small_job jobs[] = {make_job(6, 1), make_job(3, 2), make_job(6, 1),
                        make_job(6, 1), make_job(6, 1), make_job(9, 1)};

    (void)state;
    jobs[0].flags.compress = "bf16";
    jobs[0].flags.heal = 1;
    jobs[1].flags.accumulate = 2;
    jobs[2].flags.precision = "fp16";
    jobs[3].weight = 3;
    jobs[3].flags.check_replicas = 2;
    jobs[4].is_one_call = 1;
    jobs[4].flags.optimizer = "adam";
    jobs[5].flags.balance = "";
    jobs[5].flags.batch_size = 2;
    jobs[5].shard_ns = unequal;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++)
        assert_audit_changes_nothing(&jobs[i], 3);
}

static void a_run_with_audits_resumes_within_an_epoch(void **state)
{
    small_job job = make_job(5, 3);
    const small_result whole = small_run_on(3, &job);
    small_result rest;

    (void)state;
    job.flags.save = path_in("audited.safetensors");
    job.stop_at = whole.state.step / 2 + 2;
    rest = small_run_on(3, &job);
    assert_int_equal(rest.state.step, job.stop_at);
    job.stop_at = 0;
    job.flags.resume = "";
    rest = small_run_on(2, &job);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
    assert_true(rest.state.test_loss == whole.state.test_loss);
}

/* --- with a fault --- */

/* The text of the failure of all ranks; NULL: none has failed. */
static const char *run_and_fail(int n, const small_job *job)
{
    small_job copy = *job;
    const bool ended =
        ls_test_ranks(&(ls_test_job){.n = n, .body = small_rank, .arg = &copy}, NULL);

    for (int i = 0; i < n; i++)
        if (ended != (small_results[i].status == LS_OK))
            fail_msg("rank %d: %s", i, small_results[i].error);
    for (int i = 0; i < n; i++)
        if (small_results[i].status == LS_EMISMATCH)
            return small_results[i].error;
    return NULL;
}

static void assert_says(const char *text, const char *what)
{
    if (text == NULL || strstr(text, what) == NULL)
        fail_msg("no \"%s\" in: %s", what, text == NULL ? "no failure" : text);
}

/* Each rank has one shard, so every result of step 4 is computed by two ranks. */
static void a_wrong_rank_is_named_before_the_update(void **state)
{
    static const int sizes[] = {2, 3, 5};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        const int n = sizes[i];
        small_job job = make_job(n, 1);

        job.flip = "weights:4:4";
        for (job.flip_rank = 0; job.flip_rank < n; job.flip_rank += n - 1) {
            const char *text = run_and_fail(n, &job);
            char verdict[40];

            snprintf(verdict, sizeof(verdict), "rank %d computes wrongly", job.flip_rank);
            assert_says(text, verdict);
            assert_says(text, "step 4: rank ");
            assert_says(text, "first of parameter ");
            assert_says(text, n == 2 ? "repeats its result" : "has the result of rank");
            assert_says(text, "--heal");
            for (int r = 0; r < n; r++)
                assert_true(small_results[r].state.step < 4);
        }
    }
}

static void a_fault_that_repeats_is_not_decided_by_two_ranks(void **state)
{
    small_job job = make_job(2, 1);

    (void)state;
    job.flags.heal = 1;
    job.flip = "always:3";
    job.flip_rank = 1;
    assert_says(run_and_fail(2, &job), "both repeat their result: with two ranks it cannot be");
}

static void a_healed_run_has_the_bits_of_an_undisturbed_one(void **state)
{
    static const char *const flips[] = {"weights", "products:3:20", "always:2:9", "weights:5:9:7"};
    static const int sizes[] = {3, 4, 5};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        const int n = sizes[i];
        small_job job = make_job(n, 1);
        const small_result sound = small_run_on(n, &job);

        for (size_t k = 0; k < LS_COUNT_OF(flips); k++) {
            small_result r;

            job.flip = flips[k];
            job.flip_rank = (int)k % n;
            job.flags.audit = job.flags.heal = 0;
            r = small_run_on(n, &job); // all ranks get the wrong sums
            assert_memory_not_equal(r.weights, sound.weights, sizeof(sound.weights));
            job.flags.audit = job.flags.heal = 1;
            r = small_run_on(n, &job);
            small_assert_same(&r, &sound);
        }
    }
}

static void two_ranks_heal_a_step_by_repeating_it(void **state)
{
    small_job job = make_job(2, 1);
    const small_result sound = small_run_on(2, &job);
    small_result r;

    (void)state;
    job.flags.heal = 1;
    job.flip = "weights:6:6";
    job.flip_rank = 0;
    r = small_run_on(2, &job);
    small_assert_same(&r, &sound);
}

/* An audit sees one of two shards a rank: some of these faults. */
static void what_an_audit_finds_is_healed_with_other_flags(void **state)
{
    small_job jobs[] = {make_job(6, 1), make_job(3, 1), make_job(6, 1), make_job(6, 1),
                        make_job(6, 1)};
    static small_result sound; // large
    static small_result r;
    int n_found = 0;

    (void)state;
    jobs[0].flags.compress = "fp16";
    jobs[1].flags.accumulate = 2;
    jobs[2].flags.precision = "fp16";
    jobs[3].is_one_call = 1;
    jobs[4].flags.balance = "";
    jobs[4].shard_ns = unequal;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        small_job *job = &jobs[i];

        sound = small_run_on(3, job);
        for (int seed = 1; seed <= 6; seed++) {
            char flip[32];

            snprintf(flip, sizeof(flip), "weights:7:7:%d", seed);
            job->flip = flip;
            job->flip_rank = seed % 3;
            job->flags.heal = 0;
            if (run_and_fail(3, job) == NULL)
                continue;
            job->flags.heal = 1;
            r = small_run_on(3, job);
            small_assert_same(&r, &sound);
            assert_true(!job->is_one_call || r.value == sound.value);
            n_found++;
        }
    }
    print_message("%d of %d faults lay in audited shards\n", n_found, 6 * (int)LS_COUNT_OF(jobs));
    assert_true(n_found >= 6);
}

/* --- what is refused --- */

static void what_cannot_be_audited_is_refused(void **state)
{
    small_job jobs[] = {make_job(4, 1), make_job(4, 1), make_job(0, 1), make_job(4, 1)};
    static const char *const why[] = {"--audit on one rank", "--audit with --sync-bn",
                                      "--audit needs --shards", "does not go with --audit"};

    (void)state;
    jobs[1].flags.sync_bn = 1;
    jobs[3].flags.sync_every = 2;
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        const int n = i == 0 ? 1 : 2;
        bool has_text = false;

        assert_false(
            ls_test_ranks(&(ls_test_job){.n = n, .body = small_rank, .arg = &jobs[i]}, NULL));
        for (int r = 0; r < n; r++)
            has_text = has_text || strstr(small_results[r].error, why[i]) != NULL;
        if (!has_text)
            fail_msg("no \"%s\" in: %s", why[i], small_results[0].error);
    }
}

static void a_wrong_hook_is_refused(void **state)
{
    static const char *const flips[] = {"", "weight", "weights:0", "weights:1:2:3:4", "products:x"};
    small_job job = make_job(2, 1);

    (void)state;
    job.flip_rank = 0;
    for (size_t i = 0; i < LS_COUNT_OF(flips); i++) {
        job.flip = flips[i];
        assert_false(ls_test_ranks(&(ls_test_job){.n = 2, .body = small_rank, .arg = &job}, NULL));
        assert_int_equal(small_results[0].status, LS_EINVAL);
        assert_says(small_results[0].error, "LOCKSTEP_TEST_FLIP");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(audits_change_no_bits),
        cmocka_unit_test(audits_change_no_bits_with_other_flags),
        cmocka_unit_test(a_run_with_audits_resumes_within_an_epoch),
        cmocka_unit_test(a_wrong_rank_is_named_before_the_update),
        cmocka_unit_test(a_fault_that_repeats_is_not_decided_by_two_ranks),
        cmocka_unit_test(a_healed_run_has_the_bits_of_an_undisturbed_one),
        cmocka_unit_test(two_ranks_heal_a_step_by_repeating_it),
        cmocka_unit_test(what_an_audit_finds_is_healed_with_other_flags),
        cmocka_unit_test(what_cannot_be_audited_is_refused),
        cmocka_unit_test(a_wrong_hook_is_refused),
    };

    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
