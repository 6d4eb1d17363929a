/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_ranks.c - tests runs of several ranks: every test sample counts once, resuming within an
 * epoch, and results that must not depend on the number of ranks.
 */
#include "base/alloc.h"
#include "comm/record/recorder.h"
#include "tensor/suite_device.h"
#include "train/small_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The same result on all ranks, which is given. */
static small_result run_on(int n, const small_job *job)
{
    const small_result first = small_run_on(n, job);

    for (int i = 1; i < n; i++) {
        assert_true(small_results[i].state.accuracy == first.state.accuracy);
        assert_true(small_results[i].state.best_accuracy == first.state.best_accuracy);
        assert_int_equal(small_results[i].state.step, first.state.step);
    }
    return first;
}

/* 61 samples do not divide by any of these. */
static void an_evaluation_counts_every_sample_once_on_any_number_of_ranks(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result alone;

    (void)state;
    job.flags.save = path_in("w.safetensors");
    job.flags.steps = 3; // so that not everything is right
    job.flags.lr = 0.01;
    assert_int_equal(small_run(&job).status, LS_OK);
    job.flags.save = NULL;
    job.flags.init = path_in("w.safetensors");
    job.flags.evaluate = 1;
    alone = small_run(&job);
    assert_true(alone.state.accuracy > 0.1 && alone.state.accuracy < 0.99);
    for (int n = 2; n <= 5; n++) {
        const small_result r = run_on(n, &job);
        assert_true(r.state.accuracy == alone.state.accuracy);
        assert_true(r.state.accuracy5 == alone.state.accuracy5);
        assert_true(fabs(r.state.test_loss - alone.state.test_loss) < 1e-12);
    }
}

/* The first step is agreed on: only one rank sees it before the gradients are added up. */
static void all_ranks_report_the_first_loss_that_is_not_finite(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .spoil_at = 3, .spoil_by = (double)NAN};

    (void)state;
    job.flags.print_freq = 5;
    job.flags.nan_limit = 2;
    job.flags.epochs = 6;
    assert_false(ls_test_ranks(&(ls_test_job){.n = 3, .body = small_rank, .arg = &job}, NULL));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(small_results[i].status, LS_EFORMAT);
        assert_non_null(strstr(small_results[i].error, "in 2 reports in a row"));
        assert_non_null(
            strstr(small_results[i].error, strcmp(test_device_name(), "cpu_ref") == 0
                                               ? ", first at step 4 on rank 2; model.fc."
                                               : "; model.fc.")); // not waited for
    }
}

/* The head of another number of classes keeps its initial values, which are the same on all
 * ranks. */
static void ranks_hold_the_same_weights_after_a_partial_load(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .other_classes = 7};
    small_result alone;

    (void)state;
    job.flags.save = path_in("seven.safetensors");
    job.flags.steps = 3;
    assert_int_equal(small_run(&job).status, LS_OK);
    job.other_classes = 0;
    job.flags.save = NULL;
    job.flags.init = path_in("seven.safetensors");
    job.flags.skip_mismatched = 1;
    job.flags.evaluate = 1;
    alone = small_run(&job);
    assert_int_equal(alone.status, LS_OK);
    assert_memory_equal(run_on(3, &job).weights, alone.weights, sizeof(alone.weights));
}

/* The signal reaches one rank only, in the middle of an epoch. */
static void ranks_resume_with_the_bits_of_an_uninterrupted_run(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result whole;
    small_result part;

    (void)state;
    job.flags.batch_size = 8;
    job.flags.clip_grad_norm = 0.5;
    job.batch_norm = 1;
    job.dropout = 0.3; // which must be the same after a resume, and another one on each rank
    whole = run_on(2, &job);
    job.flags.save = path_in("p.safetensors");
    job.stop_at = 19;
    part = run_on(2, &job);
    assert_true(part.state.stopping);
    assert_int_equal(part.state.step, 19);
    job.stop_at = 0;
    job.flags.resume = "";
    part = run_on(2, &job);
    assert_memory_equal(part.weights, whole.weights, sizeof(whole.weights));
    assert_true(part.state.accuracy == whole.state.accuracy);
    assert_int_equal(part.state.step, whole.state.step);
}

