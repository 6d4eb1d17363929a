/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_internal.h - what bpe.c, bpe_files.c and bpe_words.c share. */
#ifndef MODELS_BPE_INTERNAL_H
#define MODELS_BPE_INTERNAL_H

#include "models/bpe.h"

#include <stdbool.h>

typedef struct bpe_name {
    const char *bytes;
    uint32_t n;
    int32_t id;
} bpe_name;

/* Two neighbouring tokens that become one. The merge of the lowest rank comes first. */
typedef struct bpe_merge {
    int32_t left;
    int32_t right;
    int32_t result;
    int32_t rank;
} bpe_merge;

struct bpe {
    char *text;       /* the bytes of all tokens */
    bpe_name *tokens; /* by id */
    bpe_name *sorted; /* by their bytes, while the files are read */
    size_t n_tokens;
    int32_t of_byte[256]; /* the token of each byte */
    bpe_merge *merges;    /* sorted by left, then by right */
    size_t n_merges;
    uint32_t *first; /* merges[first[t]] to merges[first[t + 1] - 1] have `left` t */
};

/* Sets the error text and returns `status`. */
ls_status bpe_fail(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* All of a regular file without a byte order mark, with a 0 behind it; free() it. LS_EFORMAT when
 * it is longer than `most`. */
LS_MUST_USE ls_status bpe_read_file(const char *path, size_t most, char **out, size_t *n);

/* --- bpe_files.c --- */

LS_MUST_USE ls_status bpe_read_vocab(bpe *b, const char *path);
LS_MUST_USE ls_status bpe_read_merges(bpe *b, const char *path); /* after the vocabulary */

/* --- bpe_words.c --- */

/* The end of the word at text[at], at < n. No merge crosses the ends of words. */
size_t bpe_word_end(const char *text, size_t n, size_t at);

#endif
