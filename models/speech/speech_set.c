/* SPDX-License-Identifier: Apache-2.0 */
/*
 * speech_set.c - LJSpeech's texts and mels as a data set (speech_set.h), for examples/tacotron2.c.
 * After opening only the list of mel transforms changes, under its lock, so that any number of
 * threads may read samples.
 */
#include "models/speech/speech_set.h"

#include <lockstep/log.h>
#include <lockstep/train.h>

#include "models/speech/ljspeech.h"
#include "models/speech/mel.h"
#include "models/speech/text.h"
#include "models/speech/wav.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct sample {
    int64_t *ids;
    size_t n_ids;
    size_t steps;
} sample;

/* A transform that no thread uses. */
typedef struct idle {
    struct idle *next;
    mel_transform *transform;
} idle;

typedef struct speech_set {
    ljspeech *lines;
    size_t first, count;
    int frames;
    sample *samples;
    pthread_mutex_t lock;
    idle *transforms;
} speech_set;

static ls_status fail_memory(void)
{
    return ls_set_error(LS_ENOMEM, "no memory for a set of texts and mels");
}

static void close_set(void *arg)
{
    speech_set *set = arg;

    for (size_t i = 0; set->samples != NULL && i < set->count; i++)
        free(set->samples[i].ids);
    while (set->transforms != NULL) {
        idle *first = set->transforms;

        set->transforms = first->next;
        mel_destroy(first->transform);
        free(first);
    }
    free(set->samples);
    ljspeech_close(set->lines);
    (void)pthread_mutex_destroy(&set->lock);
    free(set);
}

/* --- opening --- */

/* Characters of all texts that are no symbol. */
typedef struct left_out {
    size_t n;
    text_unknown first;
    const char *id; /* of the line that has the first ones */
} left_out;

static ls_status convert_text(speech_set *set, size_t i, left_out *unknown)
{
    static const size_t bytes = sizeof(int64_t);
    const char *text = ljspeech_text(set->lines, set->first + i);
    const char *id = ljspeech_id(set->lines, set->first + i);
    sample *s = &set->samples[i];
    speech_error error;
    text_unknown in_line;
    int64_t *ids = malloc(TEXT_MAX_IDS * bytes);
    int64_t *fitted;
    ls_status st;

    if (ids == NULL)
        return fail_memory();
    st = text_to_ids(text, ids, TEXT_MAX_IDS, &s->n_ids, &in_line, &error);
    if (st != LS_OK) {
        free(ids);
        return ls_set_error(st, "the text of %s: %s", id, error.text);
    }
    fitted = realloc(ids, s->n_ids * bytes);
    s->ids = fitted != NULL ? fitted : ids;
    if (in_line.n > 0 && unknown->n == 0) {
        unknown->first = in_line;
        unknown->id = id;
    }
    unknown->n += in_line.n;
    return LS_OK;
}

static ls_status count_steps(speech_set *set, size_t i)
{
    const size_t samples = ljspeech_samples(set->lines, set->first + i);
    const size_t frames = mel_frames(samples);

    if (samples < MEL_MIN_SAMPLES || frames > MEL_MAX_FRAMES)
        return ls_set_error(LS_EFORMAT,
                            "%s has %zu samples; a mel needs at least %d and at most %zu",
                            ljspeech_wav(set->lines, set->first + i), samples, MEL_MIN_SAMPLES,
                            mel_samples(MEL_MAX_FRAMES));
    set->samples[i].steps = (frames + (size_t)set->frames - 1) / (size_t)set->frames;
    return LS_OK;
}

static ls_status convert_lines(speech_set *set)
{
    left_out unknown = {0};

    set->samples = calloc(set->count > 0 ? set->count : 1, sizeof(*set->samples));
    if (set->samples == NULL)
        return fail_memory();
    for (size_t i = 0; i < set->count; i++) {
        LS_TRY(convert_text(set, i, &unknown));
        LS_TRY(count_steps(set, i));
    }
    if (unknown.n > 0)
        ls_log(LS_LOG_WARN, "speech",
               "%zu characters of the texts are no symbols and are left out, as %s in %s",
               unknown.n, unknown.first.names, unknown.id);
    return LS_OK;
}

/* --- reading --- */

/* A transform of this thread alone, until give_back(). NULL: *st is the failure. */
static idle *borrow(speech_set *set, ls_status *st)
{
    speech_error error;
    idle *one;

    (void)pthread_mutex_lock(&set->lock);
    one = set->transforms;
    if (one != NULL)
        set->transforms = one->next;
    (void)pthread_mutex_unlock(&set->lock);
    if (one != NULL)
        return one;
    one = calloc(1, sizeof(*one));
    if (one == NULL) {
        *st = fail_memory();
        return NULL;
    }
    *st = mel_create(&one->transform, &error);
    if (*st == LS_OK)
        return one;
    *st = ls_set_error(*st, "%s", error.text);
    free(one);
    return NULL;
}

