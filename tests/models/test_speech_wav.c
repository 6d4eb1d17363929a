/* SPDX-License-Identifier: Apache-2.0 */
/* test_speech_wav.c - tests wav files: written and read again, of other formats, and broken. */
#include "base/unit.h"

#include "data/temp_files.h"
#include "models/speech/wav.h"

#include <math.h>
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000, HEADER_BYTES = 44 };

static temp_folder folder;
static char path[TEMP_PATH_BYTES];
static speech_error error;

static int make_folder(void **state)
{
    (void)state;
    temp_folder_create(&folder);
    (void)temp_path(&folder, "a.wav", path);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

static void write_sound(int rate, int channels, int format, const float *samples, int n)
{
    SF_INFO info = {.samplerate = rate, .channels = channels, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);

    assert_non_null(file);
    assert_int_equal(sf_writef_float(file, samples, n), n);
    assert_int_equal(sf_close(file), 0);
}

static void expect_refused(ls_status status, const char *part)
{
    float *samples;
    size_t n;

    assert_int_equal(wav_count(path, &n, &error), status);
    assert_int_equal(wav_read(path, &samples, &n, &error), status);
    assert_null(samples);
    if (strstr(error.text, part) == NULL || strstr(error.text, path) == NULL)
        fail_msg("\"%s\" or the path is not in \"%s\"", part, error.text);
}

static void written_samples_are_read_again(void **state)
{
    float in[N];
    float *out;
    size_t n;

    (void)state;
    for (int i = 0; i < N; i++)
        in[i] = (float)((i * 7919) % 65536 - 32768) / 32768;
    in[1] = 2;
    assert_int_equal(wav_write(path, in, N, &error), LS_OK);
    in[1] = 32767.0F / 32768;
    assert_int_equal(wav_count(path, &n, &error), LS_OK);
    assert_int_equal(n, N);
    assert_int_equal(wav_read(path, &out, &n, &error), LS_OK);
    assert_int_equal(n, N);
    for (int i = 0; i < N; i++)
        if (fabsf(in[i] - out[i]) > 1.0F / 32768)
            fail_msg("sample %d: %g, not %g", i, (double)out[i], (double)in[i]);
    free(out);
}

static void other_formats_are_refused(void **state)
{
    static const float zeros[2 * N] = {0};
    static const float infinite[2] = {0, INFINITY};
    float *samples;
    size_t n;

    (void)state;
    write_sound(44100, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16, zeros, N);
    expect_refused(LS_EFORMAT,
                   "44100 Hz, 1 channel; expected 22050 Hz, 1 channel. Convert it: sox");
    write_sound(22050, 2, SF_FORMAT_WAV | SF_FORMAT_PCM_16, zeros, N);
    expect_refused(LS_EFORMAT, "2 channels");
    write_sound(22050, 1, SF_FORMAT_AIFF | SF_FORMAT_PCM_16, zeros, N);
    expect_refused(LS_EFORMAT, "not a wav file");
    write_sound(22050, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16, zeros, 0);
    expect_refused(LS_EFORMAT, "no samples");
    write_sound(22050, 1, SF_FORMAT_WAV | SF_FORMAT_FLOAT, infinite, 2);
    assert_int_equal(wav_read(path, &samples, &n, &error), LS_EFORMAT);
    assert_non_null(strstr(error.text, "sample 1 is not a finite number"));
}

static void sound_of_other_sample_types_is_read(void **state)
{
    static const int types[] = {SF_FORMAT_PCM_U8, SF_FORMAT_PCM_24, SF_FORMAT_FLOAT};
    float half[N];

    (void)state;
    for (int i = 0; i < N; i++)
        half[i] = 0.5F;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        float *out;
        size_t n;

        write_sound(22050, 1, SF_FORMAT_WAV | types[t], half, N);
        assert_int_equal(wav_read(path, &out, &n, &error), LS_OK);
        assert_int_equal(n, N);
        assert_true(fabsf(out[N / 2] - 0.5F) < 0.01F);
        free(out);
    }
}

static void too_long_sound_is_refused(void **state)
{
    const int n = WAV_RATE * (WAV_MAX_SECONDS + 1);
    float *zeros = calloc((size_t)n, sizeof(*zeros));

    (void)state;
    assert_non_null(zeros);
    write_sound(22050, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16, zeros, n);
    free(zeros);
    expect_refused(LS_EFORMAT, "121 s of sound, more than 120");
}

static void every_truncation_is_refused(void **state)
{
    static const float zeros[N] = {0};
    unsigned char *bytes;
    size_t size;

    (void)state;
    assert_int_equal(wav_write(path, zeros, N, &error), LS_OK);
    bytes = temp_read(path, &size);
    assert_int_equal(size, HEADER_BYTES + 2 * N);
    for (size_t n = 0; n < size; n += n < HEADER_BYTES ? 1 : 97) {
        temp_write(path, bytes, n);
        expect_refused(LS_EFORMAT, n < 8 ? "not a wav file" : "truncated");
    }
    free(bytes);
}

static void put_length(unsigned char *bytes, uint32_t length)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(length >> (8 * i));
}

