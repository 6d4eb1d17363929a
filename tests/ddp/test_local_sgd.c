/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_local_sgd.c - tests local SGD: its rules, the mean over islands with the same bits on any
 * number of ranks, and a program's own loop.
 */
#include <lockstep/local_sgd.h>

#include "base/rng.h"
#include "base/text.h"
#include "comm/backends/reduce.h"
#include "ddp/half_bucket.h"
#include "ddp/int_blocks.h"
#include "ddp/local_mean.h"
#include "ddp/local_rules.h"
#include "ddp/local_state.h"
#include "ddp/shard_tree.h"
#include "harness/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* --- rules --- */

static void fragments_are_contiguous_and_about_equal(void **state)
{
    const size_t counts[] = {10, 10, 1, 1, 1, 27, 30, 20};
    const int want[] = {0, 0, 0, 0, 0, 1, 2, 3};
    int of[LS_COUNT_OF(counts)];
    const size_t one = 5;
    const size_t nothing[] = {0, 0};

    (void)state;
    local_divide(counts, (int)LS_COUNT_OF(counts), 4, of);
    for (size_t i = 1; i < LS_COUNT_OF(counts); i++)
        assert_true(of[i] >= of[i - 1]);
    assert_memory_equal(of, want, sizeof(of));
    local_divide(&one, 1, 3, of);
    assert_in_range(of[0], 0, 2);
    local_divide(nothing, 2, 3, of);
    assert_int_equal(of[1], 0);
}

static void each_fragment_is_due_once_in_h_steps(void **state)
{
    (void)state;
    for (int every = 1; every <= 12; every++)
        for (int fragments = 1; fragments <= every; fragments++) {
            int most = 0; // in a step
            int last = 0;

            for (int64_t step = 25 * every + 1; step <= 26 * every; step++) {
                int n = 0;

                for (int f = 0; f < fragments; f++)
                    n += local_is_due(step, every, f, fragments);
                most = n > most ? n : most;
                last += local_is_due(step, every, fragments - 1, fragments);
            }
            assert_int_equal(most, 1);
            assert_int_equal(last, 1);
            assert_true(local_is_due(every, every, fragments - 1, fragments));
            assert_false(local_is_due(0, every, fragments - 1, fragments));
        }
}

/* The numbers of torch.optim.SGD([p], lr=0.7, momentum=0.9, nesterov=True), p = 1, gradients 0.5
 * and -0.25, computed by hand. */
static void outer_steps_are_those_of_nesterov_momentum(void **state)
{
    float p = 1;
    float m = 0;
    float d = 0.5F;

    (void)state;
    local_outer_step(&p, &m, &d, 1, 0.7F, 0.9F);
    assert_float_equal(p, 0.335F, 1e-6F); // 1 - 0.7 (0.5 + 0.9 0.5)
    d = -0.25F;
    local_outer_step(&p, &m, &d, 1, 0.7F, 0.9F);
    assert_float_equal(m, 0.2F, 1e-6F);   // 0.9 0.5 - 0.25
    assert_float_equal(p, 0.384F, 1e-6F); // 0.335 - 0.7 (-0.25 + 0.9 0.2)
    d = 0.5F;
    local_outer_step(&p, &m, &d, 1, 1, 0);
    assert_float_equal(p, -0.116F, 1e-6F);
}

/* --- integers --- */

/* Each number of several blocks changes by at most half a scale, of the largest number of its
 * block; computed in float64; float32 rounds, too. */
