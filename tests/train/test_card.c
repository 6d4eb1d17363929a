/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_card.c - tests runs of two ranks of which one loses its card, or has a card with too little
 * memory: the error of each rank, and that a resumed run gives the bits of an undisturbed one.
 */
#include "harness/ranks.h"
#include "train/card.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, STEPS_AN_EPOCH = 8 };

/* A survivor has its error within 2 s; the rest is for ending a process of a loaded machine. */
#define BOUND_MS 5000

static small_result *results; /* of each rank, shared */
static ls_test_outcome outcomes[RANKS];

/* What rank 1 does, in addition to the job. */
typedef struct card_job {
    small_job job;
    size_t bytes; /* of the memory of its card; 0: enough */
} card_job;

static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    card_job job = *(const card_job *)arg;

    if (self->rank != 1)
        job.job.lose_at = 0;
    if (self->rank == 1 && job.bytes > 0)
        LS_TRY(card_set_memory(job.bytes));
    LS_TRY(ls_test_init(self, &job.job.comm));
    // A rank that is ready first would else fail while another still joins.
    LS_TRY(ls_barrier(job.job.comm, NULL));
    results[self->rank] = small_run(&job.job);
    ls_comm_destroy(job.job.comm);
    return results[self->rank].status;
}

static void run_ranks(const card_job *job)
{
    card_job copy = *job;

    memset(results, 0, RANKS * sizeof(*results));
    (void)ls_test_ranks(&(ls_test_job){.n = RANKS, .body = rank_body, .arg = &copy}, outcomes);
}

static small_result run_well(const card_job *job)
{
    run_ranks(job);
    for (int i = 0; i < RANKS; i++) {
        assert_string_equal(results[i].error, "");
        assert_int_equal(outcomes[i].code, 0);
    }
    return results[0];
}

static card_job job_on(const char *device)
{
    card_job job = {.job = {.flags = small_flags(small_dir), .batch_norm = 1}};

    job.job.flags.device = device;
    return job;
}

/* The same error with the name of the failed rank on the survivor, and none of its own. */
static void assert_failed(const char *text, const char *advice)
{
    if (strstr(results[1].error, text) == NULL)
        fail_msg("rank 1: \"%s\"", results[1].error);
    assert_non_null(strstr(results[1].error, advice));
    assert_null(strstr(results[1].error, "rank 0"));
    if (strstr(results[0].error, "rank 1") == NULL)
        fail_msg("rank 0: \"%s\"", results[0].error);
}

static void check_loss(const char *device, const char *text, const char *advice)
{
    card_job job = job_on(device);
    const small_result whole = run_well(&job);
    small_result rest;

    job.job.flags.save = path_in(device);
    job.job.lose_at = STEPS_AN_EPOCH + 4;
    run_ranks(&job);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(outcomes[i].signal, 0);
        assert_int_equal(outcomes[i].code, 1);
    }
    assert_failed(text, advice);
    assert_true(outcomes[0].end_ms - outcomes[1].end_ms < BOUND_MS);
    job.job.lose_at = 0;
    job.job.flags.resume = "";
    rest = run_well(&job); // from the end of the first epoch
    assert_int_equal(rest.state.step, whole.state.step);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
}

static void a_lost_card_is_named_on_its_rank_and_the_rank_on_the_others(void **state)
{
    (void)state;
    check_loss("cudahost", "cudahost:1 (host memory, PCI 10000000:01:00.0) can no longer be used",
               "Start again from the last checkpoint");
}

static void a_full_card_is_named_on_its_rank_and_the_rank_on_the_others(void **state)
{
    card_job job = job_on("cudahost");
    const small_result whole = run_well(&job);
    small_result rest;

    (void)state;
    job.job.flags.save = path_in("full");
    job.job.flags.steps = STEPS_AN_EPOCH;
    (void)run_well(&job);
    job.job.flags.steps = 0;
    job.job.flags.resume = "";
    job.bytes = (size_t)64 << 10;
    run_ranks(&job);
    assert_failed("out of memory on cudahost:1: ", "Lower --batch-size");
    assert_non_null(strstr(results[1].error, "parameters, gradients and optimizer state"));
    assert_true(outcomes[0].end_ms - outcomes[1].end_ms < BOUND_MS);
    job.bytes = 0;
    rest = run_well(&job);
    assert_int_equal(rest.state.step, whole.state.step);
    assert_memory_equal(rest.weights, whole.weights, sizeof(whole.weights));
}

static int make(void **state)
{
    results = ls_test_shared(RANKS * sizeof(*results));
    return results == NULL ? -1 : small_dir_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_card_is_named_on_its_rank_and_the_rank_on_the_others),
        cmocka_unit_test(a_full_card_is_named_on_its_rank_and_the_rank_on_the_others),
    };

    return cmocka_run_group_tests(tests, make, small_dir_remove);
}
