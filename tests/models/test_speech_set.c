/* SPDX-License-Identifier: Apache-2.0 */
/* test_speech_set.c - tests an LJSpeech folder as a data set: fields, padding, ranges, refusals. */
#include "base/unit.h"

#include "data/temp_files.h"
#include "models/speech/mel.h"
#include "models/speech/speech_set.h"
#include "models/speech/text.h"
#include "models/speech/wav.h"

#include <math.h>
#include <stdlib.h>

enum { LONG = 2000, SHORT = 1000, FRAMES = 3 };

static temp_folder folder;
static char metadata[TEMP_PATH_BYTES];
static float sound[LONG];

static void write_set(const char *lines)
{
    temp_write(metadata, lines, strlen(lines));
}

static int make_set(void **state)
{
    speech_error error;
    char path[TEMP_PATH_BYTES];

    (void)state;
    temp_folder_create(&folder);
    (void)temp_path(&folder, "metadata.csv", metadata);
    temp_folder_make(&folder, "wavs");
    for (int i = 0; i < LONG; i++)
        sound[i] = 0.5F * sinf((float)i * 0.1F);
    if (wav_write(temp_path(&folder, "wavs/a.wav", path), sound, LONG, &error) != LS_OK ||
        wav_write(temp_path(&folder, "wavs/b.wav", path), sound, SHORT, &error) != LS_OK)
        fail_msg("%s", error.text);
    write_set("a|x|Hi, you.\nb|x|go\n");
    return 0;
}

