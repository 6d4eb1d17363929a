/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.c - reads one character of UTF-8, and never past the end of the text. */
#include "models/utf8.h"

#include <string.h>

size_t utf8_decode(const char *s, size_t n, uint32_t *out)
{
    const unsigned char first = n > 0 ? (unsigned char)s[0] : 0xFF;
    const size_t bytes = first < 0x80   ? 1
                         : first < 0xC2 ? 0
                         : first < 0xE0 ? 2
                         : first < 0xF0 ? 3
                                        : 4;
    uint32_t value = bytes == 1 ? first : first & (0x7FU >> bytes);

    if (bytes == 0 || first > 0xF4 || bytes > n)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if (((unsigned char)s[i] & 0xC0) != 0x80)
            return 0;
        value = value << 6 | ((unsigned char)s[i] & 0x3F);
    }
    if ((bytes == 3 && (value < 0x800 || (value >= 0xD800 && value < 0xE000))) ||
        (bytes == 4 && (value < 0x10000 || value > 0x10FFFF)))
        return 0;
    *out = value;
    return bytes;
}

size_t utf8_bom_bytes(const char *s, size_t n)
{
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}
