/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ddp.c - compares several ranks with one process that trains on all data, on a two-layer
 * network with plain C kernels; and tests misuse and failures of single ranks.
 */
#include "ddp/two_layers.h"

#include "base/alloc.h"
#include "harness/ranks.h"
#include "tensor/device.h"
#include "devices/cudahost.h"
#include "tensor/suite_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ls_status parameters_near(small_net *a, small_net *b, double tolerance)
{
    float x[VALUES_MOST];
    float y[VALUES_MOST];
    double difference = 0;
    double norm = 0;
    size_t n;

    LS_TRY(read_parameters(a, x, &n));
    LS_TRY(read_parameters(b, y, &n));
    for (size_t i = 0; i < n; i++) {
        difference += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        norm += (double)y[i] * (double)y[i];
    }
    LS_CHECK(sqrt(difference / norm) < tolerance);
    return LS_OK;
}

static ls_status parameters_equal_on_all_ranks(small_net *n, ls_comm *comm)
{
    float mine[VALUES_MOST] = {0};
    float all[8 * VALUES_MOST];
    size_t count;

    LS_TRY(read_parameters(n, mine, &count));
    LS_TRY(ls_all_gather(comm, mine, all, VALUES_MOST, LS_F32, NULL));
    for (int r = 0; r < ls_comm_size(comm); r++)
        LS_CHECK(memcmp(mine, all + (size_t)r * VALUES_MOST, sizeof(mine)) == 0);
    return LS_OK;
}

enum { STEPS = 6 };

/* --- the tests' bodies --- */

/* How many rows each rank has in a step, by rank. */
typedef struct shares {
    int rows[8];
    ls_ddp_options options;
    bool accumulate; /* the rank's rows come in two halves */
    bool begin;      /* rank 0 begins each step before its forward, the others do not */
} shares;

static ls_status train_and_compare(small_net *ours, small_net *whole, ls_comm *comm,
                                   const shares *s)
{
    const int rank = ls_comm_rank(comm);
    ls_ddp_step step;
    ls_ddp_step ignored;
    int first = 0;
    int total = 0;

    for (int r = 0; r < ls_comm_size(comm); r++) {
        first += r < rank ? s->rows[r] : 0;
        total += s->rows[r];
    }
    for (int i = 0; i < STEPS; i++) {
        const int half = s->accumulate ? s->rows[rank] / 2 : 0;
        if (s->accumulate)
            LS_TRY(rows_through(ours, ddp_accumulate, i, first, half, &ignored));
        if (s->begin && rank == 0)
            LS_TRY(ls_ddp_begin(ours->ddp, s->rows[rank] - half));
        LS_TRY(rows_through(ours, ddp_backward, i, first + half, s->rows[rank] - half, &step));
        LS_CHECK(step.weight == total && step.more_data && !step.stop);
        LS_TRY(ls_optimizer_step(ours->sgd));
        LS_TRY(rows_through(whole, plain_backward, i, 0, total, &ignored));
        LS_TRY(ls_optimizer_step(whole->sgd));
        LS_TRY(parameters_equal_on_all_ranks(ours, comm));
        LS_TRY(parameters_near(ours, whole, 1e-5));
    }
    return LS_OK;
}

static ls_status body_shares(const ls_test_rank *self, void *arg)
{
    const shares *s = arg;
    ls_comm *comm;
    small_net ours;
    small_net whole;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&ours, 100 + (uint64_t)self->rank)); /* rank 0's values must win */
    LS_TRY(net_open(&whole, 100));
    LS_TRY(net_join(&ours, comm, &s->options));
    LS_TRY(net_join(&whole, NULL, NULL));
    st = train_and_compare(&ours, &whole, comm, s);
    small_net_close(&ours);
    small_net_close(&whole);
    ls_comm_destroy(comm);
    return st;
}

static void run_shares(int n, shares s)
{
    s.options.size = sizeof(s.options);
    assert_true(ls_test_run(&(ls_test_job){.n = n, .body = body_shares, .arg = &s}));
}

