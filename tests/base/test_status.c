/* SPDX-License-Identifier: Apache-2.0 */
/* test_status.c - error texts, allocation failures, sizes, element types and deadlines. */
#include "base/capture.h"
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void a_failure_carries_its_status_and_text(void **state)
{
    LS_UNUSED(state);
    assert_status(ls_fail(LS_EIO, "disk %d of %s", 3, "host"), LS_EIO);
    assert_string_equal(ls_last_error(), "disk 3 of host");
}

static void a_failure_may_quote_the_one_before(void **state)
{
    LS_UNUSED(state);
    (void)ls_fail(LS_EIO, "first");
    (void)ls_fail(LS_EPEER, "second after %s", ls_last_error());
    assert_string_equal(ls_last_error(), "second after first");
    assert_status(ls_context(LS_EPEER, "again %s", ls_last_error()), LS_EPEER);
    assert_string_equal(ls_last_error(), "again second after first: second after first");
}

static void a_program_sets_any_status_with_a_text(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(LS_EFORMAT, ls_set_error(LS_EFORMAT, "line %d of %s", 7, "words"));
    assert_string_equal("line 7 of words", ls_last_error());
    assert_int_equal(LS_EINVAL, ls_set_error(LS_OK, "text"));
    assert_string_equal("ls_set_error: LS_OK is not an error", ls_last_error());
}

static void long_texts_are_cut_visibly(void **state)
{
    char text[3000];

    LS_UNUSED(state);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)ls_fail(LS_EIO, "%s", text);
    assert_int_equal(strlen(ls_last_error()), LS_ERROR_BYTES - 1);
    assert_string_equal(ls_last_error() + LS_ERROR_BYTES - 4, "...");
    (void)ls_context(LS_EIO, "front");
    assert_int_equal(strlen(ls_last_error()), LS_ERROR_BYTES - 1);
    assert_true(strncmp(ls_last_error(), "front: xxx", 10) == 0);
    assert_string_equal(ls_last_error() + LS_ERROR_BYTES - 4, "...");
}

static void a_cut_leaves_no_half_character(void **state)
{
    LS_UNUSED(state);
    for (int shift = 0; shift < 4; shift++) {
        char text[3000] = "";
        size_t used = (size_t)shift;
        const char *dots;

        memset(text, 'x', used);
        while (used + 3 < sizeof(text) - 1) {
            memcpy(text + used, "\xE2\x82\xAC", 3); // the euro sign
            used += 3;
        }
        (void)ls_fail(LS_EIO, "%s", text);
        dots = strstr(ls_last_error(), "...");
        assert_non_null(dots);
        assert_string_equal(dots, "...");
        assert_int_equal((dots - ls_last_error() - shift) % 3, 0);
    }
}

static void context_leaves_success_alone(void **state)
{
    LS_UNUSED(state);
    (void)ls_fail(LS_EIO, "old");
    assert_status(ls_context(LS_OK, "front"), LS_OK);
    assert_string_equal(ls_last_error(), "old");
}

static void errno_is_reported_and_preserved(void **state)
{
    LS_UNUSED(state);
    errno = ENOSPC;
    assert_status(ls_fail_errno("cannot grow %s", "x"), LS_ESYSTEM);
    assert_int_equal(errno, ENOSPC);
    assert_string_equal(ls_last_error(), "cannot grow x: No space left on device");
    errno = EPIPE;
    (void)ls_fail(LS_EIO, "x");
    (void)ls_context(LS_EIO, "y");
    assert_int_equal(errno, EPIPE);
    assert_string_equal(ls_errno_text(99999), "error 99999");
    assert_string_equal(ls_errno_text(0), "Success");
}

static void saved_text_is_restored(void **state)
{
    char kept[LS_ERROR_BYTES];

    LS_UNUSED(state);
    (void)ls_fail(LS_EIO, "outer");
    ls_error_save(kept);
    (void)ls_fail(LS_EIO, "inner");
    ls_error_restore(kept);
    assert_string_equal(ls_last_error(), "outer");
}

static void fail_elsewhere(void *arg)
{
    const bool is_clean = ls_last_error()[0] == '\0';
    const ls_status st = ls_fail(LS_EPEER, "theirs");

    if (is_clean && strcmp(ls_last_error(), "theirs") == 0)
        *(ls_status *)arg = st;
}

static void each_thread_has_its_own_text(void **state)
{
    ls_thread t;
    ls_status st = LS_OK;

    LS_UNUSED(state);
    (void)ls_fail(LS_EIO, "mine");
    assert_ok(ls_thread_start(&t, "other", fail_elsewhere, &st));
    ls_thread_join(&t);
    assert_status(st, LS_EPEER);
    assert_string_equal(ls_last_error(), "mine");
}

