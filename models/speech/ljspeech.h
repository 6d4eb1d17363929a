/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ljspeech.h - a data set in the layout of LJSpeech: DIR/metadata.csv with lines
 * ID|TEXT|NORMALISED TEXT, and DIR/wavs/ID.wav. Opening checks every line and every wav header.
 * Once open it does not change, so that any number of threads may read it.
 */
#ifndef MODELS_SPEECH_LJSPEECH_H
#define MODELS_SPEECH_LJSPEECH_H

#include "models/speech/error.h"

enum {
    LJSPEECH_MAX_LINE = 8192, /* bytes */
    LJSPEECH_MAX_ID = 128,    /* bytes */
    LJSPEECH_MAX_SAMPLES = 10000000,
};

typedef struct ljspeech ljspeech;

/*
 * LS_ENOTFOUND: metadata.csv or a wav file is missing. LS_EFORMAT, with file and line: not three
 * fields, an empty or too long one, not UTF-8, an id that is used twice or is no file name, a wav
 * that wav_count() refuses, or no lines; metadata.csv is not a regular file. LS_EIO, LS_ENOMEM.
 */
LS_MUST_USE ls_status ljspeech_open(const char *dir, ljspeech **out, speech_error *error);
void ljspeech_close(ljspeech *set); /* NULL is allowed */

size_t ljspeech_count(const ljspeech *set);

/* All below for index < count; texts are borrowed until ljspeech_close(). */
const char *ljspeech_id(const ljspeech *set, size_t index);
const char *ljspeech_raw_text(const ljspeech *set, size_t index);
const char *ljspeech_text(const ljspeech *set, size_t index); /* normalised: numbers are words */
const char *ljspeech_wav(const ljspeech *set, size_t index);  /* path */
size_t ljspeech_samples(const ljspeech *set, size_t index);

#endif
