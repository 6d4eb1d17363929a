/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - reads UTF-8, for models/bpe*.c and models/speech/. Any thread may call it. */
#ifndef MODELS_UTF8_H
#define MODELS_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s[0..n), 0 when it is not well-formed (Unicode, table 3-7) or n is 0.
 * *out: the character. */
size_t utf8_decode(const char *s, size_t n, uint32_t *out);

/* The length of the byte order mark that editors put in front of UTF-8, 0 when there is none. */
size_t utf8_bom_bytes(const char *s, size_t n);

#endif