static void integers_differ_by_half_a_scale_at_most(void **state)
{
    enum { N = 3 * INT_BLOCK + 7 };
    float x[N];
    float y[N];
    char packed[2 * N];
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, 41);
    for (int i = 0; i < N; i++) // each block has a size of its own
        x[i] = (float)(ls_rng_normal(&rng) * pow(10, 9 * (i / INT_BLOCK) - 12));
    for (int bits = 4; bits <= 8; bits += 4) {
        const double codes = bits == 8 ? 127 : 7;
        bool changed = false;

        int_blocks_pack(x, N, bits, packed);
        int_blocks_unpack(packed, N, bits, y);
        for (int i = 0; i < N; i++) {
            double most = 0;

            for (int k = i / INT_BLOCK * INT_BLOCK; k < N && k / INT_BLOCK == i / INT_BLOCK; k++)
                most = fmax(most, fabs((double)x[k]));
            assert_true(fabs((double)y[i] - (double)x[i]) <= most / codes / 2 * (1 + 1e-5));
            changed = changed || memcmp(&y[i], &x[i], sizeof(float)) != 0;
        }
        assert_true(changed);
    }
    assert_int_equal(int_blocks_bytes(N, 8), 4 * 4 + N);
    assert_int_equal(int_blocks_bytes(N, 4), 4 * 4 + 3 * INT_BLOCK / 2 + 4);
    assert_int_equal(int_blocks_bytes(0, 4), 0);
}

/* 7 and 127 are the scale's: 1. */
static void integers_are_rounded_to_nearest_even(void **state)
{
    const float x[] = {7, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 0.51F, -7};
    const float want[] = {7, 0, 2, 2, 0, -2, 1, -7};
    const float wide[] = {127, 100.5F, 101.5F, -126.5F};
    const float want_wide[] = {127, 100, 102, -126};
    char packed[64];
    float y[8];

    (void)state;
    int_blocks_pack(x, LS_COUNT_OF(x), 4, packed);
    int_blocks_unpack(packed, LS_COUNT_OF(x), 4, y);
    for (size_t i = 0; i < LS_COUNT_OF(x); i++)
        assert_float_equal(y[i], want[i], 0);
    int_blocks_pack(wide, LS_COUNT_OF(wide), 8, packed);
    int_blocks_unpack(packed, LS_COUNT_OF(wide), 8, y);
    for (size_t i = 0; i < LS_COUNT_OF(wide); i++)
        assert_float_equal(y[i], want_wide[i], 0);
}

/* In one block: the others keep their scale. The smallest number has a scale of 0. */
static void integers_tell_numbers_that_are_not_finite(void **state)
{
    const float x[] = {1, NAN, -1, INFINITY, -INFINITY, 0, -0.0F};
    const float tiny[] = {1e-45F, -1e-45F, 1.2e-38F};
    char packed[64];
    float y[7];

    (void)state;
    for (int bits = 4; bits <= 8; bits += 4) {
        int_blocks_pack(x, LS_COUNT_OF(x), bits, packed);
        int_blocks_unpack(packed, LS_COUNT_OF(x), bits, y);
        for (size_t i = 0; i < LS_COUNT_OF(x); i++)
            if (isfinite(x[i]))
                assert_float_equal(y[i], x[i], 1e-6F);
            else
                assert_true(isnan(y[i]));
        int_blocks_pack(tiny, 2, bits, packed);
        int_blocks_unpack(packed, 2, bits, y);
        assert_float_equal(y[0], 0, 2e-45F);
        int_blocks_pack(tiny, 3, bits, packed);
        int_blocks_unpack(packed, 3, bits, y);
        assert_float_equal(y[2], 1.2e-38F, 1e-40F);
    }
}

/* --- the mean --- */

enum { NUMBERS = 1003, ISLANDS_MOST = 7 };

typedef struct mean_case {
    int islands;
    ls_ddp_hook hook;
} mean_case;

static float *shared_means; /* of each rank, in shared memory */

static void fill_island(int island, float *out)
{
    ls_rng rng;

    ls_rng_seed(&rng, (uint64_t)island + 1);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = (float)ls_rng_normal(&rng);
}

static ls_status mean_body(const ls_test_rank *self, void *arg)
{
    static float memory[ISLANDS_MOST][NUMBERS];
    const mean_case *c = arg;
    float *values[ISLANDS_MOST];
    int starts[ISLANDS_MOST + 1];
    local_exchange *x;
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    shard_divide_equally(c->islands, self->size, starts);
    for (int i = starts[self->rank]; i < starts[self->rank + 1]; i++) {
        values[i - starts[self->rank]] = memory[i];
        fill_island(i, memory[i]);
    }
    st = local_mean_start(comm, c->islands, starts, values, NUMBERS, c->hook, &x);
    if (st == LS_OK && c->islands % 3 == 0)
        st = local_mean_go_on(x);
    if (st == LS_OK)
        st = local_mean_end(x);
    memcpy(shared_means + (size_t)self->rank * NUMBERS, values[0], sizeof(memory[0]));
    ls_comm_destroy(comm);
    return st;
}

