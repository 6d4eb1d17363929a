/* SPDX-License-Identifier: Apache-2.0 */
/* test_sums_history.c - tests the counts of a batch and the history of a run. */
#include "train/history.h"
#include "train/rank_sums.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CLASSES = 7, ROWS = 6 };

typedef struct batch {
    ls_device *device;
    ls_tensor *logits;
    ls_tensor *targets;
} batch;

/* Rows of logits with these targets, on the device that ctest chooses. */
static batch batch_of(float (*scores)[CLASSES], const int64_t *targets, int64_t rows)
{
    const char *name = getenv("LS_TEST_DEVICE"); // NOLINT(concurrency-mt-unsafe): never set
    const ls_device_options options = {.size = sizeof(options),
                                       .name = name == NULL ? "cpu_ref" : name};
    const int64_t dims[] = {rows, CLASSES};
    const size_t n = (size_t)rows;
    batch b;

    assert_int_equal(ls_device_open(&options, &b.device), LS_OK);
    assert_int_equal(ls_tensor_create(b.device, LS_F32, 2, dims, &b.logits), LS_OK);
    assert_int_equal(ls_tensor_create(b.device, LS_I64, 1, dims, &b.targets), LS_OK);
    assert_int_equal(ls_tensor_write(b.logits, scores, n * CLASSES), LS_OK);
    assert_int_equal(ls_tensor_write(b.targets, targets, n), LS_OK);
    return b;
}

static void free_batch(batch *b)
{
    ls_tensor_destroy(b->logits);
    ls_tensor_destroy(b->targets);
    assert_int_equal(ls_device_close(b->device), LS_OK);
}

/* Stream devices compute the loss of a row in the type of its logits. */
static void assert_loss(const rank_sums *t, double want)
{
    const bool is_on_card = getenv("LS_TEST_DEVICE") != NULL; // NOLINT(concurrency-mt-unsafe)

    assert_true(fabs(t->loss - want) < (is_on_card ? 1e-4 : 1e-9));
}

/* The sums of one batch. */
static rank_sums count(float (*scores)[CLASSES], const int64_t *targets, int64_t rows,
                       ls_status expected)
{
    batch b = batch_of(scores, targets, rows);
    ls_tensor *pending = NULL;
    rank_sums t = {.loss = 0};
    ls_status st = rank_sums_add_logits(&t, &pending, b.logits, b.targets, true);

    if (st == LS_OK)
        st = rank_sums_read(&t, pending, true);
    assert_int_equal(st, expected);
    ls_tensor_destroy(pending);
    free_batch(&b);
    return t;
}

static void batches_add_up_and_are_read_once(void **state)
{
    float scores[ROWS][CLASSES] = {{0}};
    const int64_t targets[ROWS] = {0, 1, 4, 5, 6, 0};
    batch b = batch_of(scores, targets, ROWS);
    ls_tensor *pending = NULL;
    rank_sums t = {.loss = 1, .rows = 2, .ranked = 3, .top1 = 4, .top5 = 5};

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(rank_sums_add_logits(&t, &pending, b.logits, b.targets, true), LS_OK);
    assert_true((pending == NULL) == (ls_device_queue(b.device) == NULL));
    for (int i = 0; i < 2; i++)
        assert_int_equal(rank_sums_read(&t, pending, true), LS_OK);
    assert_loss(&t, 1 + 3 * ROWS * log(CLASSES));
    assert_true(t.rows == 2);
    assert_true(t.ranked == 3 + 3 * ROWS);
    assert_true(t.top1 == 4 + 3 * 2);
    assert_true(t.top5 == 5 + 3 * 4);
    ls_tensor_destroy(pending);
    free_batch(&b);
}

static void hits_are_counted_by_rank_of_the_logit(void **state)
{
    float scores[ROWS][CLASSES];
    int64_t targets[ROWS] = {6, 5, 4, 2, 1, 0}; // places 0, 1, 2, 4, 5, 6
    rank_sums t;

    (void)state;
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < CLASSES; k++)
            scores[i][k] = (float)k;
    t = count(scores, targets, ROWS, LS_OK);
    assert_true(t.ranked == ROWS);
    assert_true(t.top1 == 1);
    assert_true(t.top5 == 4);
}

static void the_first_of_equal_logits_ranks_higher(void **state)
{
    float scores[ROWS][CLASSES] = {{0}};
    int64_t targets[ROWS] = {0, 1, 4, 5, 6, 0};
    rank_sums t;

    (void)state;
    t = count(scores, targets, ROWS, LS_OK);
    assert_true(t.top1 == 2);
    assert_true(t.top5 == 4);
}

static void the_loss_is_the_cross_entropy(void **state)
{
    float scores[2][CLASSES] = {{1000, 0, 0, 0, 0, 0, 0}, {0}};
    int64_t targets[2] = {1, 3};
    rank_sums t;

    (void)state;
    t = count(scores, targets, 2, LS_OK);
    assert_loss(&t, 1000 + log(7));
}

