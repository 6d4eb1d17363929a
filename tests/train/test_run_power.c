/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_power.c - runs with --compress powersgd:R: they learn, also when they are interrupted,
 * and what does not go together is named.
 */
#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The network has matrices that two factors of one column halve, and none for two columns. */
static small_job make_job(const char *compress)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1};

    job.flags.compress = compress;
    job.flags.epochs = 6;
    return job;
}

/* Nearly as with all of the gradients, and not with the same bits. */
static void a_compressed_run_learns(void **state)
{
    const small_job plain = make_job(NULL);
    const small_job job = make_job("powersgd:1");
    const small_result whole = small_run_on(2, &plain);
    const small_result r = small_run_on(2, &job);

    (void)state;
    assert_memory_not_equal(r.weights, whole.weights, sizeof(r.weights));
    assert_true(r.state.test_loss < 1.15 * whole.state.test_loss + 0.02);
}

/* All that ranks have not sent is in the state. */
static void a_resumed_run_has_the_same_bits(void **state)
{
    small_job job = make_job("powersgd:1");
    small_result whole;
    small_result rest;

    (void)state;
    job.flags.save = path_in("whole.safetensors");
    whole = small_run_on(3, &job);
    job.flags.save = path_in("rest.safetensors");
    job.flags.steps = whole.state.step / 2 + 1;
    (void)small_run_on(3, &job);
    job.flags.steps = 0;
    job.flags.resume = "";
    rest = small_run_on(3, &job);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
    small_assert_same_file(path_in("rest.safetensors"), path_in("whole.safetensors"));
}

static void another_number_of_ranks_goes_on(void **state)
{
    small_job job = make_job("powersgd:1");
    small_result whole;
    small_result rest;

    (void)state;
    whole = small_run_on(2, &job);
    for (int n = 1; n <= 4; n += 3) {
        job.flags.save = path_in("some.safetensors");
        job.flags.steps = whole.state.step / 2;
        job.flags.resume = NULL;
        (void)small_run_on(2, &job);
        job.flags.steps = 0;
        job.flags.resume = "";
        rest = small_run_on(n, &job);
        assert_int_equal(rest.status, LS_OK);
        assert_true(rest.state.test_loss < 1.15 * whole.state.test_loss + 0.05);
    }
}

static void states_that_do_not_fit_are_named(void **state)
{
    small_job job = make_job("powersgd:1");

    (void)state;
    job.flags.save = path_in("two.safetensors");
    job.flags.steps = 2;
    (void)small_run_on(2, &job);
    job.flags.resume = "";
    job.flags.steps = 4;
    job.flags.compress = "powersgd:2";
    small_expect_error(2, &job, "have not sent with --compress powersgd:1: resume with it");
    job.flags.compress = NULL;
    small_expect_error(2, &job, "have not sent with --compress powersgd:1: resume with it");
}

/* Memory for the errors of a million ranks is not taken. */
static void a_state_of_too_many_ranks_is_refused(void **state)
{
    small_job job = make_job("powersgd:1");

    (void)state;
    job.flags.save = path_in("many.safetensors");
    job.flags.steps = 2;
    (void)small_run_on(2, &job);
    replace_in_file(path_in("many.resume.safetensors"), "\"world_size\":\"2\"",
                    "\"world_size\":\"9\"", strlen("\"world_size\":\"9\""));
    job.flags.resume = "";
    job.flags.steps = 4;
    job.flags.no_verify = 1;
    small_expect_error(2, &job, "numbers that ranks have not sent, not");
}

/* Without errors to begin with. */
static void a_state_without_errors_is_resumed(void **state)
{
    small_job job = make_job(NULL);

    (void)state;
    job.flags.save = path_in("plain.safetensors");
    job.flags.steps = 2;
    (void)small_run_on(2, &job);
    job.flags.resume = "";
    job.flags.steps = 4;
    job.flags.compress = "powersgd:1";
    assert_int_equal(small_run_on(2, &job).status, LS_OK);
}

static void what_does_not_go_together_is_refused(void **state)
{
    static const struct {
        const char *compress, *text;
    } values[] = {{"powersgd", "--compress powersgd: needs the rank"},
                  {"powersgd:0", "--compress powersgd:0: needs the rank"},
                  {"powersgd:65", "--compress powersgd:65: needs the rank"},
                  {"powersgd:2x", "--compress powersgd:2x: needs the rank"},
                  {"zip", "choose one of none, bf16, fp16, int8, int4, powersgd:R"}};
    small_job job;

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(values); i++) {
        job = make_job(values[i].compress);
        small_expect_error(1, &job, values[i].text);
    }
    job = make_job("powersgd:1");
    job.flags.shards = 4;
    small_expect_error(1, &job, "--compress powersgd does not go with --shards");
    job = make_job("powersgd:1");
    job.flags.sync_every = 4;
    small_expect_error(1, &job, "--compress powersgd does not go with --sync-every");
    job = make_job("powersgd:1");
    job.flags.precision = "fp16";
    small_expect_error(1, &job, "--compress powersgd does not go with --precision fp16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_compressed_run_learns),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(another_number_of_ranks_goes_on),
        cmocka_unit_test(states_that_do_not_fit_are_named),
        cmocka_unit_test(a_state_of_too_many_ranks_is_refused),
        cmocka_unit_test(a_state_without_errors_is_resumed),
        cmocka_unit_test(what_does_not_go_together_is_refused),
    };

    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
