/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_idx.c - idx images, plain or gzipped, with valid label files; and the same bytes as labels.
 */
#include "fuzz/fuzz.h"

#include <lockstep/data.h>

#include "data/formats/idx.h"
#include "data/sample.h"
#include "base/alloc.h"

/* Reads the first and the last sample of an opened set. */
static void read_samples(const ls_dataset *d)
{
    const int64_t *dims = ls_dataset_sample_dims(d);
    const size_t pixels_of_one = (size_t)(dims[0] * dims[1] * dims[2]);
    const size_t last = ls_dataset_count(d) - 1;
    sample_reader reader = {0};
    float *pixels;
    int64_t label;

    if (ls_dataset_count(d) == 0)
        return;
    pixels = ls_calloc(pixels_of_one, sizeof(*pixels));
    if (pixels != NULL && (sample_read(d, 0, 0, 0, &reader, pixels, &label) != LS_OK ||
                           sample_read(d, last, last, 0, &reader, pixels, &label) != LS_OK))
        __builtin_trap();
    sample_reader_free(&reader);
    ls_free(pixels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t two_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 3, 9};
    static const uint8_t no_labels[] = {0, 0, 8, 1, 0, 0, 0, 0};
    idx_array array = {0};
    fuzz_file images;
    fuzz_file none;
    fuzz_file labels;
    ls_dataset *d;

    fuzz_file_open(&images, data, size);
    fuzz_file_open(&labels, two_labels, sizeof(two_labels));
    fuzz_file_open(&none, no_labels, sizeof(no_labels));
    if (ls_dataset_open_idx(images.path, labels.path, &d) == LS_OK ||
        ls_dataset_open_idx(images.path, none.path, &d) == LS_OK) {
        read_samples(d);
        ls_dataset_close(d);
    }
    if (idx_read(images.path, 1, 1, &array) == LS_OK)
        ls_free(array.data);
    fuzz_file_close(&none);
    fuzz_file_close(&labels);
    fuzz_file_close(&images);
    return 0;
}
