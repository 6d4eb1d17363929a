/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sync_batch_norm.c - compares batch norms over all ranks with one process that trains on the
 * whole batch, on a small convolutional network.
 */
#include "ddp/small_net.h"

#include "base/rng.h"
#include "harness/ranks.h"
#include "tensor/suite_device.h"
#include "tensor/tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { IN = 2, SIDE = 5, MID = 6, OUT = 3, STEPS = 5 };

/* Parameters and running statistics stay within this distance (L2, relative) of the single process,
 * over all steps: float32 rounding of sums in another order, which each step amplifies. */
static const double bound = 2e-5;

enum { CONV, NORM, FC, NORM2 }; /* layers */

static ls_status net_open(small_net *n, const char *device, uint64_t seed)
{
    const ls_nn_conv2d_options conv = {.kernel = {3, 3}, .padding = {1, 1}, .no_bias = 1};

    LS_TRY(small_net_open(n, device, seed));
    n->layers[CONV] = ls_nn_conv2d(n->model, "conv", IN, MID, &conv);
    n->layers[NORM] = ls_nn_batch_norm2d(n->model, "norm", MID, NULL);
    n->layers[FC] = ls_nn_linear(n->model, "fc", MID * SIDE * SIDE, OUT, 0);
    n->layers[NORM2] = ls_nn_batch_norm2d(n->model, "norm2", OUT, NULL);
    return ls_model_status(n->model);
}

static ls_status net_join(small_net *n, ls_comm *comm, const ls_ddp_options *opt)
{
    return small_net_join(n, comm, opt, 0.05);
}

/* Mean loss over rows [first, first + rows) of a step. */
static ls_status loss_of(small_net *n, int step, int first, int rows, ls_tensor **x, ls_tensor **y,
                         ls_tensor **loss)
{
    ls_tensor *h;

    // Far from 0.
    LS_TRY(small_net_rows(n, step, first, (int64_t[]){0, IN, SIDE, SIDE}, 4, rows, 3, OUT, x, y));
    h = ls_forward(n->tape, n->layers[CONV], *x);
    h = ls_forward_add(n->tape, n->layers[NORM], h, h, 1);
    h = ls_forward(n->tape, n->layers[NORM2],
                   ls_forward(n->tape, n->layers[FC], ls_flatten(n->tape, h)));
    *loss = ls_cross_entropy(n->tape, h, *y);
    return LS_OK;
}

static ls_status backward(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    if (n->ddp != NULL)
        return ls_ddp_backward(n->ddp, n->tape, loss, rows, step);
    *step = (ls_ddp_step){.weight = (double)rows, .more_data = rows > 0};
    ls_model_zero_grad(n->model);
    LS_TRY(ls_tape_status(n->tape));
    return ls_backward(n->tape, loss, 1.0);
}

static ls_status train_step(small_net *n, int step, int first, int rows)
{
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_ddp_step message = {0};
    ls_status st = loss_of(n, step, first, rows, &x, &y, &loss);

    if (st == LS_OK)
        st = backward(n, loss, rows, &message);
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st == LS_OK && message.more_data ? ls_optimizer_step(n->sgd) : st;
}

/* How far the named tensor of `a` is from that of `b`. */
static ls_status near(const ls_named *a, const ls_named *b)
{
    const size_t count = ls_tensor_count(a->tensor);
    float x[MID * SIDE * SIDE * OUT];
    float y[MID * SIDE * SIDE * OUT];
    double apart = 0;
    double norm = 1e-12;

    if (ls_tensor_dtype(a->tensor) == LS_I64) {
        int64_t counts[2];

        LS_TRY(ls_tensor_read(a->tensor, &counts[0], 1));
        LS_TRY(ls_tensor_read(b->tensor, &counts[1], 1));
        LS_CHECK(counts[0] == counts[1]);
        return LS_OK;
    }
    LS_TRY(ls_tensor_read(a->tensor, x, count));
    LS_TRY(ls_tensor_read(b->tensor, y, count));
    for (size_t i = 0; i < count; i++) {
        apart += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        norm += (double)y[i] * (double)y[i];
    }
    if (sqrt(apart / norm) > bound)
        return ls_fail(LS_EFORMAT, "%s is %g away from the single process's", a->name,
                       sqrt(apart / norm));
    return LS_OK;
}

