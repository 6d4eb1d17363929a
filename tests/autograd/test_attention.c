/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_attention.c - attention against its definition by other operators, its masks and its
 * dropout, and how much memory it takes, on the device for CPUs or cudahost.
 */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "tensor/device.h"

#include <lockstep/autograd.h>

#include <math.h>
#include <string.h>

enum { Q, K, V, N_LEAVES };

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *in[N_LEAVES];
    ls_tensor *mask; /* NULL or owned */
} bench;

static ls_tensor *random_floats(const bench *s, int n_dims, const int64_t *dims, uint64_t seed)
{
    return random_tensor(s->device, LS_F32, n_dims, dims, seed);
}

static bool is_on_sim(void)
{
    return strcmp(test_device_name(), "cudahost") == 0;
}

/* q, k and v of these shapes, which require gradients. */
static bench setup(int n_dims, const int64_t *q, const int64_t *k, const int64_t *v)
{
    const int64_t *const dims[N_LEAVES] = {q, k, v};
    const ls_device_options options = {
        .size = sizeof(options), .name = is_on_sim() ? "cudahost" : "cpu", .threads = 2};
    bench s = {.mask = NULL};

    assert_status(LS_OK, ls_device_open(&options, &s.device));
    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    for (int i = 0; i < N_LEAVES; i++) {
        s.in[i] = random_floats(&s, n_dims, dims[i], (uint64_t)i + 1);
        assert_status(LS_OK, ls_require_grad(s.in[i]));
    }
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all(s->in, N_LEAVES);
    ls_tensor_destroy(s->mask);
    ls_device_close(s->device);
}

/* The same by operators that have all scores in memory. */
static ls_tensor *defined(const bench *s, const ls_attention_params *p)
{
    const int64_t queries = ls_tensor_dims(s->in[Q])[ls_tensor_n_dims(s->in[Q]) - 2];
    const int64_t keys = ls_tensor_dims(s->in[K])[ls_tensor_n_dims(s->in[K]) - 2];
    ls_tensor *scores = ls_matmul(s->tape, s->in[Q], s->in[K], 1);
    uint8_t *above = ls_calloc((size_t)(queries * keys), 1);
    ls_tensor *diagonal = NULL;

    assert_non_null(above);
    for (int64_t i = 0; p->causal && i < queries * keys; i++)
        above[i] = i % keys > i / keys;
    assert_status(LS_OK,
                  ls_tensor_create(s->device, LS_U8, 2, (int64_t[]){queries, keys}, &diagonal));
    assert_status(LS_OK, ls_tensor_write(diagonal, above, (size_t)(queries * keys)));
    scores = ls_masked_fill(s->tape, ls_scale(s->tape, scores, p->scale, 0), diagonal,
                            -(double)INFINITY);
    scores = ls_matmul(s->tape, ls_softmax_over(s->tape, scores, -1, p->mask), s->in[V], 0);
    // backward reads it
    ls_tape_keep(s->tape, scores);
    ls_free(above);
    assert_status(LS_OK,
                  ls_backward(s->tape, ls_mean(s->tape, ls_square(s->tape, scores), NULL, 0, 0),
                              (double)ls_tensor_count(scores)));
    ls_tensor_destroy(diagonal);
    return scores;
}

/* Relative to the length of `want`, or of 0.1 everywhere: a gradient may be 0. */
static void assert_near(const float *got, const float *want, size_t n, const char *what)
{
    double error = 0;
    double size = 0.01 * (double)n;

    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(error) <= 2e-6 * sqrt(size)))
        fail_msg("%s is %g away", what, sqrt(error / size));
}

/* Result and gradients of ls_attention() against those of the definition. */
static void check(bench *s, const ls_attention_params *p)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    ls_tensor *y = defined(s, p);
    const size_t count = ls_tensor_count(y);
    float *want[1 + N_LEAVES] = {copy_of(y)};
    float *got;

    for (int i = 0; i < N_LEAVES; i++) {
        want[1 + i] = copy_of(ls_grad(s->in[i]));
        ls_zero_grad(s->in[i]);
    }
    ls_tape_reset(s->tape);
    y = ls_attention(s->tape, s->in[Q], s->in[K], s->in[V], p);
    ls_tape_keep(s->tape, y);
    assert_status(LS_OK, ls_backward(s->tape, ls_mean(s->tape, ls_square(s->tape, y), NULL, 0, 0),
                                     (double)count));
    got = copy_of(y);
    assert_near(got, want[0], count, "y");
    ls_free(got);
    for (int i = 0; i < N_LEAVES; i++) {
        got = copy_of(ls_grad(s->in[i]));
        assert_near(got, want[1 + i], ls_tensor_count(s->in[i]), names[i]);
        ls_free(got);
        ls_free(want[1 + i]);
    }
    ls_free(want[0]);
}

