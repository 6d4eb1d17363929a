/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_shards.c - runs with --shards: the same bits of weights, losses and evaluations on any
 * number of ranks, with and without an interruption. The network has a convolution, a batch norm
 * and a dropout, the images are padded and cropped at random.
 */
#include "base/report/json.h"
#include "tensor/suite_device.h"
#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static small_job make_job(int64_t shards)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .dropout = 0.3, .pad = 1};

    job.flags.batch_size = 7;
    job.flags.clip_grad_norm = 0.5;
    job.flags.shards = shards;
    job.flags.epochs = 2;
    return job;
}

/* A stream device needs divisions with one node of the tree per rank. */
static bool is_supported(int64_t shards, int ranks)
{
    const bool is_aligned =
        ranks == 1 || ranks == shards || (shards == 5 && ranks == 3) || (shards == 4 && ranks == 2);

    return is_aligned || strcmp(test_device_name(), "cpu_ref") == 0;
}

static void any_number_of_ranks_gives_the_same_bits(void **state)
{
    (void)state;
    for (int shards = 4; shards <= 5; shards++) {
        const small_job job = make_job(shards);
        const small_result alone = small_run_on(1, &job);

        for (int n = 2; n <= shards; n++)
            if (is_supported(shards, n)) {
                const small_result r = small_run_on(n, &job);

                small_assert_same(&r, &alone);
            }
    }
}

static void compressed_gradients_keep_the_bits(void **state)
{
    static const char *const kinds[] = {"bf16", "fp16"};
    static small_result exact; // large
    const small_job exact_job = make_job(5);

    (void)state;
    if (strcmp(test_device_name(), "cpu_ref") != 0)
        skip();
    exact = small_run_on(2, &exact_job);
    for (int i = 0; i < 2; i++) {
        small_job job = make_job(5);
        small_result alone;

        job.flags.compress = kinds[i];
        alone = small_run_on(1, &job);
        assert_memory_not_equal(alone.weights, exact.weights, sizeof(exact.weights));
        assert_float_equal(alone.state.test_loss, exact.state.test_loss, 0.05);
        for (int n = 2; n <= 5; n++) {
            const small_result r = small_run_on(n, &job);

            small_assert_same(&r, &alone);
        }
    }
}

/* The last rank's parameters are changed; with --heal it gets those of the others. */
static void a_changed_rank_is_healed(void **state)
{
    small_job job = make_job(4);
    const small_result sound = small_run_on(4, &job);
    small_result r;

    (void)state;
    job.flags.check_replicas = 1;
    job.flags.heal = 1;
    job.spoil_at = 3;
    r = small_run_on(4, &job);
    small_assert_same(&r, &sound);
}

static size_t read_file(const char *path, char *out, size_t most)
{
    FILE *f = fopen(path, "rbe");
    size_t n;

    assert_non_null(f);
    n = fread(out, 1, most, f);
    (void)fclose(f);
    assert_in_range(n, 100, most - 1);
    return n;
}

