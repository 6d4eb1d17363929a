/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_wav.c - wav files through libsndfile: the header alone, then all samples. */
#include "fuzz/fuzz.h"

#include "models/speech/wav.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    float *samples;
    fuzz_file file;
    size_t n = 0;
    size_t n_read = 0;
    ls_status counted;

    fuzz_file_open(&file, data, size);
    counted = wav_count(file.path, &n, NULL);
    if (wav_read(file.path, &samples, &n_read, NULL) == LS_OK && (counted != LS_OK || n != n_read))
        __builtin_trap();
    free(samples);
    fuzz_file_close(&file);
    return 0;
}
