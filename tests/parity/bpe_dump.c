/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_dump.c VOCAB MERGES TEXT - prints the ids of the tokens of a file, one a line, for
 * bpe_parity.py. */
#include "models/bpe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int64_t *ids = NULL;
    bpe *tokens = NULL;
    size_t n = 0;
    ls_status st = argc == 4 ? bpe_open(argv[1], argv[2], &tokens) : LS_EINVAL;

    if (st == LS_OK)
        st = bpe_encode_file(tokens, argv[3], &ids, &n);
    if (st != LS_OK)
        fprintf(stderr, "bpe_dump: %s\n", ls_last_error());
    for (size_t i = 0; i < n; i++)
        printf("%" PRId64 "\n", ids[i]);
    free(ids);
    bpe_close(tokens);
    return st == LS_OK ? 0 : 1;
}
