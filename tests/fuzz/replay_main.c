/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_main.c - runs a fuzz target over files without libFuzzer, so that every build repeats
 * earlier findings. Arguments are files or folders of files.
 */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static size_t n_replayed;

/* The whole file, malloc'ed to its exact size, so that ASan finds a read behind the end. */
static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    uint8_t *data = NULL;

    if (file == NULL || fstat(fileno(file), &info) != 0) {
        perror(path);
        exit(1);
    }
    *size = (size_t)info.st_size;
    data = malloc(*size > 0 ? *size : 1);
    if (data == NULL || fread(data, 1, *size, file) != *size) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    (void)fclose(file);
    return data;
}

static void replay(const char *path)
{
    size_t size;
    uint8_t *data = read_file(path, &size);

    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
    n_replayed++;
}

static void replay_folder(const char *folder)
{
    struct dirent **entries;
    const int n = scandir(folder, &entries, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        char path[4096];

        if (entries[i]->d_name[0] != '.') {
            (void)snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
            replay(path);
        }
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat info;

        if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode))
            replay_folder(argv[i]);
        else
            replay(argv[i]);
    }
    (void)printf("%zu inputs replayed\n", n_replayed);
    return n_replayed > 0 ? 0 : 1;
}
