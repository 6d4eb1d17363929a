/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress.c - tests the pieces of the progress bar for terminals of any width. */
#include "train/output/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static void bar_shows_the_usage_of_a_gpu(void **state)
{
    progress_values v = all;

    (void)state;
    v.gpu = "87 % 12.3 GiB";
    expect_bar(&v, 200,
               "epoch 12/90  [============            ]  step 1250  loss 2.0625  top-1 0.5000  "
               "top-5 0.7500  lr 0.0185  11194 samples/s  data 0.1 %  gpu 87 % 12.3 GiB  "
               "ETA 1:06:40");
    expect_bar(&v, 30, "epoch 12/90  ETA 1:06:40");
}

/* A device that counts how often its usage is asked. */
static int n_asked;

static ls_status give_usage(device_state *self, device_usage *out)
{
    (void)self;
    n_asked++;
    *out = (device_usage){.used_bytes = 3u << 30, .busy_percent = n_asked == 1 ? -1 : 5};
    return LS_OK;
}

static void lines_show_the_usage_of_a_gpu_which_is_asked_at_most_once_a_second(void **state)
{
    const device_ops ops = {.usage = give_usage};
    accel card = {0};
    const ls_device device = {.ops = &ops, .accel = &card};
    const int real = dup(STDOUT_FILENO);
    const int captured = memfd_create("lines", MFD_CLOEXEC);
    char output[1000];
    ssize_t got;
    progress p = {0};

    (void)state;
    assert_true(real >= 0 && captured >= 0);
    progress_init(&p, true, 1, &device);
    dup2(captured, STDOUT_FILENO);
    for (int i = 0; i < 3; i++)
        progress_step(&p, &all);
    p.gpu_ms = 0; // the second is over
    progress_step(&p, &all);
    dup2(real, STDOUT_FILENO);
    got = pread(captured, output, sizeof(output) - 1, 0);
    output[got > 0 ? got : 0] = '\0';
    close(captured);
    close(real);
    assert_in_range(n_asked, 2, 3); // 3: the steps took a second
    assert_non_null(strstr(output, "  gpu 3 GiB  ETA"));
    assert_non_null(strstr(output, "  gpu 5 % 3 GiB  ETA"));
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
        cmocka_unit_test(bar_shows_the_usage_of_a_gpu),
        cmocka_unit_test(lines_show_the_usage_of_a_gpu_which_is_asked_at_most_once_a_second),
        cmocka_unit_test(bar_is_never_wider_than_the_terminal),
        cmocka_unit_test(bar_shows_no_values_before_the_first_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
