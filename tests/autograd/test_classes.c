/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_classes.c - losses of classes against PyTorch's figures, what dropout promises, and how the
 * largest are counted.
 */
#include "tensor/testing.h"

#include "base/alloc.h"

#include <lockstep/autograd.h>

#include <math.h>
#include <string.h>

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    ls_device_close(s->device);
}

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

static ls_tensor *targets_of(bench *s, int64_t n, const int64_t *values)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, ls_tensor_create(s->device, LS_I64, 1, &n, &t));
    assert_status(LS_OK, ls_tensor_write(t, values, (size_t)n));
    return t;
}

/* The figures are those of torch.nn.functional.cross_entropy(label_smoothing=0.3)
 * and log_softmax. */
static void smoothed_labels_give_what_pytorch_gives(void **state)
{
    const double values[] = {1, -2, 0.5, 0.25, 3, -1};
    const double dlogits[] = {0.25187444807431286,  -0.034970556215212986, -0.2169038918590999,
                              -0.37046512120374486, 0.4120032367539334,    -0.04153811555018859};
    const double logs[] = {-0.5045969023422835, -3.5045969023422834,  -1.0045969023422834,
                           -2.8290362014040995, -0.07903620140409959, -4.0790362014041};
    bench s = setup();
    ls_tensor *logits = tensor_of(s.device, LS_F64, 2, (int64_t[]){2, 3}, values);
    ls_tensor *targets = targets_of(&s, 2, (int64_t[]){2, 0});
    const ls_cross_entropy_params params = {.label_smoothing = 0.3};
    ls_tensor *loss;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(logits));
    loss = ls_cross_entropy_with(s.tape, logits, targets, &params);
    assert_elements(ls_log_softmax(s.tape, logits), logs, 1e-15);
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    assert_elements(loss, (double[]){1.9418165518731914}, 1e-15);
    assert_elements(ls_grad(logits), dlogits, 1e-15);
    destroy_all((ls_tensor *[]){logits, targets}, 2);
    teardown(&s);
}

static void wrong_shapes_and_shares_are_errors(void **state)
{
    bench s = setup();
    ls_tensor *logits = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){1, 2});
    ls_tensor *row = tensor_of(s.device, LS_F32, 1, (int64_t[]){2}, (double[]){1, 2});
    ls_tensor *targets = targets_of(&s, 1, (int64_t[]){1});
    const ls_cross_entropy_params params = {.label_smoothing = 1.5};

    LS_UNUSED(state);
    assert_null(ls_cross_entropy_with(s.tape, logits, targets, &params));
    assert_error("cross_entropy: label_smoothing is 1.5; it must be 0 to 1");
    ls_tape_reset(s.tape);
    assert_null(ls_log_softmax(s.tape, row));
    assert_error("log_softmax: input (2) is not (N, K)");
    ls_tape_reset(s.tape);
    assert_null(ls_nll_loss(s.tape, row, targets));
    assert_error("nll_loss: targets (1) int64 do not fit log probabilities (2)");
    ls_tape_reset(s.tape);
    assert_null(ls_dropout(s.tape, row, -0.1));
    assert_error("dropout: the probability is -0.1; it must be 0 to 1");
    ls_tape_reset(s.tape);
    assert_null(ls_dropout(s.tape, row, (double)NAN));
    destroy_all((ls_tensor *[]){logits, row, targets}, 3);
    teardown(&s);
}

enum { N = 10000 };

static ls_tensor *ones(bench *s)
{
    ls_tensor *x = NULL;
    float *data = ls_calloc(N, sizeof(*data));

    assert_status(LS_OK, ls_tensor_create(s->device, LS_F32, 1, (int64_t[]){N}, &x));
    assert_non_null(data);
    for (size_t i = 0; i < N; i++)
        data[i] = 1;
    assert_status(LS_OK, ls_tensor_write(x, data, N));
    ls_free(data);
    return x;
}

