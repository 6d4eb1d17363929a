/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_clean.c - removes control sequences from one line, in one pass and in place. Called by
 * output.c for every line on a terminal and for every retained line.
 */
#include "launch/output/output_clean.h"

#include "base/text.h"

#include <string.h>

#define ESCAPE '\x1b'

static bool is_between(char c, unsigned char first, unsigned char last)
{
    return (unsigned char)c >= first && (unsigned char)c <= last;
}

/* Length of "ESC [ parameters letter" at the start, or 0. */
static size_t control_bytes(const char *at, size_t n)
{
    size_t i = 2;

    if (n < 3 || at[0] != ESCAPE || at[1] != '[')
        return 0;
    while (i < n && is_between(at[i], 0x20, 0x3f))
        i++;
    return i < n && is_between(at[i], 0x40, 0x7e) ? i + 1 : 0;
}

/*
 * Length of a string sequence (a window title, device control): it ends at BEL or ESC \, or with
 * the line. 0: there is none.
 */
static size_t string_bytes(const char *at, size_t n)
{
    size_t i = 2;

    if (n < 2 || at[0] != ESCAPE || strchr("]P_^X", at[1]) == NULL || at[1] == 0)
        return 0;
    while (i < n && at[i] != '\a' && at[i] != ESCAPE)
        i++;
    if (i + 1 < n && at[i] == ESCAPE && at[i + 1] == '\\')
        return i + 2;
    return i < n && at[i] == '\a' ? i + 1 : i;
}

/* Length of any sequence that begins with ESC; 1 if it is incomplete. */
static size_t escape_bytes(const char *at, size_t n)
{
    size_t i = control_bytes(at, n);

    if (i == 0)
        i = string_bytes(at, n);
    if (i > 0)
        return i;
    for (i = 1; i < n && is_between(at[i], 0x20, 0x2f); i++)
        continue;
    return i < n && is_between(at[i], 0x30, 0x7e) && at[1] != '[' ? i + 1 : 1;
}

/* A colour, or erasing to the end of this line. */
static bool is_harmless(const char *at, size_t n)
{
    if (control_bytes(at, n) != n)
        return false;
    if (at[n - 1] == 'K')
        return n == 3 || (n == 4 && at[2] == '0');
    for (size_t i = 2; i + 1 < n; i++)
        if (!is_between(at[i], '0', ';'))
            return false;
    return at[n - 1] == 'm';
}

/* The length of line[0, n) without its last UTF-8 character. */
static size_t without_last(const char *line, size_t n)
{
    while (n > 0 && is_between(line[n - 1], 0x80, 0xbf))
        n--;
    return n - (n > 0);
}

size_t output_clean(char *line, size_t n, bool colours)
{
    size_t length = 0;
    size_t floor = 0; /* a backspace removes no character before this */

    for (size_t i = 0, step; i < n; i += step) {
        const char *at = line + i;
        const size_t bytes = text_char_bytes(at, n - i);
        const bool is_escape = *at == ESCAPE;

        step = is_escape ? escape_bytes(at, n - i) : bytes > 0 ? bytes : 1;
        if (bytes > 0 || *at == '\t' || (is_escape && colours && is_harmless(at, step))) {
            memmove(line + length, at, step);
            length += step;
            floor = is_escape ? length : floor;
        } else if (*at == '\b' && length > floor) {
            length = without_last(line, length);
        } else if (is_between(*at, 0x80, 0xff)) {
            line[length++] = '?';
        }
    }
    return length;
}