/* As one that receives them has them. */
static void send_and_receive(float *values, ls_ddp_hook hook)
{
    const ls_dtype half = hook == LS_DDP_HOOK_BF16 ? LS_BF16 : LS_F16;
    const int bits = hook == LS_DDP_HOOK_INT8 ? 8 : 4;
    uint16_t sent[NUMBERS];

    if (hook == LS_DDP_HOOK_FP16 || hook == LS_DDP_HOOK_BF16) {
        half_pack(values, sent, NUMBERS, 1, half);
        half_unpack(sent, values, NUMBERS, half);
    } else if (hook != LS_DDP_HOOK_NONE) {
        int_blocks_pack(values, NUMBERS, bits, (char *)sent);
        int_blocks_unpack((char *)sent, NUMBERS, bits, values);
    }
}

/* The sum in the tree over all islands, each rounded once, and the mean rounded once. */
static void find_mean(const mean_case *c, float *out)
{
    static float memory[ISLANDS_MOST][NUMBERS];
    reduce_operand operands[ISLANDS_MOST];

    for (int i = 0; i < c->islands; i++) {
        fill_island(i, memory[i]);
        send_and_receive(memory[i], c->hook);
        operands[i] = (reduce_operand){memory[i], i, 1, true};
    }
    reduce_tree(out, operands, c->islands, NUMBERS, LS_F32, LS_AVG, true, c->islands);
    send_and_receive(out, c->hook);
}

static void means_have_the_same_bits_on_any_number_of_ranks(void **state)
{
    float want[NUMBERS];

    (void)state;
    for (int islands = 1; islands <= ISLANDS_MOST; islands += 2)
        for (int hook = LS_DDP_HOOK_NONE; hook <= LS_DDP_HOOK_INT4; hook++) {
            mean_case c = {islands, (ls_ddp_hook)hook};

            find_mean(&c, want);
            for (int n = 1; n <= islands; n++) {
                const ls_test_job job = {.n = n, .body = mean_body, .arg = &c};

                assert_true(ls_test_ranks(&job, NULL));
                for (int r = 0; r < n; r++)
                    assert_memory_equal(shared_means + (size_t)r * NUMBERS, want, sizeof(want));
            }
        }
}

/* --- a loop of a program --- */

/* What a rank has. */
typedef struct fitting {
    ls_device *device;
    ls_model *model;
    ls_optimizer *sgd;
    ls_tensor *weight;
    ls_local_sgd *local;
} fitting;

/* The loss of an island is 0.5 a (w - b)^2 for each element of the weight, with a and b of its own:
 * plain numbers can follow it. */
enum { WEIGHTS = 3 };

typedef struct loop_case {
    int steps;
    ls_local_sgd_options options;
    float spoil; /* NaN or infinite: what rank 1 adds to a weight before the last step */
} loop_case;

typedef struct loop_result {
    float weights[WEIGHTS];
    ls_status status;
    char error[LS_ERROR_BYTES];
} loop_result;

static loop_result *loop_results;

static float target_of(int island, int i)
{
    return (float)(island + 1) * (float)(i - 1);
}

static ls_status step_of(ls_tape *tape, ls_tensor *weight, ls_tensor *target, ls_optimizer *sgd)
{
    ls_tape_reset(tape);
    ls_zero_grad(weight);
    LS_TRY(ls_backward(tape, ls_mse_loss(tape, weight, target), 0.5 * WEIGHTS));
    return ls_optimizer_step(sgd);
}