static void dropout_keeps_a_share_and_its_mean(void **state)
{
    bench s = setup();
    ls_tensor *x = ones(&s);
    float *y;
    size_t kept = 0;

    LS_UNUSED(state);
    ls_tape_set_random(s.tape, 0, 0);
    y = copy_of(ls_dropout(s.tape, x, 0.2));
    for (size_t i = 0; i < N; i++) {
        assert_true(y[i] == 0 || y[i] == 1.25F);
        kept += y[i] != 0;
    }
    // The share's deviation is 0.004.
    assert_true((double)kept > (double)N * 0.78 && (double)kept < (double)N * 0.82);
    ls_free(y);
    ls_tensor_destroy(x);
    teardown(&s);
}

static void backward_drops_what_forward_dropped(void **state)
{
    bench s = setup();
    ls_tensor *x = ones(&s);
    ls_tensor *zero = NULL;
    ls_tensor *y;
    float *kept;
    float *dx;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 1, (int64_t[]){N}, &zero));
    assert_status(LS_OK, ls_require_grad(x));
    ls_tape_set_random(s.tape, 0, 0);
    y = ls_dropout(s.tape, x, 0.5);
    ls_tape_keep(s.tape, y);
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, zero), N / 2));
    kept = copy_of(y);
    dx = copy_of(ls_grad(x));
    for (size_t i = 0; i < N; i++)
        assert_true(dx[i] == 2 * kept[i]); // dy is y, and the kept are 2
    ls_free(kept);
    ls_free(dx);
    destroy_all((ls_tensor *[]){x, zero}, 2);
    teardown(&s);
}

/* How many elements of a first and of a second call's results differ from those of seed 1,
 * step 7. */
static void count_differences(bench *s, ls_tensor *x, uint64_t seed, int64_t step, int differ[2])
{
    float *reference[2];
    float *other[2];

    ls_tape_reset(s->tape);
    ls_tape_set_random(s->tape, 1, 7);
    for (int i = 0; i < 2; i++)
        reference[i] = copy_of(ls_dropout(s->tape, x, 0.5));
    ls_tape_set_random(s->tape, seed, step);
    for (int i = 0; i < 2; i++) {
        other[i] = copy_of(ls_dropout(s->tape, x, 0.5));
        differ[i] = 0;
        for (size_t k = 0; k < N; k++)
            differ[i] += other[i][k] != reference[i][k];
    }
    assert_memory_not_equal(reference[0], reference[1], N * sizeof(float));
    for (int i = 0; i < 2; i++) {
        ls_free(reference[i]);
        ls_free(other[i]);
    }
}

static void seed_step_and_call_decide_what_is_dropped(void **state)
{
    bench s = setup();
    ls_tensor *x = ones(&s);
    int differ[2];

    LS_UNUSED(state);
    count_differences(&s, x, 1, 7, differ);
    assert_true(differ[0] == 0 && differ[1] == 0);
    count_differences(&s, x, 1, 8, differ);
    assert_true(differ[0] > N / 3 && differ[1] > N / 3);
    count_differences(&s, x, 2, 7, differ);
    assert_true(differ[0] > N / 3 && differ[1] > N / 3);
    ls_tensor_destroy(x);
    teardown(&s);
}

static void evaluation_drops_nothing(void **state)
{
    bench s = setup();
    ls_tensor *x = ones(&s);

    LS_UNUSED(state);
    assert_ptr_equal(ls_dropout(s.tape, x, 0), x);
    ls_tape_set_training(s.tape, 0);
    assert_ptr_equal(ls_dropout(s.tape, x, 0.5), x);
    ls_tensor_destroy(x);
    teardown(&s);
}

