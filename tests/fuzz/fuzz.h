/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - a fuzz target is one function that feeds bytes to a parser. libFuzzer calls it; in
 * normal builds replay_main.c calls it with every file of its corpus.
 */
#ifndef LS_TESTS_FUZZ_FUZZ_H
#define LS_TESTS_FUZZ_FUZZ_H

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file in memory for parsers that read files; valid until fuzz_file_close(). */
typedef struct fuzz_file {
    int fd;
    char path[64];
} fuzz_file;

void fuzz_file_open(fuzz_file *f, const void *data, size_t size);
void fuzz_file_close(fuzz_file *f);

/* Traps at bytes that text_printable() would have replaced; `allowed` are further characters. */
static inline void fuzz_must_be_printable(const char *text, const char *allowed)
{
    while (*text != 0) {
        const size_t n = text_char_bytes(text, strlen(text));

        if (n == 0 && strchr(allowed, *text) == NULL)
            __builtin_trap();
        text += n > 0 ? n : 1;
    }
}

#endif
