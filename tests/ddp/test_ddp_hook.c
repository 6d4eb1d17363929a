/* SPDX-License-Identifier: Apache-2.0 */
/* test_ddp_hook.c - tests gradients in 16 bits: their values, and equal bits on all ranks. */
#include <lockstep/ddp.h>

#include "base/compute/half.h"
#include "base/rng.h"
#include "ddp/half_bucket.h"
#include "harness/ranks.h"
#include "tensor/suite_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { FEATURES = 37 };

/* --- the conversion --- */

static const float odd_values[] = {0.0F,      -0.0F,    1.0F,     -1.5F,       65504.0F,
                                   65519.0F,  65520.0F, 1e30F,    -1e30F,      3.1e38F,
                                   6e-8F,     5.9e-8F,  2.98e-8F, 1e-40F,      INFINITY,
                                   -INFINITY, NAN,      0.33333F, 1.00048828F, 1.00390625F};

static void packing_rounds_as_single_conversions(void **state)
{
    enum { N = 1003 };
    static const ls_dtype types[] = {LS_F16, LS_BF16};
    float x[N];
    float back[N];
    uint16_t packed[N];
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, 5);
    for (size_t i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)ls_rng_next(&rng);

        memcpy(&x[i], &bits, sizeof(bits));
        if (i < LS_COUNT_OF(odd_values))
            x[i] = odd_values[i];
    }
    for (size_t t = 0; t < LS_COUNT_OF(types); t++) {
        half_pack(x, packed, N, 2, types[t]);
        half_unpack(packed, back, N, types[t]);
        for (size_t i = 0; i < N; i++) {
            const float half = x[i] / 2;
            const uint16_t want = types[t] == LS_F16 ? ls_f32_to_f16(half) : ls_f32_to_bf16(half);
            const float want_back = types[t] == LS_F16 ? ls_f16_to_f32(want) : ls_bf16_to_f32(want);

            assert_int_equal(packed[i], want);
            assert_memory_equal(&back[i], &want_back, sizeof(float));
        }
    }
}

/* --- a step --- */

typedef struct hook_case {
    ls_ddp_hook hook;
    ls_dtype type;
    int plain_mean;
    int rows[4];
    double scale; /* of the inputs */
} hook_case;

/* Loss: half the mean over rows of weight . x, whose gradient by the weight is the mean of x. */
static void fill_rows(int rank, const hook_case *c, float *x)
{
    ls_rng rng;

    ls_rng_seed(&rng, (uint64_t)rank);
    for (int i = 0; i < c->rows[rank] * FEATURES; i++)
        x[i] = (float)(ls_rng_normal(&rng) * c->scale);
}

/* What rank `rank` brings to the sum for feature f, as the hook is message to make it. */
static double contribution(const hook_case *c, int rank, int f, double divisor)
{
    float x[8 * FEATURES];
    float sum = 0;
    float seed;

    fill_rows(rank, c, x);
    seed = c->plain_mean ? 1 : (float)c->rows[rank];
    for (int r = 0; r < c->rows[rank]; r++)
        sum += x[r * FEATURES + f] * (seed / (float)c->rows[rank]);
    sum /= (float)divisor;
    if (c->hook == LS_DDP_HOOK_FP16)
        return (double)ls_f16_to_f32(ls_f32_to_f16(sum));
    return c->hook == LS_DDP_HOOK_BF16 ? (double)ls_bf16_to_f32(ls_f32_to_bf16(sum)) : (double)sum;
}

static double expected(const hook_case *c, int size, int f)
{
    double divisor = 0;
    float sum = 0;

    for (int r = 0; r < size; r++)
        divisor += c->plain_mean ? 1 : c->rows[r];
    for (int r = 0; r < size; r++)
        sum += (float)contribution(c, r, f, divisor);
    if (c->hook == LS_DDP_HOOK_FP16)
        return (double)ls_f16_to_f32(ls_f32_to_f16(sum));
    return (double)ls_bf16_to_f32(ls_f32_to_bf16(sum));
}

typedef struct net {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_layer *layer;
    ls_ddp *ddp;
} net;

static ls_status net_open(net *n, ls_comm *comm, const ls_ddp_options *opt)
{
    const ls_device_options device = {.size = sizeof(device), .name = test_device_name()};

    memset(n, 0, sizeof(*n));
    LS_TRY(ls_device_open(&device, &n->device));
    LS_TRY(ls_model_create(n->device, 1, &n->model));
    LS_TRY(ls_tape_create(n->device, &n->tape));
    n->layer = ls_nn_linear(n->model, "fc", FEATURES, 1, 1);
    return ls_ddp_create(comm, n->model, opt, &n->ddp);
}

static void net_close(net *n)
{
    ls_tape_destroy(n->tape);
    ls_ddp_destroy(n->ddp);
    ls_model_destroy(n->model);
    ls_device_close(n->device);
}

/* A loss whose gradient by the output is 1 / rows: cross entropy cannot, the mean square of y
 * against y - 1/2 can. */
