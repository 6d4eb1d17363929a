/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - growing strings, checked number parsing and formatting for messages. */
#ifndef LS_BASE_TEXT_H
#define LS_BASE_TEXT_H

#include "base/status.h"

#include <stdbool.h>

/* A growing, always terminated string. Zero-initialise. A failure to grow is remembered for
 * text_status(), so that a chain of appends is checked once. */
typedef struct text_buf {
    /* NULL stands for "" until the first append: read it through text_str(). */
    char *data;
    size_t length;
    size_t capacity;
    bool failed;
} text_buf;

void text_append(text_buf *t, const char *format, ...) LS_PRINTF(2, 3);
void text_append_bytes(text_buf *t, const char *bytes, size_t n);
const char *text_str(const text_buf *t); /* never NULL */
LS_MUST_USE ls_status text_status(const text_buf *t);
void text_free(text_buf *t); /* leaves an empty, usable buffer */

/* Whole-string decimal numbers within [min, max]; `what` names the value in the error text
 * ("--epochs", "LOCKSTEP_RANK"). Accepts digits, one sign and (double) the usual float forms
 * only. */
LS_MUST_USE ls_status text_parse_int(const char *s, const char *what, int64_t min, int64_t max,
                                     int64_t *out);
LS_MUST_USE ls_status text_parse_double(const char *s, const char *what, double min, double max,
                                        double *out);
/* "8", "64K", "32M", "1G": binary multiples, as nccl-tests. */
LS_MUST_USE ls_status text_parse_bytes(const char *s, const char *what, uint64_t max,
                                       uint64_t *out);
/* 1/0, true/false, yes/no, on/off. */
LS_MUST_USE ls_status text_parse_bool(const char *s, const char *what, bool *out);

/* Copies the next item of a comma-separated list to `buf`, without blanks around it, and moves *at
 * behind its comma. An item that does not fit is cut. false at the end of the list. */
bool text_next_item(const char **at, char *buf, size_t n);

/* The plural ending for a number: "" for 1, otherwise "s". */
const char *text_plural(int64_t n);

/* "1.5 MiB", into `buf`, which it returns. */
const char *text_bytes(char *buf, size_t n, uint64_t bytes);

/* Decodes the UTF-8 character at s, of at most n > 0 bytes; its bytes, 0 = not well-formed. */
size_t text_decode_utf8(const char *s, size_t n, uint32_t *out);

/* The length of the byte order mark that editors put in front of UTF-8, 0 when there is none. */
size_t text_bom_bytes(const char *s, size_t n);

/* The bytes of the printable character at s, 0 when there is none. Printable are ASCII and
 * well-formed UTF-8, without the characters that control a terminal or change the direction of a
 * line. */
size_t text_char_bytes(const char *s, size_t n);

/* Copies printable text and replaces all other bytes by '?': for names and lines from outside. dst
 * may be src. */
void text_printable(char *dst, size_t n, const char *src);

/* snprintf that always terminates and never fails; returns dst. */
const char *text_format(char *dst, size_t n, const char *format, ...) LS_PRINTF(3, 4);

/* Edits (insert, delete, replace) from `a` to `b`; INT_MAX when `b` has 64 bytes or more. */
int text_edit_distance(const char *a, const char *b);

bool text_equal(const char *a, const char *b);
/* Whether `s` matches a pattern as of file names: *, ?, [a-cx], [!a-c]. */
bool text_matches(const char *s, const char *pattern);
bool text_starts(const char *s, const char *prefix);

#endif
