/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - strings, numbers and printable text. No result depends on the locale of the program.
 * Used by every module.
 */
#include "base/text.h"

#include "base/alloc.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define QUOTED_BYTES 64 /* the part of an invalid value that an error text shows */

/* Reserves `extra` more bytes and the terminator. */
static bool reserve(text_buf *t, size_t extra)
{
    size_t capacity = t->capacity < 64 ? 64 : t->capacity;
    char *data;

    if (t->failed)
        return false;
    if (t->capacity - t->length > extra)
        return true;
    while (capacity - t->length <= extra && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    data = capacity - t->length > extra ? ls_realloc(t->data, capacity, 1) : NULL;
    if (data == NULL) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->capacity = capacity;
    return true;
}

void text_append_bytes(text_buf *t, const char *bytes, size_t n)
{
    if (!reserve(t, n))
        return;
    if (n > 0)
        memcpy(t->data + t->length, bytes, n);
    t->length += n;
    t->data[t->length] = '\0';
}

void text_append(text_buf *t, const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        t->failed = true;
        return;
    }
    if (!reserve(t, (size_t)length))
        return;
    va_start(args, format);
    (void)vsnprintf(t->data + t->length, (size_t)length + 1, format, args);
    va_end(args);
    t->length += (size_t)length;
}

const char *text_str(const text_buf *t)
{
    return t->data == NULL ? "" : t->data;
}

ls_status text_status(const text_buf *t)
{
    if (t->failed)
        return ls_fail(LS_ENOMEM, "no memory for a text of more than %zu bytes", t->length);
    return LS_OK;
}

