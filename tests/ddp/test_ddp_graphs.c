/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ddp_graphs.c - steps with CUDA graphs on the CUDA device over host memory, whose gradients
 * the NCCL of the tests reduces: the weights of the ranks differ, and change from step to step, as
 * that of an epoch's last batch does. Compares them with one process that trains on all data, and
 * counts the graphs of a step.
 */
#include "ddp/two_layers.h"

#include "harness/ranks.h"
#include "tensor/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, STEPS = 16, FIRST_STEPS = 8 };

/* Rows of each rank in a step; the last ones are those of a short batch, and of none. */
static const int rows_of[][RANKS] = {{4, 4}, {4, 4}, {3, 1}, {2, 0}};

static ls_status compare_parameters(small_net *a, small_net *b)
{
    float x[VALUES_MOST];
    float y[VALUES_MOST];
    size_t n;

    LS_TRY(read_parameters(a, x, &n));
    LS_TRY(read_parameters(b, y, &n));
    for (size_t i = 0; i < n; i++)
        LS_CHECK(fabsf(x[i] - y[i]) < 1e-5F);
    return LS_OK;
}

/* At most one graph up to each bucket, and one of the optimizer; none is made anew when all shapes
 * have been seen. */
static ls_status check_graphs(const small_net *n, int step, const device_usage *before,
                              const device_usage *after)
{
    ls_ddp_stats stats;
    const uint64_t n_launched = after->n_graph_launches - before->n_graph_launches;

    ls_ddp_get_stats(n->ddp, &stats);
    LS_CHECK(stats.n_buckets > 1);
    if (step < FIRST_STEPS)
        return LS_OK;
    LS_CHECK(n_launched > 0 && n_launched <= (uint64_t)stats.n_buckets + 1);
    LS_CHECK(after->n_graphs_made == before->n_graphs_made);
    return LS_OK;
}

static ls_status step_of(small_net *ours, small_net *whole, int rank, int step)
{
    const int *rows = rows_of[(size_t)step % LS_COUNT_OF(rows_of)];
    device_usage before, after;
    ls_ddp_step result, ignored;

    LS_TRY(device_get_usage(ours->device, &before));
    LS_TRY(
        rows_through(ours, ddp_backward, 2 * step, rank == 0 ? 0 : rows[0], rows[rank], &result));
    LS_CHECK(result.weight == rows[0] + rows[1] && result.more_data);
    LS_TRY(ls_optimizer_step(ours->sgd));
    LS_TRY(ls_device_synchronize(ours->device));
    LS_TRY(device_get_usage(ours->device, &after));
    LS_TRY(check_graphs(ours, step, &before, &after));
    LS_TRY(rows_through(whole, plain_backward, 2 * step, 0, rows[0] + rows[1], &ignored));
    LS_TRY(ls_optimizer_step(whole->sgd));
    return compare_parameters(ours, whole);
}

static ls_status body(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options each_its_bucket = {
        .size = sizeof(each_its_bucket), .first_bucket_bytes = 1, .bucket_bytes = 1};
    ls_comm *comm;
    small_net ours, whole;
    ls_status st = LS_OK;

    (void)arg;
    LS_TRY(ls_test_init(self, &comm));
    LS_CHECK(strcmp(ls_comm_backend(comm), "nccl") == 0);
    LS_TRY(net_open_on("cudahost:0", &ours, 100));
    LS_TRY(net_open_on("cpu_ref", &whole, 100));
    LS_TRY(net_join(&ours, comm, &each_its_bucket));
    LS_TRY(net_join(&whole, NULL, NULL));
    for (int i = 0; i < STEPS && st == LS_OK; i++)
        st = step_of(&ours, &whole, self->rank, i);
    small_net_close(&ours);
    small_net_close(&whole);
    ls_comm_destroy(comm);
    return st;
}

static void steps_of_changing_weights_are_those_of_the_whole_batch(void **state)
{
    const ls_test_job job = {.n = RANKS,
                             .body = body,
                             .env = {"LOCKSTEP_BACKEND=nccl", "LOCKSTEP_CUDA_GRAPH=1",
                                     "LOCKSTEP_AUTOTUNE=0",
                                     "LOCKSTEP_NCCL_LIBRARY=" FAKE_NCCL_LIBRARY}};

    (void)state;
    assert_true(ls_test_ranks(&job, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_changing_weights_are_those_of_the_whole_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