/* As programs write into a pipe: the header comes before the length is known. */
static void headers_without_a_length_are_read_to_the_end(void **state)
{
    static const struct {
        uint32_t riff, data;
        const char *refusal; /* of the file cut in the middle */
    } cases[] = {
        {0x7FFFFFFF, 0x7FFFFFFF - 36, NULL},
        {0xFFFFFFFF, 0xFFFFFFFF, NULL},
        {0xFFFFFFFF, 0, NULL},
        {0, 0, NULL},
        {0x7FFFF024, 0x7FFFF000, NULL},
        {2000000036, 2000000000, NULL},
        {0xFFFFFFFF, 2 * N, "truncated"},
        {0, 2 * N, "truncated"},
        {36, 0, NULL}, // of a file without sound, as Python's wave begins it
        {36, 0xFFFFFFFF, NULL},
        {36, 2 * N, "truncated"},
        {36 + 2 * N, 0, "truncated"},
        {36 + 2 * N, 0xFFFFFFFF, "truncated"},
    };
    unsigned char *bytes;
    float *out;
    float in[N];
    size_t size, n;

    (void)state;
    for (int i = 0; i < N; i++)
        in[i] = (float)i / N;
    assert_int_equal(wav_write(path, in, N, &error), LS_OK);
    bytes = temp_read(path, &size);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        put_length(bytes + 4, cases[i].riff);
        put_length(bytes + 40, cases[i].data);
        temp_write(path, bytes, size);
        if (wav_count(path, &n, &error) != LS_OK || wav_read(path, &out, &n, &error) != LS_OK)
            fail_msg("case %zu: %s", i, error.text);
        assert_int_equal(n, N);
        assert_true(fabsf(out[N - 1] - in[N - 1]) < 0.001F);
        free(out);
        temp_write(path, bytes, HEADER_BYTES + N);
        if (cases[i].refusal != NULL) {
            expect_refused(LS_EFORMAT, cases[i].refusal);
            continue;
        }
        assert_int_equal(wav_count(path, &n, &error), LS_OK);
        assert_int_equal(n, N / 2);
    }
    free(bytes);
}

/* As of a program that takes samples of 16 bits for floats. */
/* Its data chunk is empty and another chunk follows. */
static void a_wav_without_samples_is_refused(void **state)
{
    static const unsigned char info[] = {'L', 'I', 'S', 'T', 4, 0, 0, 0, 'I', 'N', 'F', 'O'};
    unsigned char bytes[HEADER_BYTES + sizeof(info)];
    unsigned char *whole;
    const float zero = 0;
    size_t size;

    (void)state;
    assert_int_equal(wav_write(path, &zero, 1, &error), LS_OK);
    whole = temp_read(path, &size);
    memcpy(bytes, whole, HEADER_BYTES);
    memcpy(bytes + HEADER_BYTES, info, sizeof(info));
    put_length(bytes + 4, sizeof(bytes) - 8);
    put_length(bytes + 40, 0);
    temp_write(path, bytes, sizeof(bytes));
    expect_refused(LS_EFORMAT, "has no samples");
    put_length(bytes + 4, 36);
    temp_write(path, bytes, HEADER_BYTES);
    expect_refused(LS_EFORMAT, "has no samples");
    free(whole);
}

static void float_samples_beyond_full_scale_are_refused(void **state)
{
    static const float samples[] = {0, -1, 1, 0.5F, -20000};
    float *out;
    size_t n;

    (void)state;
    write_sound(22050, 1, SF_FORMAT_WAV | SF_FORMAT_FLOAT, samples, 4);
    assert_int_equal(wav_read(path, &out, &n, &error), LS_OK);
    free(out);
    write_sound(22050, 1, SF_FORMAT_WAV | SF_FORMAT_FLOAT, samples, 5);
    assert_int_equal(wav_read(path, &out, &n, &error), LS_EFORMAT);
    assert_non_null(strstr(error.text, path));
    assert_non_null(strstr(error.text, "sample 4 is -20000, beyond full scale"));
}

static void missing_files_are_named(void **state)
{
    char made[TEMP_PATH_BYTES];

    (void)state;
    (void)temp_path(&folder, "none.wav", path);
    expect_refused(LS_ENOTFOUND, "No such file");
    temp_folder_make(&folder, "folder.wav");
    (void)temp_path(&folder, "folder.wav", path);
    expect_refused(LS_EFORMAT, "not a regular file");
    (void)temp_path(&folder, "none/a.wav", made);
    assert_int_equal(wav_write(made, (const float[]){0}, 1, &error), LS_EIO);
    assert_non_null(strstr(error.text, made));
    (void)temp_path(&folder, "a.wav", path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_samples_are_read_again),
        cmocka_unit_test(other_formats_are_refused),
        cmocka_unit_test(sound_of_other_sample_types_is_read),
        cmocka_unit_test(too_long_sound_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(headers_without_a_length_are_read_to_the_end),
        cmocka_unit_test(a_wav_without_samples_is_refused),
        cmocka_unit_test(float_samples_beyond_full_scale_are_refused),
        cmocka_unit_test(missing_files_are_named),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
