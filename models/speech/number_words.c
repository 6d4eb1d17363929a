/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number_words.c - cardinals, ordinals and years in English words for text.c. A number is read in
 * groups of three digits from the highest one; the rules of "and" and commas are those of Python's
 * inflect, which NVIDIA's cleaner uses.
 */
#include "models/speech/number_words.h"

#include <stdio.h>
#include <string.h>

static const char *const units[] = {"zero",    "one",     "two",       "three",    "four",
                                    "five",    "six",     "seven",     "eight",    "nine",
                                    "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
static const char *const tens[] = {"",      "",      "twenty",  "thirty", "forty",
                                   "fifty", "sixty", "seventy", "eighty", "ninety"};
static const char *const scales[] = {"", " thousand", " million", " billion", " trillion"};

enum { N_SCALES = sizeof(scales) / sizeof(scales[0]) };

void text_out_add(text_out *out, const char *bytes, size_t n)
{
    if (n >= out->capacity - out->n) {
        out->is_full = true;
        return;
    }
    memcpy(out->data + out->n, bytes, n);
    out->n += n;
    out->data[out->n] = 0;
}

void text_out_string(text_out *out, const char *text)
{
    text_out_add(out, text, strlen(text));
}

static void add_below_100(text_out *out, int value)
{
    if (value < 20) {
        text_out_string(out, units[value]);
        return;
    }
    text_out_string(out, tens[value / 10]);
    if (value % 10 == 0)
        return;
    text_out_string(out, "-");
    text_out_string(out, units[value % 10]);
}

static void add_below_1000(text_out *out, int value, const char *and_word)
{
    if (value >= 100) {
        text_out_string(out, units[value / 100]);
        text_out_string(out, " hundred");
        if (value % 100 != 0)
            text_out_string(out, and_word);
    }
    if (value < 100 || value % 100 != 0)
        add_below_100(out, value % 100);
}

/* and_word: " " or " and ", before the part of a number that is below 100. */
static void add_words(text_out *out, int64_t value, const char *and_word)
{
    int groups[N_SCALES];
    bool is_first = true;

    for (int i = 0; i < N_SCALES; i++, value /= 1000)
        groups[i] = (int)(value % 1000);
    for (int i = N_SCALES - 1; i >= 0; i--) {
        if (groups[i] == 0 && !(i == 0 && is_first))
            continue;
        if (!is_first)
            text_out_string(out, i == 0 && groups[0] < 100 ? and_word : ", ");
        add_below_1000(out, groups[i], and_word);
        text_out_string(out, scales[i]);
        is_first = false;
    }
}

void number_cardinal(text_out *out, int64_t value)
{
    add_words(out, value, " ");
}

/* Replaces the last word ("twenty-one", "thirty") by its ordinal. */
static void make_ordinal(char *words, text_out *out)
{
    static const char *const irregular[][2] = {
        {"one", "first"},    {"two", "second"}, {"three", "third"},   {"five", "fifth"},
        {"eight", "eighth"}, {"nine", "ninth"}, {"twelve", "twelfth"}};
    char *last = words;
    size_t n;

    for (char *p = words; *p != 0; p++)
        if (*p == ' ' || *p == '-')
            last = p + 1;
    for (size_t i = 0; i < sizeof(irregular) / sizeof(irregular[0]); i++) {
        if (strcmp(last, irregular[i][0]) != 0)
            continue;
        text_out_add(out, words, (size_t)(last - words));
        text_out_string(out, irregular[i][1]);
        return;
    }
    n = strlen(words);
    if (words[n - 1] == 'y') {
        text_out_add(out, words, n - 1);
        text_out_string(out, "ieth");
        return;
    }
    text_out_add(out, words, n);
    text_out_string(out, "th");
}

void number_ordinal(text_out *out, int64_t value)
{
    char words[256]; /* the longest number of 15 digits has 193 letters */
    text_out cardinal = {.data = words, .capacity = sizeof(words)};

    add_words(&cardinal, value, " and ");
    make_ordinal(words, out);
}

void number_cardinal_or_year(text_out *out, int64_t value)
{
    const int low = (int)(value % 100);

    if (value <= 1000 || value >= 3000 || (value >= 2000 && value < 2010)) {
        number_cardinal(out, value);
        return;
    }
    add_below_100(out, (int)(value / 100));
    if (low == 0)
        text_out_string(out, " hundred");
    else if (low < 10)
        text_out_string(out, " oh ");
    else
        text_out_string(out, " ");
    if (low != 0)
        add_below_100(out, low);
}
