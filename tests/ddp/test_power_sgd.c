/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_power_sgd.c - tests the hook for PowerSGD: its factors, its gradients over several steps
 * against float64, and what it refuses.
 */
#include <lockstep/ddp.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "ddp/power_sgd.h"
#include "harness/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 24, COLS = 40, RANK_MOST = 8, STEPS = 6, RANKS_MOST = 5, ROWS_MOST = 8 };

static void fill(uint64_t seed, size_t n, float *out)
{
    ls_rng rng;

    ls_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)ls_rng_normal(&rng);
}

/* --- the factors --- */

static double column_dot(const float *p, int a, int b)
{
    double sum = 0;

    for (int i = 0; i < ROWS; i++)
        sum += (double)p[a * ROWS + i] * (double)p[b * ROWS + i];
    return sum;
}

static void columns_become_orthogonal(void **state)
{
    float p[ROWS * RANK_MOST];

    (void)state;
    for (int rank = 1; rank <= RANK_MOST; rank++) {
        fill(7 + (uint64_t)rank, (size_t)ROWS * (size_t)rank, p);
        for (int i = 0; i < ROWS && rank > 1; i++) // nearly one direction
            p[ROWS + i] = p[i] + 1e-3F * p[ROWS + i];
        low_rank_orthogonalize(p, ROWS, rank);
        for (int a = 0; a < rank; a++)
            for (int b = 0; b <= a; b++)
                assert_float_equal((float)column_dot(p, a, b), a == b, 1e-6F);
    }
}

/* Noise of rounding is not a direction; it would be counted twice. */
static void a_column_that_others_give_becomes_0(void **state)
{
    float p[ROWS * 3];

    (void)state;
    fill(3, LS_COUNT_OF(p), p);
    for (int i = 0; i < ROWS; i++)
        p[ROWS + i] = 0.3F * p[i];
    low_rank_orthogonalize(p, ROWS, 3);
    assert_float_equal((float)column_dot(p, 1, 1), 0, 0);
    assert_float_equal((float)column_dot(p, 2, 2), 1, 1e-6F);
    memset(p, 0, sizeof(p));
    low_rank_orthogonalize(p, ROWS, 3);
    assert_float_equal((float)column_dot(p, 0, 0), 0, 0);
    p[4] = NAN;
    low_rank_orthogonalize(p, ROWS, 3);
    assert_true(isnan(p[4]));
}

static void columns_of_0_are_filled_and_others_stay(void **state)
{
    float q[COLS * 2] = {0};
    float before[COLS * 2];
    float again[COLS * 2] = {0};

    (void)state;
    low_rank_fill(q, COLS, 2, 5);
    low_rank_fill(again, COLS, 2, 5);
    assert_memory_equal(again, q, sizeof(q));
    memcpy(before, q, sizeof(q));
    for (int j = 0; j < COLS; j++)
        q[COLS + j] = 0;
    low_rank_fill(q, COLS, 2, 6);
    for (int j = 0; j < COLS; j++) {
        assert_float_equal(q[j], before[j], 0);
        assert_true(q[COLS + j] != 0 && q[COLS + j] != before[COLS + j]);
    }
}

/* --- steps of several ranks --- */

typedef struct power_case {
    int rank; /* of the factors */
    int rows[RANKS_MOST];
    int plain_mean;
    size_t bucket_bytes;
    int spoiled; /* a gradient of rank 0 is NaN in the second step */
} power_case;

typedef struct power_result {
    float grad[STEPS][ROWS * COLS];
    float bias[STEPS][ROWS];
} power_result;

static power_result *results; /* of each rank, in shared memory */

/* A row of a rank in a step: the loss is the mean of (W x + b - y)^2 with W = 0 and b = 0. */
static void fill_sample(int step, int rank, int row, float *x, float *y)
{
    fill((uint64_t)(1000 * step + 100 * rank + row), COLS, x);
    fill((uint64_t)(1000 * step + 100 * rank + row + 50), ROWS, y);
}

typedef struct net {
    ls_device *device;
    ls_model *model;
    ls_layer *layer;
    ls_ddp *ddp;
    ls_tape *tape;
} net;