static void failing_needs_no_memory(void **state)
{
    const uint64_t before = ls_alloc_count();

    LS_UNUSED(state);
    (void)ls_fail(LS_ENOMEM, "none");
    (void)ls_context(LS_ENOMEM, "front");
    errno = EIO;
    (void)ls_fail_errno("x");
    assert_int_equal(ls_alloc_count(), before);
}

static void every_status_has_a_text(void **state)
{
    static const ls_status all[] = {LS_OK,        LS_EINVAL,    LS_ENOMEM,       LS_ENOTFOUND,
                                    LS_EIO,       LS_EFORMAT,   LS_EUNSUPPORTED, LS_ETIMEOUT,
                                    LS_ESYSTEM,   LS_EMISMATCH, LS_EPEER,        LS_EDEADLINE,
                                    LS_ECANCELED, LS_EAUTH,     LS_EPROTO,       LS_EINTERNAL};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        assert_string_not_equal(ls_status_text(all[i]), "unknown status");
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(ls_status_text(all[i]), ls_status_text(all[j]));
    }
    assert_string_equal(ls_status_text((ls_status)-9999), "unknown status");
}

static void broken_invariant_prints_one_line_and_aborts(void **state)
{
    capture c;
    char line[1024];
    int status = 0;
    pid_t child;

    LS_UNUSED(state);
    capture_begin(&c);
    child = fork();
    if (child == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        ls_assert_failed("ring->head <= ring->tail", "ring.c", 42);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    capture_end(&c);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_true(capture_next(&c, line, sizeof(line)) > 0);
    assert_string_equal(line, "lockstep: ring.c:42: broken invariant: ring->head <= ring->tail\n");
    assert_int_equal(capture_next(&c, line, sizeof(line)), 0);
    capture_close(&c);
}

static void the_nth_allocation_fails_once(void **state)
{
    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 5; n++) {
        ls_alloc_fail_at(n);
        for (uint64_t i = 1; i <= 8; i++) {
            void *block = i % 3 == 0   ? ls_calloc(4, 4)
                          : i % 3 == 1 ? ls_realloc(NULL, 4, 4)
                                       : ls_alloc_aligned(64, 16);

            assert_true((block == NULL) == (i == n));
            ls_free(block);
        }
    }
    ls_alloc_fail_at(1);
    ls_alloc_fail_at(0);
    for (int i = 0; i < 4; i++) {
        char *text = ls_strdup("text");

        assert_string_equal(text, "text");
        ls_free(text);
    }
}

static void impossible_sizes_are_refused_without_asking(void **state)
{
    char *old = ls_strdup("kept");

    LS_UNUSED(state);
    assert_null(ls_calloc(SIZE_MAX / 2 + 1, 2));
    assert_null(ls_calloc(2, SIZE_MAX));
    assert_null(ls_calloc(1, (size_t)PTRDIFF_MAX + 1));
    assert_null(ls_alloc_aligned(64, (size_t)PTRDIFF_MAX + 1));
    assert_null(ls_realloc(old, SIZE_MAX / 4, 8));
    assert_string_equal(old, "kept");
    ls_free(old);
    ls_free(NULL);
}

static void empty_blocks_are_unique_and_memory_is_zeroed(void **state)
{
    void *a = ls_calloc(0, 8);
    void *b = ls_calloc(8, 0);
    unsigned char *zeros = ls_calloc(1000, 3);

    LS_UNUSED(state);
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(zeros[i], 0);
    a = ls_realloc(a, 0, 0);
    assert_non_null(a);
    ls_free(a);
    ls_free(b);
    ls_free(zeros);
}

static void aligned_blocks_are_aligned(void **state)
{
    LS_UNUSED(state);
    for (size_t alignment = 8; alignment <= 65536; alignment *= 2) {
        for (size_t bytes = 0; bytes < 100; bytes += 33) {
            char *block = ls_alloc_aligned(alignment, bytes);

            assert_non_null(block);
            assert_int_equal((uintptr_t)block % alignment, 0);
            memset(block, 1, bytes);
            ls_free(block);
        }
    }
}

