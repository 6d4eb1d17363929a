/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe.h - text as tokens: bytes, or GPT-2's byte-level BPE (Radford et al. 2019; Sennrich et al.
 * 2016) by the files vocab.json and merges.txt of Hugging Face and OpenAI. Every text has tokens,
 * also one that is not UTF-8, and the bytes of its tokens are the text.
 *
 * Errors     Their text is ls_last_error(). A bad file is LS_EFORMAT with file and position.
 * Threads    A bpe does not change: any number of threads may use it.
 */
#ifndef MODELS_BPE_H
#define MODELS_BPE_H

#include <lockstep/base.h>

enum {
    BPE_MOST_TOKENS = 1 << 20,
    BPE_MOST_FILE_BYTES = 64 << 20, /* of vocab.json and of merges.txt */
    BPE_MOST_TEXT_BYTES = 1 << 30,
};

typedef struct bpe bpe;

/*
 * Reads both files. Both NULL: a token for each byte, with the byte as its id. One NULL: LS_EINVAL.
 * LS_EFORMAT: vocab.json is not an object of names and ids from 0 without a gap; a token occurs
 * twice, or one of the 256 bytes has no token; a merge is of tokens, or makes one, that the
 * vocabulary lacks, or occurs twice; a file is too long.
 */
LS_MUST_USE ls_status bpe_open(const char *vocab, const char *merges, bpe **out);
void bpe_close(bpe *b); /* NULL is allowed */

int64_t bpe_count(const bpe *b); /* tokens; their ids are 0 to bpe_count() - 1 */

/* The bytes of a token, without a 0 behind them; valid until bpe_close(). */
const char *bpe_token(const bpe *b, int64_t id, size_t *n);

/* The ids of text[0..n), which the caller frees with free(). Names of special tokens, such as
 * <|endoftext|>, are text like any other. Characters that Unicode 15 does not assign count as
 * signs. LS_ENOMEM; LS_EINVAL for more than BPE_MOST_TEXT_BYTES. */
LS_MUST_USE ls_status bpe_encode(const bpe *b, const char *text, size_t n, int64_t **ids,
                                 size_t *n_ids);
/* The same for the content of a file. LS_ENOTFOUND, LS_EIO. */
LS_MUST_USE ls_status bpe_encode_file(const bpe *b, const char *path, int64_t **ids, size_t *n_ids);

#endif