/* Parameters and buffers. */
static void saved_weights_are_the_same_bytes(void **state)
{
    static char files[2][1 << 16];
    size_t bytes[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        small_job job = make_job(5);

        job.flags.save = path_in(i == 0 ? "one.safetensors" : "three.safetensors");
        (void)small_run_on(i == 0 ? 1 : 3, &job);
        bytes[i] = read_file(job.flags.save, files[i], sizeof(files[i]));
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(files[0], files[1], bytes[0]);
}

/* The whole run is on one rank; the other one stops on 3 ranks in the second epoch and ends on
 * another number of ranks. */
static void another_number_of_ranks_resumes_within_an_epoch_with_the_same_bits(void **state)
{
    small_job job = make_job(5);
    const small_result whole = small_run_on(1, &job);
    const int64_t epoch = whole.state.step / 2;

    (void)state;
    for (int n = 1; n <= 5; n += 4) {
        small_result rest;

        job.flags.save = path_in("rest.safetensors");
        job.flags.resume = NULL;
        job.stop_at = epoch + 3;
        rest = small_run_on(3, &job);
        assert_int_equal(rest.state.step, epoch + 3);
        job.stop_at = 0;
        job.flags.resume = "";
        rest = small_run_on(n, &job);
        assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
        assert_true(rest.state.test_loss == whole.state.test_loss);
        assert_int_equal(rest.state.step, whole.state.step);
    }
}

/* The batches of a shard are those that a rank would have. With shards a GPU uses deterministic
 * kernels only, which ranks without shards have to ask for. */
static void shards_equal_as_many_ranks(void **state)
{
    small_job job = make_job(4);
    const small_result shards = small_run_on(2, &job);
    small_result ranks;

    (void)state;
    job.flags.shards = 0;
    assert_int_equal(setenv("LOCKSTEP_DETERMINISTIC", "1", 1), 0);
    ranks = small_run_on(4, &job);
    assert_int_equal(unsetenv("LOCKSTEP_DETERMINISTIC"), 0);
    small_assert_same(&shards, &ranks);
}

static void accumulated_batches_are_shards(void **state)
{
    small_job job = make_job(6);
    const small_result six = small_run_on(1, &job);
    small_result three;

    (void)state;
    job.flags.shards = 3;
    job.flags.accumulate = 2;
    three = small_run_on(is_supported(6, 2) ? 2 : 1, &job);
    small_assert_same(&three, &six);
}

/* With batch norms over all shards of a step. */
static small_job make_synchronized(int64_t shards)
{
    small_job job = make_job(shards);

    job.flags.sync_bn = 1;
    job.is_one_call = 1;
    return job;
}

static void synchronized_batch_norms_keep_the_bits(void **state)
{
    static small_result apart; // large
    small_job job = make_synchronized(5);
    small_result five;

    (void)state;
    job.is_one_call = 0;
    five = small_run_on(5, &job); // a shard a rank
    job.is_one_call = 1;
    for (int n = 1; n <= 5; n++)
        if (is_supported(5, n)) {
            const small_result r = small_run_on(n, &job);

            small_assert_same(&r, &five);
            assert_true(r.value == r.state.loss);
        }
    job.flags.sync_bn = 0;
    apart = small_run_on(3, &job);
    assert_memory_not_equal(apart.weights, five.weights, sizeof(five.weights));
}

static void synchronized_batch_norms_keep_the_bits_with_other_flags(void **state)
{
    small_job jobs[] = {make_synchronized(5), make_synchronized(4), make_synchronized(3)};

    (void)state;
    if (strcmp(test_device_name(), "cpu_ref") != 0)
        skip();
    jobs[0].weight = 3;
    jobs[1].flags.compress = "bf16";
    jobs[1].flags.check_nan = 1;
    jobs[2].flags.accumulate = 2;
    jobs[2].flags.precision = "fp16"; // gradients are scaled
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        const small_result alone = small_run_on(1, &jobs[i]);
        const small_result two = small_run_on(2, &jobs[i]);
        const small_result three = small_run_on(3, &jobs[i]);

        small_assert_same(&two, &alone);
        small_assert_same(&three, &alone);
    }
}

static void a_run_with_synchronized_batch_norms_resumes_on_other_ranks(void **state)
{
    small_job job = make_synchronized(5);
    small_result whole;
    small_result rest;

    (void)state;
    whole = small_run_on(1, &job);
    job.flags.save = path_in("together.safetensors");
    job.stop_at = whole.state.step / 2 + 3;
    rest = small_run_on(3, &job);
    assert_int_equal(rest.state.step, job.stop_at);
    job.stop_at = 0;
    job.flags.resume = "";
    rest = small_run_on(is_supported(5, 2) ? 2 : 1, &job);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
    assert_int_equal(rest.state.step, whole.state.step);
}