static ls_status fitting_open(fitting *f, int island)
{
    const ls_device_options device = {.size = sizeof(device), .threads = 1, .name = "cpu_ref"};
    const ls_sgd_options inner = {.size = sizeof(inner), .lr = 0.25};
    const ls_named *parameters;
    int n;

    *f = (fitting){.device = NULL};
    LS_TRY(ls_device_open(&device, &f->device));
    LS_TRY(ls_model_create(f->device, (uint64_t)island + 3, &f->model)); // rank 0's values count
    (void)ls_nn_linear(f->model, "fc", WEIGHTS, 1, 1);
    parameters = ls_model_parameters(f->model, &n);
    f->weight = parameters[0].tensor;
    return ls_sgd_create(parameters, n, ls_grad, &inner, &f->sgd);
}

static ls_status fitting_close(fitting *f)
{
    ls_local_sgd_destroy(f->local);
    ls_optimizer_destroy(f->sgd);
    ls_model_destroy(f->model);
    return ls_device_close(f->device);
}

static ls_status loop(int island, ls_comm *comm, const loop_case *c, loop_result *out)
{
    const int64_t dims[] = {1, WEIGHTS};
    float target[WEIGHTS];
    fitting f;
    ls_tape *tape;
    ls_tensor *goal;

    LS_TRY(fitting_open(&f, island));
    LS_TRY(ls_tape_create(f.device, &tape));
    LS_TRY(ls_tensor_create(f.device, LS_F32, 2, dims, &goal));
    for (int i = 0; i < WEIGHTS; i++)
        target[i] = target_of(island, i);
    LS_TRY(ls_tensor_write(goal, target, WEIGHTS));
    LS_TRY(ls_tensor_fill(f.weight, island));
    out->status = ls_local_sgd_create(comm, f.model, f.sgd, &c->options, &f.local);
    for (int s = 0; s < c->steps && out->status == LS_OK; s++) {
        out->status = step_of(tape, f.weight, goal, f.sgd);
        if (s == c->steps - 1 && island == 1 && c->spoil != 0)
            LS_TRY(ls_tensor_fill(f.weight, c->spoil));
        if (out->status == LS_OK)
            out->status = ls_local_sgd_step(f.local);
    }
    if (out->status == LS_OK)
        out->status = ls_local_sgd_show(f.local);
    text_format(out->error, sizeof(out->error), "%s", out->status == LS_OK ? "" : ls_last_error());
    LS_TRY(ls_tensor_read(f.weight, out->weights, WEIGHTS));
    ls_tensor_destroy(goal);
    ls_tape_destroy(tape);
    return fitting_close(&f);
}

static ls_status loop_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    st = loop(self->rank, comm, arg, &loop_results[self->rank]);
    ls_comm_destroy(comm);
    return st;
}

static void run_loop(int n, const loop_case *c)
{
    loop_case copy = *c;

    copy.options.size = sizeof(copy.options);
    assert_true(ls_test_ranks(&(ls_test_job){.n = n, .body = loop_body, .arg = &copy}, NULL));
}

static void a_loop_computes_what_the_formulas_say(void **state)
{
    enum { EVERY = 3, ROUNDS = 4 };
    const loop_case c = {EVERY * ROUNDS + 1, {.every = EVERY}, 0};
    double mean[WEIGHTS] = {0};
    double m[WEIGHTS] = {0};

    (void)state;
    run_loop(2, &c);
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < WEIGHTS; i++) {
            double d = 0;

            for (int island = 0; island < 2; island++) {
                double w = mean[i];

                for (int s = 0; s < EVERY; s++)
                    w -= 0.25 * (w - (double)target_of(island, i));
                d += (mean[i] - w) / 2;
            }
            m[i] = 0.9 * m[i] + d;
            mean[i] -= 0.7 * (d + 0.9 * m[i]);
        }
    for (int i = 0; i < WEIGHTS; i++)
        assert_float_equal(loop_results[0].weights[i], (float)mean[i], 1e-5F);
    // The step after the last mean is not shown, and all ranks have the same.
    assert_memory_equal(loop_results[1].weights, loop_results[0].weights,
                        sizeof(loop_results[0].weights));
}

