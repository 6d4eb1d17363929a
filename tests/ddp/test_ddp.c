/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ddp.c - compares several ranks with one process that trains on all data, on a two-layer
 * network with plain C kernels; and tests misuse and failures of single ranks.
 */
#include "ddp/small_net.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/recorder.h"
#include "harness/ranks.h"
#include "tensor/device.h"
#include "tensor/sim/control.h"
#include "tensor/suite_device.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IN = 7, HIDDEN = 9, OUT = 3, STEPS = 6 };

/* layers: first, second */
static ls_status net_open_on(const char *device, small_net *n, uint64_t seed)
{
    LS_TRY(small_net_open(n, device, seed));
    n->layers[0] = ls_nn_linear(n->model, "first", IN, HIDDEN, 0);
    n->layers[1] = ls_nn_linear(n->model, "second", HIDDEN, OUT, 0);
    return ls_model_status(n->model);
}

static ls_status net_open(small_net *n, uint64_t seed)
{
    return net_open_on(test_device_name(), n, seed);
}

static ls_status net_join(small_net *n, ls_comm *comm, const ls_ddp_options *opt)
{
    LS_TRY(small_net_join(n, comm, opt, 0.1));
    // A rank that is ready first would else abort the group while another still joins.
    return comm == NULL ? LS_OK : ls_barrier(comm, NULL);
}

static void hidden(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    const small_net *n = arg;

    out[0] = ls_relu(tape, ls_forward(tape, n->layers[0], in[0]));
}

/* Mean loss over rows [first, first + rows) of a step. Every second step is checkpointed. */
static ls_status loss_of(small_net *n, int step, int first, int rows, ls_tensor **x, ls_tensor **y,
                         ls_tensor **loss)
{
    ls_tensor *h;

    LS_TRY(small_net_rows(n, step, first, (int64_t[]){0, IN}, 2, rows, 0, OUT, x, y));
    if (step % 2 == 1)
        ls_tape_checkpoint(n->tape, hidden, n, 0, x, 1, &h, 1);
    else
        hidden(n->tape, x, &h, n);
    *loss = ls_cross_entropy(n->tape, ls_forward(n->tape, n->layers[1], h), *y);
    return ls_tape_status(n->tape);
}

typedef ls_status (*backward_fn)(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step);

static ls_status ddp_backward(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    return ls_ddp_backward(n->ddp, n->tape, loss, rows, step);
}

static ls_status ddp_accumulate(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    LS_UNUSED(step);
    return ls_ddp_accumulate(n->ddp, n->tape, loss, rows);
}

static ls_status plain_backward(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    *step = (ls_ddp_step){.weight = (double)rows, .more_data = rows > 0};
    ls_model_zero_grad(n->model);
    return ls_backward(n->tape, loss, 1.0);
}

