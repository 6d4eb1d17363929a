/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - cleans English text and maps it to symbol ids, for programs that train or run Tacotron2.
 * Cleaning has three passes (characters, numbers, abbreviations with white space), each from one
 * bounded buffer to another; characters that are no symbol pass through all of them, so that
 * text_to_ids() can name them.
 */
#include "models/speech/text.h"

#include "models/speech/number_words.h"
#include "models/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_';
}

/* --- UTF-8 --- */

/* Bytes of the character at s, which ends with a 0; 0 when it is not well-formed. */
static size_t decode(const char *s, uint32_t *out)
{
    return utf8_decode(s, strnlen(s, 4), out);
}

bool text_is_utf8(const char *text)
{
    uint32_t c;

    while (*text != 0) {
        const size_t n = decode(text, &c);

        if (n == 0)
            return false;
        text += n;
    }
    return true;
}

/* --- pass 1: ASCII, lower case --- */

/* Letters without accents of U+00C0 to U+017F; '?' where the list below or nothing applies. */
static const char latin[] = "aaaaaa?ceeeeiiiidnooooo?ouuuuy??"
                            "aaaaaa?ceeeeiiiidnooooo?ouuuuy?y"
                            "aaaaaaccccccccddddeeeeeeeeeegggg"
                            "gggghhhhiiiiiiiiii??jjkkklllllll"
                            "lllnnnnnn???oooooo??rrrrrrssssss"
                            "ssttttttuuuuuuuuuuuuwwyyyzzzzzzs";

static const struct {
    uint32_t from, to;
    const char *text;
} replacements[] = {
    {0x00A0, 0x00A0, " "},  {0x00A1, 0x00A1, "!"},  {0x00B4, 0x00B4, "'"},  {0x00BF, 0x00BF, "?"},
    {0x00C6, 0x00C6, "ae"}, {0x00DE, 0x00DE, "th"}, {0x00DF, 0x00DF, "ss"}, {0x00E6, 0x00E6, "ae"},
    {0x00FE, 0x00FE, "th"}, {0x0132, 0x0133, "ij"}, {0x0149, 0x0149, "'n"}, {0x014A, 0x014B, "ng"},
    {0x0152, 0x0153, "oe"}, {0x02BC, 0x02BC, "'"},  {0x0300, 0x036F, ""},   {0x2000, 0x200A, " "},
    {0x200B, 0x200D, ""},   {0x2010, 0x2013, "-"},  {0x2014, 0x2015, "--"}, {0x2018, 0x2019, "'"},
    {0x201A, 0x201A, ","},  {0x201B, 0x201B, "'"},  {0x201C, 0x201F, "\""}, {0x2026, 0x2026, "..."},
    {0x2028, 0x2029, " "},  {0x202F, 0x202F, " "},  {0x2212, 0x2212, "-"},  {0x3000, 0x3000, " "},
    {0xFEFF, 0xFEFF, ""},
};

/* The ASCII text of a character beyond ASCII; NULL when it has none. */
static const char *find_replacement(uint32_t c)
{
    for (size_t i = 0; i < COUNT_OF(replacements); i++)
        if (c >= replacements[i].from && c <= replacements[i].to)
            return replacements[i].text;
    return NULL;
}

static void add_char(text_out *out, const char *s, size_t n, uint32_t c)
{
    const char *ascii = n > 1 ? find_replacement(c) : NULL;
    char one = (char)c;

    if (n == 1 && c >= 'A' && c <= 'Z')
        one = (char)(c - 'A' + 'a');
    if (ascii != NULL)
        text_out_string(out, ascii);
    else if (c >= 0xC0 && c < 0xC0 + sizeof(latin) - 1 && latin[c - 0xC0] != '?')
        text_out_add(out, &latin[c - 0xC0], 1);
    else
        text_out_add(out, n == 1 ? &one : s, n);
}

static ls_status to_lower_ascii(const char *text, text_out *out, speech_error *error)
{
    const char *at = text;

    while (*at != 0) {
        uint32_t c = 0;
        const size_t n = decode(at, &c);

        if (n == 0)
            return speech_fail(error, LS_EFORMAT,
                               "the text is not UTF-8: byte 0x%02x at offset %zu; convert it with "
                               "iconv -t UTF-8",
                               (unsigned char)*at, (size_t)(at - text));
        if (c == '{' || c == '}')
            return speech_fail(error, LS_EFORMAT,
                               "%c at offset %zu: ARPAbet in braces is not supported; write words",
                               (char)c, (size_t)(at - text));
        add_char(out, at, n, c);
        at += n;
    }
    return LS_OK;
}

/* --- pass 2: numbers --- */

static const char pound[] = "\xC2\xA3";

/* The end of the digits and commas at s which begins and ends with a digit. */
static const char *end_of_integer(const char *s)
{
    const char *end = s;

    for (const char *p = s; is_digit(*p) || *p == ','; p++)
        if (is_digit(*p))
            end = p + 1;
    return end;
}

