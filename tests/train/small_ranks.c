/* SPDX-License-Identifier: Apache-2.0 */
/* small_ranks.c - see small_ranks.h. */
#include "train/small_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

small_result *small_results;

int small_ranks_set_up(void **state)
{
    small_results = ls_test_shared(LS_TEST_RANKS_MAX * sizeof(*small_results));
    return small_results != NULL ? small_dir_make(state) : -1;
}

ls_status small_rank(const ls_test_rank *self, void *arg)
{
    small_job job = *(const small_job *)arg;

    LS_TRY(ls_test_init(self, &job.comm));
    if (job.flip != NULL && job.flip_rank == self->rank)
        (void)setenv("LOCKSTEP_TEST_FLIP", job.flip, 1); // NOLINT(concurrency-mt-unsafe)
    if (self->rank != self->size - 1)
        job.stop_at = job.spoil_at = 0;
    small_results[self->rank] = small_run(&job);
    ls_comm_destroy(job.comm);
    return small_results[self->rank].status;
}

void small_assert_same(const small_result *a, const small_result *b)
{
    assert_memory_equal(a->weights, b->weights, sizeof(a->weights));
    assert_int_equal(a->state.step, b->state.step);
    assert_true(a->state.loss == b->state.loss);
    assert_true(a->state.top1 == b->state.top1);
    assert_true(a->state.test_loss == b->state.test_loss);
    assert_true(a->state.accuracy == b->state.accuracy);
}

small_result small_run_on(int n, const small_job *job)
{
    small_job copy = *job;
    const small_result *first = &small_results[0];

    assert_true(ls_test_ranks(&(ls_test_job){.n = n, .body = small_rank, .arg = &copy}, NULL));
    for (int i = 1; i < n; i++)
        assert_memory_equal(small_results[i].weights, first->weights, sizeof(first->weights));
    return *first;
}

void small_expect_error(int n, const small_job *job, const char *text)
{
    small_job copy = *job;
    ls_test_outcome outcomes[2];

    assert_false(ls_test_ranks(&(ls_test_job){.n = n, .body = small_rank, .arg = &copy}, outcomes));
    if (strstr(small_results[0].error, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", small_results[0].error, text);
}
