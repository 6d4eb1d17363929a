/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_graph.c - runs with --cuda-graph on the CUDA device over host memory: every weight,
 * rate and count is that of the run without it. The learning rate, the dropout mask, the loss scale
 * and the memory of batches change with every step; the last batch of an epoch is smaller, and the
 * runs evaluate, save and resume.
 */
#include "harness/ranks.h"
#include "tensor/cuda/cuda_testing.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static small_job job_of(const char *precision, const char *optimizer)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .dropout = 0.25, .pad = 1};

    job.flags.device = "cudahost";
    job.flags.precision = precision;
    job.flags.optimizer = optimizer;
    job.flags.lr = strcmp(optimizer, "sgd") == 0 ? 0.05 : 0.01;
    job.flags.seed = 7;
    return job;
}

/* As small_run(); *n: graph launches. */
static small_result count_graphs(const small_job *job, uint64_t *n)
{
    const gpu_host *gpu = cudahost_reset();
    const small_result r = small_run(job);

    *n = gpu->n_graph_launches;
    return r;
}

/* A whole run or its first part: with --cuda-graph at least one graph a step, but for the first
 * steps. */
static bool has_graphs(const small_job *job, const small_result *r, uint64_t n)
{
    return job->flags.cuda_graph ? n + 5 >= (uint64_t)r->state.step : n == 0;
}

static small_result run(const small_job *job)
{
    uint64_t n;
    const small_result r = count_graphs(job, &n);

    assert_true(job->flags.resume != NULL || has_graphs(job, &r, n));
    return r;
}

static void assert_equal_runs(const small_result *a, const small_result *b)
{
    assert_string_equal(a->error, "");
    assert_string_equal(b->error, "");
    assert_memory_equal(a->weights, b->weights, sizeof(a->weights));
    assert_memory_equal(a->lr, b->lr, sizeof(a->lr));
    assert_int_equal(a->state.step, b->state.step);
    assert_true(a->state.accuracy == b->state.accuracy);
    assert_true(a->state.test_loss == b->state.test_loss);
}

static void a_run_with_graphs_has_the_bits_of_one_without(void **state)
{
    static const char *const settings[][2] = {
        {"fp32", "sgd"}, {"bf16", "sgd"}, {"fp16", "sgd"}, {"fp32", "adam"}};

    (void)state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        small_job job = job_of(settings[i][0], settings[i][1]);
        const small_result without = run(&job);
        small_result with;

        job.flags.cuda_graph = 1;
        with = run(&job);
        assert_int_equal(with.state.step, 45);
        assert_equal_runs(&without, &with);
    }
}

static void accumulated_steps_have_the_same_bits(void **state)
{
    small_job job = job_of("fp32", "sgd");
    small_result without, with;

    (void)state;
    job.flags.accumulate = 2;
    job.flags.clip_grad_norm = 0.5;
    without = run(&job);
    job.flags.cuda_graph = 1;
    with = run(&job);
    assert_equal_runs(&without, &with);
}

/* The resumed run begins with an empty cache of graphs, within an epoch. */
static void a_run_that_resumes_with_graphs_has_the_same_bits(void **state)
{
    small_job job = job_of("fp16", "sgd");
    const small_result whole = run(&job);
    small_result r;

    (void)state;
    job.flags.cuda_graph = 1;
    job.flags.save = path_in("graphs.safetensors");
    job.stop_at = 20;
    r = run(&job);
    assert_true(r.state.step >= 19 && r.state.step < 45);
    job.stop_at = 0;
    job.flags.resume = "";
    r = run(&job);
    assert_string_equal(r.error, "");
    assert_int_equal(r.state.step, whole.state.step);
    assert_memory_equal(r.weights, whole.weights, sizeof(r.weights));
}

/* --- ranks --- */

static small_result *results; /* of each rank, shared */

static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    small_job job = *(const small_job *)arg;
    uint64_t n;

    LS_TRY(ls_test_init(self, &job.comm));
    results[self->rank] = count_graphs(&job, &n);
    ls_comm_destroy(job.comm);
    LS_CHECK(has_graphs(&job, &results[self->rank], n));
    return results[self->rank].status;
}

static small_result run_on_two(const small_job *job)
{
    small_job copy = *job;
    const ls_test_job ranks = {.n = 2, .body = rank_body, .arg = &copy};

    assert_true(ls_test_ranks(&ranks, NULL));
    assert_memory_equal(results[1].weights, results[0].weights, sizeof(results[0].weights));
    return results[0];
}

/* All-reduces of buckets wait for events within backward, and the optimizer for theirs. */
static void ranks_with_graphs_have_the_bits_of_ranks_without(void **state)
{
    static const char *const precisions[] = {"fp32", "fp16"};

    (void)state;
    for (size_t i = 0; i < sizeof(precisions) / sizeof(precisions[0]); i++) {
        for (int sync = 0; sync < 2; sync++) {
            small_job job = job_of(precisions[i], "sgd");
            small_result without, with;

            job.flags.share_gpu = 1;
            job.flags.sync_bn = sync;
            without = run_on_two(&job);
            job.flags.cuda_graph = 1;
            with = run_on_two(&job);
            assert_equal_runs(&without, &with);
        }
    }
}

/* --- where they are refused --- */

static void devices_without_graphs_refuse_the_flag(void **state)
{
    static const char *const devices[] = {"cpu", "cpu_ref", "auto"};

    (void)state;
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        small_job job = {.flags = small_flags(small_dir)};
        small_result r;

        job.flags.device = devices[i];
        job.flags.cuda_graph = 1;
        r = small_run(&job);
        assert_int_equal(r.status, LS_EUNSUPPORTED);
        assert_non_null(strstr(r.error, "has no CUDA graphs: leave out --cuda-graph"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_with_graphs_has_the_bits_of_one_without),
        cmocka_unit_test(accumulated_steps_have_the_same_bits),
        cmocka_unit_test(a_run_that_resumes_with_graphs_has_the_same_bits),
        cmocka_unit_test(ranks_with_graphs_have_the_bits_of_ranks_without),
        cmocka_unit_test(devices_without_graphs_refuse_the_flag),
    };

    if (setenv("LOCKSTEP_AUTOTUNE", "0", 1) != 0)
        return 1;
    results = ls_test_shared(2 * sizeof(*results));
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
