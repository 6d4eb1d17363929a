/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h - the error text of a failed call of models/speech. The caller owns it, so calls in
 * different threads do not share it.
 */
#ifndef MODELS_SPEECH_ERROR_H
#define MODELS_SPEECH_ERROR_H

#include <lockstep/base.h>

typedef struct speech_error {
    char text[512]; /* what happened, to which file, what to do; set by a failing call only */
} speech_error;

/* Sets the text, cut if it is too long, and returns `status`. `error` may be NULL. */
ls_status speech_fail(speech_error *error, ls_status status, const char *format, ...)
    LS_PRINTF(3, 4);

#endif
