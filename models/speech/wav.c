/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wav.c - wav files by libsndfile, for data sets and programs of Tacotron2. Everything that a file
 * announces is checked before memory is allocated; nothing is resampled.
 */
#include "models/speech/wav.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a file that is copied: the longest sound in the widest samples, and a header. */
enum { COPY_BYTES_MOST = WAV_MAX_SECONDS * WAV_RATE * 8 + 65536 };

/* Whether a length was not known when the header was written, because the output was a pipe.
 * Writers put 0 there, or a length near 2^31 or 2^32 (arecord: 2000000000). The sound then ends
 * with the file. */
static bool is_unknown(uint32_t length)
{
    return length == 0 || length >= 2000000000U;
}

/* Reads the name and the length of a chunk. */
static bool read_chunk(FILE *file, char name[4], uint32_t *length)
{
    unsigned char head[8];

    if (fread(head, 1, sizeof(head), file) < sizeof(head))
        return false;
    memcpy(name, head, 4);
    *length = head[4] | (uint32_t)head[5] << 8 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 24;
    return true;
}

typedef struct wav_lengths {
    off_t file;
    uint64_t announced; /* of the file, according to its header; 0: unknown */
    long sound_at;      /* where sound begins whose length is 0 in the header; otherwise 0 */
} wav_lengths;

/* Whether a chunk that ends before `end` begins here: its name is text. */
static bool is_chunk(FILE *file, uint64_t end)
{
    char name[4];
    uint32_t length;
    bool is_text = true;

    if (!read_chunk(file, name, &length))
        return false;
    for (int i = 0; i < 4; i++)
        is_text = is_text && name[i] >= ' ' && name[i] <= '~';
    return is_text && (uint64_t)ftell(file) + length <= end;
}

/* The file is behind the head of the data chunk, which has the length `data`; that of the file in
 * its header is `riff`, which a header of no sound (36) may give, too. */
static void set_lengths(FILE *file, uint32_t riff, uint32_t data, wav_lengths *out)
{
    const long at = ftell(file);
    const bool knows_end = !is_unknown(riff) && 8 + (uint64_t)riff > (uint64_t)at;

    if (knows_end)
        out->announced = 8 + (uint64_t)riff;
    else if (!is_unknown(data))
        out->announced = (uint64_t)at + data;
    if (data == 0 && !(knows_end && is_chunk(file, out->announced)))
        out->sound_at = at;
}

/* false: no wav file. */
static bool read_lengths(FILE *file, wav_lengths *out)
{
    char name[4];
    uint32_t riff;
    uint32_t length;

    if (!read_chunk(file, name, &riff) || memcmp(name, "RIFF", 4) != 0)
        return false;
    (void)fseek(file, 4, SEEK_CUR); // "WAVE"
    while (read_chunk(file, name, &length) && memcmp(name, "data", 4) != 0)
        (void)fseek(file, (long)length + (length & 1), SEEK_CUR);
    if (feof(file) == 0)
        set_lengths(file, riff, length, out);
    else if (!is_unknown(riff))
        out->announced = 8 + (uint64_t)riff;
    return true;
}

/* libsndfile silently shortens a file that ends early, so the length in the header is compared with
 * that of the file. *out is all 0 before. */
static ls_status check_length(const char *path, wav_lengths *out, speech_error *error)
{
    struct stat info;
    FILE *file = NULL;
    bool is_wav;

    if (stat(path, &info) == 0) {
        if (!S_ISREG(info.st_mode))
            return speech_fail(error, LS_EFORMAT, "%s: not a regular file", path);
        file = fopen(path, "rb");
    }
    if (file == NULL)
        return speech_fail(error, errno == ENOENT ? LS_ENOTFOUND : LS_EIO, "%s: cannot open: %s",
                           path, strerror(errno));
    out->file = info.st_size;
    is_wav = read_lengths(file, out);
    (void)fclose(file);
    if (!is_wav)
        return speech_fail(error, LS_EFORMAT,
                           "%s: not a wav file; convert it: sox %s -r %d -c 1 -b 16 OUT.wav", path,
                           path, WAV_RATE);
    if (out->announced > (uint64_t)out->file)
        return speech_fail(error, LS_EFORMAT,
                           "%s: truncated: its header announces %llu bytes, the file has %lld; "
                           "copy it again",
                           path, (unsigned long long)out->announced, (long long)out->file);
    return LS_OK;
}

static bool write_length(int fd, off_t at, off_t length)
{
    const unsigned char bytes[] = {(unsigned char)length, (unsigned char)(length >> 8),
                                   (unsigned char)(length >> 16), (unsigned char)(length >> 24)};

    return pwrite(fd, bytes, sizeof(bytes), at) == (ssize_t)sizeof(bytes);
}

/* A copy in memory that has the lengths; false: it cannot be made. */
static bool make_copy(int fd, int from, const wav_lengths *w)
{
    off_t left = w->file;
    ssize_t n = 1;

    for (; left > 0 && n > 0; left -= n > 0 ? n : 0)
        n = sendfile(fd, from, NULL, (size_t)left);
    return left == 0 && write_length(fd, 4, w->file - 8) &&
           write_length(fd, w->sound_at - 4, w->file - w->sound_at) && lseek(fd, 0, SEEK_SET) == 0;
}

/* libsndfile takes a length of 0 for no sound, so it reads a copy. */
static SNDFILE *open_copy(const char *path, const wav_lengths *w, SF_INFO *info)
{
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    const int fd = memfd_create("wav", MFD_CLOEXEC);
    const bool is_made = from >= 0 && fd >= 0 && make_copy(fd, from, w);

    if (from >= 0)
        (void)close(from);
    if (fd >= 0 && !is_made)
        (void)close(fd);
    return is_made ? sf_open_fd(fd, SFM_READ, info, SF_TRUE) : NULL; // closes fd, also on failure
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
    wav_lengths lengths = {0};
    ls_status st;

    *out = NULL;
    st = check_length(path, &lengths, error);
    if (st != LS_OK)
        return st;
    if (lengths.sound_at > 0 && lengths.file > COPY_BYTES_MOST)
        return speech_fail(error, LS_EFORMAT, "%s: more than %d s of sound; divide it", path,
                           WAV_MAX_SECONDS);
    memset(info, 0, sizeof(*info));
    *out = lengths.sound_at > 0 ? open_copy(path, &lengths, info) : sf_open(path, SFM_READ, info);
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
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(samples[i]))
            return speech_fail(error, LS_EFORMAT, "%s: sample %zu is not a finite number", path, i);
        if (fabsf(samples[i]) > 1)
            return speech_fail(error, LS_EFORMAT,
                               "%s: sample %zu is %g, beyond full scale; write the file again with "
                               "samples of -1 to 1",
                               path, i, (double)samples[i]);
    }
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
