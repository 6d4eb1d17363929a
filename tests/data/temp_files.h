/* SPDX-License-Identifier: Apache-2.0 */
/* temp_files.h - a folder for one test, and files in it. Failures fail the test. */
#ifndef TESTS_DATA_TEMP_FILES_H
#define TESTS_DATA_TEMP_FILES_H

#include <stddef.h>

typedef struct temp_folder {
    char path[256];
} temp_folder;

void temp_folder_create(temp_folder *t);
/* Removes it with all that is in it. */
void temp_folder_remove(temp_folder *t);

/* Makes a folder in it. */
void temp_folder_make(const temp_folder *t, const char *name);

/* "FOLDER/name" into buf, which it returns. */
#define TEMP_PATH_BYTES 512
const char *temp_path(const temp_folder *t, const char *name, char buf[TEMP_PATH_BYTES]);

void temp_write(const char *path, const void *data, size_t bytes);
/* malloc'ed. */
unsigned char *temp_read(const char *path, size_t *bytes);
/* Makes the bytes of a safetensors file those of a file without digests, so that changes of it are
 * loaded. */
void temp_drop_digests(void *file, size_t bytes);

/* One gzip member, malloc'ed. In temp_gzip.c, as it links zlib. */
unsigned char *temp_gzip(const void *data, size_t bytes, size_t *out_bytes);

#endif