static void attention_is_the_softmax_of_its_scores(void **state)
{
    bench s =
        setup(4, (int64_t[]){2, 3, 50, 16}, (int64_t[]){2, 3, 300, 16}, (int64_t[]){2, 3, 300, 12});

    LS_UNUSED(state);
    check(&s, &(ls_attention_params){.scale = 0.25});
    teardown(&s);
}

static void causal_attention_sees_no_later_key(void **state)
{
    static const int64_t sizes[][2] = {{75, 75}, {75, 40}, {40, 75}, {1, 9}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        const int64_t q[] = {2, sizes[i][0], 8};
        const int64_t k[] = {2, sizes[i][1], 8};
        bench s = setup(3, q, k, k);

        check(&s, &(ls_attention_params){.scale = 0.5, .causal = 1});
        teardown(&s);
    }
}

static void numbers_of_the_mask_are_added(void **state)
{
    bench s =
        setup(4, (int64_t[]){2, 3, 20, 8}, (int64_t[]){2, 3, 30, 8}, (int64_t[]){2, 3, 30, 8});

    LS_UNUSED(state);
    s.mask = random_floats(&s, 3, (int64_t[]){3, 20, 30}, 9);
    check(&s, &(ls_attention_params){.scale = 0.5, .mask = s.mask});
    teardown(&s);
}

/* The keys of the first sample are all excluded: its results and gradients are 0. */
static void excluded_keys_take_no_part(void **state)
{
    bench s =
        setup(4, (int64_t[]){2, 3, 20, 8}, (int64_t[]){2, 3, 30, 8}, (int64_t[]){2, 3, 30, 8});
    const ls_attention_params *p;
    uint8_t excluded[60];
    float *y;

    LS_UNUSED(state);
    for (size_t i = 0; i < sizeof(excluded); i++)
        excluded[i] = i < 30 || i % 7 == 0;
    assert_status(LS_OK, ls_tensor_create(s.device, LS_U8, 4, (int64_t[]){2, 1, 1, 30}, &s.mask));
    assert_status(LS_OK, ls_tensor_write(s.mask, excluded, sizeof(excluded)));
    p = &(ls_attention_params){.scale = 0.5, .mask = s.mask};
    check(&s, p);
    y = copy_of(ls_attention(s.tape, s.in[Q], s.in[K], s.in[V], p));
    for (size_t i = 0; i < 3 * 20 * 8; i++)
        assert_true(y[i] == 0);
    ls_free(y);
    teardown(&s);
}

static void leading_dimensions_are_broadcast(void **state)
{
    bench s =
        setup(4, (int64_t[]){2, 3, 20, 8}, (int64_t[]){2, 1, 30, 8}, (int64_t[]){1, 1, 30, 8});

    LS_UNUSED(state);
    check(&s, &(ls_attention_params){.scale = 0.5});
    teardown(&s);
}

/* The default scale is 1 / sqrt(D), and evaluation drops nothing. */
static void evaluation_gives_what_training_without_dropout_gives(void **state)
{
    const int64_t dims[] = {2, 33, 16};
    bench s = setup(3, dims, dims, dims);
    float *want = copy_of(
        ls_attention(s.tape, s.in[Q], s.in[K], s.in[V], &(ls_attention_params){.scale = 0.25}));
    float *got;

    LS_UNUSED(state);
    ls_tape_set_training(s.tape, 0);
    got = copy_of(
        ls_attention(s.tape, s.in[Q], s.in[K], s.in[V], &(ls_attention_params){.dropout = 0.5}));
    assert_memory_equal(got, want, (size_t)2 * 33 * 16 * sizeof(float));
    ls_free(got);
    ls_free(want);
    teardown(&s);
}

/* With equal scores and values of 1 a result is the share of weights that are kept over 1 - p. */
static void dropout_keeps_a_share_of_the_weights(void **state)
{
    const int64_t dims[] = {4, 100, 8};
    bench s = setup(3, dims, dims, dims);
    float *values = ls_calloc(4 * 100 * 8, sizeof(*values));
    double mean = 0;
    float *y[2];

    LS_UNUSED(state);
    assert_non_null(values);
    assert_status(LS_OK, ls_tensor_write(s.in[K], values, 4 * 100 * 8));
    for (size_t i = 0; i < 4 * 100 * 8; i++)
        values[i] = 1;
    assert_status(LS_OK, ls_tensor_write(s.in[V], values, 4 * 100 * 8));
    for (int i = 0; i < 2; i++) {
        ls_tape_set_random(s.tape, 5, i);
        y[i] = copy_of(ls_attention(s.tape, s.in[Q], s.in[K], s.in[V],
                                    &(ls_attention_params){.dropout = 0.25}));
    }
    for (size_t i = 0; i < 4 * 100 * 8; i++)
        mean += (double)y[0][i] / (4 * 100 * 8);
    // 40000 weights: the deviation of the mean is 0.003.
    assert_true(fabs(mean - 1) < 0.012);
    assert_memory_not_equal(y[0], y[1], 4 * 100 * 8 * sizeof(float));
    ls_free(y[0]);
    ls_free(y[1]);
    ls_free(values);
    teardown(&s);
}