static void equal_shares_give_the_whole_batch(void **state)
{
    (void)state;
    run_shares(1, (shares){.rows = {8}});
    run_shares(2, (shares){.rows = {4, 4}});
    run_shares(3, (shares){.rows = {3, 3, 3}});
}

static void unequal_shares_count_each_row_once(void **state)
{
    (void)state;
    run_shares(2, (shares){.rows = {1, 7}});
    run_shares(3, (shares){.rows = {5, 0, 2}});
}

static void many_small_buckets_change_nothing(void **state)
{
    (void)state;
    run_shares(2,
               (shares){.rows = {3, 5}, .options = {.first_bucket_bytes = 1, .bucket_bytes = 1}});
}

static void accumulated_gradients_are_one_larger_batch(void **state)
{
    (void)state;
    run_shares(2, (shares){.rows = {6, 4}, .accumulate = true});
    run_shares(2, (shares){.rows = {6, 4},
                           .accumulate = true,
                           .options = {.first_bucket_bytes = 1, .bucket_bytes = 1}});
}

static void a_step_may_begin_before_forward(void **state)
{
    (void)state;
    run_shares(3, (shares){.rows = {3, 0, 5}, .begin = true});
    run_shares(2, (shares){.rows = {6, 4}, .begin = true, .accumulate = true});
    run_shares(2, (shares){.rows = {2, 3}, .begin = true, .options = {.check_replicas = 1}});
}

static void equal_replicas_pass_the_check(void **state)
{
    (void)state;
    run_shares(2, (shares){.rows = {2, 3}, .options = {.check_replicas = 1}});
}

/* --- */

static ls_status body_no_data(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(rows_through(&n, ddp_backward, 0, 0, self->rank == 1 ? 2 : 0, &step));
    LS_CHECK(step.more_data == 1 && step.weight == 2);
    LS_TRY(rows_through(&n, ddp_backward, 1, 0, 0, &step));
    LS_CHECK(step.more_data == 0 && step.weight == 0);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ranks_without_data_continue_until_no_rank_has_data(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_no_data}));
}

static ls_status body_stop(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp_step step = {0};
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    for (int i = 0; i < 4; i++) {
        if (self->rank == 1 && i == 2)
            ls_ddp_request_stop(n.ddp);
        LS_TRY(rows_through(&n, ddp_backward, i, self->rank, 1, &step));
        LS_CHECK(step.stop == (i >= 2));
    }
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void all_ranks_stop_at_the_same_step(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_stop}));
}

/* A layer that only rank 1 uses, and one that no rank uses. */
static ls_status body_unused(const ls_test_rank *self, void *arg)
{
    const int64_t dims[] = {1, IN};
    ls_comm *comm;
    ls_ddp_step step;
    ls_tensor *x;
    ls_tensor *target;
    ls_tensor *h;
    ls_layer *nobodys;
    int n_unused;
    int n_params;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    nobodys = ls_nn_linear(n.model, "nobodys", IN, IN, 1);
    LS_CHECK(nobodys != NULL);
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(ls_tensor_create(n.device, LS_F32, 2, dims, &x));
    LS_TRY(ls_tensor_create(n.device, LS_F32, 2, (int64_t[]){1, self->rank == 1 ? OUT : HIDDEN},
                            &target));
    for (int i = 0; i < 3; i++) { /* before and after buckets are laid out anew */
        ls_tape_reset(n.tape);
        h = ls_forward(n.tape, n.layers[0], x);
        if (self->rank == 1)
            h = ls_forward(n.tape, n.layers[1], h);
        LS_TRY(ls_ddp_backward(n.ddp, n.tape, ls_mse_loss(n.tape, h, target), 1, &step));
        const char *const *unused = ls_ddp_unused(n.ddp, &n_unused);
        LS_CHECK(n_unused == 1 && strcmp(unused[0], "nobodys.weight") == 0);
        const ls_named *list = ls_model_parameters(n.model, &n_params);
        for (int p = 0; p < n_params; p++)
            LS_CHECK((ls_grad(list[p].tensor) != NULL) ==
                     (strcmp(list[p].name, "nobodys.weight") != 0));
    }
    ls_tape_reset(n.tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(target);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void unused_parameters_are_named_and_have_no_gradient(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_unused}));
}