static ls_status net_open(net *n, ls_comm *comm, const ls_ddp_options *opt)
{
    const ls_device_options device = {.size = sizeof(device), .threads = 1, .name = "cpu_ref"};
    const ls_named *list;
    int count;

    *n = (net){.device = NULL};
    LS_TRY(ls_device_open(&device, &n->device));
    LS_TRY(ls_model_create(n->device, 1, &n->model));
    n->layer = ls_nn_linear(n->model, "fc", COLS, ROWS, 0);
    list = ls_model_parameters(n->model, &count);
    for (int i = 0; i < count; i++)
        LS_TRY(ls_tensor_fill(list[i].tensor, 0));
    LS_TRY(ls_tape_create(n->device, &n->tape));
    return ls_ddp_create(comm, n->model, opt, &n->ddp);
}

static void net_close(net *n)
{
    ls_tape_destroy(n->tape);
    ls_ddp_destroy(n->ddp);
    ls_model_destroy(n->model);
    ls_device_close(n->device);
}

static ls_status backward(net *n, const power_case *c, int rank, int step, power_result *out)
{
    const int rows = c->rows[rank];
    ls_tensor *x;
    ls_tensor *goal;
    ls_ddp_step done;
    float data[ROWS_MOST * COLS];
    float goals[ROWS_MOST * ROWS];
    const ls_named *list;
    int count;

    for (int i = 0; i < rows; i++)
        fill_sample(step, rank, i, data + (size_t)i * COLS, goals + (size_t)i * ROWS);
    if (c->spoiled && rank == 0 && step == 1)
        data[3] = NAN;
    LS_TRY(ls_tensor_create(n->device, LS_F32, 2, (int64_t[]){rows, COLS}, &x));
    LS_TRY(ls_tensor_create(n->device, LS_F32, 2, (int64_t[]){rows, ROWS}, &goal));
    LS_TRY(ls_tensor_write(x, data, (size_t)rows * COLS));
    LS_TRY(ls_tensor_write(goal, goals, (size_t)rows * ROWS));
    ls_tape_reset(n->tape);
    LS_TRY(ls_ddp_backward(n->ddp, n->tape,
                           ls_mse_loss(n->tape, ls_forward(n->tape, n->layer, x), goal), rows,
                           &done));
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(goal);
    list = ls_model_parameters(n->model, &count);
    LS_TRY(ls_tensor_read(ls_grad(list[0].tensor), out->grad[step], (size_t)ROWS * COLS));
    return ls_tensor_read(ls_grad(list[1].tensor), out->bias[step], ROWS);
}

static ls_status steps_body(const ls_test_rank *self, void *arg)
{
    const power_case *c = arg;
    const ls_ddp_options opt = {.size = sizeof(opt),
                                .hook = LS_DDP_HOOK_POWERSGD,
                                .power_rank = c->rank,
                                .plain_mean = c->plain_mean,
                                .first_bucket_bytes = c->bucket_bytes,
                                .bucket_bytes = c->bucket_bytes};
    ls_ddp_stats stats;
    ls_comm *comm;
    net n;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, comm, &opt));
    for (int step = 0; step < STEPS; step++)
        LS_TRY(backward(&n, c, self->rank, step, &results[self->rank]));
    ls_ddp_get_stats(n.ddp, &stats);
    LS_CHECK(stats.bytes_a_step ==
             4 * (ROWS + (c->rank < RANK_MOST ? c->rank * (ROWS + COLS) : ROWS * COLS)));
    net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void run_case(int n, const power_case *c, const char *transport)
{
    power_case copy = *c;

    assert_true(ls_test_ranks(
        &(ls_test_job){.n = n, .body = steps_body, .arg = &copy, .transport = transport}, NULL));
}

/* --- float64 --- */

/* This rank's share of the mean gradient. */
static void find_share(const power_case *c, int n, int step, int rank, double *weight, double *bias)
{
    double divisor = 0;

    for (int r = 0; r < n; r++)
        divisor += c->plain_mean ? 1 : c->rows[r];
    divisor *= c->plain_mean ? c->rows[rank] : 1;
    memset(weight, 0, ROWS * COLS * sizeof(*weight));
    for (int i = 0; i < c->rows[rank]; i++) {
        float x[COLS];
        float y[ROWS];

        fill_sample(step, rank, i, x, y);
        for (int a = 0; a < ROWS; a++) {
            const double d = -2.0 / ROWS * (double)y[a] / divisor;

            bias[a] += d;
            for (int b = 0; b < COLS; b++)
                weight[a * COLS + b] += d * (double)x[b];
        }
    }
}

