/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number_words.h - English words of numbers, as Python's inflect writes them; text.c calls it. The
 * functions are pure. They append to a text_out, which remembers that it was too small.
 */
#ifndef MODELS_SPEECH_NUMBER_WORDS_H
#define MODELS_SPEECH_NUMBER_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text in memory of the caller; the last byte is reserved for the terminating zero. */
typedef struct text_out {
    char *data;
    size_t n;
    size_t capacity;
    bool is_full; /* something did not fit */
} text_out;

void text_out_add(text_out *out, const char *bytes, size_t n);
void text_out_string(text_out *out, const char *text);

enum { NUMBER_MAX_DIGITS = 15 };

/* 1234: "one thousand, two hundred thirty-four"; `value` has at most NUMBER_MAX_DIGITS. */
void number_cardinal(text_out *out, int64_t value);
/* 101: "one hundred and first". */
void number_ordinal(text_out *out, int64_t value);
/* As number_cardinal(), but numbers between 1000 and 3000 as years: 1905 is "nineteen oh five". */
void number_cardinal_or_year(text_out *out, int64_t value);

#endif