static ls_status body_differing(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    if (self->rank == 2)
        LS_CHECK(ls_nn_linear(n.model, "extra", 2, 3, 1) != NULL);
    LS_CHECK(net_join(&n, comm, NULL) == LS_EMISMATCH);
    LS_CHECK(strstr(ls_last_error(), "rank 2") != NULL);
    LS_CHECK(strstr(ls_last_error(), "extra.weight (3, 2) float32") != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void all_ranks_report_different_models(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_differing}));
}

/* Adds 1 to element 2. */
static ls_status change(ls_tensor *t)
{
    float values[16];

    LS_CHECK(ls_tensor_count(t) > 2 && ls_tensor_count(t) <= 16);
    LS_TRY(ls_tensor_read(t, values, ls_tensor_count(t)));
    values[2] += 1.0F;
    return ls_tensor_write(t, values, ls_tensor_count(t));
}

static ls_status body_tampered(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .check_replicas = 2};
    ls_comm *comm;
    ls_ddp_step step;
    int n_params;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, &options));
    LS_TRY(rows_through(&n, ddp_backward, 0, 0, 1, &step));
    if (self->rank == 1)
        LS_TRY(change(ls_model_parameters(n.model, &n_params)[3].tensor));
    LS_TRY(rows_through(&n, ddp_backward, 1, 0, 1, &step)); /* not looked at in this step */
    LS_CHECK(rows_through(&n, ddp_backward, 2, 0, 1, &step) == LS_EMISMATCH);
    LS_CHECK(strstr(ls_last_error(), "second.bias of rank 1") != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_diverged_replica_is_named(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_tampered}));
}

static ls_status body_buffers(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    small_net n;
    int count;
    float mean[5];
    int64_t tracked;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_CHECK(ls_nn_batch_norm2d(n.model, "bn", 5, NULL) != NULL);
    LS_TRY(net_join(&n, comm, NULL));
    const ls_named *buffers = ls_model_buffers(n.model, &count);
    LS_CHECK(count == 3);
    for (int i = 0; i < 5; i++)
        mean[i] = (float)(self->rank * 10 + i);
    tracked = 7 + self->rank;
    LS_TRY(ls_tensor_write(buffers[0].tensor, mean, 5));
    LS_TRY(ls_tensor_write(buffers[2].tensor, &tracked, 1));
    LS_TRY(ls_ddp_sync_buffers(n.ddp));
    LS_TRY(ls_tensor_read(buffers[0].tensor, mean, 5));
    LS_TRY(ls_tensor_read(buffers[2].tensor, &tracked, 1));
    LS_CHECK(mean[0] == 0.0F && mean[4] == 4.0F && tracked == 7);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void all_ranks_get_the_buffers_of_rank_0(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_buffers}));
}

/* All buffers cross as one piece: copied once, by the operation, between device and host. */
static ls_status body_buffer_copies(const ls_test_rank *self, void *arg)
{
    enum { TIMES = 10 };
    const gpu_host *card = cudahost();
    gpu_host before;
    gpu_host after;
    ls_comm *comm;
    small_net n;

    LS_UNUSED(arg);
    LS_CHECK(card != NULL);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_CHECK(ls_nn_batch_norm2d(n.model, "bn1", 5, NULL) != NULL);
    LS_CHECK(ls_nn_batch_norm2d(n.model, "bn2", 64, NULL) != NULL);
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(ls_ddp_sync_buffers(n.ddp));
    before = *card;
    for (int i = 0; i < TIMES; i++)
        LS_TRY(ls_ddp_sync_buffers(n.ddp));
    LS_TRY(ls_device_synchronize(n.device));
    after = *card;
    LS_CHECK(after.n_launches == before.n_launches);
    LS_CHECK(after.n_copies - before.n_copies == TIMES);
    LS_CHECK(after.n_allocations == before.n_allocations);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void buffers_are_broadcast_where_they_are(void **state)
{
    (void)state;
    if (strcmp(test_device_name(), "cudahost") == 0)
        assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_buffer_copies}, NULL));
}