static void orthogonalize(double *p, int rank)
{
    for (int k = 0; k < rank; k++) {
        double norm = 0;
        double rest = 0;

        for (int i = 0; i < ROWS; i++)
            norm += p[i * rank + k] * p[i * rank + k];
        for (int pass = 0; pass < 2; pass++)
            for (int b = 0; b < k; b++) {
                double part = 0;

                for (int i = 0; i < ROWS; i++)
                    part += p[i * rank + b] * p[i * rank + k];
                for (int i = 0; i < ROWS; i++)
                    p[i * rank + k] -= part * p[i * rank + b];
            }
        for (int i = 0; i < ROWS; i++)
            rest += p[i * rank + k] * p[i * rank + k];
        for (int i = 0; i < ROWS; i++)
            p[i * rank + k] = rest <= 1e-10 * norm ? 0 : p[i * rank + k] / sqrt(rest);
    }
}

typedef struct reference {
    double q[COLS * RANK_MOST];
    double sum[ROWS * COLS];               /* of all m */
    double error[RANKS_MOST][ROWS * COLS]; /* or m */
} reference;

static void fill_q(reference *f, const power_case *c, int step)
{
    float q[COLS * RANK_MOST];

    for (int i = 0; i < COLS * c->rank; i++)
        q[i] = (float)f->q[i];
    low_rank_fill(q, COLS, c->rank, ls_hash3((uint64_t)step, 0, 2));
    for (int i = 0; i < COLS * c->rank; i++)
        f->q[i] = f->q[i] == 0 ? (double)q[i] : f->q[i];
}

/* *grad = the gradient of the step. */
static void take_step(reference *f, const power_case *c, int n, int step, double *grad,
                      double *bias)
{
    const int rank = c->rank;
    double p[ROWS * RANK_MOST] = {0};

    fill_q(f, c, step);
    memset(f->sum, 0, sizeof(f->sum));
    memset(bias, 0, ROWS * sizeof(*bias));
    for (int r = 0; r < n; r++) {
        double share[ROWS * COLS];

        find_share(c, n, step, r, share, bias);
        for (int i = 0; i < ROWS * COLS; i++) {
            f->error[r][i] += share[i];
            f->sum[i] += f->error[r][i];
        }
    }
    for (int i = 0; i < ROWS * COLS; i++)
        for (int k = 0; k < rank; k++)
            p[i / COLS * rank + k] += f->sum[i] * f->q[k * COLS + i % COLS];
    orthogonalize(p, rank);
    memset(f->q, 0, sizeof(f->q));
    for (int i = 0; i < ROWS * COLS; i++)
        for (int k = 0; k < rank; k++)
            f->q[k * COLS + i % COLS] += f->sum[i] * p[i / COLS * rank + k];
    for (int i = 0; i < ROWS * COLS; i++) {
        grad[i] = 0;
        for (int k = 0; k < rank; k++)
            grad[i] += p[i / COLS * rank + k] * f->q[k * COLS + i % COLS];
        for (int r = 0; r < n; r++)
            f->error[r][i] -= grad[i] / n;
    }
}

static const power_case cases[] = {
    {.rank = 1, .rows = {6, 6, 6, 6, 6}},
    {.rank = 4, .rows = {2, 7, 4, 1, 5}},
    {.rank = 4, .rows = {6, 3, 5, 2, 1}, .plain_mean = 1, .bucket_bytes = 8},
    {.rank = 7, .rows = {1, 2, 1, 1, 1}}, // the gradient of few ranks has fewer directions
};

static void gradients_are_those_of_float64(void **state)
{
    static double grad[ROWS * COLS];
    double bias[ROWS];

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        for (int n = 1; n <= RANKS_MOST; n++) {
            static reference f;

            memset(&f, 0, sizeof(f));
            run_case(n, &cases[i], NULL);
            for (int step = 0; step < STEPS; step++) {
                take_step(&f, &cases[i], n, step, grad, bias);
                for (int k = 0; k < ROWS * COLS; k++)
                    assert_float_equal(results[0].grad[step][k], (float)grad[k], 5e-5F);
                for (int k = 0; k < ROWS; k++)
                    assert_float_equal(results[0].bias[step][k], (float)bias[k], 1e-6F);
            }
            for (int r = 1; r < n; r++)
                assert_memory_equal(&results[r], &results[0], sizeof(results[0]));
        }
}