static ls_status rows_through(small_net *n, backward_fn backward, int step, int first, int rows,
                              ls_ddp_step *result)
{
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_status st = loss_of(n, step, first, rows, &x, &y, &loss);

    if (st == LS_OK)
        st = backward(n, loss, rows, result);
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

/* All parameters as one array. */
static ls_status read_parameters(small_net *n, float *out, size_t *count)
{
    int n_params;
    const ls_named *list = ls_model_parameters(n->model, &n_params);

    *count = 0;
    for (int i = 0; i < n_params; i++) {
        LS_TRY(ls_tensor_read(list[i].tensor, out + *count, ls_tensor_count(list[i].tensor)));
        *count += ls_tensor_count(list[i].tensor);
    }
    return LS_OK;
}

enum { VALUES_MOST = 256 };

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
    const sim_control *sim = sim_control_table();
    sim_counts before;
    sim_counts after;
    ls_comm *comm;
    small_net n;

    LS_UNUSED(arg);
    LS_CHECK(sim != NULL);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_CHECK(ls_nn_batch_norm2d(n.model, "bn1", 5, NULL) != NULL);
    LS_CHECK(ls_nn_batch_norm2d(n.model, "bn2", 64, NULL) != NULL);
    LS_TRY(net_join(&n, comm, NULL));
    LS_TRY(ls_ddp_sync_buffers(n.ddp));
    before = sim->counts();
    for (int i = 0; i < TIMES; i++)
        LS_TRY(ls_ddp_sync_buffers(n.ddp));
    LS_TRY(ls_device_synchronize(n.device));
    after = sim->counts();
    LS_CHECK(after.operators == before.operators);
    LS_CHECK(after.copies - before.copies == TIMES);
    LS_CHECK(after.allocations == before.allocations);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void buffers_are_broadcast_where_they_are(void **state)
{
    (void)state;
    if (strcmp(test_device_name(), "sim") == 0)
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

/* --- the sum of weights --- */

/* The operations "ddp weight" of this rank so far. */
static int weights_in(int ring, recorder_entry *last)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    int n_weights = 0;
    int n = 0;

    if (recorder_read(ring, entries, RECORDER_ENTRIES, &n) != LS_OK)
        return -1;
    for (int i = 0; i < n; i++) {
        if (strcmp(entries[i].stamp.site, "ddp weight") == 0) {
            *last = entries[i];
            n_weights++;
        }
    }
    return n_weights;
}

static int64_t last_backward_ns(int ring)
{
    static recorder_span spans[RECORDER_ENTRIES];
    int64_t start_ns = 0;
    int n = 0;

    if (recorder_read_phases(ring, spans, RECORDER_ENTRIES, &n) != LS_OK)
        return -1;
    for (int i = 0; i < n; i++) {
        if (strcmp(spans[i].name, "backward") == 0)
            start_ns = spans[i].start_ns;
    }
    return start_ns;
}

/* A group whose flight recorder this process reads. */
static ls_status init_recorded(const ls_test_rank *self, ls_comm **comm, int *ring)
{
    char number[16];

    LS_TRY(recorder_create_fd(ring));
    text_format(number, sizeof(number), "%d", *ring);
    LS_CHECK(setenv("LOCKSTEP_RING_FD", number, 1) == 0);
    return ls_test_init(self, comm);
}

static ls_status body_weight_first(const ls_test_rank *self, void *arg)
{
    const int64_t deadline_ms = ls_now_ms() + 30000;
    recorder_entry weight = {0};
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;
    int ring;

    LS_UNUSED(arg);
    LS_TRY(init_recorded(self, &comm, &ring));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    for (int i = 1; i <= 3; i++) {
        LS_TRY(ls_ddp_begin(n.ddp, 2));
        LS_CHECK(weights_in(ring, &weight) == i);
        while (weights_in(ring, &weight) == i && weight.end_ns == 0) {
            LS_CHECK(ls_now_ms() < deadline_ms);
            sched_yield();
        }
        LS_TRY(rows_through(&n, ddp_backward, i, 2 * self->rank, 2, &step));
        LS_CHECK(step.weight == 4 && weights_in(ring, &weight) == i);
        LS_CHECK(weight.end_ns <= last_backward_ns(ring));
    }
    LS_TRY(ls_ddp_begin(n.ddp, 2)); /* a step that all begin and none ends */
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void weights_are_summed_before_backward_starts(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_weight_first}, NULL));
}

/* --- the work of a device, with --trace --- */

enum { TRACED_STEPS = 40 };

typedef struct device_work {
    recorder_span backward[TRACED_STEPS];
    int n_backward;
    recorder_entry buckets[2][TRACED_STEPS]; /* the first and the second of each step */
    int n_buckets[2];
} device_work;

static ls_status read_device_work(int ring, device_work *w)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    uint64_t n_dropped;
    int n = 0;

    memset(w, 0, sizeof(*w));
    LS_TRY(
        recorder_read_device_phases(ring, w->backward, TRACED_STEPS, &w->n_backward, &n_dropped));
    LS_TRY(recorder_read(ring, entries, RECORDER_ENTRIES, &n));
    for (int i = 0; i < n; i++) {
        const char *site = entries[i].stamp.site;
        const int which = strncmp(site, "bucket ", 7) == 0 ? site[7] - '1' : -1;

        if (which < 0 || which > 1 || entries[i].device_end_ns == 0)
            continue;
        LS_CHECK(w->n_buckets[which] < TRACED_STEPS);
        w->buckets[which][w->n_buckets[which]++] = entries[i];
    }
    return LS_OK;
}