/* 2 ranks with half the batch each take the same samples in the same steps as 1 rank; 5 ranks with
 * the same batch end the epoch, and the schedule, in a fifth of the steps. */
static void another_number_of_ranks_continues_the_epoch(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    const int64_t epoch = SMALL_TRAIN / 10;
    const int64_t stop_at = epoch + 9; // 140 samples of the second epoch are left
    small_result whole;
    small_result rest;

    (void)state;
    job.flags.batch_size = 10;
    whole = small_run(&job);
    assert_int_equal(whole.status, LS_OK);
    for (int i = 0; i < 2; i++) {
        job.flags.batch_size = 10;
        job.flags.save = path_in("rest.safetensors");
        job.flags.resume = NULL;
        job.stop_at = stop_at;
        assert_int_equal(small_run(&job).state.step, stop_at);
        job.stop_at = 0;
        job.flags.batch_size = i == 0 ? 5 : 10;
        job.flags.resume = "";
        rest = run_on(i == 0 ? 2 : 5, &job);
        if (i == 0)
            for (int k = 0; k < SMALL_WEIGHTS; k++)
                assert_true(fabsf(rest.weights[k] - whole.weights[k]) < 1e-4F);
        assert_int_equal(rest.state.epoch, 2);
        assert_int_equal(rest.state.step, i == 0 ? 3 * epoch : stop_at + 3 + 5);
        assert_true(rest.state.accuracy > 0.95);
    }
    // 90 samples are 1 whole step of 50: the cosine goes on at step 5 + 1 of 15.
    assert_true(fabs(rest.lr[stop_at] - 0.1 * (1 + cos(acos(-1) * 6 / 15))) < 1e-6);
}

static void ranks_that_share_a_batch_equal_one_rank(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result alone;
    small_result shared;

    (void)state;
    job.flags.batch_size = 20;
    alone = small_run(&job);
    for (int n = 2; n <= 5; n += 3) { // both divide the samples, so that none is repeated
        job.flags.batch_size = 20 / n;
        shared = run_on(n, &job);
        for (int i = 0; i < SMALL_WEIGHTS; i++)
            assert_true(fabsf(shared.weights[i] - alone.weights[i]) < 1e-4F);
    }
}

/* 115 rows of each of 2 ranks in batches of 6 make 5 steps of 4 batches, the last with 1 row;
 * 77 rows of each of 3 ranks 3 steps, and one of a batch of 5 rows. */
static void ranks_that_accumulate_equal_larger_batches(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    for (int n = 2; n <= 3; n++) {
        small_result large;
        small_result parts;

        job.flags.clip_grad_norm = 0.5;
        job.flags.batch_size = 24;
        job.flags.accumulate = 0;
        large = run_on(n, &job);
        job.flags.batch_size = 6;
        job.flags.accumulate = 4;
        parts = run_on(n, &job);
        assert_int_equal(parts.state.step, large.state.step);
        assert_true(fabs(parts.state.loss - large.state.loss) < 1e-6);
        assert_true(parts.state.top1 == large.state.top1);
        for (int i = 0; i < SMALL_WEIGHTS; i++)
            assert_true(fabsf(parts.weights[i] - large.weights[i]) < 1e-5F);
    }
}

/* Gradients and losses are means over weights: twice as many terms per row are the same mean. */
static void weights_in_proportion_to_the_rows_change_no_bits(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result plain;
    small_result weighed;

    (void)state;
    job.flags.batch_size = 8;
    for (job.flags.accumulate = 1; job.flags.accumulate <= 3; job.flags.accumulate += 2) {
        job.weight = 0;
        plain = run_on(2, &job);
        job.weight = 2;
        weighed = run_on(2, &job);
        assert_memory_equal(weighed.weights, plain.weights, sizeof(plain.weights));
        assert_true(weighed.state.loss == plain.state.loss);
        assert_true(weighed.state.accuracy == plain.state.accuracy);
    }
}