void text_free(text_buf *t)
{
    ls_free(t->data);
    *t = (text_buf){0};
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads the digits at s; *end points behind them. False when there are none or they exceed
 * `max`. */
static bool read_digits(const char *s, uint64_t max, const char **end, uint64_t *out)
{
    uint64_t value = 0;

    if (!is_digit(*s))
        return false;
    for (; is_digit(*s); s++) {
        const uint64_t digit = (uint64_t)(*s - '0');

        if (digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *end = s;
    *out = value;
    return true;
}

ls_status text_parse_int(const char *s, const char *what, int64_t min, int64_t max, int64_t *out)
{
    const bool is_negative = *s == '-';
    const uint64_t limit = is_negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    const char *end = s;
    char shown[QUOTED_BYTES];
    uint64_t magnitude;
    int64_t value;

    if (read_digits(*s == '-' || *s == '+' ? s + 1 : s, limit, &end, &magnitude) && *end == '\0') {
        value = is_negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
        if (value >= min && value <= max) {
            *out = value;
            return LS_OK;
        }
    }
    text_printable(shown, sizeof(shown), s);
    return ls_fail(LS_EINVAL, "%s: \"%s\" is not a whole number from %" PRId64 " to %" PRId64, what,
                   shown, min, max);
}

/* strtod() in the C locale, for the whole of s and nothing else. */
static bool read_double(const char *s, double *out)
{
    const char *digits = *s == '-' || *s == '+' ? s + 1 : s;
    const bool is_named = strcasecmp(digits, "inf") == 0 || strcasecmp(digits, "infinity") == 0;
    const int saved = errno;
    locale_t c_locale;
    char *end;

    // No leading space, hexadecimal or NaN.
    if (!is_named && (!(is_digit(*digits) || *digits == '.') || strpbrk(digits, "xX") != NULL))
        return false;
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); // static in the C library: cannot fail
    *out = strtod_l(s, &end, c_locale);
    freelocale(c_locale);
    errno = saved;
    return end != s && *end == '\0' && (is_named || isfinite(*out));
}

ls_status text_parse_double(const char *s, const char *what, double min, double max, double *out)
{
    char shown[QUOTED_BYTES];
    double value;

    if (read_double(s, &value) && value >= min && value <= max) {
        *out = value;
        return LS_OK;
    }
    text_printable(shown, sizeof(shown), s);
    return ls_fail(LS_EINVAL, "%s: \"%s\" is not a number from %g to %g", what, shown, min, max);
}

/* The binary multiple of a size suffix: 0 for an unknown one. */
static unsigned suffix_bits(const char *suffix, bool *is_known)
{
    static const char letters[] = "KMGT";
    const char *found;

    *is_known = true;
    if (suffix[0] == '\0')
        return 0;
    found = suffix[0] == ' ' ? NULL : strchr(letters, suffix[0] & ~0x20); // either case
    *is_known = found != NULL && suffix[1] == '\0';
    return *is_known ? 10 * (unsigned)(found - letters + 1) : 0;
}

ls_status text_parse_bytes(const char *s, const char *what, uint64_t max, uint64_t *out)
{
    const char *end = s;
    char shown[QUOTED_BYTES];
    char most[32];
    uint64_t value;
    unsigned bits;
    bool is_known;

    if (read_digits(s, UINT64_MAX, &end, &value)) {
        bits = suffix_bits(end, &is_known);
        if (is_known && value <= max >> bits) {
            *out = value << bits;
            return LS_OK;
        }
    }
    text_printable(shown, sizeof(shown), s);
    return ls_fail(LS_EINVAL, "%s: \"%s\" is not a size like 8, 64K, 32M or 1G of at most %s", what,
                   shown, text_bytes(most, sizeof(most), max));
}

ls_status text_parse_bool(const char *s, const char *what, bool *out)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    char shown[QUOTED_BYTES];

    for (size_t i = 0; i < LS_COUNT_OF(words); i++) {
        if (strcasecmp(s, words[i]) == 0) {
            *out = i % 2 == 1;
            return LS_OK;
        }
    }
    text_printable(shown, sizeof(shown), s);
    return ls_fail(LS_EINVAL, "%s: \"%s\" is not one of 1, 0, true, false, yes, no, on, off", what,
                   shown);
}

const char *text_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

const char *text_bytes(char *buf, size_t n, uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint64_t whole = bytes;
    uint64_t tenths = 0;
    size_t i = 0;

    if (bytes < 1024)
        return text_format(buf, n, "%" PRIu64 " B", bytes);
    for (;; i++) {
        const uint64_t unit = (uint64_t)1 << (10 * (i + 1));

        whole = bytes / unit;
        tenths = ((bytes % unit) * 10 + unit / 2) / unit;
        if (tenths == 10) {
            whole++;
            tenths = 0;
        }
        if (whole < 1024 || i + 1 == LS_COUNT_OF(units))
            break;
    }
    if (tenths == 0)
        return text_format(buf, n, "%" PRIu64 " %s", whole, units[i]);
    return text_format(buf, n, "%" PRIu64 ".%u %s", whole, (unsigned)tenths, units[i]);
}

size_t text_decode_utf8(const char *s, size_t n, uint32_t *out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t first = (uint8_t)s[0];
    const size_t bytes = first < 0x80   ? 1
                         : first < 0xc0 ? 0
                         : first < 0xe0 ? 2
                         : first < 0xf0 ? 3
                                        : 4;
    uint32_t c = bytes == 1 ? first : first & (0x7fU >> bytes);

    if (bytes == 0 || bytes > n || first > 0xf4)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if (((uint8_t)s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | ((uint8_t)s[i] & 0x3f);
    }
    if (c < least[bytes] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *out = c;
    return bytes;
}

size_t text_bom_bytes(const char *s, size_t n)
{
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

size_t text_char_bytes(const char *s, size_t n)
{
    uint32_t c = 0;
    const size_t bytes = n == 0 ? 0 : text_decode_utf8(s, n, &c);
    const bool is_control = c < ' ' || (c >= 0x7f && c <= 0x9f);
    const bool turns =
        (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f;

    return is_control || turns ? 0 : bytes;
}

void text_printable(char *dst, size_t n, const char *src)
{
    size_t at = 0;

    if (n == 0)
        return;
    while (*src != '\0') {
        const size_t bytes = text_char_bytes(src, strnlen(src, 4));
        const size_t taken = bytes == 0 ? 1 : bytes;

        if (taken > n - 1 - at)
            break;
        if (bytes == 0)
            dst[at] = '?';
        else
            memmove(dst + at, src, bytes);
        at += taken;
        src += taken;
    }
    dst[at] = '\0';
}

const char *text_format(char *dst, size_t n, const char *format, ...)
{
    va_list args;
    int length;

    if (n == 0)
        return "";
    va_start(args, format);
    length = vsnprintf(dst, n, format, args);
    va_end(args);
    if (length < 0)
        dst[0] = '\0';
    return dst;
}

bool text_equal(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Whether c is in the set of characters from `p` to `end`, as a-cx; ! before it: it is not. */
static bool is_in_set(const char *p, const char *end, char c)
{
    const bool negated = *p == '!' && ++p < end;
    bool found = false;

    for (; p < end; p++) {
        if (p + 2 < end && p[1] == '-') {
            found = found || (c >= p[0] && c <= p[2]);
            p += 2;
        } else {
            found = found || c == *p;
        }
    }
    return found != negated;
}

/* Whether c matches the character or set at *pattern; then moves *pattern behind it. */
static bool match_one(const char **pattern, char c)
{
    const char *p = *pattern;
    const char *end = *p == '[' && p[1] != 0 ? strchr(p + 2, ']') : NULL;
    const bool matches = end != NULL ? is_in_set(p + 1, end, c) : *p == c || *p == '?';

    if (matches)
        *pattern = end != NULL ? end + 1 : p + 1;
    return matches;
}

/* After a difference, the last * takes one more character; earlier ones need not. */
bool text_matches(const char *s, const char *pattern)
{
    const char *after_star = NULL;
    const char *begin = NULL;

    while (*s != 0) {
        if (*pattern == '*') {
            after_star = ++pattern;
            begin = s;
        } else if (match_one(&pattern, *s)) {
            s++;
        } else if (after_star != NULL) {
            pattern = after_star;
            s = ++begin;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

bool text_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool text_next_item(const char **at, char *buf, size_t n)
{
    static const char blanks[] = " \t";
    const char *item = *at + strspn(*at, blanks);
    size_t length = strcspn(item, ",");

    if (**at == '\0')
        return false;
    *at = item + length + (item[length] == ',');
    while (length > 0 && strchr(blanks, item[length - 1]) != NULL)
        length--;
    (void)text_format(buf, n, "%.*s", (int)(length < n ? length : n - 1), item);
    return true;
}

/* One row of Levenshtein's table at a time. */
int text_edit_distance(const char *a, const char *b)
{
    int row[64];
    const int n = (int)strlen(b);

    if (n >= (int)LS_COUNT_OF(row))
        return INT_MAX;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i] != 0; i++) {
        int diagonal = row[0];

        row[0] = i + 1;
        for (int j = 1; j <= n; j++) {
            const int replaced = diagonal + (a[i] != b[j - 1]);
            const int shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];

            diagonal = row[j];
            row[j] = replaced <= shorter ? replaced : shorter + 1;
        }
    }
    return row[n];
}
