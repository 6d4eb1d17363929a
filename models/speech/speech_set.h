/* SPDX-License-Identifier: Apache-2.0 */
/*
 * speech_set.h - part of an LJSpeech folder as a data set of texts and mels for Tacotron2
 * (models/tacotron2.h). A sample's fields, S ids of text and T steps of `frames` mel frames each:
 *
 *     text          int64 (S)                       padding 0
 *     mel           float32 (T, frames * 80)        padding 0, as NVIDIA's
 *     gate          float32 (T,1): 1 in the last step, else 0; padding 1
 *     mel_padding   uint8 (T,1): 0; padding 1
 *     text_padding  uint8 (1,S): 0; padding 1
 *
 * Silence fills the last step. Wavs are read, and mels computed, when a sample is read.
 */
#ifndef MODELS_SPEECH_SET_H
#define MODELS_SPEECH_SET_H

#include <lockstep/data.h>

#include <stddef.h>

typedef struct speech_set_options {
    const char *dir;
    size_t first, count; /* lines of metadata.csv, from 0 */
    int frames;          /* of a step */
} speech_set_options;

/* The number of lines of DIR/metadata.csv, all of which and all wavs are checked. Fails as
 * ljspeech_open(), with ls_last_error(). */
LS_MUST_USE ls_status speech_set_count(const char *dir, size_t *n);

/* Opens the folder and converts all its texts. LS_EINVAL: lines that the folder does not have.
 * LS_EFORMAT names the line of a text without a symbol, or of a wav that is too short for a frame.
 * Characters that are no symbol are left out; the log names them. */
LS_MUST_USE ls_status speech_set_open(const speech_set_options *opt, ls_dataset **out);

#endif