static void dropout_always_drops_in_evaluation_what_it_drops_in_training(void **state)
{
    bench s = setup();
    ls_tensor *x = ones(&s);
    float *of[3];

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) {
        ls_tape_set_training(s.tape, i < 2);
        ls_tape_set_random(s.tape, 3, 5);
        of[i] = copy_of(i == 0 ? ls_dropout(s.tape, x, 0.5) : ls_dropout_always(s.tape, x, 0.5));
    }
    assert_memory_equal(of[0], of[1], N * sizeof(float));
    assert_memory_equal(of[0], of[2], N * sizeof(float));
    assert_ptr_equal(ls_dropout_always(s.tape, x, 0), x);
    for (int i = 0; i < 3; i++)
        ls_free(of[i]);
    ls_tensor_destroy(x);
    teardown(&s);
}

/* The figures for distinct numbers and NaN are those of torch.topk. */
static void the_largest_are_counted(void **state)
{
    const double nan = (double)NAN;
    const double values[] = {
        1,   5,   3,   2,  // target 2 is second
        7,   7,   7,   7,  // target 1: of equals the first is larger, so it is second
        0,   9,   nan, 4,  // target 1: NaN is first
        nan, nan, 8,   1}; // target 3 is last
    const int k[] = {1, 2, 3, 4, 100};
    int64_t correct[5];
    bench s = setup();
    ls_tensor *targets = targets_of(&s, 4, (int64_t[]){2, 1, 1, 3});
    ls_tensor *none = targets_of(&s, 0, NULL);
    ls_tensor *empty = tensor_of(s.device, LS_F32, 2, (int64_t[]){0, 4}, values);

    LS_UNUSED(state);
    for (int wide = 0; wide < 2; wide++) {
        ls_tensor *logits =
            tensor_of(s.device, wide ? LS_F64 : LS_F32, 2, (int64_t[]){4, 4}, values);

        assert_status(LS_OK, ls_top_k_correct(logits, targets, k, 5, correct));
        assert_memory_equal(correct, ((int64_t[]){0, 3, 3, 4, 4}), sizeof(correct));
        ls_tensor_destroy(logits);
    }
    assert_status(LS_OK, ls_top_k_correct(empty, none, k, 5, correct));
    assert_memory_equal(correct, ((int64_t[]){0, 0, 0, 0, 0}), sizeof(correct));
    destroy_all((ls_tensor *[]){targets, none, empty}, 3);
    teardown(&s);
}

static void counting_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *logits = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){1, 2});
    ls_tensor *targets = targets_of(&s, 1, (int64_t[]){2});
    ls_tensor *two = targets_of(&s, 2, (int64_t[]){0, 0});
    int64_t correct;

    LS_UNUSED(state);
    assert_status(LS_EINVAL, ls_top_k_correct(logits, targets, (int[]){1}, 1, &correct));
    assert_error("target 2 of row 0 is outside [0, 2)");
    assert_status(LS_EINVAL, ls_top_k_correct(logits, two, (int[]){1}, 1, &correct));
    assert_error("targets (2) int64 do not fit logits (1, 2) float32");
    assert_status(LS_EINVAL, ls_top_k_correct(logits, targets, (int[]){0}, 1, &correct));
    assert_error("k is 0; it must be at least 1");
    assert_status(LS_EINVAL, ls_top_k_correct(NULL, targets, (int[]){1}, 1, &correct));
    destroy_all((ls_tensor *[]){logits, targets, two}, 3);
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smoothed_labels_give_what_pytorch_gives),
        cmocka_unit_test(wrong_shapes_and_shares_are_errors),
        cmocka_unit_test(dropout_keeps_a_share_and_its_mean),
        cmocka_unit_test(backward_drops_what_forward_dropped),
        cmocka_unit_test(seed_step_and_call_decide_what_is_dropped),
        cmocka_unit_test(evaluation_drops_nothing),
        cmocka_unit_test(dropout_always_drops_in_evaluation_what_it_drops_in_training),
        cmocka_unit_test(the_largest_are_counted),
        cmocka_unit_test(counting_names_what_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