/* A mean is applied two steps after it was sent, to half of what an island has then. */
static void with_a_delay_a_loop_computes_what_the_formulas_say(void **state)
{
    enum { EVERY = 3, DELAY = 2, STEPS = 14 };
    const loop_case c = {STEPS, {.every = EVERY, .delay = DELAY}, 0};
    double own[2][WEIGHTS] = {{0}};
    double sent[WEIGHTS] = {0};
    double mean[WEIGHTS] = {0};
    double m[WEIGHTS] = {0};

    (void)state;
    run_loop(2, &c);
    for (int s = 1; s <= STEPS; s++)
        for (int i = 0; i < WEIGHTS; i++) {
            for (int island = 0; island < 2; island++)
                own[island][i] -= 0.25 * (own[island][i] - (double)target_of(island, i));
            if (s > DELAY && (s - DELAY) % EVERY == 0) {
                m[i] = 0.9 * m[i] + sent[i];
                mean[i] -= 0.7 * (sent[i] + 0.9 * m[i]);
                for (int island = 0; island < 2; island++)
                    own[island][i] = (own[island][i] + mean[i]) / 2;
            }
            if (s % EVERY == 0)
                sent[i] = mean[i] - (own[0][i] + own[1][i]) / 2;
        }
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < WEIGHTS; i++)
            assert_float_equal(loop_results[r].weights[i], (float)mean[i], 1e-5F);
}

/* --- the delay --- */

static int *passed; /* by rank 0, in shared memory */

/* Rank 1 takes no step before rank 0 has taken all but the one that applies the mean: a rank that
 * waits earlier waits for ever. */
static ls_status delay_body(const ls_test_rank *self, void *arg)
{
    const ls_local_sgd_options opt = {
        .size = sizeof(opt), .every = 4, .delay = 4, .hook = *(const ls_ddp_hook *)arg};
    const int alone = opt.hook == LS_DDP_HOOK_NONE ? 7 : 5; // integers are sent in two operations
    fitting f;
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(fitting_open(&f, self->rank));
    LS_TRY(ls_local_sgd_create(comm, f.model, f.sgd, &opt, &f.local));
    for (int s = 1; self->rank == 0 && s <= alone; s++)
        LS_TRY(ls_local_sgd_step(f.local));
    if (self->rank == 0)
        __atomic_store_n(passed, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(passed, __ATOMIC_ACQUIRE) == 0)
        (void)usleep(1000);
    for (int s = self->rank == 0 ? alone + 1 : 1; s <= 8; s++)
        LS_TRY(ls_local_sgd_step(f.local));
    LS_TRY(fitting_close(&f));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ranks_do_not_wait_while_a_mean_is_sent(void **state)
{
    ls_ddp_hook hooks[] = {LS_DDP_HOOK_NONE, LS_DDP_HOOK_INT4};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(hooks); i++) {
        *passed = 0;
        assert_true(
            ls_test_ranks(&(ls_test_job){.n = 2, .body = delay_body, .arg = &hooks[i]}, NULL));
    }
}

static void a_difference_that_is_not_finite_fails_on_all_ranks(void **state)
{
    static const ls_ddp_hook hooks[] = {LS_DDP_HOOK_NONE, LS_DDP_HOOK_INT4, LS_DDP_HOOK_INT8,
                                        LS_DDP_HOOK_BF16};
    const float spoils[] = {NAN, INFINITY, 3.4e38F}; // the last one is infinite in bfloat16

    (void)state;
    for (size_t h = 0; h < LS_COUNT_OF(hooks); h++)
        for (size_t s = 0; s < LS_COUNT_OF(spoils); s++) {
            const loop_case c = {2, {.every = 2, .hook = hooks[h]}, spoils[s]};
            const bool is_refused = s < 2 || hooks[h] == LS_DDP_HOOK_BF16;

            run_loop(2, &c);
            for (int r = 0; r < 2; r++) {
                const loop_result *got = &loop_results[r];

                assert_int_equal(got->status, is_refused ? LS_EFORMAT : LS_OK);
                if (is_refused)
                    assert_non_null(strstr(got->error, "step 2: the mean difference of parameter "
                                                       "fc.weight over 2 islands is NaN or"));
            }
        }
}

