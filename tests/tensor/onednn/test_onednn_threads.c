/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_onednn_threads.c - with thread_invariant every operator gives the same bits on 1, 2, 3 and 5
 * threads; and cpu_isa limits the instructions.
 */
#include "tensor/op_cases.h"

#include "base/alloc.h"
#include "tensor/testing.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* clang-format off */
/* Large enough that oneDNN divides their sums among threads. */
static const op_case large_cases[] = {
    {.name = "3x3, 32 channels", .op = OP_CONV2D, .n_dims = 4, .x = {9, 32, 16, 16}, .out = 32,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "3x3, stride 2", .op = OP_CONV2D, .n_dims = 4, .x = {9, 32, 16, 16}, .out = 64,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "1x1, 64 channels", .op = OP_CONV2D, .n_dims = 4, .x = {9, 64, 14, 14}, .out = 64,
     .no_bias = true, .attrs = {.kernel = {1, 1}}},
    {.name = "linear of many rows", .op = OP_LINEAR, .n_dims = 2, .x = {300, 500}, .out = 120},
    {.name = "linear of few rows", .op = OP_LINEAR, .n_dims = 2, .x = {9, 1024}, .out = 200},
    {.name = "matmul of long rows", .op = OP_MATMUL, .n_dims = 2, .x = {70, 900}, .n_other = 2,
     .other = {900, 80}},
    {.name = "batch norm of many rows", .op = OP_BATCH_NORM, .n_dims = 4, .x = {16, 24, 14, 14},
     .attrs = {.training = true, .eps = 1e-5, .momentum = 0.1}},
    {.name = "batch norm and sum of many rows", .op = OP_BATCH_NORM, .n_dims = 4,
     .x = {16, 24, 14, 14}, .adds = true,
     .attrs = {.training = true, .relu = true, .eps = 1e-5, .momentum = 0.1}},
};
/* clang-format on */

static ls_device *open_device(int threads, int invariant)
{
    const ls_device_options options = {.size = sizeof(options),
                                       .name = "onednn",
                                       .threads = threads,
                                       .thread_invariant = invariant};
    ls_device *device = NULL;

    assert_status(LS_OK, ls_device_open(&options, &device));
    return device;
}

/* Whether a result of the case has other bits; with `names` it is printed. */
static bool differs(const op_case *c, ls_dtype type, const op_results *a, const op_results *b,
                    bool prints)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        assert_int_equal(a->r[i].count, b->r[i].count);
        if (memcmp(a->r[i].values, b->r[i].values, a->r[i].count * sizeof(double)) == 0)
            continue;
        if (prints)
            print_message("%s (%s): %s differs\n", c->name, ls_dtype_name(type), a->r[i].name);
        return true;
    }
    return false;
}

static int count_differences(ls_device *one, ls_device *several, const op_case *cases, int n,
                             ls_dtype type, bool prints)
{
    int n_different = 0;

    for (int i = 0; i < n; i++) {
        op_results a;
        op_results b;

        if ((type != LS_F32 && !op_case_mixes(&cases[i])) || op_case_is_large(&cases[i]))
            continue;
        assert_status(LS_OK, op_case_run(one, &cases[i], type, &a));
        assert_status(LS_OK, op_case_run(several, &cases[i], type, &b));
        n_different += differs(&cases[i], type, &a, &b, prints);
        op_results_free(&a);
        op_results_free(&b);
    }
    return n_different;
}

static int count_all(int threads, int invariant, ls_dtype type)
{
    ls_device *one = open_device(1, invariant);
    ls_device *several = open_device(threads, invariant);
    const int n =
        count_differences(one, several, op_cases, n_op_cases, type, invariant) +
        count_differences(one, several, large_cases, LS_COUNT_OF(large_cases), type, invariant);

    ls_device_close(several);
    ls_device_close(one);
    return n;
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    static const int threads[] = {2, 3, 5};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(threads); i++) {
        assert_int_equal(count_all(threads[i], 1, LS_F32), 0);
        assert_int_equal(count_all(threads[i], 1, LS_BF16), 0);
    }
}

/* Otherwise the test above could not fail. */
static void threads_change_bits_without_the_option(void **state)
{
    const int n = count_all(3, 0, LS_F32);

    LS_UNUSED(state);
    print_message("%d of %d cases differ on 3 threads without thread_invariant\n", n,
                  n_op_cases + (int)LS_COUNT_OF(large_cases));
    assert_true(n > 0);
}

static void the_fingerprint_says_so(void **state)
{
    ls_device *device = open_device(3, 1);

    LS_UNUSED(state);
    assert_non_null(strstr(ls_device_fingerprint(device), " any threads"));
    ls_device_close(device);
}

/* Of the device "cpu". oneDNN's limit is one of the process: with `first` another device chooses it
 * before. */
static int fingerprint_in_child(const char *first, const char *isa, char *out, size_t n)
{
    int pipes[2];
    int status = 0;
    pid_t child;
    ssize_t got;

    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ls_device_options options = {
            .size = sizeof(options), .name = "cpu", .threads = 1, .cpu_isa = first};
        ls_device *device = NULL;
        ls_status st = first == NULL ? LS_OK : ls_device_open(&options, &device);
        const char *text;
        bool is_written;

        options.cpu_isa = isa;
        if (st == LS_OK)
            st = ls_device_open(&options, &device);
        text = st == LS_OK ? ls_device_fingerprint(device) : ls_last_error();
        is_written = write(pipes[1], text, strlen(text)) > 0;

        _exit(!is_written ? 3 : st == LS_OK ? 0 : 1);
    }
    close(pipes[1]);
    got = read(pipes[0], out, n - 1);
    out[got > 0 ? got : 0] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

static void cpu_isa_limits_the_instructions(void **state)
{
    static const struct {
        const char *isa;
        const char *word;
    } cases[] = {{"baseline", "sse41"},
                 {"avx2", "avx2"},
                 {"avx512", "avx512_core"},
                 {"avx512_bf16", "avx512_core_bf16"},
                 {"amx", "avx512_core_amx"}};
    char text[512];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const int code = fingerprint_in_child(NULL, cases[i].isa, text, sizeof(text));

        if (code == 0)
            assert_non_null(strstr(text, cases[i].word));
        else // a processor without them
            assert_non_null(strstr(text, "lacks the instructions"));
        assert_true(code == 0 || (code == 1 && i > 0));
    }
    // It does not compute with the plain kernels of another device.
    assert_int_equal(fingerprint_in_child("baseline", "avx2", text, sizeof(text)), 1);
    assert_non_null(strstr(text, "avx2: oneDNN uses sse41; the processor lacks the instructions"));
    assert_int_equal(fingerprint_in_child(NULL, "avx3", text, sizeof(text)), 1);
    assert_non_null(strstr(text, "'avx3' is not baseline, avx2, avx512, avx512_bf16 or amx"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_isa_limits_the_instructions), // before this process opens a device
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(threads_change_bits_without_the_option),
        cmocka_unit_test(the_fingerprint_says_so),
    };
    const ls_device_options options = {.size = sizeof(options), .name = "onednn", .threads = 1};

    if (device_check(&options) != LS_OK) {
        print_message("skipped: %s\n", ls_last_error());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