/* Operators of a shard that waits do not count the time of others. */
static void a_profile_has_each_operator_of_shards_once(void **state)
{
    static char text[1 << 20];
    small_job job = make_synchronized(8);
    double operators = 0;
    double steps = 0;
    int norms = 0;
    json_value *root;

    (void)state;
    job.flags.batch_size = 3;
    job.flags.profile = "2:4";
    job.flags.profile_file = path_in("p");
    (void)small_run_on(1, &job);
    assert_int_equal(
        json_parse(text, read_file(path_in("p.rank0.json"), text, sizeof(text)), "p", &root),
        LS_OK);
    for (size_t i = 0; i < json_size(json_get(root, "traceEvents")); i++) {
        const json_value *e = json_at(json_get(root, "traceEvents"), i);
        const char *category = json_as_string(json_get(e, "cat"), "");
        const double us = json_as_real(json_get(e, "dur"), 0);

        assert_true(us >= 0);
        steps += strcmp(category, "step") == 0 ? us : 0;
        operators += strcmp(category, "operator") == 0 ? us : 0;
        norms += strstr(json_as_string(json_get(e, "name"), ""), "batch_norm") != NULL;
    }
    json_free(root);
    assert_int_equal(norms, 3 * 8 * 2); // forward and backward
    assert_true(operators > 0 && operators < steps);
}

static void a_loop_of_batches_cannot_synchronize_several_shards(void **state)
{
    small_job job = make_synchronized(5);

    (void)state;
    job.is_one_call = 0;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 1, .body = small_rank, .arg = &job}, NULL));
    assert_int_equal(small_results[0].status, LS_EUNSUPPORTED);
    assert_non_null(strstr(small_results[0].error, "ls_run_train()"));
}

static void weighed_batches_keep_the_bits(void **state)
{
    small_job job = make_job(4);
    small_result alone;
    small_result shared;

    (void)state;
    job.weight = 3;
    alone = small_run_on(1, &job);
    shared = small_run_on(2, &job);
    small_assert_same(&shared, &alone);
}

static void an_evaluation_alone_gives_the_same_bits(void **state)
{
    small_job job = make_job(5);
    small_result alone;
    small_result shared;

    (void)state;
    job.flags.save = path_in("eval.safetensors");
    (void)small_run_on(1, &job);
    job.flags.init = job.flags.save;
    job.flags.save = NULL;
    job.flags.evaluate = 1;
    alone = small_run_on(1, &job);
    shared = small_run_on(3, &job);
    assert_true(alone.state.test_loss > 0);
    assert_true(shared.state.test_loss == alone.state.test_loss);
    assert_true(shared.state.accuracy == alone.state.accuracy);
}

static void fewer_shards_than_ranks_are_refused(void **state)
{
    small_job job = make_job(2);
    ls_test_outcome outcomes[3];
    bool has_text = false;

    (void)state;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, outcomes));
    // The first rank that fails has the text; the others may still have been joining.
    for (int i = 0; i < 3; i++)
        has_text = has_text || strstr(small_results[i].error, "2 shards on 3 ranks") != NULL;
    assert_true(has_text);
}

static void a_program_that_does_not_distribute_its_run_is_refused(void **state)
{
    const small_job job = make_job(2);
    const small_result alone = small_run(&job);

    (void)state;
    assert_int_equal(alone.status, LS_EINVAL);
    assert_non_null(strstr(alone.error, "--shards needs a program"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(compressed_gradients_keep_the_bits),
        cmocka_unit_test(a_changed_rank_is_healed),
        cmocka_unit_test(saved_weights_are_the_same_bytes),
        cmocka_unit_test(another_number_of_ranks_resumes_within_an_epoch_with_the_same_bits),
        cmocka_unit_test(shards_equal_as_many_ranks),
        cmocka_unit_test(accumulated_batches_are_shards),
        cmocka_unit_test(synchronized_batch_norms_keep_the_bits),
        cmocka_unit_test(synchronized_batch_norms_keep_the_bits_with_other_flags),
        cmocka_unit_test(a_run_with_synchronized_batch_norms_resumes_on_other_ranks),
        cmocka_unit_test(a_profile_has_each_operator_of_shards_once),
        cmocka_unit_test(a_loop_of_batches_cannot_synchronize_several_shards),
        cmocka_unit_test(weighed_batches_keep_the_bits),
        cmocka_unit_test(an_evaluation_alone_gives_the_same_bits),
        cmocka_unit_test(fewer_shards_than_ranks_are_refused),
        cmocka_unit_test(a_program_that_does_not_distribute_its_run_is_refused),
    };

    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