/* --- memory --- */

static size_t taken; /* bytes that the device's blocks have had in all */
static void *(*plain_alloc)(device_state *self, size_t bytes);

static void *counted_alloc(device_state *self, size_t bytes)
{
    taken += bytes;
    return plain_alloc(self, bytes);
}

/* The bytes that forward and backward take beside q, k, v: freed blocks count, too. */
static size_t bytes_for(int64_t queries, int64_t keys)
{
    const int64_t q[] = {queries, 8};
    const int64_t k[] = {keys, 8};
    bench s = setup(2, q, k, k);
    const device_ops *const ops = s.device->ops;
    device_ops counting = *ops;

    plain_alloc = ops->alloc;
    counting.alloc = counted_alloc;
    s.device->ops = &counting;
    taken = 0;
    ls_tape_set_random(s.tape, 1, 1);
    assert_status(LS_OK, ls_backward(s.tape,
                                     ls_mean(s.tape,
                                             ls_attention(s.tape, s.in[Q], s.in[K], s.in[V],
                                                          &(ls_attention_params){.dropout = 0.1}),
                                             NULL, 0, 0),
                                     1));
    assert_non_null(ls_grad(s.in[K]));
    s.device->ops = ops;
    teardown(&s);
    return taken;
}

/* All scores of 4096 queries and keys would take 64 MiB, of 2048 16 MiB. */
static void memory_grows_with_the_sum_of_queries_and_keys(void **state)
{
    const int64_t n = is_on_sim() ? 512 : 1024; // which computes slowly
    const size_t small = bytes_for(n, n);
    const size_t large = bytes_for(4 * n, 4 * n);

    LS_UNUSED(state);
    print_message("T = %lld: %zu bytes, 4 times as many: %zu bytes\n", (long long)n, small, large);
    assert_true(small > 0);
    assert_true(large <= 4 * small);
    assert_true(large < (size_t)4 << 20);
}

/* A transposed row has other strides than the row itself, and is the same memory. */
static void products_of_single_rows_have_gradients(void **state)
{
    const int64_t a_dims[3] = {1, 2, 2};
    const int64_t b_dims[5] = {2, 1, 1, 1, 2};
    const float a_values[4] = {1, 2, 3, 4};
    const float b_values[4] = {5, 6, 7, 8};
    const float want_a[4] = {12, 14, 12, 14}; // sums of b over its two matrices
    const float want_b[4] = {4, 6, 4, 6};     // sums of a over its rows
    const ls_device_options options = {
        .size = sizeof(options), .name = is_on_sim() ? "cudahost" : "cpu", .threads = 2};
    float got[4];
    bench s = {.mask = NULL};
    ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_device_open(&options, &s.device));
    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.in[0] = random_floats(&s, 3, a_dims, 1);
    s.in[1] = random_floats(&s, 5, b_dims, 1);
    assert_status(LS_OK, ls_tensor_write(s.in[0], a_values, 4));
    assert_status(LS_OK, ls_tensor_write(s.in[1], b_values, 4));
    assert_status(LS_OK, ls_require_grad(s.in[0]));
    assert_status(LS_OK, ls_require_grad(s.in[1]));
    y = ls_matmul(s.tape, s.in[0], s.in[1], 1);
    assert_status(LS_OK, ls_backward(s.tape, ls_sum(s.tape, y, NULL, 0, 0), 1));
    assert_status(LS_OK, ls_tensor_read(ls_grad(s.in[0]), got, 4));
    assert_memory_equal(got, want_a, sizeof(got));
    assert_status(LS_OK, ls_tensor_read(ls_grad(s.in[1]), got, 4));
    assert_memory_equal(got, want_b, sizeof(got));
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_single_rows_have_gradients),
        cmocka_unit_test(attention_is_the_softmax_of_its_scores),
        cmocka_unit_test(causal_attention_sees_no_later_key),
        cmocka_unit_test(numbers_of_the_mask_are_added),
        cmocka_unit_test(excluded_keys_take_no_part),
        cmocka_unit_test(leading_dimensions_are_broadcast),
        cmocka_unit_test(evaluation_gives_what_training_without_dropout_gives),
        cmocka_unit_test(dropout_keeps_a_share_of_the_weights),
        cmocka_unit_test(memory_grows_with_the_sum_of_queries_and_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