static void options_that_cannot_be_are_refused(void **state)
{
    static const struct {
        ls_local_sgd_options options;
        const char *text;
    } cases[] = {
        {{.every = 0}, "every 0 steps"},
        {{.every = INT64_MAX}, "every 9223372036854775807 steps"},
        {{.every = 2, .fragments = 3}, "3 fragments"},
        {{.every = 4, .fragments = 2, .delay = 3}, "a delay of 3 steps"},
        {{.every = 4, .delay = -1}, "a delay of -1 steps"},
        {{.every = 2, .outer_lr = -1}, "outer learning rate -1"},
        {{.every = 2, .outer_momentum = 1}, "outer momentum 1"},
        {{.every = 2, .islands = -2}, "-2 islands"},
        {{.every = 2, .hook = (ls_ddp_hook)9}, "hook 9"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const loop_case c = {1, cases[i].options, 0};

        run_loop(2, &c);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(loop_results[r].status, LS_EINVAL);
            assert_non_null(strstr(loop_results[r].error, cases[i].text));
        }
    }
}

/* --- snapshots --- */

/* Both ranks have copies of both islands; without those of island 1 nothing is left to go on
 * with. */
static ls_status snapshot_body(const ls_test_rank *self, void *arg)
{
    const ls_local_sgd_options opt = {.size = sizeof(opt), .every = 2};
    float weights[WEIGHTS];
    bool is_called;
    fitting f;
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(fitting_open(&f, self->rank));
    LS_TRY(ls_local_sgd_create(comm, f.model, f.sgd, &opt, &f.local));
    LS_TRY(local_sgd_protect(f.local));
    LS_TRY(ls_tensor_fill(f.weight, self->rank + 5));
    LS_TRY(local_sgd_snapshot(f.local, self->rank == 1, &is_called));
    LS_CHECK(is_called);
    LS_TRY(ls_tensor_fill(f.weight, 9));
    LS_TRY(local_sgd_regroup(f.local, 1, 0));
    LS_TRY(ls_local_sgd_enter(f.local, self->rank));
    LS_TRY(ls_tensor_read(f.weight, weights, WEIGHTS));
    LS_CHECK(weights[0] == (float)(self->rank + 5));
    LS_TRY(ls_local_sgd_show(f.local));
    LS_CHECK(ls_local_sgd_step(f.local) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "call ls_local_sgd_enter()") != NULL);
    LS_CHECK(f.local->last.copies[1 - self->rank] != NULL);
    local_copy_destroy(f.local->last.copies[1]);
    f.local->last.copies[1] = NULL;
    LS_CHECK(local_sgd_regroup(f.local, 1, 0) == LS_ENOTFOUND);
    LS_CHECK(strstr(ls_last_error(), "island 1 is lost") != NULL);
    LS_TRY(fitting_close(&f));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void islands_return_to_a_snapshot_or_are_named(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = snapshot_body}, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_are_contiguous_and_about_equal),
        cmocka_unit_test(each_fragment_is_due_once_in_h_steps),
        cmocka_unit_test(outer_steps_are_those_of_nesterov_momentum),
        cmocka_unit_test(integers_differ_by_half_a_scale_at_most),
        cmocka_unit_test(integers_are_rounded_to_nearest_even),
        cmocka_unit_test(integers_tell_numbers_that_are_not_finite),
        cmocka_unit_test(means_have_the_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(a_loop_computes_what_the_formulas_say),
        cmocka_unit_test(with_a_delay_a_loop_computes_what_the_formulas_say),
        cmocka_unit_test(ranks_do_not_wait_while_a_mean_is_sent),
        cmocka_unit_test(a_difference_that_is_not_finite_fails_on_all_ranks),
        cmocka_unit_test(options_that_cannot_be_are_refused),
        cmocka_unit_test(islands_return_to_a_snapshot_or_are_named),
    };

    shared_means = ls_test_shared(ISLANDS_MOST * NUMBERS * sizeof(float));
    loop_results = ls_test_shared(2 * sizeof(*loop_results));
    passed = ls_test_shared(sizeof(*passed));
    if (shared_means == NULL || loop_results == NULL || passed == NULL)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
