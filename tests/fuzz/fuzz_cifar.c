/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_cifar.c - the input's first byte selects the file, the rest is its content: records of
 * either set, or names of classes.
 */
#include "fuzz/fuzz.h"

#include <lockstep/data.h>

#include "data/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

static void write_file(const char *name, const void *data, size_t n)
{
    char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, n, file) != n || fclose(file) != 0)
        abort();
}

static void remove_file(const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    (void)unlink(path);
}

static void read_samples(const ls_dataset *d)
{
    static float x[3072];
    sample_reader r = {0};

    for (size_t i = 0; i < ls_dataset_count(d); i++) {
        int64_t y;

        if (sample_read(d, i, i, 0, &r, x, &y) != LS_OK || y < 0 || y >= ls_dataset_classes(d))
            __builtin_trap();
    }
    for (int i = 0; i < ls_dataset_classes(d); i++)
        if (ls_dataset_class_name(d, i) != NULL)
            fuzz_must_be_printable(ls_dataset_class_name(d, i), "");
    sample_reader_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t record[3074];
    static const char *const records[] = {"test_batch.bin", "test.bin"};
    static const char *const names[] = {"batches.meta.txt", "fine_label_names.txt"};
    ls_dataset *d;

    if (size == 0)
        return 0;
    (void)snprintf(folder, sizeof(folder), "/tmp/lockstep-fuzz-XXXXXX");
    if (mkdtemp(folder) == NULL)
        abort();
    const int set = data[0] & 1;

    if (data[0] & 2) {
        write_file(records[set], record, 3073 + (size_t)set);
        write_file(names[set], data + 1, size - 1);
    } else {
        write_file(records[set], data + 1, size - 1);
    }
    if (ls_dataset_open_cifar(folder, "test", &d) == LS_OK) {
        read_samples(d);
        ls_dataset_close(d);
    }
    remove_file(records[set]);
    remove_file(names[set]);
    (void)rmdir(folder);
    return 0;
}