/* Three rows give three directions; the rank has seven. */
static void a_gradient_of_few_directions_is_not_changed(void **state)
{
    const power_case c = {.rank = 7, .rows = {2, 1}};

    (void)state;
    run_case(2, &c, NULL);
    for (int step = 0; step < STEPS; step++) {
        static double mean[ROWS * COLS];
        double bias[ROWS] = {0};

        memset(mean, 0, sizeof(mean));
        for (int r = 0; r < 2; r++) {
            double share[ROWS * COLS];

            find_share(&c, 2, step, r, share, bias);
            for (int i = 0; i < ROWS * COLS; i++)
                mean[i] += share[i];
        }
        for (int i = 0; i < ROWS * COLS; i++)
            assert_float_equal(results[0].grad[step][i], (float)mean[i], 1e-5F);
    }
}

static void transports_give_the_same_bits(void **state)
{
    static power_result first;

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        for (int n = 2; n <= RANKS_MOST; n += 3) {
            run_case(n, &cases[i], "shm");
            first = results[0];
            run_case(n, &cases[i], "tcp");
            assert_memory_equal(&results[n - 1], &first, sizeof(first));
        }
}

static void small_matrices_and_NaN_stay_what_they_are(void **state)
{
    const power_case whole = {.rank = RANK_MOST, .rows = {3, 4}};
    const power_case spoiled = {.rank = 2, .rows = {3, 4}, .spoiled = 1};
    static reference f;
    double share[ROWS * COLS];
    double bias[ROWS] = {0};

    (void)state;
    memset(&f, 0, sizeof(f));
    run_case(2, &whole, NULL);
    for (int r = 0; r < 2; r++) {
        find_share(&whole, 2, 0, r, share, bias);
        for (int i = 0; i < ROWS * COLS; i++)
            f.sum[i] += share[i];
    }
    for (int i = 0; i < ROWS * COLS; i++)
        assert_float_equal(results[1].grad[0][i], (float)f.sum[i], 1e-6F);
    run_case(2, &spoiled, NULL);
    for (int r = 0; r < 2; r++) {
        assert_true(isfinite(results[r].grad[0][0]));
        assert_true(isnan(results[r].grad[1][0]));
    }
}

/* --- files --- */

enum { SAVED_RANKS = 3, SAVED = ROWS * COLS };

typedef struct saved_state {
    int64_t step;
    float q[COLS * 2];
    float errors[SAVED_RANKS][SAVED];
} saved_state;

static saved_state *saved; /* by three ranks, then by two */

/* Of rank 0, which has the errors of so many ranks. */
static ls_status copy_list(net *n, int ranks, saved_state *s, bool is_back)
{
    int count;
    const ls_named *list = power_list(n->ddp, &count);

    LS_CHECK(count == 2 + ranks);
    LS_CHECK(strcmp(list[0].name, "step") == 0 && strcmp(list[1].name, "fc.weight.q") == 0);
    LS_CHECK(strcmp(list[2 + ranks - 1].name,
                    ranks == 3 ? "error.2.fc.weight" : "error.1.fc.weight") == 0);
    memcpy(is_back ? list[0].bytes : &s->step, is_back ? &s->step : list[0].bytes, sizeof(int64_t));
    for (int i = 1; i < count; i++) {
        float *values = i == 1 ? s->q : s->errors[i - 2];

        LS_TRY(is_back ? ls_tensor_write(list[i].tensor, values, ls_tensor_count(list[i].tensor))
                       : ls_tensor_read(list[i].tensor, values, ls_tensor_count(list[i].tensor)));
    }
    return LS_OK;
}

/* Which no optimizer step follows. */
static ls_status step_without_rows(net *n, const ls_test_rank *self)
{
    const power_case none = {.rank = 2, .rows = {0}};

    LS_TRY(power_collect(n->ddp));
    if (self->rank == 0)
        LS_TRY(copy_list(n, self->size, &saved[1], false));
    return backward(n, &none, self->rank, 2, &results[self->rank]);
}

