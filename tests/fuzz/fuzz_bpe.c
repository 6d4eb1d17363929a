/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_bpe.c - vocab.json, merges.txt and a text, with a 0 byte behind each of the files. */
#include "fuzz/fuzz.h"

#include "models/bpe.h"

#include <stdlib.h>

/* The bytes of the ids must be the text again. */
static void encode(const bpe *b, const char *text, size_t n)
{
    size_t at = 0;
    int64_t *ids;
    size_t n_ids;

    if (bpe_encode(b, text, n, &ids, &n_ids) != LS_OK)
        return;
    for (size_t i = 0; i < n_ids; i++) {
        size_t bytes;
        const char *token = bpe_token(b, ids[i], &bytes);

        if (bytes > n - at || memcmp(token, text + at, bytes) != 0)
            __builtin_trap();
        at += bytes;
    }
    if (at != n)
        __builtin_trap();
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *merges = memchr(data, 0, size);
    const uint8_t *text =
        merges != NULL ? memchr(merges + 1, 0, size - (size_t)(merges + 1 - data)) : NULL;
    fuzz_file files[2];
    bpe *b;

    if (text == NULL)
        return 0;
    fuzz_file_open(&files[0], data, (size_t)(merges - data));
    fuzz_file_open(&files[1], merges + 1, (size_t)(text - merges - 1));
    if (bpe_open(files[0].path, files[1].path, &b) == LS_OK) {
        encode(b, (const char *)text + 1, size - (size_t)(text + 1 - data));
        bpe_close(b);
    }
    fuzz_file_close(&files[0]);
    fuzz_file_close(&files[1]);
    return 0;
}
