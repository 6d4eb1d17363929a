/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wav.c - wav files by libsndfile, for data sets and programs of Tacotron2. Everything that a file
 * announces is checked before memory is allocated; nothing is resampled.
 */
#include "models/speech/wav.h"

#include <errno.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* libsndfile silently shortens a file that ends early, so the length in the RIFF header is compared
 * with that of the file. */
static ls_status check_length(const char *path, speech_error *error)
{
    unsigned char head[8] = {0};
    struct stat info;
    uint64_t announced;
    FILE *file = NULL;
    size_t got;

    if (stat(path, &info) == 0) {
        if (!S_ISREG(info.st_mode))
            return speech_fail(error, LS_EFORMAT, "%s: not a regular file", path);
        file = fopen(path, "rb");
    }
    if (file == NULL)
        return speech_fail(error, errno == ENOENT ? LS_ENOTFOUND : LS_EIO, "%s: cannot open: %s",
                           path, strerror(errno));
    got = fread(head, 1, sizeof(head), file);
    (void)fclose(file);
    if (got < sizeof(head) || memcmp(head, "RIFF", 4) != 0)
        return speech_fail(error, LS_EFORMAT,
                           "%s: not a wav file; convert it: sox %s -r %d -c 1 -b 16 OUT.wav", path,
                           path, WAV_RATE);
    announced =
        8 + (head[4] | (uint64_t)head[5] << 8 | (uint64_t)head[6] << 16 | (uint64_t)head[7] << 24);
    if (announced > (uint64_t)info.st_size)
        return speech_fail(error, LS_EFORMAT,
                           "%s: truncated: its header announces %llu bytes, the file has %lld; "
                           "copy it again",
                           path, (unsigned long long)announced, (long long)info.st_size);
    return LS_OK;
}

static ls_status check_format(const char *path, const SF_INFO *info, speech_error *error)
{
    const int type = info->format & SF_FORMAT_TYPEMASK;

    if (type != SF_FORMAT_WAV && type != SF_FORMAT_WAVEX)
        return speech_fail(error, LS_EFORMAT, "%s: not a wav file", path);
    if (info->samplerate != WAV_RATE || info->channels != 1)
        return speech_fail(error, LS_EFORMAT,
                           "%s: %d Hz, %d channel%s; expected %d Hz, 1 channel. Convert it: sox %s "
                           "-r %d -c 1 -b 16 OUT.wav",
                           path, info->samplerate, info->channels, info->channels == 1 ? "" : "s",
                           WAV_RATE, path, WAV_RATE);
    if (info->frames <= 0)
        return speech_fail(error, LS_EFORMAT, "%s: has no samples", path);
    if (info->frames > (sf_count_t)WAV_RATE * WAV_MAX_SECONDS)
        return speech_fail(error, LS_EFORMAT, "%s: %lld s of sound, more than %d; divide it", path,
                           (long long)(info->frames / WAV_RATE), WAV_MAX_SECONDS);
    return LS_OK;
}

/* Opens a valid file; on failure *out is NULL. */
static ls_status open_wav(const char *path, SNDFILE **out, SF_INFO *info, speech_error *error)
{
    ls_status st;

    *out = NULL;
    st = check_length(path, error);
    if (st != LS_OK)
        return st;
    memset(info, 0, sizeof(*info));
    *out = sf_open(path, SFM_READ, info);
    if (*out == NULL)
        return speech_fail(error, LS_EFORMAT, "%s: broken: %s", path, sf_strerror(NULL));
    st = check_format(path, info, error);
    if (st != LS_OK) {
        (void)sf_close(*out);
        *out = NULL;
    }
    return st;
}

static ls_status read_samples(const char *path, SNDFILE *file, float *samples, size_t n,
                              speech_error *error)
{
    const sf_count_t got = sf_readf_float(file, samples, (sf_count_t)n);

    if (got != (sf_count_t)n)
        return speech_fail(error, LS_EFORMAT, "%s: broken: %lld of %zu samples can be read", path,
                           (long long)got, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(samples[i]))
            return speech_fail(error, LS_EFORMAT, "%s: sample %zu is not a finite number", path, i);
    return LS_OK;
}

ls_status wav_read(const char *path, float **samples, size_t *n, speech_error *error)
{
    SNDFILE *file;
    SF_INFO info;
    ls_status st;

    if (path == NULL || samples == NULL || n == NULL)
        return speech_fail(error, LS_EINVAL, "wav_read() needs a path and pointers to results");
    *samples = NULL;
    st = open_wav(path, &file, &info, error);
    if (st != LS_OK)
        return st;
    *n = (size_t)info.frames;
    *samples = calloc(*n, sizeof(**samples));
    if (*samples == NULL)
        st = speech_fail(error, LS_ENOMEM, "%s: no memory for %zu samples", path, *n);
    else
        st = read_samples(path, file, *samples, *n, error);
    (void)sf_close(file);
    if (st != LS_OK) {
        free(*samples);
        *samples = NULL;
    }
    return st;
}

ls_status wav_count(const char *path, size_t *n, speech_error *error)
{
    SNDFILE *file;
    SF_INFO info;
    ls_status st;

    if (path == NULL || n == NULL)
        return speech_fail(error, LS_EINVAL,
                           "wav_count() needs a path and a pointer to the result");
    st = open_wav(path, &file, &info, error);
    if (st != LS_OK)
        return st;
    *n = (size_t)info.frames;
    (void)sf_close(file);
    return LS_OK;
}

ls_status wav_write(const char *path, const float *samples, size_t n, speech_error *error)
{
    SF_INFO info = {
        .samplerate = WAV_RATE, .channels = 1, .format = SF_FORMAT_WAV | SF_FORMAT_PCM_16};
    SNDFILE *file;
    sf_count_t put;

    if (path == NULL || samples == NULL)
        return speech_fail(error, LS_EINVAL, "wav_write() needs a path and samples");
    file = sf_open(path, SFM_WRITE, &info);
    if (file == NULL)
        return speech_fail(error, LS_EIO, "%s: cannot write: %s", path, sf_strerror(NULL));
    (void)sf_command(file, SFC_SET_CLIPPING, NULL, SF_TRUE);
    put = sf_writef_float(file, samples, (sf_count_t)n);
    if (sf_close(file) != 0 || put != (sf_count_t)n)
        return speech_fail(error, LS_EIO, "%s: cannot write: %lld of %zu samples written", path,
                           (long long)put, n);
    return LS_OK;
}
