/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - English text as the symbol ids of Tacotron2. Symbols, their order and the rules of
 * cleaning are those of NVIDIA's DeepLearningExamples (Tacotron2, cleaner `english_cleaners`), so
 * that weights trained there read the same ids. All functions are pure: any thread may call them.
 */
#ifndef MODELS_SPEECH_TEXT_H
#define MODELS_SPEECH_TEXT_H

#include "models/speech/error.h"

#include <stdbool.h>

enum {
    /* Padding '_', '-', ten signs "!'(),.:;? ", A-Z, a-z, and 84 ARPAbet symbols, which rows of an
     * embedding belong to but no text here produces. */
    TEXT_SYMBOLS = 148,
    TEXT_PADDING = 0,
    TEXT_MAX_BYTES = 4096, /* of a text */
    TEXT_MAX_IDS = 8192,   /* of a text, whose numbers are words */
};

/* Characters of a cleaned text that are no symbol. They are left out of the ids. */
typedef struct text_unknown {
    size_t n;
    char names[64]; /* the first different ones, "\" & U+4E2D" */
} text_unknown;

/* Whether all of `text` is well-formed UTF-8. */
bool text_is_utf8(const char *text);

/*
 * Cleans `text` into out[n], terminated:
 * - Letters U+00C0-U+017F lose their accents, ligatures become letters; typographic quotes, dashes,
 *   dots and spaces become ASCII; combining accents are removed. Other characters remain.
 * - All letters become lower case.
 * - Numbers become words: 1,234 and 3.14, years (1000 < n < 3000), ordinals (21st), $ and pounds
 *   sterling. Numbers of more than 15 digits are read digit by digit.
 * - Abbreviations with a dot become words (mr. dr. st. co. ...).
 * - White space becomes one space.
 * Two differences from NVIDIA: pounds sterling are read, and {ARPAbet} is refused.
 * LS_EFORMAT: empty, not UTF-8, with braces, or longer than TEXT_MAX_BYTES or n.
 */
LS_MUST_USE ls_status text_clean(const char *text, char *out, size_t n, speech_error *error);

/*
 * The ids of text_clean(text), at most `max`; *n is their number. `unknown` may be NULL.
 * LS_EFORMAT: as text_clean(), or no character is a symbol, or there are more than `max`.
 */
LS_MUST_USE ls_status text_to_ids(const char *text, int64_t *ids, size_t max, size_t *n,
                                  text_unknown *unknown, speech_error *error);

#endif