static ls_status states_near(small_net *a, small_net *b)
{
    int n;
    const ls_named *ours = ls_model_state(a->model, &n);
    const ls_named *theirs = ls_model_state(b->model, &n);

    for (int i = 0; i < n; i++)
        LS_TRY(near(&ours[i], &theirs[i]));
    return LS_OK;
}

/* Parameters, running statistics and counters: the same bits everywhere. */
static ls_status states_equal_on_all_ranks(small_net *n, ls_comm *comm)
{
    int count;
    const ls_named *state = ls_model_state(n->model, &count);
    uint8_t bytes[MID * SIDE * SIDE * OUT * sizeof(double)];
    uint64_t all[8];
    uint64_t mine = 0;

    for (int i = 0; i < count; i++) {
        const ls_tensor *t = state[i].tensor;

        LS_CHECK(tensor_bytes(t) <= sizeof(bytes));
        LS_TRY(ls_tensor_read(t, bytes, ls_tensor_count(t)));
        mine = ls_hash_bytes(bytes, tensor_bytes(t), mine);
    }
    LS_TRY(ls_all_gather(comm, &mine, all, 1, LS_I64, NULL));
    for (int r = 0; r < ls_comm_size(comm); r++)
        LS_CHECK(all[r] == mine);
    return LS_OK;
}

/* How many rows each rank has in a step, by rank. */
typedef struct shares {
    const char *device;
    int rows[8];
    ls_ddp_options options;
} shares;

static ls_status train_and_compare(small_net *ours, small_net *whole, ls_comm *comm,
                                   const shares *s)
{
    const int rank = ls_comm_rank(comm);
    int first = 0;
    int total = 0;

    for (int r = 0; r < ls_comm_size(comm); r++) {
        first += r < rank ? s->rows[r] : 0;
        total += s->rows[r];
    }
    for (int i = 0; i < STEPS; i++) {
        LS_TRY(train_step(ours, i, first, s->rows[rank]));
        LS_TRY(train_step(whole, i, 0, total));
        LS_TRY(states_equal_on_all_ranks(ours, comm));
        LS_TRY(states_near(ours, whole));
    }
    // No rank has rows: nothing changes, counters included.
    LS_TRY(train_step(ours, STEPS, 0, 0));
    return states_near(ours, whole);
}

static ls_status body_shares(const ls_test_rank *self, void *arg)
{
    const shares *s = arg;
    ls_comm *comm;
    small_net ours;
    small_net whole;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&ours, s->device, 100 + (uint64_t)self->rank));
    LS_TRY(net_open(&whole, s->device, 100));
    LS_TRY(net_join(&ours, comm, &s->options));
    LS_TRY(net_join(&whole, NULL, NULL));
    st = train_and_compare(&ours, &whole, comm, s);
    small_net_close(&ours);
    small_net_close(&whole);
    ls_comm_destroy(comm);
    return st;
}

/* Statistics are not broadcast here: synchronised ones are equal by themselves. */
static void run_shares(int n, shares s)
{
    s.options =
        (ls_ddp_options){.size = sizeof(s.options), .sync_batch_norm = 1, .no_buffer_broadcast = 1};
    assert_true(ls_test_run(&(ls_test_job){.n = n, .body = body_shares, .arg = &s}));
}

/* A module is opened by one thread at a time: with ranks that are threads only the reference
 * runs. */
static void run_on_each_device(int n, shares s)
{
    s.device = test_device_name();
    run_shares(n, s);
    if (HAS_ONEDNN && ls_test_number("LS_TEST_THREADS", 0) == 0) {
        s.device = "onednn";
        run_shares(n, s);
    }
}

static void equal_shares_are_one_batch(void **state)
{
    (void)state;
    run_on_each_device(1, (shares){.rows = {6}});
    run_on_each_device(2, (shares){.rows = {4, 4}});
    run_on_each_device(3, (shares){.rows = {3, 3, 3}});
}

static void unequal_shares_are_one_batch(void **state)
{
    (void)state;
    run_on_each_device(2, (shares){.rows = {1, 7}});
    run_on_each_device(3, (shares){.rows = {5, 0, 2}});
    run_on_each_device(3, (shares){.rows = {0, 1, 8}});
}

/* One value a channel on each rank is a batch when there are several ranks. */
static void one_row_per_rank_suffices(void **state)
{
    (void)state;
    run_on_each_device(3, (shares){.rows = {1, 1, 1}});
}

/* --- */

