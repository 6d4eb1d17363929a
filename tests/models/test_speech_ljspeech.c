/* SPDX-License-Identifier: Apache-2.0 */
/* test_speech_ljspeech.c - tests sets in LJSpeech's layout: valid ones, and every refusal. */
#include "base/unit.h"

#include "data/temp_files.h"
#include "models/speech/ljspeech.h"
#include "models/speech/text.h"
#include "models/speech/wav.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static temp_folder folder;
static char metadata[TEMP_PATH_BYTES];
static speech_error error;

static int make_set(void **state)
{
    static const float zeros[700] = {0};
    char path[TEMP_PATH_BYTES];

    (void)state;
    temp_folder_create(&folder);
    (void)temp_path(&folder, "metadata.csv", metadata);
    temp_folder_make(&folder, "wavs");
    if (wav_write(temp_path(&folder, "wavs/a-1.wav", path), zeros, 600, &error) != LS_OK ||
        wav_write(temp_path(&folder, "wavs/b.wav", path), zeros, 700, &error) != LS_OK)
        fail_msg("%s", error.text);
    return 0;
}

static int remove_set(void **state)
{
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

static void expect_refused_bytes(const char *lines, size_t n, ls_status status, const char *part)
{
    ljspeech *set;

    temp_write(metadata, lines, n);
    assert_int_equal(ljspeech_open(folder.path, &set, &error), status);
    assert_null(set);
    if (strstr(error.text, part) == NULL || strstr(error.text, metadata) == NULL)
        fail_msg("\"%s\" or the path is not in \"%s\"", part, error.text);
}

static void expect_refused(const char *lines, const char *part)
{
    expect_refused_bytes(lines, strlen(lines), LS_EFORMAT, part);
}

static void valid_set_is_read(void **state)
{
    static const char lines[] = "\xEF\xBB\xBF" // a byte order mark
                                "b|Dr. X|doctor x\r\na-1|It costs 5|it costs five";
    ljspeech *set;

    (void)state;
    temp_write(metadata, lines, sizeof(lines) - 1);
    if (ljspeech_open(folder.path, &set, &error) != LS_OK)
        fail_msg("%s", error.text);
    assert_int_equal(ljspeech_count(set), 2);
    assert_string_equal(ljspeech_id(set, 0), "b");
    assert_string_equal(ljspeech_raw_text(set, 0), "Dr. X");
    assert_string_equal(ljspeech_text(set, 0), "doctor x");
    assert_string_equal(ljspeech_text(set, 1), "it costs five");
    assert_int_equal(ljspeech_samples(set, 0), 700);
    assert_int_equal(ljspeech_samples(set, 1), 600);
    assert_non_null(strstr(ljspeech_wav(set, 1), "/wavs/a-1.wav"));
    ljspeech_close(set);
}

static void bad_lines_are_named(void **state)
{
    (void)state;
    expect_refused("", "is empty");
    expect_refused("b|x|x\n\n", ":2: expected three fields");
    expect_refused("b|x", ":1: expected three fields");
    expect_refused("b|x|x|x", ":1: expected three fields");
    expect_refused("b|x|x\na-1|x| \n", ":2: the text is empty");
    expect_refused("b||x", ":1: the text is empty");
    expect_refused("b|x|x\nb|y|y\n", ":2: the id b is already in line 1");
    expect_refused("b|x|\xFF", ":1: the line is not UTF-8");
    expect_refused_bytes("b|x\0|x", 6, LS_EFORMAT, ":1: a zero byte");
}

static void ids_cannot_leave_the_folder(void **state)
{
    (void)state;
    expect_refused("|x|x", ":1: the id is empty");
    expect_refused("../wavs/b|x|x", ":1: the id begins with a dot");
    expect_refused("x/../b|x|x", ":1: the id has a path separator");
    expect_refused("x\\b|x|x", ":1: the id has a path separator");
    expect_refused("b\x1B|x|x", ":1: the id has a control character");
}

static void missing_and_broken_sounds_are_named(void **state)
{
    char path[TEMP_PATH_BYTES];

    (void)state;
    expect_refused_bytes("b|x|x\nnone|x|x", 14, LS_ENOTFOUND, ":2: ");
    assert_non_null(strstr(error.text, "wavs/none.wav: cannot open"));
    temp_write(temp_path(&folder, "wavs/broken.wav", path), "RIFF\x10\x27\0\0WAVE", 12);
    expect_refused("broken|x|x", "truncated");
}

static void long_lines_are_refused(void **state)
{
    const size_t n = LJSPEECH_MAX_LINE + 10;
    char *line = malloc(n + 1);

    (void)state;
    assert_non_null(line);
    memset(line, 'a', n);
    line[n] = 0;
    expect_refused(line, ":1: the line has more than 8192 bytes");
    memcpy(line, "b|x|", 4);
    line[4 + TEXT_MAX_BYTES + 1] = 0;
    expect_refused(line, ":1: the text is too long");
    memset(line, 'a', n);
    line[LJSPEECH_MAX_ID + 1] = '|';
    memcpy(line + LJSPEECH_MAX_ID + 2, "x|x", 4);
    expect_refused(line, ":1: the id is too long");
    free(line);
}

static void missing_metadata_is_named(void **state)
{
    ljspeech *set;

    (void)state;
    assert_int_equal(ljspeech_open("/nonexistent", &set, &error), LS_ENOTFOUND);
    assert_non_null(strstr(error.text, "/nonexistent/metadata.csv"));
}

static void metadata_in_a_pipe_is_refused(void **state)
{
    ljspeech *set;

    (void)state;
    assert_int_equal(unlink(metadata), 0);
    assert_int_equal(mkfifo(metadata, 0600), 0);
    assert_int_equal(ljspeech_open(folder.path, &set, &error), LS_EFORMAT);
    assert_non_null(strstr(error.text, "metadata.csv: not a regular file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_set_is_read),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(ids_cannot_leave_the_folder),
        cmocka_unit_test(missing_and_broken_sounds_are_named),
        cmocka_unit_test(long_lines_are_refused),
        cmocka_unit_test(missing_metadata_is_named),
        cmocka_unit_test(metadata_in_a_pipe_is_refused),
    };

    return cmocka_run_group_tests(tests, make_set, remove_set);
}
