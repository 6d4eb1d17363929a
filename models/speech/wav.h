/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wav.h - reads and writes wav files of 22050 Hz and one channel by libsndfile. Any thread may call
 * the functions. Errors name the file and the fix.
 */
#ifndef MODELS_SPEECH_WAV_H
#define MODELS_SPEECH_WAV_H

#include "models/speech/error.h"

enum { WAV_RATE = 22050, WAV_MAX_SECONDS = 120 };

/*
 * Reads all samples, in -1..1. The caller frees *samples by free(). LS_ENOTFOUND: no such file.
 * LS_EFORMAT: not a wav file, truncated, empty, longer than WAV_MAX_SECONDS, another rate or number
 * of channels, or a sample that is not finite or beyond -1..1. Sound without a length in the header
 * (it was written to a pipe) ends with the file.
 */
LS_MUST_USE ls_status wav_read(const char *path, float **samples, size_t *n, speech_error *error);

/* The number of samples, from the header; fails as wav_read(), but decodes nothing. */
LS_MUST_USE ls_status wav_count(const char *path, size_t *n, speech_error *error);

/* Writes 16-bit samples; values beyond -1..1 are cut. LS_EIO: the file cannot be written. */
LS_MUST_USE ls_status wav_write(const char *path, const float *samples, size_t n,
                                speech_error *error);

#endif
