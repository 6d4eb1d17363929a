/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_onednn_signals.c - the frame of a signal is never written into the heap: oneDNN's kernels
 * for products of matrices use the stack register for their workspace.
 */
#include "tensor/op_cases.h"

#include "tensor/testing.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/time.h>

#define SIGNALS 200

static uintptr_t stack_begin;
static uintptr_t stack_end;
static pthread_t computing;
static volatile sig_atomic_t n_received;
static volatile sig_atomic_t n_elsewhere;

static void on_alarm(int signal_number)
{
    const uintptr_t at = (uintptr_t)__builtin_frame_address(0);

    LS_UNUSED(signal_number);
    n_received++;
    if (at < stack_begin || at >= stack_end || !pthread_equal(pthread_self(), computing))
        n_elsewhere++;
}

static void find_stack(void)
{
    pthread_attr_t attributes;
    void *begin;
    size_t bytes;

    computing = pthread_self();
    assert_int_equal(pthread_getattr_np(computing, &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &begin, &bytes), 0);
    pthread_attr_destroy(&attributes);
    stack_begin = (uintptr_t)begin;
    stack_end = stack_begin + bytes;
}

static void set_timer(int microseconds)
{
    const struct timeval every = {.tv_usec = microseconds};

    assert_int_equal(setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL), 0);
}

/* Signals arrive while the case is computed, forwards and backwards, again and again. */
static void receive_in(ls_device *device, const op_case *c)
{
    n_received = 0;
    n_elsewhere = 0;
    set_timer(200);
    while (n_received < SIGNALS) {
        op_results results;

        assert_status(LS_OK, op_case_run(device, c, LS_F32, &results));
        op_results_free(&results);
    }
    set_timer(0);
    if (n_elsewhere > 0)
        fail_msg("%s: %d of %d signals were received by a worker or beside the stack", c->name,
                 (int)n_elsewhere, (int)n_received);
}

/* clang-format off */
static const op_case cases[] = {
    /* First: OpenMP's workers start in a loop of the device's own. */
    {.name = "gelu of many numbers", .op = OP_ACTIVATE, .n_dims = 2, .x = {700, 650},
     .attrs = {.activation = LS_ACT_GELU}},
    {.name = "linear of 10000 inputs", .op = OP_LINEAR, .n_dims = 2, .x = {100, 10000}, .out = 128},
    {.name = "matmul of rows of 10000", .op = OP_MATMUL, .n_dims = 2, .x = {70, 10000},
     .n_other = 2, .other = {10000, 80}},
    {.name = "linear of 100 inputs", .op = OP_LINEAR, .n_dims = 2, .x = {500, 100}, .out = 300},
    {.name = "3x3, stride 2, 32 channels", .op = OP_CONV2D, .n_dims = 4, .x = {9, 32, 16, 16},
     .out = 64, .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
};
/* clang-format on */

static void signals_arrive_on_the_stack_of_the_computing_thread(void **state)
{
    LS_UNUSED(state);
    for (int threads = 1; threads <= 3; threads++) {
        const ls_device_options options = {
            .size = sizeof(options), .name = "onednn", .threads = threads};
        ls_device *device = NULL;

        assert_status(LS_OK, ls_device_open(&options, &device));
        for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
            receive_in(device, &cases[i]);
        ls_device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_arrive_on_the_stack_of_the_computing_thread),
    };
    const ls_device_options options = {.size = sizeof(options), .name = "onednn", .threads = 1};
    const struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};

    if (device_check(&options) != LS_OK) {
        print_message("skipped: %s\n", ls_last_error());
        return 77;
    }
    find_stack();
    (void)sigaction(SIGALRM, &action, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