static void a_label_out_of_range_is_an_error(void **state)
{
    float scores[1][CLASSES] = {{0}};
    int64_t targets[1] = {CLASSES};

    (void)state;
    (void)count(scores, targets, 1, LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "7"));
}

/* --- history --- */

static void a_long_history_keeps_sums_and_means(void **state)
{
    const int n = 5 * HISTORY_POINTS + 3;
    history h = {0};
    double rows = 0;
    double seconds = 0;
    double loss = 0;

    (void)state;
    assert_int_equal(history_open(&h), LS_OK);
    for (int i = 0; i < n; i++) {
        history_point p = {.step = i + 1, .loss = i % 2, .top1 = -1, .rows = 4};
        p.seconds[PHASE_FORWARD] = 2;
        history_add(&h, &p);
    }
    assert_true(h.n_points <= HISTORY_POINTS && h.n_points >= HISTORY_POINTS / 4);
    for (int i = 0; i < h.n_points; i++) {
        assert_true(i == 0 || h.points[i].step > h.points[i - 1].step);
        rows += h.points[i].rows;
        seconds += h.points[i].seconds[PHASE_FORWARD];
        loss += h.points[i].loss * h.points[i].rows;
    }
    assert_true(h.points[h.n_points - 1].step == n);
    assert_true(rows == 4.0 * n);
    assert_true(seconds == 2.0 * n);
    assert_true(fabs(loss / rows - (double)(n / 2) / n) < 1e-12);
    history_free(&h);
}

/* Of 10000 reports, and of one that begins in the middle: no stretch of the run is crushed to a few
 * points. */
static void a_long_history_keeps_its_beginning(void **state)
{
    (void)state;
    for (int first = 0; first <= 5000; first += 5000) {
        const int n = 10000;
        double widest = 0;
        history h = {0};

        assert_int_equal(history_open(&h), LS_OK);
        for (int i = 0; i < n; i++) {
            history_add(&h, &(history_point){.step = first + i + 1, .rows = 1});
            history_add_test(&h, &(history_test){.step = first + i + 1});
        }
        for (int i = 1; i < h.n_points; i++)
            widest = fmax(widest, h.points[i].step - h.points[i - 1].step);
        for (int i = 1; i < h.n_tests; i++)
            widest = fmax(widest, h.tests[i].step - h.tests[i - 1].step);
        assert_true(widest <= 8.0 * n / HISTORY_POINTS);
        history_free(&h);
    }
}

static void a_history_without_memory_takes_nothing(void **state)
{
    history h = {0};

    (void)state;
    history_add(&h, &(history_point){.step = 1});
    history_add_test(&h, &(history_test){.step = 1});
    history_add_seconds(&h, (double[PHASES]){0});
    assert_int_equal(h.n_points + h.n_tests, 0);
}

/* Also where the first record since then has merged what was there. */
static void a_history_returns_to_what_it_had(void **state)
{
    (void)state;
    for (int n = HISTORY_POINTS - 1; n <= HISTORY_POINTS + 1; n++) {
        history h = {0};
        int64_t n_added[2] = {0};
        double rows = 0;

        assert_int_equal(history_open(&h), LS_OK);
        for (int i = 1; i <= n + 1; i++) {
            if (i == n + 1)
                memcpy(n_added, h.n_added, sizeof(n_added));
            history_add(&h, &(history_point){.step = i, .rows = 4});
            history_add_test(&h, &(history_test){.step = i});
        }
        for (int again = 0; again < 2; again++)
            history_return(&h, n_added);
        for (int i = 0; i < h.n_points; i++)
            rows += h.points[i].rows;
        assert_true(rows == 4.0 * n);
        assert_true(h.points[h.n_points - 1].step == n);
        assert_true(h.tests[h.n_tests - 1].step == n);
        history_free(&h);
    }
}

static void old_evaluations_are_thinned_out(void **state)
{
    history h = {0};

    (void)state;
    assert_int_equal(history_open(&h), LS_OK);
    for (int i = 0; i < 3 * HISTORY_TESTS; i++)
        history_add_test(&h, &(history_test){.step = i});
    assert_true(h.n_tests <= HISTORY_TESTS);
    assert_true(h.tests[h.n_tests - 1].step == 3 * HISTORY_TESTS - 1);
    history_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_add_up_and_are_read_once),
        cmocka_unit_test(hits_are_counted_by_rank_of_the_logit),
        cmocka_unit_test(the_first_of_equal_logits_ranks_higher),
        cmocka_unit_test(the_loss_is_the_cross_entropy),
        cmocka_unit_test(a_label_out_of_range_is_an_error),
        cmocka_unit_test(a_long_history_keeps_sums_and_means),
        cmocka_unit_test(a_long_history_keeps_its_beginning),
        cmocka_unit_test(a_history_returns_to_what_it_had),
        cmocka_unit_test(a_history_without_memory_takes_nothing),
        cmocka_unit_test(old_evaluations_are_thinned_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