/* A bucket holds the gradients of one layer. How soon the first is reduced differs from step to
 * step: the host copies it while the device goes on. */
static ls_status body_device_work(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {
        .size = sizeof(options), .first_bucket_bytes = 1, .bucket_bytes = 1};
    static device_work w;
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;
    int n_overlaps = 0;
    int ring;

    LS_UNUSED(arg);
    LS_TRY(init_recorded(self, &comm, &ring));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, &options));
    for (int i = 0; i < TRACED_STEPS; i++)
        LS_TRY(rows_through(&n, ddp_backward, i, 2 * self->rank, 2, &step));
    if (ls_device_queue(n.device) == NULL) {
        LS_TRY(read_device_work(ring, &w));
        LS_CHECK(w.n_backward == 0 && w.n_buckets[0] == 0);
        small_net_close(&n);
        ls_comm_destroy(comm);
        return LS_OK;
    }
    small_net_close(&n);
    LS_TRY(read_device_work(ring, &w));
    LS_CHECK(w.n_backward == TRACED_STEPS);
    LS_CHECK(w.n_buckets[0] == TRACED_STEPS && w.n_buckets[1] == TRACED_STEPS);
    for (int i = 0; i < TRACED_STEPS; i++) {
        const recorder_entry *first = &w.buckets[0][i];

        LS_CHECK(w.backward[i].start_ns <= w.backward[i].end_ns);
        LS_CHECK(w.backward[i].start_ns <= first->device_start_ns);
        LS_CHECK(first->device_start_ns <= first->device_end_ns);
        LS_CHECK(first->device_end_ns <= w.buckets[1][i].device_start_ns);
        if (i + 1 < TRACED_STEPS)
            LS_CHECK(w.buckets[1][i].device_end_ns <= w.backward[i + 1].start_ns);
        n_overlaps += first->device_start_ns < w.backward[i].end_ns;
    }
    LS_CHECK(n_overlaps > 0);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void reductions_on_a_device_overlap_its_backward(void **state)
{
    (void)state;
    assert_true(
        ls_test_ranks(&(ls_test_job){.n = 2,
                                     .body = body_device_work,
                                     .env = {"LOCKSTEP_TRACE=1", "LOCKSTEP_SIM_DELAY_US=100"}},
                      NULL));
}

/* What rank 1 does wrong with ls_ddp_begin(), and what all ranks are message. */
typedef struct misuse {
    ls_status (*call)(small_net *n, ls_comm *comm);
    ls_status status; /* of rank 1 */
    const char *text;
} misuse;

static ls_status begin_twice(small_net *n, ls_comm *comm)
{
    LS_UNUSED(comm);
    LS_TRY(ls_ddp_begin(n->ddp, 1));
    return ls_ddp_begin(n->ddp, 2);
}

static ls_status begin_with_other_rows(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_TRY(ls_ddp_begin(n->ddp, 3));
    return rows_through(n, ddp_backward, 0, 0, 2, &step);
}

static ls_status accumulate_after_begin(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_TRY(ls_ddp_begin(n->ddp, 1));
    return rows_through(n, ddp_accumulate, 0, 0, 1, &step);
}

/* An operation of the program's own, which rank 0 starts after its ls_ddp_begin(). */
static ls_status skip_begin(small_net *n, ls_comm *comm)
{
    double value = 1;

    LS_UNUSED(n);
    return ls_all_reduce(comm, &value, &value, 1, LS_F64, LS_MAX, NULL);
}