/* A forward that fails on one rank must not leave the other waiting. */
static ls_status body_failing(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp_step step;
    ls_status st;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    if (self->rank == 0) {
        st = ls_ddp_backward(n.ddp, n.tape, ls_relu(n.tape, NULL), 1, &step);
        LS_CHECK(st != LS_OK);
    } else {
        LS_CHECK(rows_through(&n, ddp_backward, 0, 0, 1, &step) != LS_OK);
        LS_CHECK(strstr(ls_last_error(), "rank 0") != NULL);
    }
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_failed_forward_fails_all_ranks(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_failing}));
}

/* Rank 1 uses a layer in what it accumulates, forgets that, and does not use the layer again. */
static ls_status body_forgotten(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp_step step;
    ls_tensor *x;
    ls_tensor *goal;
    small_net n;
    int n_params;
    int n_unused;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(ls_tensor_create(n.device, LS_F32, 2, (int64_t[]){1, IN}, &x));
    LS_TRY(ls_tensor_create(n.device, LS_F32, 2, (int64_t[]){1, HIDDEN}, &goal));
    if (self->rank == 1)
        LS_TRY(rows_through(&n, ddp_accumulate, 0, 0, 5, &step));
    ls_model_zero_grad(n.model);
    LS_TRY(ls_ddp_backward(
        n.ddp, n.tape, ls_mse_loss(n.tape, ls_forward(n.tape, n.layers[0], x), goal), 1, &step));
    LS_CHECK(step.weight == self->size);
    LS_CHECK(strcmp(ls_ddp_unused(n.ddp, &n_unused)[0], "second.weight") == 0 && n_unused == 2);
    LS_CHECK(ls_grad(ls_model_parameters(n.model, &n_params)[2].tensor) == NULL);
    ls_tape_reset(n.tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(goal);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void cleared_gradients_and_their_rows_do_not_count(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_forgotten}));
}

static ls_status first_element(const ls_tensor *t, float *out)
{
    float *values = ls_calloc(ls_tensor_count(t), sizeof(*values));
    const ls_status st = values == NULL ? LS_ENOMEM : ls_tensor_read(t, values, ls_tensor_count(t));

    if (st == LS_OK)
        *out = values[0];
    ls_free(values);
    return st;
}

/* Scales by powers of two change no bit but the exponent's. */
static ls_status body_scaled(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp_step step;
    float plain;
    float scaled;
    small_net n;
    int n_params;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    LS_CHECK(ls_ddp_set_loss_scale(n.ddp, 0) == LS_EINVAL);
    LS_CHECK(ls_ddp_set_loss_scale(n.ddp, (double)INFINITY) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "inf is not over 0 and finite") != NULL);
    LS_TRY(rows_through(&n, ddp_backward, 0, 3 * self->rank, 3, &step));
    LS_TRY(first_element(ls_grad(ls_model_parameters(n.model, &n_params)[0].tensor), &plain));
    LS_CHECK(plain != 0);
    ls_model_zero_grad(n.model);
    LS_TRY(ls_ddp_set_loss_scale(n.ddp, 1024));
    LS_TRY(rows_through(&n, ddp_backward, 0, 3 * self->rank, 3, &step));
    LS_TRY(first_element(ls_grad(ls_model_parameters(n.model, &n_params)[0].tensor), &scaled));
    LS_CHECK(scaled == 1024 * plain);
    LS_CHECK(step.weight == 3 * self->size);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void gradients_of_a_scaled_loss_are_scaled(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_scaled}));
}