/* y = w x with x = 1: the gradient of (w - target)^2 is 2 (w - target). */
static ls_status step_to(ls_run *run, ls_comm *comm, ls_tensor *x, ls_tensor *y, float *w)
{
    ls_layer *fc = ls_nn_linear(ls_run_model(run), "fc", 1, 1, 1);
    int n;
    const ls_named *named = ls_model_parameters(ls_run_model(run), &n);
    const int rank = ls_comm_rank(comm);
    const float one = 1;
    const float target = rank == 0 ? 4 : 8;

    LS_CHECK(n == 1);
    LS_TRY(ls_tensor_write(x, &one, 1));
    LS_TRY(ls_tensor_write(y, &target, 1));
    LS_TRY(ls_run_distribute(run, comm, NULL));
    LS_TRY(ls_run_use_weights(run));
    LS_TRY(ls_run_start(run, NULL, NULL));
    LS_TRY(ls_tensor_read(named[0].tensor, &w[0], 1));
    ls_run_weigh(run, rank == 0 ? 3 : 1);
    ls_run_step(run, ls_mse_loss(ls_run_tape(run), ls_forward(ls_run_tape(run), fc, x), y));
    return ls_tensor_read(named[0].tensor, &w[1], 1);
}

static ls_status body_weighs(const ls_test_rank *self, void *arg)
{
    const int64_t dims[] = {1, 1};
    ls_train_flags flags = small_flags(small_dir);
    ls_comm *comm;
    ls_run *run;
    ls_tensor *x;
    ls_tensor *y;
    float w[2];
    ls_status st;

    (void)arg;
    flags.schedule = NULL;
    flags.momentum = 0;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_run_open(&flags, &run));
    LS_TRY(ls_tensor_create(ls_run_device(run), LS_F32, 2, dims, &x));
    LS_TRY(ls_tensor_create(ls_run_device(run), LS_F32, 2, dims, &y));
    st = step_to(run, comm, x, y, w);
    ls_tape_reset(ls_run_tape(run));
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    LS_TRY(ls_run_close(run, st));
    ls_comm_destroy(comm);
    LS_CHECK(fabsf(w[1] - (w[0] - (float)flags.lr * 2 * (w[0] - (3 * 4 + 8) / 4.0F))) < 1e-5F);
    return LS_OK;
}

static void gradients_are_means_over_the_weights_of_all_ranks(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_weighs}, NULL));
}

/* The reductions of a step, and of the buffers, come once in 4 batches; so does a stop. */
static ls_status body_quiet(const ls_test_rank *self, void *arg)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    char number[16];
    int counts[3] = {0, 0, 0};
    static const char *const sites[] = {"ddp weight", "ddp step", "bucket 1/1"};
    int ring;
    int n;

    LS_TRY(recorder_create_fd(&ring));
    snprintf(number, sizeof(number), "%d", ring);
    LS_CHECK(setenv("LOCKSTEP_RING_FD", number, 1) == 0);
    LS_TRY(small_rank(self, arg));
    LS_TRY(recorder_read(ring, entries, RECORDER_ENTRIES, &n));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++)
            counts[k] += strcmp(entries[i].stamp.site, sites[k]) == 0;
    LS_CHECK(counts[0] == 3 && counts[1] == 3 && counts[2] == 3);
    return LS_OK;
}

static void accumulated_batches_do_not_communicate(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    job.flags.batch_size = 6;
    job.flags.accumulate = 4;
    job.flags.steps = 3;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_quiet, .arg = &job}, NULL));
}

/* With statistics of the whole batch, results do not depend on which rank has which rows. */
static void ranks_with_sync_bn_equal_one_rank(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1};
    small_result alone;
    double worst[2] = {0, 0};

    (void)state;
    job.flags.batch_size = 20;
    alone = small_run(&job);
    job.flags.batch_size = 10;
    for (job.flags.sync_bn = 0; job.flags.sync_bn < 2; job.flags.sync_bn++) {
        const small_result shared = run_on(2, &job);
        for (int i = 0; i < SMALL_WEIGHTS; i++)
            worst[job.flags.sync_bn] =
                fmax(worst[job.flags.sync_bn],
                     fabs((double)shared.weights[i] - (double)alone.weights[i]));
    }
    assert_true(worst[1] < 1e-4);
    assert_true(worst[0] > 1e-2);
}