static ls_status body_misuse(const ls_test_rank *self, void *arg)
{
    const misuse *m = arg;
    ls_comm *comm;
    ls_ddp_step step;
    ls_status st;
    small_net n;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    if (self->rank == 1) {
        LS_CHECK(m->call(&n, comm) == m->status);
    } else {
        st = ls_ddp_begin(n.ddp, 1);
        if (st == LS_OK)
            st = rows_through(&n, ddp_backward, 0, 0, 1, &step);
        LS_CHECK(st != LS_OK);
    }
    LS_CHECK(strstr(ls_last_error(), m->text) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void wrong_order_of_begin_is_an_error_on_all_ranks(void **state)
{
    const misuse all[] = {
        {begin_twice, LS_EINVAL, "ls_ddp_begin: called twice before ls_ddp_backward()"},
        {begin_with_other_rows, LS_EINVAL, "rows is 2, but was 3 in ls_ddp_begin()"},
        {accumulate_after_begin, LS_EINVAL, "ls_ddp_accumulate: called between ls_ddp_begin()"},
        {skip_begin, LS_EMISMATCH, "ddp weight"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        misuse m = all[i];
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_misuse, .arg = &m}));
    }
}

/* --- what the ranks share --- */

static ls_status late_layer(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_CHECK(ls_nn_linear(n->model, "late", 2, 3, 1) != NULL);
    return rows_through(n, ddp_backward, 0, 0, 1, &step);
}

static ls_status late_layer_accumulated(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_CHECK(ls_nn_linear(n->model, "late", 2, 3, 1) != NULL);
    return rows_through(n, ddp_accumulate, 0, 0, 1, &step);
}

static ls_status late_batch_norm(small_net *n, ls_comm *comm)
{
    LS_UNUSED(comm);
    LS_CHECK(ls_nn_batch_norm2d(n->model, "late", 3, NULL) != NULL);
    return ls_ddp_sync_buffers(n->ddp);
}

static void layers_added_after_create_are_named(void **state)
{
    const misuse all[] = {
        {late_layer, LS_EINVAL, "late.weight was added to the model after ls_ddp_create()"},
        {late_layer_accumulated, LS_EINVAL, "late.weight was added to the model"},
        {late_batch_norm, LS_EINVAL, "late.weight was added to the model"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        misuse m = all[i];
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_misuse, .arg = &m}));
    }
}

static ls_status count_ready(void *arg, ls_tensor *leaf)
{
    LS_UNUSED(leaf);
    ++*(int *)arg;
    return LS_OK;
}

static ls_status body_owned(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp *second;
    ls_ddp_step step;
    small_net n;
    int n_params;
    int n_ready = 0;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    LS_CHECK(rows_through(&n, plain_backward, 0, 0, 1, &step) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "second.weight belongs to an ls_ddp") != NULL);
    LS_CHECK(strstr(ls_last_error(), "call ls_ddp_backward()") != NULL);
    LS_CHECK(ls_ddp_create(comm, n.model, NULL, &second) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "first.weight belongs to another ls_ddp") != NULL);
    ls_tape_on_grad_ready(n.tape, count_ready, &n_ready);
    LS_TRY(rows_through(&n, ddp_accumulate, 0, 0, 1, &step)); /* a rank's own gradients */
    LS_CHECK(ls_grad(ls_model_parameters(n.model, &n_params)[0].tensor) != NULL);
    LS_TRY(rows_through(&n, ddp_backward, 0, 0, 1, &step));
    LS_CHECK(n_params == 4 && n_ready == 2 * n_params);
    ls_ddp_destroy(n.ddp);
    n.ddp = NULL;
    LS_TRY(rows_through(&n, plain_backward, 0, 0, 1, &step));
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ls_backward_fails_on_a_model_of_an_ls_ddp(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_owned}));
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
        cmocka_unit_test(weights_are_summed_before_backward_starts),
        cmocka_unit_test(reductions_on_a_device_overlap_its_backward),
        cmocka_unit_test(wrong_order_of_begin_is_an_error_on_all_ranks),
        cmocka_unit_test(layers_added_after_create_are_named),
        cmocka_unit_test(ls_backward_fails_on_a_model_of_an_ls_ddp),
        cmocka_unit_test(cleared_gradients_and_their_rows_do_not_count),
        cmocka_unit_test(gradients_of_a_scaled_loss_are_scaled),
        cmocka_unit_test(all_ranks_skip_the_step_in_which_one_overflows),
        cmocka_unit_test(new_buckets_leave_no_copies_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