static ls_status saving_body(const ls_test_rank *self, void *arg)
{
    const power_case c = {.rank = 2, .rows = {3, 4, 5}};
    const ls_ddp_options opt = {.size = sizeof(opt), .hook = LS_DDP_HOOK_POWERSGD, .power_rank = 2};
    ls_comm *comm;
    net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, comm, &opt));
    if (self->size == SAVED_RANKS) {
        for (int step = 0; step < 2; step++)
            LS_TRY(backward(&n, &c, self->rank, step, &results[self->rank]));
        LS_TRY(step_without_rows(&n, self));
    } else {
        if (self->rank == 0) {
            LS_TRY(power_make(n.ddp, SAVED_RANKS));
            LS_TRY(copy_list(&n, SAVED_RANKS, &saved[0], true));
        }
        LS_TRY(power_spread(n.ddp));
    }
    LS_TRY(power_collect(n.ddp));
    if (self->rank == 0)
        LS_TRY(copy_list(&n, self->size, &saved[self->size == SAVED_RANKS ? 0 : 1], false));
    power_drop(n.ddp);
    net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void fewer_ranks_get_all_that_was_not_sent(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = SAVED_RANKS, .body = saving_body}, NULL));
    assert_memory_equal(saved[1].errors, saved[0].errors, sizeof(saved[0].errors));
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = saving_body}, NULL));
    assert_int_equal(saved[0].step, 3);
    assert_int_equal(saved[1].step, 3);
    assert_memory_equal(saved[1].q, saved[0].q, sizeof(saved[0].q));
    assert_memory_equal(saved[1].errors[1], saved[0].errors[1], sizeof(saved[0].errors[1]));
    for (int i = 0; i < SAVED; i++) {
        assert_true(saved[0].errors[2][i] != 0);
        assert_float_equal(saved[1].errors[0][i], saved[0].errors[0][i] + saved[0].errors[2][i], 0);
    }
}

/* Each of its allocations fails once; the errors of this rank and of the others stay different
 * tensors. */
static ls_status scarce_body(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options opt = {.size = sizeof(opt), .hook = LS_DDP_HOOK_POWERSGD, .power_rank = 2};
    ls_comm *comm;
    net n;
    ls_status st;
    uint64_t at = 0;
    const ls_named *list;
    int count;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, comm, &opt));
    do {
        ls_alloc_fail_at(++at);
        st = power_make(n.ddp, SAVED_RANKS);
        ls_alloc_fail_at(0);
        LS_CHECK(st == LS_OK || st == LS_ENOMEM);
    } while (st != LS_OK);
    LS_CHECK(at > 2 + SAVED_RANKS);
    list = power_list(n.ddp, &count);
    LS_CHECK(count == 2 + SAVED_RANKS);
    for (int i = 1; i < count; i++)
        for (int k = 1; k < i; k++)
            LS_CHECK(list[i].tensor != list[k].tensor);
    net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void no_memory_for_errors_is_an_error(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 1, .body = scarce_body}, NULL));
}

/* --- what is refused --- */

static ls_status refuse(ls_comm *comm, ls_ddp_options opt, ls_status want, const char *text)
{
    net n;

    opt.size = sizeof(opt);
    opt.hook = LS_DDP_HOOK_POWERSGD;
    LS_CHECK(net_open(&n, comm, &opt) == want);
    LS_CHECK(strstr(ls_last_error(), text) != NULL);
    net_close(&n);
    return LS_OK;
}

static ls_status refusing_body(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options opt = {.size = sizeof(opt), .hook = LS_DDP_HOOK_POWERSGD, .power_rank = 1};
    ls_comm *comm;
    net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(refuse(comm, (ls_ddp_options){.power_rank = 0}, LS_EINVAL, "rank 0: must be 1 to 64"));
    LS_TRY(refuse(comm, (ls_ddp_options){.power_rank = 65}, LS_EINVAL, "rank 65: must be"));
    LS_TRY(refuse(comm, (ls_ddp_options){.power_rank = 1, .shards = 4}, LS_EUNSUPPORTED,
                  "PowerSGD with shards"));
    LS_TRY(net_open(&n, comm, &opt));
    LS_TRY(ls_ddp_set_loss_scale(n.ddp, 1));
    LS_CHECK(ls_ddp_set_loss_scale(n.ddp, 2) == LS_EUNSUPPORTED);
    LS_CHECK(strstr(ls_last_error(), "with PowerSGD") != NULL);
    net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void what_cannot_work_is_refused(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = refusing_body}, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_become_orthogonal),
        cmocka_unit_test(a_column_that_others_give_becomes_0),
        cmocka_unit_test(columns_of_0_are_filled_and_others_stay),
        cmocka_unit_test(gradients_are_those_of_float64),
        cmocka_unit_test(a_gradient_of_few_directions_is_not_changed),
        cmocka_unit_test(transports_give_the_same_bits),
        cmocka_unit_test(small_matrices_and_NaN_stay_what_they_are),
        cmocka_unit_test(fewer_ranks_get_all_that_was_not_sent),
        cmocka_unit_test(no_memory_for_errors_is_an_error),
        cmocka_unit_test(what_cannot_work_is_refused),
    };

    results = ls_test_shared(RANKS_MOST * sizeof(*results));
    saved = ls_test_shared(2 * sizeof(*saved));
    return results == NULL || saved == NULL ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