/* The value of the digits in [s, end); -1 for more than NUMBER_MAX_DIGITS without leading zeros. */
static int64_t value_of(const char *s, const char *end)
{
    int64_t value = 0;
    int n = 0;

    for (; s < end; s++) {
        if (!is_digit(*s))
            continue;
        value = n < NUMBER_MAX_DIGITS ? value * 10 + (*s - '0') : value;
        n += value > 0;
    }
    return n > NUMBER_MAX_DIGITS ? -1 : value;
}

static void add_digits(text_out *out, const char *s, const char *end)
{
    bool is_first = true;

    for (; s < end; s++) {
        if (!is_digit(*s))
            continue;
        if (!is_first)
            text_out_string(out, " ");
        number_cardinal(out, *s - '0');
        is_first = false;
    }
}

static void add_integer(text_out *out, const char *s, const char *end)
{
    const int64_t value = value_of(s, end);

    if (value < 0)
        add_digits(out, s, end);
    else
        number_cardinal_or_year(out, value);
}

static bool has_ordinal_suffix(const char *s)
{
    return strncmp(s, "st", 2) == 0 || strncmp(s, "nd", 2) == 0 || strncmp(s, "rd", 2) == 0 ||
           strncmp(s, "th", 2) == 0;
}

/* An integer, a decimal number or an ordinal at s; returns its end. */
static const char *add_number(text_out *out, const char *s)
{
    const char *end = end_of_integer(s);
    const int64_t value = value_of(s, end);

    if (has_ordinal_suffix(end) && value >= 0) {
        number_ordinal(out, value);
        return end + 2;
    }
    add_integer(out, s, end);
    if (end[0] != '.' || !is_digit(end[1]))
        return end;
    text_out_string(out, " point ");
    s = end + 1;
    end = end_of_integer(s);
    if (has_ordinal_suffix(end) && value_of(s, end) >= 0) {
        number_ordinal(out, value_of(s, end));
        return end + 2;
    }
    add_integer(out, s, end);
    return end;
}

/* "3 dollars", "1 cent". */
static void add_units(text_out *out, const char *s, const char *end, const char *unit)
{
    add_integer(out, s, end);
    text_out_string(out, unit);
    if (value_of(s, end) != 1)
        text_out_string(out, "s");
}

/* The amount at s, behind "$"; returns its end, or s when there is none. */
static const char *add_dollars(text_out *out, const char *s)
{
    const char *point = end_of_integer(s);
    const char *cents = point[0] == '.' && is_digit(point[1]) ? point + 1 : point;
    const char *end = cents > point ? end_of_integer(cents) : point;

    if (end == s)
        return s;
    if (end[0] == '.' && is_digit(end[1])) { /* 1.2.3: no amount */
        end = add_number(out, s);
        text_out_string(out, " dollars");
        return end;
    }
    if (value_of(s, point) != 0)
        add_units(out, s, point, " dollar");
    if (value_of(s, point) != 0 && value_of(cents, end) != 0)
        text_out_string(out, ", ");
    if (value_of(cents, end) != 0)
        add_units(out, cents, end, " cent");
    if (value_of(s, point) == 0 && value_of(cents, end) == 0)
        text_out_string(out, "zero dollars");
    return end;
}

static void expand_numbers(const char *text, text_out *out)
{
    const size_t pound_bytes = sizeof(pound) - 1;

    while (*text != 0) {
        const char *next = text;

        if (is_digit(*text)) {
            next = add_number(out, text);
        } else if (*text == '$') {
            next = add_dollars(out, text + 1);
            next = next == text + 1 ? text : next;
        } else if (strncmp(text, pound, pound_bytes) == 0 && is_digit(text[pound_bytes])) {
            next = end_of_integer(text + pound_bytes);
            add_integer(out, text + pound_bytes, next);
            text_out_string(out, " pounds");
        }
        if (next == text)
            text_out_add(out, next++, 1);
        text = next;
    }
}

/* --- pass 3: abbreviations, white space --- */

static const char *const abbreviations[][2] = {
    {"mrs", "misess"},   {"mr", "mister"},    {"dr", "doctor"},     {"st", "saint"},
    {"co", "company"},   {"jr", "junior"},    {"maj", "major"},     {"gen", "general"},
    {"drs", "doctors"},  {"rev", "reverend"}, {"lt", "lieutenant"}, {"hon", "honorable"},
    {"sgt", "sergeant"}, {"capt", "captain"}, {"esq", "esquire"},   {"ltd", "limited"},
    {"col", "colonel"},  {"ft", "fort"}};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The word for the abbreviation of n letters at s, which a dot follows; NULL when there is none. */
static const char *find_abbreviation(const char *s, size_t n)
{
    for (size_t i = 0; i < COUNT_OF(abbreviations); i++)
        if (strlen(abbreviations[i][0]) == n && memcmp(abbreviations[i][0], s, n) == 0)
            return abbreviations[i][1];
    return NULL;
}