static ls_status body_too_few(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .sync_batch_norm = 1};
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_comm *comm;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, test_device_name(), 1));
    LS_TRY(net_join(&n, comm, &options));
    LS_TRY(loss_of(&n, 0, 0, self->rank == 0 ? 1 : 0, &x, &y, &loss));
    if (ls_device_queue(n.device) == NULL) {
        LS_CHECK(loss == NULL && ls_tape_status(n.tape) == LS_EINVAL);
        LS_CHECK(strstr(ls_last_error(), "norm2: batch_norm") != NULL);
    } else { /* it fails when it runs */
        LS_CHECK(ls_device_synchronize(n.device) == LS_EINVAL);
    }
    LS_CHECK(strstr(ls_last_error(), "more than one value per channel over all ranks") != NULL);
    ls_tape_reset(n.tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void one_value_per_channel_fails_on_all_ranks(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_too_few}));
}

/* Pairs of ranks share a batch: 0 with 1, 2 with 3. */
static ls_status body_pairs(const ls_test_rank *self, void *arg)
{
    ls_ddp_options options = {
        .size = sizeof(options), .sync_batch_norm = 1, .no_buffer_broadcast = 1};
    float mean[MID];
    float all[4 * MID];
    ls_comm *comm;
    ls_comm *pair;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_comm_split(comm, self->rank / 2, self->rank, &pair));
    LS_TRY(net_open(&n, test_device_name(), 1));
    options.batch_norm_group = comm;
    LS_CHECK(net_join(&n, comm, &options) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "batch_norm_group") != NULL);
    options.batch_norm_group = pair;
    LS_TRY(net_join(&n, comm, &options));
    LS_TRY(train_step(&n, 0, self->rank * 2, 2));
    LS_TRY(ls_tensor_read(ls_model_buffers(n.model, &(int){0})[0].tensor, mean, MID));
    LS_TRY(ls_all_gather(comm, mean, all, MID, LS_F32, NULL));
    LS_CHECK(memcmp(all, all + MID, sizeof(mean)) == 0);
    LS_CHECK(memcmp(all + 2 * (size_t)MID, all + 3 * (size_t)MID, sizeof(mean)) == 0);
    LS_CHECK(memcmp(all, all + 2 * (size_t)MID, sizeof(mean)) != 0);
    small_net_close(&n);
    ls_comm_destroy(pair);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void batch_norms_use_the_callers_group(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 4, .body = body_pairs}));
}

/* Afterwards the model's batch norms are plain ones again; evaluation does not communicate. */
static ls_status body_alone(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .sync_batch_norm = 1};
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_comm *comm;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, test_device_name(), 1));
    LS_TRY(net_join(&n, comm, &options));
    if (self->rank == 0) {
        ls_tape_set_training(n.tape, 0);
        LS_TRY(loss_of(&n, 0, 0, 2, &x, &y, &loss));
        LS_TRY(ls_tape_status(n.tape));
        ls_tape_reset(n.tape);
        ls_tape_set_training(n.tape, 1);
        ls_tensor_destroy(x);
        ls_tensor_destroy(y);
    }
    ls_optimizer_destroy(n.sgd);
    ls_ddp_destroy(n.ddp);
    n.ddp = NULL;
    LS_TRY(net_join(&n, NULL, NULL));
    if (self->rank == 0)
        LS_TRY(train_step(&n, 0, 0, 3));
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void evaluation_and_a_destroyed_ddp_use_local_batches(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_alone}));
}

/* A forward that fails on one rank while the other waits for its batch norm. */
static ls_status body_failing(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .sync_batch_norm = 1};
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, test_device_name(), 1));
    LS_TRY(net_join(&n, comm, &options));
    if (self->rank == 0) {
        LS_CHECK(ls_ddp_backward(n.ddp, n.tape, ls_relu(n.tape, NULL), 1, &step) != LS_OK);
    } else {
        LS_CHECK(train_step(&n, 0, 0, 2) != LS_OK);
        LS_CHECK(strstr(ls_last_error(), "rank 0") != NULL);
    }
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_failed_forward_fails_ranks_in_a_batch_norm(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_failing}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_shares_are_one_batch),
        cmocka_unit_test(unequal_shares_are_one_batch),
        cmocka_unit_test(one_row_per_rank_suffices),
        cmocka_unit_test(one_value_per_channel_fails_on_all_ranks),
        cmocka_unit_test(batch_norms_use_the_callers_group),
        cmocka_unit_test(evaluation_and_a_destroyed_ddp_use_local_batches),
        cmocka_unit_test(a_failed_forward_fails_ranks_in_a_batch_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