static ls_status step_on(net *n, const hook_case *c, int rank, int accumulated, ls_ddp_step *step)
{
    const int64_t rows = accumulated ? 0 : c->rows[rank];
    float data[8 * FEATURES + 1];
    ls_tensor *x = NULL;
    ls_tensor *goal = NULL;
    ls_tensor *y;
    ls_status st;

    fill_rows(rank, c, data);
    ls_tape_reset(n->tape);
    LS_TRY(ls_tensor_create(n->device, LS_F32, 2, (int64_t[]){rows, FEATURES}, &x));
    LS_TRY(ls_tensor_create(n->device, LS_F32, 2, (int64_t[]){rows, 1}, &goal));
    LS_TRY(ls_tensor_write(x, data, (size_t)rows * FEATURES));
    y = ls_forward(n->tape, n->layer, x);
    LS_CHECK(y != NULL);
    LS_TRY(ls_tensor_read(y, data, (size_t)rows));
    for (int64_t r = 0; r < rows; r++)
        data[r] -= 0.5F;
    LS_TRY(ls_tensor_write(goal, data, (size_t)rows));
    st = ls_ddp_backward(n->ddp, n->tape, ls_mse_loss(n->tape, y, goal), rows, step);
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(goal);
    return st;
}

static ls_status check_gradient(net *n, const hook_case *c, ls_comm *comm)
{
    const double unit = c->hook == LS_DDP_HOOK_FP16 ? 0x1p-10 : 0x1p-7; // a last place, relative
    float mine[FEATURES];
    float all[4 * FEATURES];
    int count;

    LS_TRY(
        ls_tensor_read(ls_grad(ls_model_parameters(n->model, &count)[0].tensor), mine, FEATURES));
    LS_TRY(ls_all_gather(comm, mine, all, FEATURES, LS_F32, NULL));
    for (int r = 0; r < ls_comm_size(comm); r++)
        LS_CHECK(memcmp(mine, all + (size_t)r * FEATURES, sizeof(mine)) == 0);
    for (int f = 0; f < FEATURES; f++) {
        const double want = expected(c, ls_comm_size(comm), f);
        // The gradient itself is off by float32 rounding, which may tip a rounding to 16 bits over
        // on each rank.
        const double slack = unit * (fabs(want) + c->scale);

        if (fabs((double)mine[f] - want) > slack)
            return ls_fail(LS_EFORMAT, "feature %d: %g instead of %g", f, (double)mine[f], want);
        // And it is a number of the type.
        LS_CHECK((double)mine[f] == (c->hook == LS_DDP_HOOK_FP16
                                         ? (double)ls_f16_to_f32(ls_f32_to_f16(mine[f]))
                                         : (double)ls_bf16_to_f32(ls_f32_to_bf16(mine[f]))));
    }
    return LS_OK;
}

static ls_status body_hook(const ls_test_rank *self, void *arg)
{
    const hook_case *c = arg;
    const ls_ddp_options opt = {.size = sizeof(opt), .hook = c->hook, .plain_mean = c->plain_mean};
    ls_ddp_stats stats;
    ls_ddp_step step;
    ls_comm *comm;
    net n;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, comm, &opt));
    for (int i = 0; i < 3; i++) { // before and after buckets are laid out anew
        LS_TRY(step_on(&n, c, self->rank, 0, &step));
        LS_TRY(check_gradient(&n, c, comm));
    }
    ls_ddp_get_stats(n.ddp, &stats);
    LS_CHECK(stats.bytes_a_step == FEATURES * 2);
    LS_TRY(step_on(&n, c, self->rank, 1, &step)); // no rank has rows
    LS_CHECK(!step.more_data);
    net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void run_case(int n, hook_case c)
{
    for (int hook = LS_DDP_HOOK_FP16; hook <= LS_DDP_HOOK_BF16; hook++) {
        c.hook = (ls_ddp_hook)hook;
        assert_true(ls_test_run(&(ls_test_job){.n = n, .body = body_hook, .arg = &c}));
    }
}

static void gradients_are_means_rounded_to_16_bits(void **state)
{
    (void)state;
    run_case(1, (hook_case){.rows = {3}, .scale = 1});
    run_case(2, (hook_case){.rows = {4, 4}, .scale = 1});
    run_case(3, (hook_case){.rows = {5, 0, 2}, .scale = 1});
    run_case(3, (hook_case){.rows = {1, 8, 2}, .scale = 1, .plain_mean = 1});
}

/* Sums over rows would not fit into float16. */
static void large_means_do_not_overflow(void **state)
{
    (void)state;
    run_case(2, (hook_case){.rows = {8, 8}, .scale = 10000});
}

/* --- */

static ls_status body_mixed(const ls_test_rank *self, void *arg)
{
    const hook_case c = {.rows = {2, 2}, .scale = 1};
    const ls_ddp_options opt = {.size = sizeof(opt),
                                .plain_mean = 1,
                                .hook = self->rank == 0 ? LS_DDP_HOOK_FP16 : LS_DDP_HOOK_BF16};
    const ls_ddp_options wrong = {.size = sizeof(wrong), .hook = (ls_ddp_hook)7};
    const ls_ddp_options local = {.size = sizeof(local), .hook = LS_DDP_HOOK_INT4};
    ls_ddp_step step;
    ls_comm *comm;
    net n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_CHECK(net_open(&n, comm, &wrong) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "unknown communication hook 7") != NULL);
    net_close(&n);
    LS_CHECK(net_open(&n, comm, &local) == LS_EUNSUPPORTED);
    LS_CHECK(strstr(ls_last_error(), "communication hook int4: gradients") != NULL);
    net_close(&n);
    LS_TRY(net_open(&n, comm, &opt));
    LS_CHECK(step_on(&n, &c, self->rank, 0, &step) == LS_EMISMATCH);
    net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ranks_with_different_hooks_are_reported(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_mixed}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_rounds_as_single_conversions),
        cmocka_unit_test(gradients_are_means_rounded_to_16_bits),
        cmocka_unit_test(large_means_do_not_overflow),
        cmocka_unit_test(ranks_with_different_hooks_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
