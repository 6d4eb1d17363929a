/* SPDX-License-Identifier: Apache-2.0 */
/* data_speak.h - makes a speech data set with espeak-ng, for lockstep data speak. */
#ifndef LS_CLI_DATA_DATA_SPEAK_H
#define LS_CLI_DATA_DATA_SPEAK_H

#include "base/status.h"

typedef struct speak_options {
    const char *dir;
    const char *voice; /* of espeak-ng */
    int64_t count;
    int64_t seed; /* decides the sentences */
    int is_short; /* 1: phrases of two or three words */
} speak_options;

/*
 * Makes DIR/wavs/speak-NNNNN.wav and then DIR/metadata.csv, in LJSpeech's layout. Blocks while
 * espeak-ng speaks; the process must have one thread. LS_EINVAL: metadata.csv exists. LS_ENOTFOUND:
 * espeak-ng is not installed. LS_EIO: it failed, or a file cannot be written.
 */
LS_MUST_USE ls_status data_speak(const speak_options *options);

#endif