/* The gradients of the last rank overflow in step 1: the seed of its backward is infinite. */
static ls_status scaled_step(small_net *n, ls_grad_scaler *scaler, const ls_test_rank *self, int i)
{
    const bool overflows = i == 1 && self->rank == self->size - 1;
    ls_ddp_step step;

    LS_TRY(ls_ddp_set_loss_scale(n->ddp, overflows ? 1e300 : ls_grad_scaler_scale(scaler)));
    LS_TRY(rows_through(n, ddp_backward, i, 3 * self->rank, 3, &step));
    LS_TRY(ls_grad_scaler_step(scaler));
    LS_TRY(ls_grad_scaler_update(scaler));
    LS_CHECK(ls_grad_scaler_skipped(scaler) == (i > 0));
    LS_CHECK(ls_grad_scaler_scale(scaler) == (i > 0 ? 32768 : 65536));
    return LS_OK;
}

static ls_status body_skipped(const ls_test_rank *self, void *arg)
{
    float before[VALUES_MOST];
    float after[VALUES_MOST];
    ls_grad_scaler *scaler;
    ls_comm *comm;
    small_net n;
    size_t count;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(ls_grad_scaler_create(n.sgd, NULL, &scaler));
    for (int i = 0; i < 3; i++) {
        LS_TRY(read_parameters(&n, before, &count));
        LS_TRY(scaled_step(&n, scaler, self, i));
        LS_TRY(read_parameters(&n, after, &count));
        LS_CHECK((memcmp(before, after, count * sizeof(*before)) == 0) == (i == 1));
    }
    ls_grad_scaler_destroy(scaler);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void all_ranks_skip_the_step_in_which_one_overflows(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++)
        assert_true(ls_test_run(&(ls_test_job){.n = n, .body = body_skipped}));
}

/* --- memory --- */

static _Thread_local size_t live_bytes;

static void *counting_alloc(device_state *self, size_t bytes)
{
    live_bytes += bytes;
    return cpu_ref_device_ops.alloc(self, bytes);
}

static void counting_free(device_state *self, void *block, size_t bytes)
{
    live_bytes -= bytes;
    cpu_ref_device_ops.free(self, block, bytes);
}

/* The second step lays the buckets out anew; gradients lie in buckets before and afterwards. Only
 * steps without checkpoints, which need other blocks. */
static ls_status body_memory(const ls_test_rank *self, void *arg)
{
    device_ops ops = cpu_ref_device_ops;
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;
    size_t before;

    LS_UNUSED(arg);
    ops.alloc = counting_alloc;
    ops.free = counting_free;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open_on("cpu_ref", &n, 1));
    live_bytes = (size_t)1 << 30; /* blocks from before may be freed */
    n.device->ops = &ops;
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(rows_through(&n, ddp_backward, 0, 0, 2, &step));
    before = live_bytes;
    for (int i = 1; i < 4; i++)
        LS_TRY(rows_through(&n, ddp_backward, 2 * i, 0, 2, &step));
    LS_CHECK(live_bytes == before);
    ls_ddp_destroy(n.ddp);
    n.ddp = NULL;
    LS_CHECK(live_bytes == before);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void new_buckets_leave_no_copies_of_gradients(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_memory}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_shares_give_the_whole_batch),
        cmocka_unit_test(unequal_shares_count_each_row_once),
        cmocka_unit_test(many_small_buckets_change_nothing),
        cmocka_unit_test(accumulated_gradients_are_one_larger_batch),
        cmocka_unit_test(a_step_may_begin_before_forward),
        cmocka_unit_test(equal_replicas_pass_the_check),
        cmocka_unit_test(ranks_without_data_continue_until_no_rank_has_data),
        cmocka_unit_test(all_ranks_stop_at_the_same_step),
        cmocka_unit_test(unused_parameters_are_named_and_have_no_gradient),
        cmocka_unit_test(all_ranks_report_different_models),
        cmocka_unit_test(a_diverged_replica_is_named),
        cmocka_unit_test(all_ranks_get_the_buffers_of_rank_0),
        cmocka_unit_test(buffers_are_broadcast_where_they_are),
        cmocka_unit_test(a_failed_forward_fails_all_ranks),
        cmocka_unit_test(cleared_gradients_and_their_rows_do_not_count),
        cmocka_unit_test(gradients_of_a_scaled_loss_are_scaled),
        cmocka_unit_test(all_ranks_skip_the_step_in_which_one_overflows),
        cmocka_unit_test(new_buckets_leave_no_copies_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
