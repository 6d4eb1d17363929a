/* SPDX-License-Identifier: Apache-2.0 */
/* test_speech_mel.c - tests mel spectrograms against librosa's, and their inversion. */
#include "base/unit.h"

#include "models/speech/mel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_EXPECTED = 1300, N_LONG = 22050 };

/* Frame by frame, of fill_signal()'s first N_EXPECTED samples. */
static const float expected[] = {
#include "mel_expected.inc"
};

static mel_transform *transform;
static speech_error error;

static int make_transform(void **state)
{
    (void)state;
    return mel_create(&transform, &error) == LS_OK ? 0 : -1;
}

static int remove_transform(void **state)
{
    (void)state;
    mel_destroy(transform);
    return 0;
}

/* A rising tone and noise. */
static void fill_signal(float *samples, int n)
{
    uint32_t random = 1;

    for (int i = 0; i < n; i++) {
        const double time = i / 22050.0;
        const double tone =
            0.5 * sin(2 * 3.14159265358979323846 * (300 * time + 20000 * time * time));

        random = (random * 1103515245U + 12345U) % (1U << 31);
        samples[i] = (float)(tone + 0.02 * (random / 1073741824.0 - 1));
    }
}

static float *compute(const float *samples, size_t n)
{
    float *mel = calloc(mel_frames(n) * MEL_BANDS, sizeof(*mel));

    assert_non_null(mel);
    if (mel_compute(transform, samples, n, mel, &error) != LS_OK)
        fail_msg("%s", error.text);
    return mel;
}

static void spectrogram_equals_librosa(void **state)
{
    const size_t n = mel_frames(N_EXPECTED) * MEL_BANDS;
    float samples[N_EXPECTED];
    float *mel;

    (void)state;
    fill_signal(samples, N_EXPECTED);
    mel = compute(samples, N_EXPECTED);
    assert_int_equal(n, sizeof(expected) / sizeof(expected[0]));
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(mel[i] - expected[i]) <= 1e-4F))
            fail_msg("frame %zu, band %zu: %g, not %g", i / MEL_BANDS, i % MEL_BANDS,
                     (double)mel[i], (double)expected[i]);
    free(mel);
}

static void silence_is_the_floor(void **state)
{
    static const float zeros[MEL_MIN_SAMPLES] = {0};
    float *mel = compute(zeros, MEL_MIN_SAMPLES);

    (void)state;
    for (size_t i = 0; i < mel_frames(MEL_MIN_SAMPLES) * MEL_BANDS; i++)
        assert_true(fabsf(mel[i] - logf(1e-5F)) < 1e-6F);
    free(mel);
}

/* Mean distance of two log mel spectrograms without their first and last two frames. */
static double distance(const float *a, const float *b, size_t frames)
{
    double sum = 0;

    for (size_t i = 2 * MEL_BANDS; i < (frames - 2) * MEL_BANDS; i++)
        sum += fabs((double)a[i] - (double)b[i]);
    return sum / (double)((frames - 4) * MEL_BANDS);
}

/* The distance of the spectrogram of mel_invert()'s sound from the one it was made of. */
static double invert_distance(const float *mel, size_t frames, int iterations, float *samples)
{
    double result;
    float *again;

    if (mel_invert(transform, mel, frames, iterations, 5, samples, &error) != LS_OK)
        fail_msg("%s", error.text);
    again = compute(samples, mel_samples(frames));
    result = distance(mel, again, frames);
    free(again);
    return result;
}

static void inverted_sound_has_the_same_spectrogram(void **state)
{
    const size_t frames = mel_frames(N_LONG);
    float *samples = calloc(N_LONG, sizeof(*samples));
    double before;
    double after;
    float *mel;

    (void)state;
    assert_non_null(samples);
    fill_signal(samples, N_LONG);
    mel = compute(samples, N_LONG);
    before = invert_distance(mel, frames, 0, samples);
    after = invert_distance(mel, frames, 60, samples);
    print_message("distance %.3f without iterations, %.3f after 60\n", before, after);
    assert_true(after < 0.12);
    assert_true(after < before / 2);
    free(mel);
    free(samples);
}