static int remove_set(void **state)
{
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

typedef struct reader {
    ls_device *device;
    ls_dataset *set;
    ls_sampler *sampler;
    ls_loader *loader;
    ls_batch batch;
} reader;

static ls_status open_part(size_t first, size_t count, int frames, ls_dataset **out)
{
    const speech_set_options part = {
        .dir = folder.path, .first = first, .count = count, .frames = frames};

    return speech_set_open(&part, out);
}

/* The whole part is one batch. */
static void read_part(reader *r, size_t first, size_t count)
{
    ls_sampler_options order = {.size = sizeof(order), .count = count, .no_shuffle = 1};
    ls_loader_options how = {.size = sizeof(how), .batch_size = (int)count};

    assert_ok(ls_device_open(NULL, &r->device));
    assert_ok(open_part(first, count, FRAMES, &r->set));
    assert_ok(ls_sampler_create(&order, &r->sampler));
    how.device = r->device;
    how.dataset = r->set;
    how.sampler = r->sampler;
    assert_ok(ls_loader_create(&how, &r->loader));
    assert_ok(ls_loader_start(r->loader, 0, 0));
    assert_ok(ls_loader_next(r->loader, &r->batch));
}

static void close_part(reader *r)
{
    ls_loader_destroy(r->loader);
    ls_sampler_destroy(r->sampler);
    ls_dataset_close(r->set);
    assert_ok(ls_device_close(r->device));
}

static void expect_dims(const ls_batch *batch, const char *name, int64_t a, int64_t b, int64_t c)
{
    const ls_tensor *t = ls_batch_field(batch, name);

    assert_non_null(t);
    assert_int_equal(ls_tensor_dim(t, 0), a);
    assert_int_equal(ls_tensor_dim(t, 1), b);
    assert_int_equal(ls_tensor_dim(t, 2), c);
}

/* 8 and 4 frames are 3 and 2 steps of 3 frames. */
static void fields_have_their_shapes_and_padding(void **state)
{
    const float *gate;
    const uint8_t *padding;
    const int64_t *lengths, *ids;
    reader r;

    (void)state;
    read_part(&r, 0, 2);
    assert_int_equal(r.batch.rows, 2);
    expect_dims(&r.batch, "text", 2, 8, 1);
    expect_dims(&r.batch, "mel", 2, 3, FRAMES * MEL_BANDS);
    expect_dims(&r.batch, "gate", 2, 3, 1);
    expect_dims(&r.batch, "mel_padding", 2, 3, 1);
    expect_dims(&r.batch, "text_padding", 2, 1, 8);
    lengths = ls_batch_host_lengths(&r.batch, "text");
    assert_true(lengths[0] == 8 && lengths[1] == 2);
    lengths = ls_batch_host_lengths(&r.batch, "mel");
    assert_true(lengths[0] == 3 && lengths[1] == 2);
    ids = ls_tensor_data_const(ls_batch_field(&r.batch, "text"));
    assert_true(ids[0] != ids[1] && ids[8] != TEXT_PADDING && ids[10] == TEXT_PADDING);
    gate = ls_tensor_data_const(ls_batch_field(&r.batch, "gate"));
    assert_memory_equal(gate, ((float[]){0, 0, 1, 0, 1, 1}), 6 * sizeof(float));
    padding = ls_tensor_data_const(ls_batch_field(&r.batch, "mel_padding"));
    assert_memory_equal(padding, ((uint8_t[]){0, 0, 0, 0, 0, 1}), 6);
    padding = ls_tensor_data_const(ls_batch_field(&r.batch, "text_padding"));
    assert_memory_equal(padding, ((uint8_t[]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}), 16);
    close_part(&r);
}

static void mels_are_those_of_the_wavs_then_silence(void **state)
{
    const size_t frames = mel_frames(LONG);
    speech_error error;
    char path[TEMP_PATH_BYTES];
    mel_transform *m;
    const float *mel;
    float *want, *wav;
    size_t n;
    reader r;

    (void)state;
    assert_int_equal(frames, 8);
    assert_int_equal(wav_read(temp_path(&folder, "wavs/a.wav", path), &wav, &n, &error), LS_OK);
    want = malloc(frames * MEL_BANDS * sizeof(*want));
    assert_non_null(want);
    assert_int_equal(mel_create(&m, &error), LS_OK);
    assert_int_equal(mel_compute(m, wav, n, want, &error), LS_OK);
    read_part(&r, 0, 2);
    mel = ls_tensor_data_const(ls_batch_field(&r.batch, "mel"));
    assert_memory_equal(mel, want, frames * MEL_BANDS * sizeof(*want));
    for (size_t i = frames * MEL_BANDS; i < (frames + 1) * MEL_BANDS; i++)
        assert_true(mel[i] == logf(1e-5F));
    mel += 9 * MEL_BANDS; // row 1: 4 frames of sound, 2 of silence, 3 of padding
    assert_true(mel[0] > logf(1e-5F) && mel[5 * MEL_BANDS] == logf(1e-5F));
    assert_true(mel[6 * MEL_BANDS] == 0);
    mel_destroy(m);
    free(want);
    free(wav);
    close_part(&r);
}

static void a_part_has_its_lines_only(void **state)
{
    ls_dataset *set;
    size_t n;
    reader r;

    (void)state;
    assert_ok(speech_set_count(folder.path, &n));
    assert_int_equal(n, 2);
    read_part(&r, 1, 1);
    assert_int_equal(ls_dataset_count(r.set), 1);
    expect_dims(&r.batch, "text", 1, 2, 1);
    close_part(&r);
    assert_status(open_part(1, 2, 1, &set), LS_EINVAL);
    assert_last_error("has 2 lines, not 2 from 1 on");
}

static void broken_sets_are_named(void **state)
{
    char path[TEMP_PATH_BYTES];
    speech_error error;
    ls_dataset *set;
    size_t n;

    (void)state;
    write_set("a|x|{HH}\n");
    assert_status(open_part(0, 1, 1, &set), LS_EFORMAT);
    assert_last_error("the text of a");
    write_set("c|x|no wav\n");
    assert_status(speech_set_count(folder.path, &n), LS_ENOTFOUND);
    assert_last_error("wavs/c.wav");
    write_set("a|x|short\n");
    assert_int_equal(wav_write(temp_path(&folder, "wavs/a.wav", path), sound, 100, &error), LS_OK);
    assert_status(open_part(0, 1, 1, &set), LS_EFORMAT);
    assert_last_error("wavs/a.wav has 100 samples");
}

static void wav_that_changes_after_opening_is_named(void **state)
{
    char path[TEMP_PATH_BYTES];
    speech_error error;
    reader r;

    (void)state;
    read_part(&r, 0, 2);
    assert_int_equal(wav_write(temp_path(&folder, "wavs/b.wav", path), sound, 900, &error), LS_OK);
    assert_ok(ls_loader_start(r.loader, 1, 0));
    assert_status(ls_loader_next(r.loader, &r.batch), LS_EFORMAT);
    assert_last_error("wavs/b.wav has changed since the set was opened");
    close_part(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fields_have_their_shapes_and_padding, make_set, remove_set),
        cmocka_unit_test_setup_teardown(mels_are_those_of_the_wavs_then_silence, make_set,
                                        remove_set),
        cmocka_unit_test_setup_teardown(a_part_has_its_lines_only, make_set, remove_set),
        cmocka_unit_test_setup_teardown(broken_sets_are_named, make_set, remove_set),
        cmocka_unit_test_setup_teardown(wav_that_changes_after_opening_is_named, make_set,
                                        remove_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
