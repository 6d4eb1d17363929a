/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - a fuzz target is one function that feeds bytes to a parser. libFuzzer calls it, and in
 * normal builds replay_main.c does with every file of its corpus.
 */
#ifndef LS_TESTS_FUZZ_FUZZ_H
#define LS_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file in memory for parsers that read files; valid until fuzz_file_close(). */
typedef struct fuzz_file {
    int fd;
    char path[64];
} fuzz_file;

void fuzz_file_open(fuzz_file *f, const void *data, size_t size);
void fuzz_file_close(fuzz_file *f);

#endif
