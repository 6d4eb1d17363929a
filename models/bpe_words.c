/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe_words.c - divides text into the words of GPT-2's tokenizer, for bpe_encode(). They are the
 * matches of its regular expression
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * Bytes that are not UTF-8 count as signs, one by one.
 */
#include "models/bpe_internal.h"
#include "models/utf8.h"

#include <string.h>

typedef enum char_class { SIGN, LETTER, NUMBER, SPACE, END } char_class;

static const struct {
    uint32_t first, last;
    char_class kind;
} ranges[] = {
#include "models/bpe_classes.inc"
};

static char_class class_beyond_ascii(uint32_t c)
{
    size_t low = 0;
    size_t high = sizeof(ranges) / sizeof(ranges[0]);

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (c < ranges[middle].first)
            high = middle;
        else if (c > ranges[middle].last)
            low = middle + 1;
        else
            return ranges[middle].kind;
    }
    return SIGN;
}

static char_class class_of_ascii(uint32_t c)
{
    const uint32_t lower = c | 0x20;

    if (lower >= 'a' && lower <= 'z')
        return LETTER;
    if (c >= '0' && c <= '9')
        return NUMBER;
    return c == ' ' || (c >= '\t' && c <= '\r') ? SPACE : SIGN;
}

/* The class of the character at text[at], END behind the text. *next: its end. */
static char_class class_at(const char *text, size_t n, size_t at, size_t *next)
{
    uint32_t c = 0;
    const size_t bytes = utf8_decode(text + at, n - at, &c);

    *next = at;
    if (at == n)
        return END;
    *next = at + (bytes > 0 ? bytes : 1);
    if (bytes == 0)
        return SIGN;
    return c < 0x80 ? class_of_ascii(c) : class_beyond_ascii(c);
}

/* The end of the 's, 't, 're, 've, 'm, 'll or 'd at text[at]; `at` when there is none. */
static size_t end_of_suffix(const char *text, size_t n, size_t at)
{
    static const char *const suffixes[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        const size_t bytes = strlen(suffixes[i]);

        if (n - at >= bytes && memcmp(text + at, suffixes[i], bytes) == 0)
            return at + bytes;
    }
    return at;
}

/* The end of the characters of this class from `at` on. *last: where the last of them begins. */
static size_t end_of_run(const char *text, size_t n, size_t at, char_class kind, size_t *last)
{
    size_t next;

    while (class_at(text, n, at, &next) == kind) {
        *last = at;
        at = next;
    }
    return at;
}

size_t bpe_word_end(const char *text, size_t n, size_t at)
{
    const size_t suffix = end_of_suffix(text, n, at);
    size_t last = at;
    size_t next;
    size_t end;
    char_class kind;

    if (suffix > at)
        return suffix;
    kind = class_at(text, n, text[at] == ' ' ? at + 1 : at, &next);
    if (kind != SPACE && kind != END)
        return end_of_run(text, n, next, kind, &last);
    /* White space: its last character belongs to the next word, or is a word of its own. */
    end = end_of_run(text, n, at, SPACE, &last);
    return end == n || last == at ? end : last;
}