static void give_back(speech_set *set, idle *one)
{
    (void)pthread_mutex_lock(&set->lock);
    one->next = set->transforms;
    set->transforms = one;
    (void)pthread_mutex_unlock(&set->lock);
}

/* The mel of a wav of as many samples as at opening; silence behind it fills the last step. */
static ls_status compute_mel(speech_set *set, size_t line, const float *wav, size_t n, float *mel,
                             size_t frames)
{
    const size_t in_wav = mel_frames(n);
    speech_error error;
    idle *one;
    ls_status st = LS_OK;

    if (n != ljspeech_samples(set->lines, line))
        return ls_set_error(LS_EFORMAT, "%s has changed since the set was opened",
                            ljspeech_wav(set->lines, line));
    one = borrow(set, &st);
    if (one == NULL)
        return st;
    st = mel_compute(one->transform, wav, n, mel, &error);
    give_back(set, one);
    for (size_t i = in_wav * MEL_BANDS; i < frames * MEL_BANDS; i++)
        mel[i] = logf(1e-5F);
    return st == LS_OK ? LS_OK : ls_set_error(st, "%s", error.text);
}

static ls_status read_sample(void *arg, const ls_sample_request *request, void *const *values)
{
    speech_set *set = arg;
    const sample *s = &set->samples[request->index];
    const size_t line = set->first + request->index;
    float *gate = values[2];
    speech_error error;
    float *wav;
    size_t n;
    ls_status st = wav_read(ljspeech_wav(set->lines, line), &wav, &n, &error);

    if (st != LS_OK)
        return ls_set_error(st, "%s", error.text);
    st = compute_mel(set, line, wav, n, values[1], s->steps * (size_t)set->frames);
    free(wav);
    memcpy(values[0], s->ids, s->n_ids * sizeof(*s->ids));
    memset(gate, 0, s->steps * sizeof(*gate));
    gate[s->steps - 1] = 1;
    memset(values[3], 0, s->steps);
    memset(values[4], 0, s->n_ids);
    return st;
}

static ls_status find_lengths(void *arg, size_t index, int64_t *lengths)
{
    const speech_set *set = arg;
    const sample *s = &set->samples[index];

    lengths[0] = lengths[4] = (int64_t)s->n_ids;
    lengths[1] = lengths[2] = lengths[3] = (int64_t)s->steps;
    return LS_OK;
}

/* --- the set --- */

static ls_status open_lines(const char *dir, ljspeech **out)
{
    speech_error error;
    const ls_status st = ljspeech_open(dir, out, &error);

    return st == LS_OK ? LS_OK : ls_set_error(st, "%s", error.text);
}

ls_status speech_set_count(const char *dir, size_t *n)
{
    ljspeech *lines;

    LS_TRY(open_lines(dir, &lines));
    *n = ljspeech_count(lines);
    ljspeech_close(lines);
    return LS_OK;
}

static ls_status fill_set(const speech_set_options *opt, speech_set *set)
{
    size_t n;

    LS_TRY(open_lines(opt->dir, &set->lines));
    n = ljspeech_count(set->lines);
    if (opt->frames < 1 || opt->first > n || opt->count > n - opt->first)
        return ls_train_refuse("%s has %zu lines, not %zu from %zu on", opt->dir, n, opt->count,
                               opt->first);
    set->first = opt->first;
    set->count = opt->count;
    set->frames = opt->frames;
    return convert_lines(set);
}

ls_status speech_set_open(const speech_set_options *opt, ls_dataset **out)
{
    const int64_t frame = (int64_t)opt->frames * MEL_BANDS;
    const ls_field fields[] = {
        {.name = "text", .type = LS_I64, .n_dims = 1, .dims = {-1}, .padding = TEXT_PADDING},
        {.name = "mel", .type = LS_F32, .n_dims = 2, .dims = {-1, frame}},
        {.name = "gate", .type = LS_F32, .n_dims = 2, .dims = {-1, 1}, .padding = 1},
        {.name = "mel_padding", .type = LS_U8, .n_dims = 2, .dims = {-1, 1}, .padding = 1},
        {.name = "text_padding", .type = LS_U8, .n_dims = 2, .dims = {1, -1}, .padding = 1},
    };
    ls_dataset_callbacks calls = {.size = sizeof(calls),
                                  .fields = fields,
                                  .n_fields = sizeof(fields) / sizeof(fields[0]),
                                  .lengths = find_lengths,
                                  .read = read_sample,
                                  .close = close_set};
    speech_set *set = calloc(1, sizeof(*set));
    ls_status st;

    if (set == NULL)
        return fail_memory();
    (void)pthread_mutex_init(&set->lock, NULL);
    st = fill_set(opt, set);
    if (st != LS_OK) {
        close_set(set);
        return st;
    }
    calls.count = set->count;
    calls.arg = set;
    return ls_dataset_create(&calls, out);
}
