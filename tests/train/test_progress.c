/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress.c - tests the pieces of the progress bar for terminals of any width. */
#include "train/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const ls_run_state values = {.epoch = 11,
                                    .step = 1250,
                                    .loss = 2.0625,
                                    .lr = 0.0185,
                                    .samples_per_s = 11194,
                                    .top1 = 0.5,
                                    .top5 = 0.75,
                                    .data_wait = 0.001,
                                    .seconds_left = 4000};
static const progress_values all = {
    .state = &values, .epochs = 90, .batch = 50, .epoch_batches = 100, .ranks = 1};

static void expect_bar(const progress_values *v, int columns, const char *want)
{
    text_buf t = {0};

    progress_bar_text(v, columns, &t);
    assert_string_equal(text_str(&t), want);
    text_free(&t);
}

static void bar_drops_the_least_important_values_first(void **state)
{
    (void)state;
    expect_bar(&all, 200,
               "epoch 12/90  [============            ]  step 1250  loss 2.0625  top-1 0.5000  "
               "top-5 0.7500  lr 0.0185  11194 samples/s  data 0.1 %  ETA 1:06:40");
    expect_bar(&all, 79,
               "epoch 12/90  [=====     ]  step 1250  loss 2.0625  11194 samples/s  ETA 1:06:40");
    expect_bar(&all, 71, "epoch 12/90  step 1250  loss 2.0625  11194 samples/s  ETA 1:06:40");
    expect_bar(&all, 55, "epoch 12/90  loss 2.0625  11194 samples/s  ETA 1:06:40");
    expect_bar(&all, 41, "epoch 12/90  11194 samples/s  ETA 1:06:40");
    expect_bar(&all, 30, "epoch 12/90  ETA 1:06:40");
    expect_bar(&all, 12, "epoch 12/90");
}

static void bar_is_never_wider_than_the_terminal(void **state)
{
    (void)state;
    for (int columns = 11; columns < 200; columns++) {
        text_buf t = {0};

        progress_bar_text(&all, columns, &t);
        assert_in_range(t.length, 11, columns);
        text_free(&t);
    }
}

static void bar_shows_no_values_before_the_first_report(void **state)
{
    const ls_run_state first = {.epoch = 11, .step = 1250};
    progress_values v = all;

    (void)state;
    v.state = &first;
    expect_bar(&v, 79, "epoch 12/90  [============            ]  step 1250");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bar_drops_the_least_important_values_first),
        cmocka_unit_test(bar_is_never_wider_than_the_terminal),
        cmocka_unit_test(bar_shows_no_values_before_the_first_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
