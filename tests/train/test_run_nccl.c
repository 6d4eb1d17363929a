/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_nccl.c - runs of two ranks whose gradients are reduced by the NCCL backend, over the
 * NCCL of the tests: with queues whose work runs later, with and without CUDA graphs, every weight
 * is that of the run through host memory. The NCCL of the tests ends the process when memory is
 * registered or freed at the wrong time.
 */
#include "harness/ranks.h"
#include "train/card.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/text.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, STEPS = 24, DELAY_US = 300 };

static small_result *results; /* of each rank, shared */

/* How a job reduces gradients and runs work. */
typedef struct way {
    const char *backend;
    uint64_t seed; /* of the delays; 0: none */
    bool graphs;
} way;

typedef struct nccl_job {
    small_job job;
    way way;
} nccl_job;

static ls_status check_graphs(const nccl_job *job)
{
    uint64_t n;

    LS_TRY(card_count_graphs(&n));
    // a step has at least one, but for the first steps
    LS_CHECK(job->way.graphs ? n + 5 >= STEPS : n == 0);
    return LS_OK;
}

/* What a function of the NCCL of the tests has counted in this process; -1: it is not loaded. */
static int nccl_count(const char *function)
{
    void *library = dlopen(FAKE_NCCL_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    void *f = library == NULL ? NULL : dlsym(library, function);
    int (*ask)(void) = NULL;

    memcpy(&ask, &f, sizeof(f));
    return ask == NULL ? -1 : ask();
}

/* The buckets are memory of NCCL, one block each time that they are built. */
static ls_status check_memory(const nccl_job *job)
{
    const int n = nccl_count("fake_nccl_n_allocated");

    LS_CHECK(text_equal(job->way.backend, "nccl") ? n >= 2 : n == -1);
    LS_CHECK(nccl_count("fake_nccl_n_freed") == n);
    return LS_OK;
}

static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    nccl_job job = *(const nccl_job *)arg;
    small_result *r = &results[self->rank];

    if (job.way.seed > 0)
        LS_TRY(card_delay(job.way.seed + (uint64_t)self->rank, DELAY_US));
    LS_TRY(ls_test_init(self, &job.job.comm));
    LS_CHECK(text_equal(ls_comm_backend(job.job.comm), job.way.backend));
    *r = small_run(&job.job);
    ls_comm_destroy(job.job.comm);
    if (r->status != LS_OK)
        return ls_fail(r->status, "%s", r->error);
    LS_TRY(check_memory(&job));
    return check_graphs(&job);
}

static small_result run(const small_job *job, way w)
{
    nccl_job copy = {.job = *job, .way = w};
    char backend[64];
    const ls_test_job ranks = {
        .n = RANKS,
        .body = rank_body,
        .arg = &copy,
        .env = {text_format(backend, sizeof(backend), "LOCKSTEP_BACKEND=%s", w.backend),
                "LOCKSTEP_NCCL_LIBRARY=" FAKE_NCCL_LIBRARY, "FAKE_NCCL=busy=2"}};

    copy.job.flags.cuda_graph = w.graphs;
    memset(results, 0, RANKS * sizeof(*results));
    if (!ls_test_ranks(&ranks, NULL))
        fail_msg("%s, %s, seed %llu%s", job->flags.device, w.backend, (unsigned long long)w.seed,
                 w.graphs ? ", with graphs" : "");
    assert_memory_equal(results[1].weights, results[0].weights, sizeof(results[0].weights));
    return results[0];
}

static void assert_equal_runs(const small_result *a, const small_result *b)
{
    assert_int_equal(a->state.step, STEPS);
    assert_int_equal(b->state.step, STEPS);
    assert_memory_equal(a->weights, b->weights, sizeof(a->weights));
    assert_memory_equal(a->lr, b->lr, sizeof(a->lr));
    assert_true(a->state.test_loss == b->state.test_loss);
}

/* The NCCL of the tests adds in the order of the native backend. */
static void check(small_job *job)
{
    const uint64_t seed = (uint64_t)ls_test_number("LS_TEST_SEED", 1);
    const way ways[] = {{.backend = "nccl", .seed = seed},
                        {.backend = "nccl", .graphs = true},
                        {.backend = "nccl", .seed = seed, .graphs = true}};
    small_result through_host;

    job->flags.device = "cudahost";
    through_host = run(job, (way){.backend = "native"});
    for (size_t i = 0; i < LS_COUNT_OF(ways); i++) {
        const small_result r = run(job, ways[i]);

        assert_equal_runs(&through_host, &r);
    }
}

/* Several buckets, which are registered, and built anew after the first step. */
static small_job job_of(const char *precision)
{
    small_job job = {.flags = small_flags(small_dir),
                     .batch_norm = 1,
                     .dropout = 0.25,
                     .pad = 1,
                     .bucket_bytes = 100};

    job.flags.precision = precision;
    job.flags.lr = 0.05;
    job.flags.seed = 7;
    return job;
}

static void a_run_has_the_bits_of_one_through_host_memory(void **state)
{
    static const char *const precisions[] = {"fp32", "fp16"};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(precisions); i++) {
        small_job job = job_of(precisions[i]);

        check(&job);
    }
}

static void a_run_with_synchronized_batch_norms_has_the_same_bits(void **state)
{
    small_job job = job_of("fp32");

    (void)state;
    job.flags.sync_bn = 1;
    check(&job);
}

static void a_run_with_compressed_gradients_has_the_same_bits(void **state)
{
    small_job job = job_of("fp32");

    (void)state;
    job.flags.compress = "bf16";
    check(&job);
}

static int make(void **state)
{
    results = ls_test_shared(RANKS * sizeof(*results));
    return results == NULL ? -1 : small_dir_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_the_bits_of_one_through_host_memory),
        cmocka_unit_test(a_run_with_synchronized_batch_norms_has_the_same_bits),
        cmocka_unit_test(a_run_with_compressed_gradients_has_the_same_bits),
    };

    if (setenv("LOCKSTEP_AUTOTUNE", "0", 1) != 0)
        return 1;
    return cmocka_run_group_tests(tests, make, small_dir_remove);
}