static void expand_words(const char *text, text_out *out)
{
    while (*text != 0) {
        const char *word = NULL;
        size_t n = 0;

        while (is_word_char(text[n]))
            n++;
        if (n > 0 && text[n] == '.')
            word = find_abbreviation(text, n);
        if (word != NULL) {
            text_out_string(out, word);
            text += n + 1;
        } else if (n > 0) {
            text_out_add(out, text, n);
            text += n;
        } else if (is_space(*text)) {
            text_out_string(out, " ");
            while (is_space(*text))
                text++;
        } else {
            text_out_add(out, text++, 1);
        }
    }
}

/* --- the whole --- */

static ls_status run_passes(const char *text, text_out *first, text_out *second, text_out *last,
                            speech_error *error)
{
    const ls_status st = to_lower_ascii(text, first, error);

    if (st != LS_OK)
        return st;
    expand_numbers(first->data, second);
    expand_words(second->data, last);
    if (first->is_full || second->is_full || last->is_full)
        return speech_fail(error, LS_EFORMAT,
                           "the text is too long once its numbers are words; divide it");
    if (last->data[strspn(last->data, " ")] == 0)
        return speech_fail(error, LS_EFORMAT, "the text is empty");
    return LS_OK;
}

ls_status text_clean(const char *text, char *out, size_t n, speech_error *error)
{
    const size_t half = TEXT_MAX_IDS + 1;
    text_out last = {.data = out, .capacity = n};
    text_out first;
    text_out second;
    ls_status st;

    if (text == NULL || out == NULL || n == 0)
        return speech_fail(error, LS_EINVAL, "text_clean() needs a text and memory for the result");
    if (strlen(text) > TEXT_MAX_BYTES)
        return speech_fail(error, LS_EFORMAT, "the text has %zu bytes, more than %d; divide it",
                           strlen(text), TEXT_MAX_BYTES);
    first = (text_out){.data = calloc(2, half), .capacity = half};
    if (first.data == NULL)
        return speech_fail(error, LS_ENOMEM, "no memory to clean a text");
    second = (text_out){.data = first.data + half, .capacity = half};
    out[0] = 0;
    st = run_passes(text, &first, &second, &last, error);
    free(first.data);
    return st;
}

/* The id of a symbol, -1 when there is none. A text's own '_' is none: its id is the padding. */
static int symbol_id(uint32_t c)
{
    static const char signs[] = "-!'(),.:;? ";
    const char *sign = c > 0 && c < 0x80 ? strchr(signs, (int)c) : NULL;

    if (sign != NULL)
        return 1 + (int)(sign - signs);
    if (c >= 'a' && c <= 'z')
        return (int)(12 + 26 + (c - 'a')); /* the ids from 12 on are A-Z, a-z */
    return -1;
}

/* Adds a character to the names if it is a new one and fits. */
static void add_unknown(text_unknown *unknown, uint32_t c)
{
    const size_t used = strlen(unknown->names);
    char name[16];

    unknown->n++;
    if (c > ' ' && c < 0x7F)
        (void)snprintf(name, sizeof(name), "%c", (char)c);
    else
        (void)snprintf(name, sizeof(name), "U+%04X", (unsigned)c);
    if (strstr(unknown->names, name) != NULL || used + strlen(name) + 2 > sizeof(unknown->names))
        return;
    (void)snprintf(unknown->names + used, sizeof(unknown->names) - used, "%s%s",
                   used > 0 ? " " : "", name);
}

static ls_status encode(const char *clean, int64_t *ids, size_t max, size_t *n,
                        text_unknown *unknown, speech_error *error)
{
    *n = 0;
    while (*clean != 0) {
        uint32_t c = 0;
        const size_t bytes = decode(clean, &c);
        const int id = symbol_id(c);

        if (id < 0)
            add_unknown(unknown, c);
        else if (*n == max)
            return speech_fail(error, LS_EFORMAT, "the text has more than %zu symbols; divide it",
                               max);
        else
            ids[(*n)++] = id;
        clean += bytes;
    }
    if (*n == 0)
        return speech_fail(error, LS_EFORMAT, "no character of the text is a symbol: %s",
                           unknown->names);
    return LS_OK;
}

ls_status text_to_ids(const char *text, int64_t *ids, size_t max, size_t *n, text_unknown *unknown,
                      speech_error *error)
{
    char clean[TEXT_MAX_IDS + 1];
    text_unknown own;
    ls_status st;

    unknown = unknown != NULL ? unknown : &own;
    memset(unknown, 0, sizeof(*unknown));
    if (ids == NULL || n == NULL)
        return speech_fail(error, LS_EINVAL, "text_to_ids() needs memory for the ids");
    st = text_clean(text, clean, sizeof(clean), error);
    return st == LS_OK ? encode(clean, ids, max, n, unknown, error) : st;
}
