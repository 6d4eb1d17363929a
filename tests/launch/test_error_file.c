/* SPDX-License-Identifier: Apache-2.0 */
/* Error files of ranks, valid and malformed, and the copy for the starter of the launcher. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/file.h"
#include "launch/output/error_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int file_of(const char *text, size_t n)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, "test", text, n));
    return fd;
}

static ls_status read_text(const char *text, error_report *out)
{
    int fd = file_of(text, strlen(text));
    const ls_status st = error_file_read(fd, out);

    file_close(&fd);
    return st;
}

static void expect_report(const char *text, const char *message, const char *stack, int64_t at)
{
    error_report r = {0};

    assert_ok(read_text(text, &r));
    assert_string_equal(text_str(&r.message), message);
    assert_string_equal(text_str(&r.callstack), stack);
    assert_true(r.timestamp_s == at);
    error_report_free(&r);
}

static void both_forms_are_understood(void **state)
{
    LS_UNUSED(state);
    expect_report("{\"message\":{\"message\":\"ValueError: boom\",\"extraInfo\":{\"py_callstack\":"
                  "\"Traceback:\\n  line 1\\n\",\"timestamp\":\"1795226013\"},\"errorCode\":7}}",
                  "ValueError: boom\n", "Traceback:\n  line 1\n", 1795226013);
    expect_report("{\"message\":\"boom\",\"timestamp\":\"12\"}", "boom\n", "", 12);
    expect_report("{\"message\":\"boom\",\"timestamp\":12}", "boom\n", "", 12);
    expect_report("{\"message\":{\"message\":\"bare\"}}", "bare\n", "", 0);
}

static void expect_copy(const char *text, int exit_code, const char *copy)
{
    text_buf out = {0};
    int fd = file_of(text, strlen(text));

    assert_ok(error_file_copy(fd, exit_code, &out));
    assert_string_equal(text_str(&out), copy);
    text_free(&out);
    file_close(&fd);
}

static void copy_has_everything_and_the_exit_code(void **state)
{
    text_buf out = {0};
    int fd = file_of("{}", 2);

    LS_UNUSED(state);
    expect_copy("{\"message\":{\"message\":\"x\\u001b\",\"extraInfo\":{\"timestamp\":\"12\","
                "\"more\":[1,2.5,true,null,{}]},\"errorCode\":0},\"else\":1}",
                3,
                "{\"message\":{\"message\":\"x\\u001b\",\"extraInfo\":{\"timestamp\":\"12\","
                "\"more\":[1,2.5,true,null,{}]},\"errorCode\":3},\"else\":1}");
    expect_copy("{\"message\":{\"message\":\"x\"}}", 137,
                "{\"message\":{\"message\":\"x\",\"errorCode\":-9}}");
    expect_copy("{\"message\":\"bare\"}", 3, "{\"message\":\"bare\"}");
    assert_status(error_file_copy(fd, 1, &out), LS_EFORMAT);
    file_close(&fd);
    error_file_make_text("rank 1 exited\n  more\n", 7, 12, &out);
    assert_string_equal(
        text_str(&out),
        "{\"message\":{\"message\":\"rank 1 exited\",\"extraInfo\":{\"py_callstack\":"
        "\"rank 1 exited\\n  more\\n\",\"timestamp\":\"12\"},\"errorCode\":7}}");
    text_free(&out);
}

static void invalid_timestamp_is_ignored(void **state)
{
    LS_UNUSED(state);
    expect_report("{\"message\":\"m\",\"timestamp\":\"yesterday\"}", "m\n", "", 0);
    expect_report("{\"message\":\"m\",\"timestamp\":\"-5\"}", "m\n", "", 0);
    expect_report("{\"message\":\"m\",\"timestamp\":-5}", "m\n", "", 0);
    expect_report("{\"message\":\"m\",\"timestamp\":\"99999999999999999999\"}", "m\n", "", 0);
    expect_report("{\"message\":\"m\",\"timestamp\":[1]}", "m\n", "", 0);
}

static void texts_are_printable(void **state)
{
    LS_UNUSED(state);
    expect_report("{\"message\":\"a\\u001b[31mb\\u0007\\r\\tc\\n\\u00e9\\n\\n\"}",
                  "a?[31mb?? c\n\xc3\xa9\n", "", 0);
}

static void long_texts_are_cut(void **state)
{
    error_report r = {0};
    text_buf t = {0};

    LS_UNUSED(state);
    text_append(&t, "{\"message\":{\"message\":\"");
    for (int i = 0; i < 1000; i++)
        text_append(&t, "m%d\\n", i);
    text_append(&t, "\",\"extraInfo\":{\"py_callstack\":\"");
    for (int i = 0; i < 1000; i++)
        text_append(&t, "s%d\\n", i);
    for (int i = 0; i < 1000; i++)
        text_append(&t, "x");
    text_append(&t, "\"}}}");
    assert_ok(read_text(text_str(&t), &r));
    assert_true(text_starts(text_str(&r.message), "m0\nm1\n"));
    assert_non_null(strstr(text_str(&r.message), "\nm19\n"));
    assert_null(strstr(text_str(&r.message), "m20"));
    assert_true(text_starts(text_str(&r.callstack), "s981\n"));
    assert_int_equal(strlen(strrchr(text_str(&r.callstack), 's')), strlen("s999\n") + 400);
    error_report_free(&r);
    text_free(&t);
}

static void other_contents_are_an_error(void **state)
{
    static const char *const wrong[] = {"{",
                                        "[]",
                                        "7",
                                        "{}",
                                        "not json",
                                        "{\"message\":7}",
                                        "{\"message\":{}}",
                                        "{\"message\":{\"message\":[]}}",
                                        "{\"message\":\"a\\u0000b\"}",
                                        "{\"message\":\"a\",\"message\":\"b\"}",
                                        "{\"message\":\"\xff\"}"};
    error_report r = {0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++) {
        assert_status(read_text(wrong[i], &r), LS_EFORMAT);
        assert_last_error("the error file");
        error_report_free(&r);
    }
    assert_status(read_text("", &r), LS_ENOTFOUND);
}

static void a_large_file_is_not_read(void **state)
{
    error_report r = {0};
    int fd = file_of("{\"message\":\"m\"}", 15);

    LS_UNUSED(state);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    assert_status(error_file_read(fd, &r), LS_EFORMAT);
    assert_last_error("more than the 1048576 bytes");
    file_close(&fd);
}

static void directory_is_not_read(void **state)
{
    error_report r = {0};
    int fds[2];
    int folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    LS_UNUSED(state);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_status(error_file_read(fds[0], &r), LS_EFORMAT);
    assert_status(error_file_read(folder, &r), LS_EFORMAT);
    file_close(&folder);
    file_close(&fds[0]);
    file_close(&fds[1]);
}

static void missing_memory_is_reported(void **state)
{
    error_report r = {0};

    LS_UNUSED(state);
    ls_alloc_fail_at(1);
    assert_status(read_text("{\"message\":\"m\"}", &r), LS_ENOMEM);
    ls_alloc_fail_at(0);
}

static void memory_file_is_opened_by_its_name(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        error_report r = {0};
        char path[128];
        int fd, writer;

        assert_ok(error_file_make(i == 0, &fd, path, sizeof(path)));
        assert_status(error_file_read(fd, &r), LS_ENOTFOUND);
        writer = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); /* as Python's "w" */
        assert_true(writer >= 0);
        assert_ok(file_write_all(writer, path, "{\"message\":\"m\"}", 15));
        file_close(&writer);
        assert_ok(error_file_read(fd, &r));
        assert_string_equal(text_str(&r.message), "m\n");
        error_report_free(&r);
        file_close(&fd);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_are_understood),
        cmocka_unit_test(copy_has_everything_and_the_exit_code),
        cmocka_unit_test(invalid_timestamp_is_ignored),
        cmocka_unit_test(texts_are_printable),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(other_contents_are_an_error),
        cmocka_unit_test(a_large_file_is_not_read),
        cmocka_unit_test(directory_is_not_read),
        cmocka_unit_test(missing_memory_is_reported),
        cmocka_unit_test(memory_file_is_opened_by_its_name),
    };

    return cmocka_run_group_tests_name("launch error_file", tests, NULL, NULL);
}