static void gradients_of_16_bits_train_and_resume(void **state)
{
    static const char *const kinds[] = {"bf16", "fp16"};
    small_job job = {.flags = small_flags(small_dir)};
    const small_result exact = run_on(2, &job);

    (void)state;
    for (int i = 0; i < 2; i++) {
        small_result whole;
        job.flags.compress = kinds[i];
        job.flags.save = NULL;
        whole = run_on(2, &job);
        assert_true(whole.state.accuracy > 0.95);
        assert_memory_not_equal(whole.weights, exact.weights, sizeof(exact.weights));
        job.flags.save = path_in("c.safetensors");
        job.stop_at = 11;
        (void)run_on(2, &job);
        job.stop_at = 0;
        job.flags.resume = "";
        assert_memory_equal(run_on(2, &job).weights, whole.weights, sizeof(whole.weights));
        job.flags.resume = NULL;
    }
}

/* run_on() checks that all ranks have taken the same steps. */
static void mixed_precision_trains_and_resumes(void **state)
{
    static const char *const kinds[] = {"bf16", "fp16"};
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        small_result whole;
        job.flags.precision = kinds[i];
        job.flags.save = NULL;
        whole = run_on(3, &job);
        assert_true(whole.state.accuracy > 0.9);
        job.flags.save = path_in("p.safetensors");
        job.stop_at = 7;
        (void)run_on(3, &job);
        job.stop_at = 0;
        job.flags.resume = "";
        assert_memory_equal(run_on(3, &job).weights, whole.weights, sizeof(whole.weights));
        job.flags.resume = NULL;
    }
}

static void a_checkpoint_that_rank_0_cannot_read_fails_all_ranks(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    const ls_test_job ranks = {.n = 3, .body = small_rank, .arg = &job};
    ls_test_outcome outcomes[3];

    (void)state;
    job.flags.resume = path_in("absent.safetensors");
    assert_false(ls_test_ranks(&ranks, outcomes));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(outcomes[i].code, 1);
        assert_non_null(strstr(small_results[i].error, "absent.safetensors: no such file"));
        assert_true(i == 0 || strstr(small_results[i].error, "rank 0") != NULL);
    }
}

/* The flight recorder's times: each step's sum of weights starts before its forward. */
static ls_status body_order(const ls_test_rank *self, void *arg)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    static recorder_span spans[RECORDER_ENTRIES];
    char number[16];
    int64_t forward_ns[8];
    int n_forwards = 0;
    int n_weights = 0;
    int ring;
    int n;

    LS_TRY(recorder_create_fd(&ring));
    snprintf(number, sizeof(number), "%d", ring);
    LS_CHECK(setenv("LOCKSTEP_RING_FD", number, 1) == 0);
    LS_TRY(small_rank(self, arg));
    LS_TRY(recorder_read_phases(ring, spans, RECORDER_ENTRIES, &n));
    for (int i = 0; i < n && n_forwards < 8; i++)
        if (strcmp(spans[i].name, "forward") == 0)
            forward_ns[n_forwards++] = spans[i].start_ns;
    LS_TRY(recorder_read(ring, entries, RECORDER_ENTRIES, &n));
    for (int i = 0; i < n; i++)
        if (strcmp(entries[i].stamp.site, "ddp weight") == 0 && n_weights < n_forwards)
            LS_CHECK(entries[i].start_ns <= forward_ns[n_weights++]);
    LS_CHECK(n_forwards == 3 && n_weights == 3);
    return LS_OK;
}

/* With --trace: what the device does in a step, one after the other. The buckets are reduced after
 * backward has begun and before the optimizer begins. */
