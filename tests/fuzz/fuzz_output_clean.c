/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_output_clean.c - the part of a rank's line that reaches a terminal: no control character
 * except tabs, and ESC only before a colour or before the erasing of the rest of the line. Cleaning
 * twice changes nothing more.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "base/text.h"
#include "launch/output/output_clean.h"

#include <stdbool.h>
#include <string.h>

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

/* The length of the allowed sequence at `at`. */
static size_t allowed_escape(const char *at, size_t n)
{
    size_t i = 2;

    must(n >= 3 && at[1] == '[');
    while (i < n && ((at[i] >= '0' && at[i] <= '9') || at[i] == ';' || at[i] == ':'))
        i++;
    must(i < n && (at[i] == 'm' || (at[i] == 'K' && (i == 2 || (i == 3 && at[2] == '0')))));
    return i + 1;
}

static void check(const char *line, size_t n, bool colours)
{
    for (size_t i = 0, step; i < n; i += step) {
        step = 1;
        if (line[i] == '\x1b') {
            must(colours);
            step = allowed_escape(line + i, n - i);
        } else if (line[i] != '\t') {
            step = text_char_bytes(line + i, n - i);
            must(step > 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int colours = 0; size <= 65536 && colours < 2; colours++) {
        /* Exact size, so that the sanitizer finds a read behind it. */
        char *line = ls_calloc(size + 1, 1);
        size_t n;

        if (line == NULL)
            return 0;
        memcpy(line, data, size);
        n = output_clean(line, size, colours != 0);
        must(n <= size);
        check(line, n, colours != 0);
        must(output_clean(line, n, colours != 0) == n);
        ls_free(line);
    }
    return 0;
}
