/* SPDX-License-Identifier: Apache-2.0 */
/* What a progress line has in terminals of any width, from a made-up run. */
#include "train/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const ls_train_flags flags = {.epochs = 90};

static ls_run make_run(void)
{
    return (ls_run){.flags = &flags,
                    .epoch_batches = 100,
                    .at = {.batch = 50},
                    .state = {.epoch = 11,
                              .step = 1250,
                              .loss = 2.0625,
                              .lr = 0.0185,
                              .samples_per_s = 11194,
                              .top1 = 0.5,
                              .top5 = 0.75,
                              .data_wait = 0.001,
                              .seconds_left = 4000}};
}

static void expect_bar(const ls_run *run, int columns, const char *want)
{
    text_buf t = {0};

    progress_bar_text(run, columns, &t);
    assert_string_equal(text_str(&t), want);
    text_free(&t);
}

static void bar_drops_what_does_not_fit_by_importance(void **state)
{
    const ls_run run = make_run();

    (void)state;
    expect_bar(&run, 200,
               "epoch 12/90  [============            ]  step 1250  loss 2.0625  top-1 0.5000  "
               "top-5 0.7500  lr 0.0185  11194 samples/s  data 0.1 %  ETA 1:06:40");
    expect_bar(&run, 79,
               "epoch 12/90  [=====     ]  step 1250  loss 2.0625  11194 samples/s  ETA 1:06:40");
    expect_bar(&run, 71, "epoch 12/90  step 1250  loss 2.0625  11194 samples/s  ETA 1:06:40");
    expect_bar(&run, 55, "epoch 12/90  loss 2.0625  11194 samples/s  ETA 1:06:40");
    expect_bar(&run, 41, "epoch 12/90  11194 samples/s  ETA 1:06:40");
    expect_bar(&run, 30, "epoch 12/90  ETA 1:06:40");
    expect_bar(&run, 12, "epoch 12/90");
}

static void bar_is_never_wider_than_the_terminal(void **state)
{
    const ls_run run = make_run();

    (void)state;
    for (int columns = 11; columns < 200; columns++) {
        text_buf t = {0};

        progress_bar_text(&run, columns, &t);
        assert_in_range(t.length, 11, columns);
        text_free(&t);
    }
}

static void bar_shows_no_values_before_the_first_report(void **state)
{
    ls_run run = make_run();

    (void)state;
    run.state.samples_per_s = 0;
    expect_bar(&run, 79, "epoch 12/90  [============            ]  step 1250");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bar_drops_what_does_not_fit_by_importance),
        cmocka_unit_test(bar_is_never_wider_than_the_terminal),
        cmocka_unit_test(bar_shows_no_values_before_the_first_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