static void inversion_repeats_with_its_seed(void **state)
{
    const size_t n = mel_samples(mel_frames(N_EXPECTED));
    float first[N_EXPECTED];
    float second[N_EXPECTED];

    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        assert_int_equal(
            mel_invert(transform, expected, mel_frames(N_EXPECTED), 3, 1, first, &error), LS_OK);
        assert_int_equal(
            mel_invert(transform, expected, mel_frames(N_EXPECTED), 3, seed, second, &error),
            LS_OK);
        assert_int_equal(memcmp(first, second, n * sizeof(*first)) == 0, seed == 1);
    }
}

static void bad_lengths_and_values_are_refused(void **state)
{
    static float mel[MEL_MIN_FRAMES * MEL_BANDS];
    float samples[MEL_MIN_FRAMES * MEL_HOP];
    static const float zeros[MEL_MIN_SAMPLES] = {0};

    (void)state;
    assert_int_equal(mel_compute(transform, zeros, MEL_MIN_SAMPLES - 1, mel, &error), LS_EINVAL);
    assert_non_null(strstr(error.text, "512 samples"));
    assert_int_equal(mel_compute(transform, zeros, (size_t)MEL_MAX_FRAMES * MEL_HOP, mel, &error),
                     LS_EINVAL);
    assert_int_equal(mel_invert(transform, mel, MEL_MIN_FRAMES - 1, 1, 0, samples, &error),
                     LS_EINVAL);
    mel[MEL_BANDS + 2] = NAN;
    assert_int_equal(mel_invert(transform, mel, MEL_MIN_FRAMES, 1, 0, samples, &error), LS_EINVAL);
    assert_non_null(strstr(error.text, "frame 1, band 2"));
    mel[MEL_BANDS + 2] = 21;
    assert_int_equal(mel_invert(transform, mel, MEL_MIN_FRAMES, 1, 0, samples, &error), LS_EINVAL);
}

static double warped(const float *a, size_t frames_a, const float *b, size_t frames_b)
{
    double value;

    assert_int_equal(mel_distance(a, frames_a, b, frames_b, &value, &error), LS_OK);
    return value;
}

static void distance_does_not_depend_on_the_speed(void **state)
{
    enum { FRAMES = 5 };
    static float once[FRAMES * MEL_BANDS], slow[3 * FRAMES * MEL_BANDS];
    double value;

    (void)state;
    for (size_t t = 0; t < 3 * FRAMES; t++)
        for (size_t k = 0; k < MEL_BANDS; k++)
            slow[t * MEL_BANDS + k] = once[t / 3 * MEL_BANDS + k] =
                (float)((t / 3) * (t / 3) + k) - 9;
    assert_true(warped(once, FRAMES, slow, (size_t)3 * FRAMES) == 0);
    assert_true(warped(slow, (size_t)3 * FRAMES, once, FRAMES) == 0);
    // One band of one frame of one frame: a diagonal step of weight 2 over 1 + 1 frames.
    slow[0] = once[0] + 8;
    assert_true(fabs(warped(once, 1, slow, 1) - 8.0 / MEL_BANDS) < 1e-12);
    // Frames 0 and 1 against frame 1: two steps, 2 * |f0 - f1| + |f1 - f1|, over 2 + 1 frames.
    assert_true(fabs(warped(once, 2, once + MEL_BANDS, 1) -
                     2 * (double)(once[MEL_BANDS] - once[0]) / 3) < 1e-6);
    assert_int_equal(mel_distance(once, 0, once, 1, &value, &error), LS_EINVAL);
    assert_int_equal(mel_distance(once, 1, once, MEL_MAX_FRAMES + 1, &value, &error), LS_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spectrogram_equals_librosa),
        cmocka_unit_test(silence_is_the_floor),
        cmocka_unit_test(inverted_sound_has_the_same_spectrogram),
        cmocka_unit_test(inversion_repeats_with_its_seed),
        cmocka_unit_test(distance_does_not_depend_on_the_speed),
        cmocka_unit_test(bad_lengths_and_values_are_refused),
    };

    return cmocka_run_group_tests(tests, make_transform, remove_transform);
}