static ls_status body_device_order(const ls_test_rank *self, void *arg)
{
    static const char *const names[] = {"forward", "backward", "optimizer"};
    static recorder_entry entries[RECORDER_ENTRIES];
    static recorder_span spans[RECORDER_ENTRIES];
    const bool is_on_host = strcmp(((const small_job *)arg)->flags.device, "cudahost") != 0;
    uint64_t n_dropped = 0;
    char number[16];
    int n_buckets = 0;
    int n_spans;
    int ring;
    int n;

    LS_TRY(recorder_create_fd(&ring));
    snprintf(number, sizeof(number), "%d", ring);
    LS_CHECK(setenv("LOCKSTEP_RING_FD", number, 1) == 0);
    LS_TRY(small_rank(self, arg));
    LS_TRY(recorder_read_device_phases(ring, spans, RECORDER_ENTRIES, &n_spans, &n_dropped));
    LS_TRY(recorder_read(ring, entries, RECORDER_ENTRIES, &n));
    LS_CHECK(n_spans == (is_on_host ? 0 : 9) && n_dropped == 0);
    for (int i = 0; i < n_spans; i++) {
        LS_CHECK(strcmp(spans[i].name, names[i % 3]) == 0);
        LS_CHECK(spans[i].start_ns <= spans[i].end_ns);
        LS_CHECK(i == 0 || spans[i - 1].end_ns <= spans[i].start_ns);
    }
    for (int i = 0; i < n; i++) {
        const recorder_entry *e = &entries[i];

        if (strncmp(e->stamp.site, "bucket ", 7) != 0)
            continue;
        LS_CHECK((e->device_end_ns == 0) == is_on_host && n_buckets < 3);
        LS_CHECK(is_on_host || (spans[3 * n_buckets + 1].start_ns <= e->device_start_ns &&
                                e->device_end_ns <= spans[3 * n_buckets + 2].start_ns));
        n_buckets++;
    }
    LS_CHECK(n_buckets == 3);
    return LS_OK;
}

static void a_device_runs_the_phases_of_a_step_in_their_order(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    job.flags.steps = 3;
    assert_true(ls_test_ranks(
        &(ls_test_job){.n = 2, .body = body_device_order, .arg = &job, .env = {"LOCKSTEP_TRACE=1"}},
        NULL));
}

static void the_sum_of_weights_starts_before_forward(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    job.flags.steps = 3;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_order, .arg = &job}, NULL));
}

/* Each rank writes a file of its own, which has its operations. */
static void every_rank_writes_its_profile(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};

    (void)state;
    job.flags.steps = 3;
    job.flags.profile = "1:2";
    job.flags.profile_file = path_in("ranks");
    assert_int_equal(run_on(2, &job).status, LS_OK);
    for (int rank = 0; rank < 2; rank++) {
        char *text = text_of(path_in(rank == 0 ? "ranks.rank0.json" : "ranks.rank1.json"));

        assert_non_null(text);
        assert_non_null(strstr(text, "\"name\":\"all_reduce\",\"cat\":\"operation\""));
        assert_non_null(strstr(text, "\"name\":\"backward\",\"cat\":\"phase\""));
        assert_non_null(strstr(text, "\"cat\":\"operator\""));
        assert_non_null(strstr(text, "\"name\":\"step 2\""));
        assert_null(strstr(text, "\"step\":3"));
        ls_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_evaluation_counts_every_sample_once_on_any_number_of_ranks),
        cmocka_unit_test(all_ranks_report_the_first_loss_that_is_not_finite),
        cmocka_unit_test(ranks_hold_the_same_weights_after_a_partial_load),
        cmocka_unit_test(ranks_resume_with_the_bits_of_an_uninterrupted_run),
        cmocka_unit_test(another_number_of_ranks_continues_the_epoch),
        cmocka_unit_test(ranks_that_share_a_batch_equal_one_rank),
        cmocka_unit_test(ranks_that_accumulate_equal_larger_batches),
        cmocka_unit_test(weights_in_proportion_to_the_rows_change_no_bits),
        cmocka_unit_test(gradients_are_means_over_the_weights_of_all_ranks),
        cmocka_unit_test(accumulated_batches_do_not_communicate),
        cmocka_unit_test(ranks_with_sync_bn_equal_one_rank),
        cmocka_unit_test(gradients_of_16_bits_train_and_resume),
        cmocka_unit_test(mixed_precision_trains_and_resumes),
        cmocka_unit_test(a_checkpoint_that_rank_0_cannot_read_fails_all_ranks),
        cmocka_unit_test(a_device_runs_the_phases_of_a_step_in_their_order),
        cmocka_unit_test(the_sum_of_weights_starts_before_forward),
        cmocka_unit_test(every_rank_writes_its_profile),
    };
    return cmocka_run_group_tests(tests, small_ranks_set_up, small_dir_remove);
}