static void size_arithmetic_knows_its_bounds(void **state)
{
    size_t out = 0;

    LS_UNUSED(state);
    assert_ok(ls_mul_size(0, SIZE_MAX, &out));
    assert_int_equal(out, 0);
    assert_ok(ls_mul_size(SIZE_MAX, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_ok(ls_mul_size((size_t)1 << 32, ((size_t)1 << 32) - 1, &out));
    assert_status(ls_mul_size((size_t)1 << 32, (size_t)1 << 32, &out), LS_EINVAL);
    assert_last_error("4294967296 x 4294967296");
    assert_status(ls_mul_size(SIZE_MAX, 2, &out), LS_EINVAL);
    assert_ok(ls_add_size(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_status(ls_add_size(SIZE_MAX, 1, &out), LS_EINVAL);
}

static void types_have_sizes_and_names(void **state)
{
    static const size_t sizes[] = {1, 1, 4, 8, 2, 2, 4, 8};
    static const char *const names[] = {"int8",    "uint8",    "int32",   "int64",
                                        "float16", "bfloat16", "float32", "float64"};

    LS_UNUSED(state);
    for (int i = 0; i < LS_DTYPE_COUNT; i++) {
        assert_int_equal(ls_dtype_size((ls_dtype)i), sizes[i]);
        assert_string_equal(ls_dtype_name((ls_dtype)i), names[i]);
    }
    assert_int_equal(ls_dtype_size((ls_dtype)LS_DTYPE_COUNT), 0);
    assert_string_equal(ls_dtype_name((ls_dtype)-1), "?");
    assert_string_equal(ls_version(), "0.1.0");
}

static void deadlines_come_and_some_never(void **state)
{
    const int64_t soon = ls_deadline_ms(60000);

    LS_UNUSED(state);
    assert_in_range(ls_deadline_left(soon), 1, 60000);
    assert_int_equal(ls_deadline_left(ls_deadline_ms(-1)), -1);
    assert_int_equal(ls_deadline_left(ls_deadline_ms(INT64_MAX)), -1);
    assert_int_equal(ls_deadline_left(ls_deadline_ms(LS_DURATION_MAX_MS - 1)), INT_MAX);
    assert_int_equal(ls_deadline_left(ls_now_ms()), 0);
    assert_int_equal(ls_deadline_left(0), 0);
    assert_true(ls_clock_system()->now_ns(ls_clock_system()->self) <= ls_now_ns());
}

static void durations_from_outside_are_bounded(void **state)
{
    static const int64_t large[] = {INT64_MAX, INT64_MAX / 1000, INT64_MAX / 1000000,
                                    INT64_MAX / 1000000 + 1};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(large); i++) {
        assert_true(ls_duration_ms(large[i]) == LS_DURATION_MAX_MS);
        assert_true(ls_duration_ns(large[i]) == LS_DURATION_MAX_MS * 1000000);
        assert_true(ls_deadline_ns(large[i]) > ls_now_ns() + LS_DURATION_MAX_MS * 999999);
        assert_int_equal(ls_deadline_left(ls_deadline_ms(large[i])), -1);
        assert_true(ls_duration_of_s((double)large[i]) == LS_DURATION_MAX_MS);
    }
    assert_true(ls_duration_ms(INT64_MIN) == -1 && ls_duration_ns(-1) == INT64_MAX);
    assert_true(ls_deadline_ns(INT64_MIN) == INT64_MAX);
    assert_true(ls_duration_ms(0) == 0 && ls_duration_ns(0) == 0);
    assert_true(ls_duration_ns(1500) == INT64_C(1500000000));
    assert_true(ls_duration_of_s(0.5) == 500 && ls_duration_of_s(-0.5) == -1);
    assert_true(ls_duration_of_s((double)INFINITY) == LS_DURATION_MAX_MS);
    assert_true(ls_duration_of_s((double)NAN) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_carries_its_status_and_text),
        cmocka_unit_test(a_failure_may_quote_the_one_before),
        cmocka_unit_test(a_program_sets_any_status_with_a_text),
        cmocka_unit_test(long_texts_are_cut_visibly),
        cmocka_unit_test(a_cut_leaves_no_half_character),
        cmocka_unit_test(context_leaves_success_alone),
        cmocka_unit_test(errno_is_reported_and_preserved),
        cmocka_unit_test(saved_text_is_restored),
        cmocka_unit_test(each_thread_has_its_own_text),
        cmocka_unit_test(failing_needs_no_memory),
        cmocka_unit_test(every_status_has_a_text),
        cmocka_unit_test(broken_invariant_prints_one_line_and_aborts),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(impossible_sizes_are_refused_without_asking),
        cmocka_unit_test(empty_blocks_are_unique_and_memory_is_zeroed),
        cmocka_unit_test(aligned_blocks_are_aligned),
        cmocka_unit_test(size_arithmetic_knows_its_bounds),
        cmocka_unit_test(types_have_sizes_and_names),
        cmocka_unit_test(deadlines_come_and_some_never),
        cmocka_unit_test(durations_from_outside_are_bounded),
    };

    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
